"""Restores a pipeline to its state after an earlier version: visible rows, offsets and state (PROTOCOL.md, 4.9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.arguments import exactly_one, integer, text
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.files import layers
from airflow_provider_streamsem.connectors.sink import SinkMarker
from airflow_provider_streamsem.deduplication import state as dedup_state
from airflow_provider_streamsem.errors import ConflictError, InvalidError, MarkerLostError
from airflow_provider_streamsem.pipeline.spec.binding import (
    BoundPipeline,
    bind_existing,
    check_immutable_config,
)
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.closing_times import newest_closed_until
from airflow_provider_streamsem.pipeline.versions.commit import commit, plan_of, settle_and_publish
from airflow_provider_streamsem.pipeline.versions.kept_states import oldest_kept
from airflow_provider_streamsem.pipeline.versions.publish import publishing_sink, rows_after
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.entries import Kind, Marker, Outcome, Plan
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback as RollbackVersion
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.protocol.procedures import OpenVersion, PendingPublish, Ready, RunComplete
from airflow_provider_streamsem.protocol.view import (
    ClosedHead,
    Head,
    OpenHead,
    newest_kept_before,
    remains,
    subtract_counts,
)
from airflow_provider_streamsem.state import files as state_files

logger = telemetry.log_of(__name__)

_TRIES = 10
"""How often a rollback is planned again after another process has rolled the pipeline back at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """
    The result of a rollback.

    :param log: URL of the log
    :param version: the version of the rollback; ``None`` if the pipeline was already at ``to``, so that nothing was written
    :param to: the version to which the pipeline was rolled back
    :param offsets: partition → the offset at which the next batch starts
    :param counts: the row counts that are no longer part of the totals, by name
    """

    log: str
    version: int | None
    to: int
    offsets: Offsets
    counts: Mapping[str, int]


@with_log_location
def rollback(
    pipeline: Pipeline,
    to: int | None = None,
    *,
    until_ms: int | None = None,
    run_key: str | None = None,
    log: CommitLog | None = None,
) -> Rollback:
    """
    Roll a pipeline back to a version. The rows of all later versions disappear, and the next run reads their records again.

    The rollback is a version itself. Its outcome restores the offsets and the state after version ``to``: the deduplication state, the operators' state and the
    watermark. Files stay in the dataset, so a reader of an earlier version still reads them (I7). From each table outside the log, publishing the rollback
    removes the rows of all later versions in one transaction. If the process dies, the next run, or a repeated call, completes the rollback.

    A single batch that was rolled back stays complete: a clear of its task returns its result, and the next run reads its records. A drain that was rolled back
    below its target continues when its task is cleared.

    :param to: a closed version that was not rolled back. Exactly one of ``to`` and ``until_ms`` must be given
    :param until_ms: instead of a version: the newest version that was closed at or before this time, in milliseconds since the epoch
    :param run_key: identifies the request. A repeated call with the same key returns the first result. Default: every call is a new request. A call writes
        nothing if no version was committed after ``to``
    :param log: default: the log at ``pipeline.log``
    :raises InvalidError: the version is not closed or was rolled back; no version was closed by the time; a sink cannot remove published
        rows; a later version has reprocessed a version up to ``to``; or files of the state after ``to`` are missing. Nothing was rolled back
    :raises ConflictError: another process created a version at the same time. Nothing was rolled back
    :raises OpenVersionError: a batch or a reprocessing run is open. Nothing was rolled back
    :raises HeldVersionError: the open version is held
    :raises UnavailableError: a sink did not report a result. A repeated call, or the next run, publishes what is pending
    :raises PublishError: a sink refuses the newest commit, or the rollback. No run can plan until it is published or skipped
    """
    exactly_one("rollback:", to=to, until_ms=until_ms)
    for name, value in (("to", to), ("until_ms", until_ms)):
        if value is not None:
            integer(name, value, least=0)
    if run_key is not None:
        text("run_key", run_key)
    _refuse_sinks(pipeline, f"--at {to}" if until_ms is None else "--until TIME")
    log = log or commit_log_at(pipeline.log)
    bound = bind_existing(pipeline, log)
    to = newest_closed_until(log, until_ms) if until_ms is not None else to
    assert to is not None
    return _roll_back(bound, to, run_key, by_time=until_ms is not None)


