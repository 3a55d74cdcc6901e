"""Reprocesses a committed version, or all versions of a run, from the same ranges, and atomically replaces the output (PROTOCOL.md, 4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from airflow_provider_streamsem import state_files, telemetry
from airflow_provider_streamsem.arguments import integer, text
from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, StreamsemError
from airflow_provider_streamsem.pipeline.guarantee import guarantee
from airflow_provider_streamsem.pipeline.location import with_log_location
from airflow_provider_streamsem.pipeline.maintenance import abort
from airflow_provider_streamsem.pipeline.opening import Opened, open_pipeline
from airflow_provider_streamsem.pipeline.publish import current_output, publishing
from airflow_provider_streamsem.pipeline.result import RunResult, announced, together
from airflow_provider_streamsem.pipeline.run import Run, run_batch
from airflow_provider_streamsem.pipeline.spec import Pipeline
from airflow_provider_streamsem.protocol import invariants, offsets
from airflow_provider_streamsem.protocol.entries import Json, Plan, Replaced
from airflow_provider_streamsem.protocol.procedures import Ready, RunComplete
from airflow_provider_streamsem.protocol.view import Head, OpenHead, add_counts, without_pending

logger = telemetry.log_of(__name__)


@with_log_location
def reprocess(
    pipeline: Pipeline,
    version: int,
    *,
    run_key: str | None = None,
    current_lookups: bool = False,
    engine: Engine | None = None,
    log: CommitLog | None = None,
) -> RunResult:
    """
    Reprocess a committed version from the same ranges and pins with the current transform, and replace its output.

    The offsets do not change. The replaced files stay in the dataset, so that readers of earlier versions still read them. Like every run, a reprocessing run
    first closes a version that another run left open.

    :param version: a committed version. If reprocessing runs have replaced it already, this run replaces the newest of them
    :param run_key: names the reprocessing run; the same for its retries. Default: derived from ``version`` and the commit that is replaced
    :param current_lookups: whether the transform reads the current rows of the lookups. Default: those that the replaced version read
    :param engine: default: Spark in this process
    :param log: default: the log at ``pipeline.log``
    :returns: the result of the reprocessing run, whose ``version`` replaces the reprocessed one
    :raises InvalidError: the version is not closed, or was aborted; or a sink cannot replace its rows. Nothing was written
    :raises SourceChangedError: the source no longer holds the records that the version read. Nothing became visible
    :raises DataError: the transform cannot process the rows. The reprocessing run is aborted, and nothing became visible
    """
    # Without a run key, a retry has another key and cannot return this result. If this process died after the announcement, no result would contain the
    # announced versions. So this run announces none.
    return _reprocess(
        pipeline, version, run_key, engine, log, announces=run_key is not None, current_lookups=current_lookups
    )


def _reprocess(
    pipeline: Pipeline,
    version: int,
    run_key: str | None,
    engine: Engine | None,
    log: CommitLog | None,
    *,
    announces: bool,
    current_lookups: bool = False,
) -> RunResult:
    integer("version", version, least=0)
    _refuse_sinks(pipeline)
    opened = open_pipeline(pipeline, log or open_commit_log(pipeline.log))
    # The listing may lag. With an old head, the default run key could be that of a completed reprocessing run, and an existing version could be refused (W24).
    opened = replace(opened, head=opened.log.confirm_head(opened.head))
    if run_key is None:
        run_key = f"reprocess:{version}:{_current(opened, opened.head, version)}"
    run = Run(opened, text("run_key", run_key), engine, announces=announces)
    try:
        with telemetry.phase("run", pipeline=pipeline.name, run_key=run_key):
            logger.info("guarantee: %s (`streamsem explain` says why)", guarantee(pipeline).named)
            return run.to_result(partial(_plan_reprocess, opened, version, run_key, current_lookups))
    except StreamsemError as error:
        if not error.retryable:
            _abort_reprocess_run(opened, run_key, error)
        raise


def _refuse_sinks(pipeline: Pipeline) -> None:
    """
    Refuse sinks that cannot replace published rows. Called before the run writes anything.

    :raises InvalidError: names the sinks
    """
    unable = [name for name in pipeline.publishes if not publishing(pipeline, name).can_reprocess]
    if unable:
        raise InvalidError(
            "reprocessing must replace rows, but these sinks cannot replace published rows; nothing was written",
            sinks=unable,
        )


def _abort_reprocess_run(opened: Opened, run_key: str, error: StreamsemError) -> None:
    """
    Abort the open version of a reprocessing run that no retry can stage (W22).

    Otherwise the open version would block every other run. The abort loses no records, because a reprocessing run does not move the offsets.
    """
    head = opened.log.find_head()
    if isinstance(head, OpenHead) and head.plan.kind == "reprocess" and head.plan.run_key == run_key:
        abort(
            opened.log,
            opened.record,
            head.plan.version,
            reason=f"the reprocessing run cannot be staged: {type(error).__name__}",
        )


@with_log_location
def reprocess_run(
    pipeline: Pipeline,
    *,
    run_key: str,
    request: str,
    drain: bool = False,
    engine: Engine | None = None,
    log: CommitLog | None = None,
) -> RunResult:
    """
    Reprocess every version that a run committed. If the run is not complete, complete it instead.

    :param run_key: the run whose versions are reprocessed
    :param request: identifies this request. If the request is repeated, no version is reprocessed twice
    :param drain: as in :func:`run_batch`, if the run is completed instead
    :returns: ``version`` and ``outcome`` of the last reprocessing run, ``ranges`` of the run, and ``counts`` summed over the reprocessing runs. If the run
        was completed instead: its result
    :raises StreamsemError: as :func:`reprocess`. Versions that were reprocessed before the error keep their new output
    """
    _refuse_sinks(pipeline)
    opened_log = log or open_commit_log(pipeline.log)
    was_answered = _is_answered(opened_log, run_key)
    result = run_batch(pipeline, run_key=run_key, drain=drain, engine=engine, log=log)
    if result.status == "empty" or not was_answered:  # the current transform has just produced these commits
        return result
    counts: dict[str, int] = {}
    reprocessed = 0
    last = result
    requested = f"{run_key}#{request}:"
    for version in opened_log.run_versions(run_key):
        found = opened_log.outcome(version)
        if found is not None and found[0].committed:
            last = _reprocess(pipeline, version, f"{requested}{version}", engine, log, announces=False)
            counts, reprocessed = add_counts(counts, last.counts), reprocessed + 1
    # Announce once, at the end. If a request failed in between and was never repeated, no result would contain the versions that it announced.
    versions, completed = announced(opened_log, last.version)
    return RunResult(
        status="committed",
        pipeline=result.pipeline,
        log=result.log,
        run_key=run_key,
        version=last.version,
        ranges=result.ranges,
        counts=counts,
        batches=reprocessed,
        outcome=last.outcome,
        versions=(min(result.versions[0], versions[0]), max(result.versions[1], versions[1])),
        completed=together([result.completed, [one for one in completed if not one.run_key.startswith(requested)]]),
    )


def _is_answered(log: CommitLog, run_key: str) -> bool:
    """Return whether the run is complete, even if another run has since left a version open or a commit unpublished."""
    if log.read_pipeline() is None:
        return False
    head = log.find_head()
    return isinstance(log.locate(run_key, without_pending(head)), RunComplete)


def _plan_reprocess(opened: Opened, version: int, run_key: str, current_lookups: bool, ready: Ready) -> Plan:
    """Build the plan of a reprocessing run from the commit that it replaces, as of the head (W24, W25)."""
    clock = opened.log.clock
    planned_at_ms = clock.now_ms()
    current = _current(opened, ready.head, version)
    plan, outcome = opened.log.plan(current), opened.log.outcome(current)
    if plan is None or outcome is None:
        raise LogDamagedError("a closed version lacks its plan or its outcome", invariant="I2", version=current)
    reprocessed = Plan(
        version=ready.head.closed + 1,
        kind="reprocess",
        previous=ready.head.outcome_sha,
        ranges=plan[0].ranges,
        gaps=plan[0].gaps,
        pins=plan[0].pins,
        lookups=_lookups(opened.pipeline, {} if current_lookups else plan[0].lookups, planned_at_ms),
        replaces=Replaced(version=current, counts=outcome[0].counts),
        run_key=run_key,
        j=ready.j,
        run_start=offsets.starts(plan[0].ranges),
        planned_at_ms=planned_at_ms,
        spec=opened.spec,
        transform=opened.pipeline.transform_name,
        watermark_ms=plan[0].watermark_ms,
        nonce=clock.new_id(),
    )
    invariants.check_i20(reprocessed, plan[0], outcome[0])
    # Check before the plan is created: an open version blocks every other run, and so does a commit that a sink cannot publish.
    _refuse_deleted_state(opened, current)
    source = opened.pipeline.source
    source.check_pins(source.read_pins(reprocessed.pins), was_read=False)
    for name, lookup in opened.pipeline.lookups.items():
        lookup.check_pin(reprocessed.lookups[name])
    for name in opened.pipeline.publishes:
        publishing(opened.pipeline, name).check_reprocess(current_output(opened.log, current, name))
    return reprocessed


def _lookups(pipeline: Pipeline, planned: Mapping[str, Json], now_ms: int) -> dict[str, Json]:
    """
    Return the pins of the lookups for a reprocessing run.

    :param planned: the pins of the replaced version. A lookup that is not among them gets a pin of its current rows
    """
    return {
        name: planned[name] if name in planned else lookup.pin(now_ms)
        for name, lookup in sorted(pipeline.lookups.items())
    }


def _refuse_deleted_state(opened: Opened, current: int) -> None:
    """
    Refuse a version if vacuum has deleted the state before it.

    :raises InvalidError: a state file is missing
    """
    if opened.pipeline.state is None:
        return
    root = opened.log.find_root(current)
    before = opened.log.outcome(root - 1) if root > 0 else None
    state = opened.record.initial_state if before is None else before[0].state
    if not state_files.is_loadable(opened.log.store, state):
        raise InvalidError(
            "the state before this version was deleted by vacuum; nothing was written",
            version=root,
            keep_versions=opened.pipeline.state.keep_versions,
        ).advising("reprocess newer versions only. To keep the state of more versions, raise state.keep_versions.")


def _current(opened: Opened, head: Head, version: int) -> int:
    """
    Return the commit that has replaced a version: the newest reprocessing run of its chain, or the version itself.

    :raises InvalidError: the version is not closed, or was aborted
    """
    found = opened.log.outcome(version) if version <= head.closed else None
    if found is None or not found[0].committed:
        raise InvalidError(
            "only a committed version can be reprocessed; nothing was written",
            given=version,
            result="not closed" if found is None else found[0].result,
            newest_closed=head.closed,
        )
    return opened.log.find_current(version, head)
