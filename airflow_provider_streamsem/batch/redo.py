"""Redo: the rows of a commit made anew from the same ranges; readers switch by one object (PROTOCOL.md, 4.6)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.arguments import text, whole
from airflow_provider_streamsem.batch.guarantee import guarantee
from airflow_provider_streamsem.batch.location import on_its_log
from airflow_provider_streamsem.batch.maintenance import abort
from airflow_provider_streamsem.batch.opening import Opened, open_pipeline
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.publish import publishing, standing
from airflow_provider_streamsem.batch.result import RunResult, announced, together
from airflow_provider_streamsem.batch.run import Run, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.engines.contract import Engine
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, StreamsemError
from airflow_provider_streamsem.protocol import invariants, offsets
from airflow_provider_streamsem.protocol.entries import Plan, Replaced
from airflow_provider_streamsem.protocol.procedures import Answered, Ready
from airflow_provider_streamsem.protocol.view import Head, add_counts

logger = telemetry.log_of(__name__)


@on_its_log
def redo(
    pipeline: Pipeline,
    version: int,
    *,
    run_key: str | None = None,
    engine: Engine | None = None,
    log: CommitLog | None = None,
) -> RunResult:
    """
    Make the rows of a committed version anew, from the same ranges and pins, with the transform as it is now.

    The offsets stay where they are. The files that are replaced stay in the dataset, so that earlier versions read as they did. An open version is closed
    first, as by every run.

    :param version: a committed version; where redos have replaced it, the newest of them is replaced
    :param run_key: names the redo; the same for its retries. Default: made of ``version`` and of the commit that is replaced
    :raises InvalidError: the version is not closed, or was aborted; or a sink's table does not let its rows go
    :raises SourceChangedError: the source no longer holds what the version read; nothing changed
    :raises DataError: the rows cannot be made anew by this transform; the redo is closed as an abort, and nothing became visible
    """
    # Without a run key no retry would announce what this process records as announced.
    return _redo(pipeline, version, run_key, engine, log, announces=run_key is not None)


def _redo(
    pipeline: Pipeline,
    version: int,
    run_key: str | None,
    engine: Engine | None,
    log: CommitLog | None,
    *,
    announces: bool,
) -> RunResult:
    whole("version", version, least=0)
    _refuse_sinks(pipeline)
    opened = open_pipeline(pipeline, log or open_commit_log(pipeline.log))
    # A listing that lags would name a redo that is done as the one that is asked for, or refuse a version that is there.
    opened = replace(opened, head=opened.log.confirm_head(opened.head))
    if run_key is None:
        run_key = f"redo:{version}:{_current(opened, opened.head, version)}"
    run = Run(opened, text("run_key", run_key), engine, announces=announces)
    try:
        with telemetry.phase("run", pipeline=pipeline.name, run_key=run_key):
            logger.info("guarantee: %s (`streamsem explain` says why)", guarantee(pipeline).named)
            return run.to_answer(partial(_plan_redo, opened, version, run_key))
    except StreamsemError as error:
        if not error.retryable:
            _give_up(opened, run_key, error)
        raise


def _refuse_sinks(pipeline: Pipeline) -> None:
    """Before anything is written: what a sink cannot take back, no redo can replace."""
    unable = [name for name in pipeline.publishes if not publishing(pipeline, name).redoes]
    if unable:
        raise InvalidError(
            "a redo replaces rows, and these sinks cannot replace what they have published", sinks=unable
        )


def _give_up(opened: Opened, run_key: str, error: StreamsemError) -> None:
    """Close a redo that no retry can stage: no offset depends on it, and an open version would stop every other run (W22)."""
    head = opened.log.find_head()
    if head.plan is not None and head.plan.kind == "redo" and head.plan.run_key == run_key:
        abort(opened.log, opened.record, head.plan.version, reason=f"the redo cannot be staged: {type(error).__name__}")


@on_its_log
def redo_run(
    pipeline: Pipeline,
    *,
    run_key: str,
    request: str,
    drain: bool = False,
    engine: Engine | None = None,
    log: CommitLog | None = None,
) -> RunResult:
    """
    Redo every version that a run committed; a run that is not finished is finished instead.

    :param request: names this request among the redos of the run; the same request again does nothing twice
    :returns: the last redo's version and outcome, the ranges of the run, and the sum of the counts
    """
    _refuse_sinks(pipeline)
    opened_log = log or open_commit_log(pipeline.log)
    was_answered = _is_answered(opened_log, run_key)
    result = run_batch(pipeline, run_key=run_key, drain=drain, engine=engine, log=log)
    if result.status == "empty" or not was_answered:  # what was committed just now was made by this very transform
        return result
    counts: dict[str, int] = {}
    redone = 0
    last = result
    requested = f"{run_key}#{request}:"
    for version in opened_log.run_versions(run_key):
        found = opened_log.outcome(version)
        if found is not None and found[0].committed:
            last = _redo(pipeline, version, f"{requested}{version}", engine, log, announces=False)
            counts, redone = add_counts(counts, last.counts), redone + 1
    # Once, at the end: a request that fails half-way is not repeated, and would keep the versions that it announced to itself.
    versions, completed = announced(opened_log, last.version)
    return RunResult(
        status="committed",
        pipeline=result.pipeline,
        log=result.log,
        run_key=run_key,
        version=last.version,
        ranges=result.ranges,
        counts=counts,
        batches=redone,
        outcome=last.outcome,
        versions=(min(result.versions[0], versions[0]), max(result.versions[1], versions[1])),
        completed=together([result.completed, [one for one in completed if not one.run_key.startswith(requested)]]),
    )


def _is_answered(log: CommitLog, run_key: str) -> bool:
    """Whether the run has its answer, whatever other runs have left open or unpublished since."""
    if log.read_pipeline() is None:
        return False
    head = log.find_head()
    closed = replace(head, plan=None, plan_sha="", owes=False)
    return isinstance(log.locate(run_key, closed), Answered)


def _plan_redo(opened: Opened, version: int, run_key: str, ready: Ready) -> Plan:
    """Cut a redo's plan from the log as it stands at the head (W24, W25)."""
    clock = opened.log.clock
    planned_at_ms = clock.now_ms()
    current = _current(opened, ready.head, version)
    plan, outcome = opened.log.plan(current), opened.log.outcome(current)
    if plan is None or outcome is None:
        raise LogDamagedError("a closed version lacks its plan or its outcome", invariant="I2", version=current)
    redone = Plan(
        version=ready.head.closed + 1,
        kind="redo",
        previous=ready.head.outcome_sha,
        ranges=plan[0].ranges,
        gaps=plan[0].gaps,
        pins=plan[0].pins,
        replaces=Replaced(version=current, counts=outcome[0].counts),
        run_key=run_key,
        j=ready.j,
        run_start=offsets.starts(plan[0].ranges),
        planned_at_ms=planned_at_ms,
        spec=opened.spec,
        transform=opened.pipeline.transform_name,
        nonce=clock.new_id(),
    )
    invariants.check_i20(redone, plan[0], outcome[0])
    # Before anything is written: an open version stops every other run, and so does one that no sink can publish.
    opened.pipeline.source.check_pins(redone.pins, was_read=False)
    for name in opened.pipeline.publishes:
        publishing(opened.pipeline, name).check_redo(standing(opened.log, current, name))
    return redone


def _current(opened: Opened, head: Head, version: int) -> int:
    """The commit that holds the rows of a version now; refuses one that never had any."""
    found = opened.log.outcome(version) if version <= head.closed else None
    if found is None or not found[0].committed:
        raise InvalidError(
            "only a committed version can be redone",
            given=version,
            result="not closed" if found is None else found[0].result,
            newest_closed=head.closed,
        )
    return opened.log.find_current(version, head)