def _roll_back(bound: BoundPipeline, to: int, run_key: str | None, *, by_time: bool) -> Rollback:
    """If ``by_time`` found ``to``, a repeated call may find another version, and returns the first result."""
    log, head = bound.log, bound.head
    for _ in range(_TRIES):
        head = log.confirm_head(head)
        was_unfinished = isinstance(head, OpenHead) or head.has_pending_publishes
        head, _ = settle_and_publish(bound, head, "rollback")
        if was_unfinished and run_key is None:
            plan, outcome = log.closed_version(head.closed)
            if plan.run_key == _default_key(to, plan.version - 1):  # an earlier call of this request has planned it
                return _result(log, plan, outcome)
        position = Ready(head=head) if run_key is None else log.locate(run_key, head)
        if isinstance(position, RunComplete):
            _check_request(position.plan, to, by_time=by_time)
            return _result(log, position.plan, position.outcome)
        if isinstance(position, (OpenVersion, PendingPublish)):  # another process has planned since the head was read
            head = position.head
            continue
        if position.before is not None and not isinstance(position.before[0].work, RollbackVersion):
            raise _other_run_error(position.before[0])
        if position.head.spec is not None:
            check_immutable_config(bound.pipeline, log, position.head.spec, version=position.head.closed)
        wanted = _plan(bound, position, to, run_key)
        if wanted is None:
            return Rollback(log=log.store.url, version=None, to=to, offsets=position.head.next, counts={})
        _warn_of_expired_ids(bound, wanted)
        head, committed = commit(log, position.head, wanted)
        if committed is not None:
            settle_and_publish(bound, head, "rollback")
            return _result(log, wanted, committed)
        if not isinstance(_newest_work(log, head), RollbackVersion):
            break
    raise _concurrent_version_error(to, head)


def _concurrent_version_error(to: int, head: Head) -> ConflictError:
    summary = "another process created a version at the same time; this call rolled back nothing"
    return ConflictError(summary, to=to, newest_closed=head.closed).advising(
        "pause the DAG of this pipeline, wait until its runs end, then roll back again."
    )


def _default_key(to: int, closed: int) -> str:
    return f"rollback:{to}:{closed}"


def _newest_work(log: CommitLog, head: Head) -> Kind:
    return head.plan.work if isinstance(head, OpenHead) else log.closed_version(head.closed)[0].work


def _other_run_error(plan: Plan) -> InvalidError:
    return InvalidError(
        "the run key belongs to a run that is not a rollback; nothing was rolled back", run_key=plan.run_key
    ).advising("give the rollback a key of its own.")


def _check_request(plan: Plan, to: int, *, by_time: bool) -> None:
    """A version that was found by a time may differ from that of the first call, because versions were closed since."""
    if isinstance(plan.work, RollbackVersion) and plan.work.to != to and not by_time:
        raise InvalidError(
            "the run key belongs to a rollback to another version; nothing was rolled back",
            run_key=plan.run_key,
            given=to,
            rolled_back_to=plan.work.to,
        ).advising("give each rollback a key of its own.")


def _result(log: CommitLog, plan: Plan, outcome: Outcome) -> Rollback:
    work = plan.work
    if not isinstance(work, RollbackVersion):
        raise _other_run_error(plan)
    if not outcome.committed:
        raise ConflictError(
            "an operator has aborted the rollback; nothing was rolled back", version=plan.version
        ).advising("roll back again.")
    return Rollback(
        log=log.store.url,
        version=plan.version,
        to=work.to,
        offsets=outcome.next,
        counts=work.counts,
    )


def _refuse_sinks(pipeline: Pipeline, position: str) -> None:
    if unable := pipeline.sinks_that_cannot_remove_rows:
        raise InvalidError(
            "a rollback removes rows, but these sinks cannot remove published rows; nothing was written", sinks=unable
        ).advising(
            f"write a pipeline file with a new log and new tables, then run: streamsem fork NEW.toml LOG {position}."
        )


def _plan(bound: BoundPipeline, ready: Ready, to: int, run_key: str | None) -> Plan | None:
    """Return ``None`` if no version after ``to`` changed anything. With a run key, a plan that changes nothing records that the request is done."""
    log, head = bound.log, ready.head
    found = log.outcome(to) if to <= head.closed else None
    if found is None or head.outcome is None:
        raise InvalidError(
            "a pipeline can be rolled back to closed versions only; nothing was rolled back",
            given=to,
            newest_closed=head.closed,
        )
    kept = log.remaining_versions(head.outcome)
    if not remains(to, kept):
        raise InvalidError(
            "the version was rolled back already, so the pipeline cannot return to it; this command changed nothing",
            given=to,
            newest_rollback=head.outcome.newest.get(RollbackVersion.kind),
            newest_kept_before=newest_kept_before(to, kept),
        ).advising("give a version that `streamsem log` does not show as rolled back, such as `newest_kept_before`.")
    _refuse_expired(head.outcome, to)
    newest_alter = head.outcome.newest.get(Alter.kind, -1)
    if to < newest_alter:
        raise InvalidError(
            "the pipeline was altered after the version, and a rollback does not restore another spec; nothing was rolled back",
            given=to,
            altered=newest_alter,
        ).advising(f"roll back to version {newest_alter} or a newer one, or fork the pipeline at version {to}.")
    if run_key is None and not _is_changed(log, kept, to):
        return None
    _refuse_reprocessed(log, to, head.closed)
    restored = found
    _refuse_deleted_state(bound, head, restored)
    counts = subtract_counts(log.view(version=head.closed).counts, log.view(version=to).counts)
    published = _published_after(bound, head, head.outcome, to)
    work = RollbackVersion(
        to=to,
        next={partition: offsets.position(restored.next, partition) for partition in head.next},
        counts={name: count for name, count in counts.items() if count},
        publish=published,
    )
    key = run_key or _default_key(to, head.closed)
    return plan_of(log, head, work, run_key=key, j=ready.j, spec=bound.spec, transform=restored.transform)


