"""Plans a reprocessing run: the version that replaces the rows of a commit (PROTOCOL.md, 4.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.errors import InvalidError, SourceChangedError, StreamsemError
from airflow_provider_streamsem.pipeline.run.corrections import before_version, is_outdated, repinned
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline
from airflow_provider_streamsem.pipeline.spec.lookups import check_lookups, pin_lookups
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.commit import abort_outcome, close, plan_of
from airflow_provider_streamsem.pipeline.versions.publish import (
    current_output,
    publishing_sink,
)
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.entries import Json, Outcome, Plan
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.procedures import Ready
from airflow_provider_streamsem.protocol.view import Head, OpenHead, is_bound
from airflow_provider_streamsem.state import files as state_files

logger = telemetry.log_of(__name__)

Repin: TypeAlias = Callable[[BoundPipeline, Plan], Json]


def refuse_sinks(pipeline: Pipeline) -> None:
    """Refuse sinks that cannot replace published rows. Called before the run writes anything."""
    if unable := pipeline.sinks_that_cannot_remove_rows:
        raise InvalidError(
            "reprocessing must replace rows, but these sinks cannot replace published rows; nothing was written",
            sinks=unable,
        ).advising("fork the pipeline with a new log and new tables, and run the fork with the corrected code.")


_EXPIRED = (
    'reprocess newer versions only. If a correction of an upstream pipeline requires this version, set on_reprocess="ignore" of the source to keep the rows, '
    "or read the upstream again with a new log and new datasets. For later versions, raise keep_versions or keep_days of vacuum."
)


def abort_reprocessing(bound: BoundPipeline, run_key: str, reason: str) -> None:
    """
    Abort the open version of a reprocessing run of which an attempt failed (W22).

    Otherwise the open version would block every other run. The abort loses no records, because a reprocessing run does not move the offsets. A held version
    that has a staged attempt, and a version with an attempt that gates hold, stay open, because a user may be reviewing them. If the abort fails, this is
    logged, and the next run aborts a version that is not held.
    """
    log = bound.log
    try:
        head = log.newest_head()
        if (
            isinstance(head, OpenHead)
            and isinstance(head.plan.work, Reprocess)
            and head.plan.run_key == run_key
            and not any(head.plan.work.held or attempt.is_held for attempt in log.find_staged(head))
        ):
            close(log, head, abort_outcome(log, head, reason=reason, initial_state=bound.record.initial_state))
    except StreamsemError as failure:
        logger.warning("the version of the reprocessing run stays open: %s", failure)


def plan_reprocess(
    bound: BoundPipeline,
    version: int,
    run_key: str,
    current_lookups: bool,
    ready: Ready,
    *,
    held: bool = False,
    repin: Repin = repinned,
) -> Plan:
    """
    Build the plan of a reprocessing run from the commit that it replaces, as of the head (W24, W25). Only a request closes a held version (W39).

    :param repin: returns the pins, given the plan that is replaced
    """
    current = current_commit(bound, ready.head, version)
    replaced, outcome = bound.log.closed_version(current)
    newest = ready.head.outcome
    assert newest is not None  # a version is committed
    work = Reprocess(replaces=current, counts=outcome.counts, held=held)
    transform = bound.pipeline.transform_name
    plan = plan_of(bound.log, ready.head, work, run_key=run_key, j=ready.j, spec=bound.spec, transform=transform)
    planned_lookups = {} if current_lookups else replaced.lookups
    reprocessed = replace(
        plan,
        ranges=replaced.ranges,
        gaps=replaced.gaps,
        pins=repin(bound, replaced),
        lookups=pin_lookups(bound.pipeline, plan.planned_at_ms, planned=planned_lookups),
        run_start=offsets.starts(replaced.ranges),
        watermark_ms=replaced.watermark_ms,
    )
    work.check_replaced(reprocessed, replaced, outcome)
    source = bound.pipeline.source
    pins = [*source.read_pins(reprocessed.pins)]
    if bound.pipeline.state is not None and is_outdated(bound, replaced):
        raise InvalidError(
            "the source has replaced or removed records that the state contains, and reprocessing does not change the state; nothing was written",
            version=version,
        ).advising(before_version(bound.pipeline, version))
    # Check before the plan is created: an open version blocks every other run, and so does a commit that a sink cannot publish.
    check_state(bound, current, outcome, newest)
    source.check_pins(pins, was_read=False)
    check_lookups(bound.pipeline, reprocessed)
    for name in bound.pipeline.sinks_outside_log:
        rows = current_output(bound.log, current, name, newest)
        publishing_sink(bound.pipeline, name).check_removable([] if rows is None else rows.files)
    return reprocessed


def check_state(bound: BoundPipeline, current: int, outcome: Outcome, newest: Outcome) -> None:
    """Check that a version can be reprocessed: no rewrite binds its rows, and the state before it fits the pipeline and can be loaded."""
    _refuse_bound(bound, current, newest)
    _refuse_expired_ids(bound, current, newest)
    _refuse_other_state(bound, outcome, newest)
    _refuse_deleted_state(bound, current)


def _refuse_bound(bound: BoundPipeline, current: int, newest: Outcome) -> None:
    """Refuse a version whose rows are only in the files of a rewrite, together with the rows of other versions (W44)."""
    oldest = newest.oldest_readable
    if current >= oldest or Rewrite.kind not in newest.newest:
        return
    for rewrite in bound.log.view(version=newest.version).rewrites:
        if current in rewrite.commits and is_bound(rewrite, oldest):
            raise InvalidError(
                "the version has expired: vacuum may have deleted its own files, and a compaction has stored its rows together with those of other versions; "
                "nothing was written",
                version=current,
                compacted_by=rewrite.version,
                oldest_readable=oldest,
            ).advising(_EXPIRED)


def _refuse_expired_ids(bound: BoundPipeline, current: int, newest: Outcome) -> None:
    """Vacuum may have deleted the ids before an expired version (W44, V9)."""
    oldest, dedup = newest.oldest_readable, bound.pipeline.dedup
    if dedup is None or not dedup.keeps_state or not oldest:
        return
    root = bound.log.find_root(current)
    if root < oldest:
        raise InvalidError(
            "the version has expired: vacuum may have deleted the ids of the deduplication before it; nothing was written",
            version=root,
            oldest_readable=oldest,
        ).advising(_EXPIRED)


def _refuse_other_state(bound: BoundPipeline, outcome: Outcome, newest: Outcome) -> None:
    """If the deduplication or the state was altered since, neither of the two states fits the records of the version."""
    now = bound.pipeline.immutable_config()
    before = now if outcome.spec == bound.spec else bound.log.config_of(outcome.spec)
    root = bound.log.find_root(outcome.version) if Alter.kind in newest.newest else outcome.version
    dropped = {name for _, alter in bound.log.commits_of(Alter, newest, after=root) for name in alter.state}
    if altered := [field for field in ("dedup", "state") if before.get(field) != now.get(field)] or sorted(dropped):
        raise InvalidError(
            "the pipeline was altered after the version, so its records cannot be reprocessed with the present deduplication or state; nothing was written",
            version=outcome.version,
            altered=altered,
        ).advising(f"reprocess newer versions only, or fork the pipeline at version {outcome.version - 1}.")


def _refuse_deleted_state(bound: BoundPipeline, current: int) -> None:
    """Vacuum, for example, may have deleted the state before the version."""
    if bound.pipeline.state is None:
        return
    root = bound.log.find_root(current)
    if not state_files.is_loadable(bound.log.store, bound.state_before(root)):
        raise InvalidError(
            "files of the state before this version are missing or were changed, for example because vacuum deleted them; nothing was written",
            version=root,
            keep_versions=bound.pipeline.state.keep_versions,
        ).advising("reprocess newer versions only. To keep the state of more versions, raise state.keep_versions.")


def current_commit(bound: BoundPipeline, head: Head, version: int) -> int:
    """Return the commit whose rows are visible for a version: the newest reprocessing run of its chain, or the version itself."""
    outcome = bound.log.outcome(version) if version <= head.closed else None
    if outcome is None or not outcome.has_rows:
        raise InvalidError(
            "only a committed batch can be reprocessed; nothing was written",
            given=version,
            result="not closed" if outcome is None else "abort" if outcome.work is None else outcome.work.name,
            newest_closed=head.closed,
        )
    current = bound.log.find_current(version, head)
    if current is None:
        raise InvalidError(
            "the version was rolled back, so its rows are not visible; nothing was written", given=version
        ).advising("reprocess the version that has read its records since (`streamsem log`).")
    return current


def check_record_count(sources: Mapping[str, Source], plan: Plan, counts: Mapping[str, int]) -> None:
    """
    Refuse a reprocessing run that has read fewer records of a compacting source than the version that it replaces.

    Compaction may have removed records from the source. The commit of the reprocessing run would then remove their rows from the sinks.
    """
    if not isinstance(plan.work, Reprocess):
        return
    for name, source in sources.items():
        count = f"read.{name}" if name else "read"
        before, read = plan.work.counts.get(count, 0), counts.get(count, 0)
        if source.compacts and read < before:
            summary = (
                "the source has fewer records than the replaced version read: records were deleted, or the isolation level changed; "
                "nothing became visible"
            )
            source_field = {"source": name} if name else {}
            raise SourceChangedError(
                summary, version=plan.work.replaces, **source_field, read=before, found=read
            ).advising(
                "abort the open version: the rows of the replaced version stay. To replace them, restore the records of the source first."
            )
