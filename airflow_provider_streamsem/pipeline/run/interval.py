"""Reads an interval, or reads it again and replaces its rows (PROTOCOL.md, 4.14)."""

from __future__ import annotations

from functools import partial

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.arguments import choice, seconds, text
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.run.plan_interval import TimeInterval, parse_interval, plan_interval
from airflow_provider_streamsem.pipeline.run.reprocess import is_complete, reprocess_versions
from airflow_provider_streamsem.pipeline.run.run import Run, alter_before_run
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.result import RunResult
from airflow_provider_streamsem.protocol.kinds.interval import Interval
from airflow_provider_streamsem.protocol.view import OpenHead

logger = telemetry.log_of(__name__)

RERUNS = ("reprocess", "resume")
_POLL_S = 2


@with_log_location
def run_interval(
    pipeline: Pipeline,
    interval: TimeInterval | str,
    *,
    request: str,
    rerun: str = "reprocess",
    patience_s: int = 0,
    engine: Engine | None = None,
    log: CommitLog | None = None,
    alter_from: str | None = None,
) -> RunResult:
    """
    Read the records that arrived in an interval, and commit their rows as one version.

    Intervals may be read in any order, also concurrently. If the interval was read before, by another request, it is read again from the same offsets, and the
    new rows replace the old ones as a whole. A repeated call with the same request returns the result of the first one.

    :param interval: ``START/END`` as ISO 8601 times with a zone, such as ``2026-01-31T05:00Z/2026-01-31T06:00Z``. It must be over, and overlap no other
        interval that the log has. The interval itself may have been read
    :param request: identifies the request, such as a run of a DAG; the same for its retries
    :param rerun: what happens if another request has read the interval: ``reprocess`` replaces its rows; ``resume`` returns its result
    :param patience_s: how long to wait while the version of another interval is open, in seconds from its plan. After that, this process stages that version
        itself. 0: at once
    :param engine: default: Spark in this process
    :param log: default: the log at ``pipeline.log``
    :param alter_from: as for :func:`run_batch`
    :returns: the result; ``interval`` has the start and the end
    :raises InvalidError: the pipeline has no intervals, or the interval overlaps others that were read. Nothing was written
    :raises UnavailableError: the interval is not over yet
    :raises StreamsemError: as :func:`run_batch`
    """
    text("request", request)
    choice("rerun", rerun, RERUNS)
    seconds("patience_s", patience_s, least=0)
    if not pipeline.intervals:
        raise InvalidError("this pipeline has no intervals; nothing was written", pipeline=pipeline.name).advising(
            "remove the interval from the call. For a new pipeline, set intervals=True; with an existing log, use another name, log and dataset."
        )
    interval = parse_interval(interval) if isinstance(interval, str) else interval
    key = interval.key
    with telemetry.phase("run", pipeline=pipeline.name, run_key=key):
        logger.info("guarantee: %s (`streamsem explain` says why)", guarantee(pipeline).named)
        log = log or commit_log_at(pipeline.log)
        alter_before_run(pipeline, log, alter_from)
        _wait_for_turn(log, key, patience_s)
        was_complete = is_complete(log, key)
        run = Run(bind(pipeline, log), key, engine)
        result = run.complete(partial(plan_interval, run.bound, run.planner, interval=interval, request=request))
    is_own = not was_complete or _request_of(log, key) == request
    if not is_own and rerun == "reprocess":
        result = reprocess_versions(pipeline, log, result, request=request, engine=engine, reads_again=True)
    return result.with_interval(interval.texts)


def _request_of(log: CommitLog, key: str) -> str:
    """Return the request that planned the newest version of an interval."""
    plan = log.plan(log.run_versions(key)[-1])
    assert plan is not None  # the run is complete
    assert isinstance(plan.work, Interval)  # its run key is that of an interval
    return plan.work.request


def _wait_for_turn(log: CommitLog, key: str, patience_s: int) -> None:
    """
    Wait until no version of another run is open, or the open one was planned ``patience_s`` ago.

    The log permits one open version. Without the wait, each of several concurrent runs would stage the same version, and one of them would commit it.
    """
    while patience_s and log.read_pipeline() is not None:
        head = log.newest_head()
        if not isinstance(head, OpenHead) or head.plan.run_key == key or head.plan.work.is_held:
            return
        if log.clock.now_ms() - head.plan.planned_at_ms >= patience_s * 1000:
            return
        logger.info("version %d is open: waiting until %s is closed", head.plan.version, head.plan.work.describe())
        log.clock.sleep(_POLL_S)