def _published_after(bound: BoundPipeline, head: ClosedHead, newest: Outcome, to: int) -> tuple[str, ...]:
    """A sink may be unable to remove the rows because another process has created a version at the same time."""
    found = rows_after(bound.log, to, newest, bound.pipeline.sinks_outside_log)
    names = [name for name, rows in found.items() if rows]
    try:
        for name in names:
            sink = publishing_sink(bound.pipeline, name)
            sink.check_removable([file for rows in found[name].values() for file in rows.files])
            _check_marker(name, sink.marker(bound.record.pipeline_uuid, name), head.markers.get(name))
    except (InvalidError, MarkerLostError) as error:
        if bound.log.confirm_head(head) != head:
            raise _concurrent_version_error(to, head) from error
        raise
    return tuple(names)


def _check_marker(name: str, marker: SinkMarker | None, expected: Marker | None) -> None:
    """If the marker is not that of the newest receipts, publishing the rollback would fail (P8, P9)."""
    if expected is not None and (marker is None or not marker.is_of(expected.version, expected.outcome)):
        raise InvalidError(
            "the marker of a sink is not the one in the newest receipts of the log: the sink or the log was restored from an older copy, or the table was "
            "recreated; nothing was rolled back",
            sink=name,
            marker=None if marker is None else marker.version,
            expected_marker=expected.version,
        ).advising(
            "restore the newest copy of the older one (`marker` is that of the sink, `expected_marker` that of the log), then roll back again. "
            "Or fork the pipeline into new tables with `streamsem fork`."
        )


def _is_changed(log: CommitLog, kept: list[range], to: int) -> bool:
    """Return whether a version after ``to`` was committed and is not rolled back. A rollback that returned to ``to`` is no change."""
    for versions in reversed(kept):
        for version in reversed(versions):
            if version <= to:
                return False
            if log.closed_outcome(version).has_rows:
                return True
    return False


def _refuse_reprocessed(log: CommitLog, to: int, closed: int) -> None:
    """The state after ``to`` lacks what a later reprocessing run of a version up to ``to`` has changed."""
    versions = log.reprocessing_runs_after(to, closed)
    if versions:
        raise InvalidError(
            "a version after `to` has reprocessed a version up to `to`, and the rollback would undo that; nothing was rolled back",
            given=to,
            reprocessed=versions[-1],
        ).advising(
            f"roll back to version {versions[-1]} or a newer one, to a version before the one that it reprocessed, or fork the pipeline at version {to}."
        )


def _warn_of_expired_ids(bound: BoundPipeline, plan: Plan) -> None:
    assert plan.work.based_on is not None  # the plan of a rollback
    state = bound.log.closed_outcome(plan.work.based_on).state
    if dedup_state.has_only_expired_ids(bound.pipeline.dedup, state, plan.planned_at_ms):
        message = "every id in the restored deduplication state has expired by dedup.ttl_s, so records that were dropped as duplicates may be written"
        logger.warning(message)


def _refuse_expired(newest: Outcome, to: int) -> None:
    """The rows of later commits may be only in a rewrite, together with those of earlier ones (W44)."""
    if to < newest.oldest_readable:
        raise InvalidError(
            "the version has expired, so its files may have been deleted; nothing was rolled back",
            given=to,
            oldest_readable=newest.oldest_readable,
        ).advising("roll back to the oldest readable version or a newer one.")


def _refuse_deleted_state(bound: BoundPipeline, head: ClosedHead, restored: Outcome) -> None:
    """Refuse a version whose state cannot be loaded, or which vacuum may delete at the same time."""
    settings = bound.pipeline.state
    oldest = None if settings is None else oldest_kept(bound.log, head.closed, settings.keep_versions)
    is_kept = oldest is None or restored.version >= oldest
    has_files = layers.is_complete(bound.log.store.url, restored.state) and state_files.is_loadable(
        bound.log.store, restored.state
    )
    if not (is_kept and has_files):
        raise InvalidError(
            "files of the state after this version are missing or were changed, or vacuum may delete them at any time; nothing was rolled back",
            version=restored.version,
            oldest_kept=oldest,
        ).advising("roll back to a newer version. To keep the state of more versions, raise state.keep_versions.")
