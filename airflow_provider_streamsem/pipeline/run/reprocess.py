"""Reprocesses a committed version, or all versions of a run, from the same ranges, and atomically replaces the output (PROTOCOL.md, 4.6)."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.pipeline.run.plan import visible_commits
from airflow_provider_streamsem.pipeline.run.plan_reprocess import current_commit, refuse_sinks
from airflow_provider_streamsem.pipeline.run.run import run_batch, run_reprocessing
from airflow_provider_streamsem.pipeline.run.selection import Selection, check_selection, select
from airflow_provider_streamsem.pipeline.spec.binding import bind_existing
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions import report
from airflow_provider_streamsem.pipeline.versions.result import (
    RunResult,
    announce_planned,
    complete_partitions,
    empty_result,
    merge_completed,
)
from airflow_provider_streamsem.protocol.procedures import RunComplete
from airflow_provider_streamsem.protocol.view import Head, add_counts, without_pending
from airflow_provider_streamsem.verbs import VERSION

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
    Reprocess a committed version from the same ranges with the current transform, and replace its output.

    The pins are those of the version, so the records are the same. If the source is another pipeline, the run reads the newest rows of
    those upstream versions.

    The offsets do not change. The replaced files stay in the dataset, so that readers of earlier versions still read them. Like every run, a reprocessing run
    first closes a version that another run left open.

    The state of a transform does not change either. With ``state``, the log names the later versions, which keep their rows and state.

    :param version: a committed version. If reprocessing runs have replaced it already, this run replaces the newest of them
    :param run_key: names the reprocessing run; the same for its retries. Default: derived from ``version`` and the commit that is replaced
    :param current_lookups: whether the transform reads the current rows of the lookups. Default: those that the replaced version read
    :param engine: default: Spark in this process
    :param log: default: the log at ``pipeline.log``
    :returns: the result of the reprocessing run, whose ``version`` replaces the reprocessed one
    :raises InvalidError: the version is not closed, or was aborted; or a sink cannot replace its rows. Nothing was written
    :raises SourceChangedError: the source no longer holds the records that the version read. Nothing became visible
    :raises DataError: the transform cannot process the rows. The reprocessing run is aborted, and nothing became visible
    :raises StageError: an attempt failed. The reprocessing run is aborted, and nothing became visible. A repeated call reprocesses the version again
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
    reads_again: bool = False,
) -> RunResult:
    VERSION.checked(version)
    refuse_sinks(pipeline)
    bound = bind_existing(pipeline, log or commit_log_at(pipeline.log))
    # The listing may lag. With an old head, the default run key could be that of a completed reprocessing run, and an existing version could be refused (W24).
    bound = replace(bound, head=bound.log.confirm_head(bound.head))
    if run_key is None:
        run_key = f"reprocess:{version}:{current_commit(bound, bound.head, version)}"
    text("run_key", run_key)
    with telemetry.phase("run", pipeline=pipeline.name, run_key=run_key):
        logger.info("guarantee: %s (`streamsem explain` says why)", guarantee(pipeline).named)
        result = run_reprocessing(
            bound,
            version,
            run_key,
            engine,
            announces=announces,
            current_lookups=current_lookups,
            reads_again=reads_again,
        )
        later = kept_versions(pipeline, bound.log, result.version)
        if later is not None:
            logger.warning("%s", report.state_kept(later))
        return result


def kept_versions(pipeline: Pipeline, log: CommitLog, version: int) -> range | None:
    """
    Return the versions whose rows and state a reprocessing run has kept, although they build on the state after the version whose rows it replaced.

    :returns: the versions between the two, possibly none; ``None`` if the pipeline has no state, or the version is no committed reprocessing run
    """
    outcome = None if pipeline.state is None else log.outcome(version)
    if outcome is None or outcome.replaces is None:
        return None
    return range(log.find_root(version) + 1, version)


@with_log_location
def reprocess_run(
    pipeline: Pipeline,
    *,
    run_key: str,
    request: str,
    drain: bool = False,
    engine: Engine | None = None,
    log: CommitLog | None = None,
    alter_from: str | None = None,
) -> RunResult:
    """
    Reprocess every version that a run committed. If the run is not complete, complete it instead, as :func:`run_batch` does.

    :param run_key: the run whose versions are reprocessed
    :param request: identifies this request. If the request is repeated, no version is reprocessed twice
    :returns: ``version`` and ``outcome`` of the last reprocessing run, ``ranges`` of the run, and ``counts`` summed over the reprocessing runs. If the run was
        completed instead: its result
    :raises StreamsemError: as :func:`reprocess`. Versions that were reprocessed before the error keep their new output
    """
    refuse_sinks(pipeline)
    log = log or commit_log_at(pipeline.log)
    was_complete = is_complete(log, run_key)
    result = run_batch(pipeline, run_key=run_key, drain=drain, engine=engine, log=log, alter_from=alter_from)
    if result.status == "empty" or not was_complete:  # the current transform has just produced these commits
        return result
    return reprocess_versions(pipeline, log, result, request=request, engine=engine)


def reprocess_versions(
    pipeline: Pipeline,
    opened_log: CommitLog,
    result: RunResult,
    *,
    request: str,
    engine: Engine | None,
    reads_again: bool = False,
) -> RunResult:
    """
    Reprocess every visible version of a complete run. ``result`` is its result, and the other arguments are those of :func:`reprocess_run`.

    :param reads_again: whether to read the records that the source has now in the ranges of the versions
    """
    refuse_sinks(pipeline)
    run_key = result.run_key
    visible = _visible_batches(opened_log, run_key, opened_log.newest_head())
    reviewed = [version for version in visible if _was_reviewed(opened_log, version)]
    if reviewed:
        logger.info("versions %s are not reprocessed: a user has committed rows that gates held", reviewed)
    versions_of_run = [version for version in visible if version not in reviewed]
    logger.info("%s", report.reprocessing(versions_of_run))
    if not versions_of_run:  # all versions of the run were rolled back, or committed by a user
        return result
    counts: dict[str, int] = {}
    last = result
    request_prefix = f"{run_key}#{request}:"
    for version in versions_of_run:
        if opened_log.find_current(version, opened_log.newest_head()) is None:  # rolled back in the meantime
            continue
        last = _reprocess(
            pipeline,
            version,
            f"{request_prefix}{version}",
            engine,
            opened_log,
            announces=False,
            reads_again=reads_again,
        )
        counts = add_counts(counts, last.counts)
    # Announce once, at the end. If a request failed in between and was never repeated, no result would contain the versions that it announced.
    versions, completed = announce_planned(opened_log, last.version, request_of=run_key)
    others = [version for version in completed if not version.run_key.startswith(request_prefix)]
    announced = (min(result.versions[0], versions[0]), max(result.versions[1], versions[1]))
    return RunResult(
        status="committed",
        pipeline=result.pipeline,
        log=result.log,
        run_key=run_key,
        version=last.version,
        ranges=result.ranges,
        counts=counts,
        batches=len(versions_of_run),
        outcome=last.outcome,
        versions=announced,
        completed=merge_completed([result.completed, others]),
        complete_partitions=complete_partitions(opened_log, pipeline.partitions, range(*announced)),
    )


@with_log_location
def reprocess_selection(
    pipeline: Pipeline,
    selection: Selection,
    *,
    request: str,
    current_lookups: bool = False,
    engine: Engine | None = None,
    log: CommitLog | None = None,
) -> RunResult:
    """
    Reprocess the versions that a selection has when the function begins, one after the other.

    :param request: identifies this request. If the request is repeated, no version is reprocessed twice
    :returns: the result of the last reprocessing run, with the sums of ``counts`` and ``batches`` and the ``completed`` of all runs. If the selection has no
        version: the status ``empty``
    :raises StreamsemError: as :func:`reprocess`. Versions that were reprocessed before the error keep their new output
    """
    check_selection(pipeline, selection)
    log = log or commit_log_at(pipeline.log)
    bound = bind_existing(pipeline, log)
    versions = select(log, log.confirm_head(bound.head), selection)
    logger.info("%s", report.reprocessing(versions))
    results = [
        _reprocess(
            pipeline,
            version,
            f"{request}:{version}",
            engine,
            log,
            announces=True,
            current_lookups=current_lookups,
        )
        for version in versions
    ]
    if not results:
        return empty_result(bound, log.confirm_head(bound.head), request)
    counts: dict[str, int] = {}
    for each in results:
        counts = add_counts(counts, each.counts)
    return replace(
        results[-1],
        counts=counts,
        batches=len(results),
        versions=(announced := (results[0].versions[0], results[-1].versions[1])),
        complete_partitions=complete_partitions(log, pipeline.partitions, range(*announced)),
        completed=merge_completed(each.completed for each in results),
    )


def _was_reviewed(log: CommitLog, version: int) -> bool:
    """Return whether a user has committed the rows of a version although gates held them (W49)."""
    current = log.find_current(version, log.newest_head())
    return current is not None and any(gate.holds for gate in log.closed_outcome(current).failed_gates)


def _visible_batches(log: CommitLog, run_key: str, head: Head) -> list[int]:
    commits = [] if head.outcome is None else visible_commits(log, run_key, head.outcome)
    return [outcome.version for outcome in commits if outcome.has_rows]


def is_complete(log: CommitLog, run_key: str) -> bool:
    """Return whether the run is complete, even if another run has since left an open version or pending publishes."""
    if log.read_pipeline() is None:
        return False
    head = log.find_head()
    return isinstance(log.locate(run_key, without_pending(head)), RunComplete)
