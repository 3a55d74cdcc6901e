"""Plans the next version of a run, before any row is read (PROTOCOL.md, 4.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.clock import iso_time
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.source import Planner, SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import InternalError, SourceChangedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.partitions import SOURCE_TIME
from airflow_provider_streamsem.pipeline.run.corrections import before_version, outdated
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline
from airflow_provider_streamsem.pipeline.spec.lookups import pin_lookups
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions import report
from airflow_provider_streamsem.pipeline.versions.commit import plan_of
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Outcome, Plan
from airflow_provider_streamsem.protocol.kinds.batch import Batch
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, Ranges
from airflow_provider_streamsem.protocol.procedures import Ready
from airflow_provider_streamsem.protocol.view import Head, add_counts, remains
from airflow_provider_streamsem.state.settings import no_data_watermark_ms, operator_state

logger = telemetry.log_of(__name__)


def may_wait(limits: Limits, rows: int, *, since_ms: int | None, now_ms: int) -> bool:
    """
    Return whether the run leaves the rows for a later run: there are fewer than ``limits.min_rows``, and ``limits.max_delay_s`` has not elapsed.

    :param since_ms: when the newest outcome was created; ``None`` before the first outcome: version 0 is never delayed
    :param now_ms: the current time, which the plan records as ``planned_at_ms`` (I13)
    """
    if limits.min_rows is None or limits.max_delay_s is None or since_ms is None or rows >= limits.min_rows:
        return False
    return now_ms < since_ms + limits.max_delay_s * 1000


@dataclass(frozen=True, slots=True)
class Corrections:
    """Committed batches, in ascending order, to reprocess before the run plans further, because the source has replaced records that they read."""

    versions: list[int]


def plan_batch(
    bound: BoundPipeline, planner: Planner, ready: Ready, *, run_key: str, drain: bool
) -> Plan | Corrections | None:
    """
    Build the next plan of a run. Does not store it.

    The first plan of a drain records the target: the current end offsets of the source. Every later plan of the run ends at or below that target (W14, I19).

    :returns: the plan; :class:`Corrections` if versions must be reprocessed first; ``None`` if the source has nothing new (W15), or if the run leaves the rows
        for a later run. If a pipeline with state has windows to close, a plan without ranges (W29) in place of ``None``
    :raises SourceChangedError: versions must be reprocessed first, and ``on_reprocess`` of the source is ``refuse``
    """
    clock = bound.log.clock
    began_ms, planned_at_ms = clock.now_ms(), _batch_time_ms(bound, ready.head)
    start, target = ready.head.next, ready.target
    last, hint = ready.head.outcome, ready.head.hint
    end, lag = _poll_end(bound, planner, ready)
    limits = bound.pipeline.limits
    if drain and ready.j == 0:
        target = end.offsets
    batch = planner.slice(start, end, limits, hint, on_data_loss=bound.pipeline.on_data_loss)
    if batch is not None and batch.corrected and (versions := outdated(bound, ready.head, batch.corrected)):
        _refuse_corrections(bound, batch.corrected, versions)
        return Corrections(versions)
    watermark_ms = None
    if batch is None:
        _refuse_unfinished_drain(ready)
        watermark_ms = due_watermark(bound.pipeline, last, now_ms=planned_at_ms)
        if watermark_ms is None:
            return None
        batch = SourceSlice(ranges={}, pins=(), hint=hint, rows=0)
    since_ms = None if last is None else last.decided_at_ms
    if batch.ranges and ready.j == 0 and may_wait(limits, batch.rows, since_ms=since_ms, now_ms=planned_at_ms):
        logger.info("%s", report.waiting(batch.rows, limits))
        return None
    transform = bound.pipeline.transform_name
    plan = plan_of(bound.log, ready.head, Batch(), run_key=run_key, j=ready.j, spec=bound.spec, transform=transform)
    return replace(
        plan,
        initial_offsets=start if last is None else None,
        ranges=batch.ranges,
        gaps=batch.gaps,
        pins=plain(batch.pins, sparse=True),
        lookups=pin_lookups(bound.pipeline, planned_at_ms),
        hint=batch.hint,
        target=target,
        run_counts=_run_counts(bound, ready),
        run_start=_run_start(ready, target, batch.ranges),
        planned_at_ms=planned_at_ms,
        planning_ms=max(0, clock.now_ms() - began_ms),
        lag=lag,
        watermark_ms=watermark_ms,
        source_time_ms=_source_time_ms(bound, planner, {**start, **offsets.ends(batch.ranges)}),
    )


def _source_time_ms(bound: BoundPipeline, planner: Planner, ends: Offsets) -> int | None:
    """Return a time before which every record that arrived in the source is read up to some offsets, if the completeness of partitions depends on it."""
    partitions = bound.pipeline.partitions
    if partitions is None or partitions.complete != SOURCE_TIME:
        return None
    now_ms = bound.log.clock.now_ms()  # before the request: records that arrive later are not in its reply
    unread_ms = planner.minimum_clock(ends)
    return now_ms if unread_ms is None else min(now_ms, unread_ms)


def _batch_time_ms(bound: BoundPipeline, head: Head) -> int:
    """Return the time of the next plan, in milliseconds since the epoch. Warns if it is far before the newest outcome: one of two clocks is wrong."""
    now_ms = bound.log.now_ms(head)
    if now_ms < head.time_ms:
        logger.warning(
            "the clock of this machine is at %s, but version %d was closed at %s: one of two machines has a wrong clock. The clock determines which ids of "
            "dedup expire by ttl_s, and which windows close_after_s closes. Do: synchronize the clocks of the workers",
            iso_time(now_ms), head.closed, iso_time(head.time_ms),
        )  # fmt: skip
    return now_ms


def _poll_end(bound: BoundPipeline, planner: Planner, ready: Ready) -> tuple[SourceEnd, int]:
    """A later plan of a drain ends at the run's target. A partition that an alter has added since is not in it, so it is not read."""
    start, target = ready.head.next, ready.target
    end = planner.poll(ready.head.hint) if target is None else SourceEnd({**start, **target})
    telemetry.emit(telemetry.SourcePolled.from_offsets, start, end.offsets)
    source = bound.pipeline.source
    unread = source.count(offsets.between(start, end.offsets))
    logger.info("%s", report.lag(unread, unit=source.range_unit, is_target=target is not None))
    return end, unread


def _run_start(ready: Ready, target: Offsets | None, ranges: Ranges) -> dict[str, int]:
    """Return the offsets at which the run's first plan started, lowered to those of the head if a rollback went below them."""
    if ready.before is not None:
        return {
            partition: min(offset, offsets.position(ready.head.next, partition))
            for partition, offset in ready.before[0].run_start.items()
        }
    start = ready.head.next
    return {p: offsets.position(start, p) for p in sorted({*start, *(target or {}), *ranges})}


def _run_counts(bound: BoundPipeline, ready: Ready) -> dict[str, int]:
    """Return the sum of the counts of the run's commits that were not rolled back."""
    if ready.before is None:
        return {}
    plan, outcome = ready.before
    newest = ready.head.outcome
    if newest is not None and newest.newest.get(Rollback.kind, -1) > plan.version:
        return _visible_counts(bound.log, plan.run_key, newest)
    return add_counts(plan.run_counts, outcome.counts) if outcome.committed else dict(plan.run_counts)


def visible_commits(log: CommitLog, run_key: str, newest: Outcome) -> list[Outcome]:
    """Return the commits of a run that were not rolled back, in ascending order of versions."""
    kept = log.remaining_versions(newest)
    stored = [log.outcome(version) for version in log.run_versions(run_key) if remains(version, kept)]
    return [outcome for outcome in stored if outcome is not None and outcome.committed]


def _visible_counts(log: CommitLog, run_key: str, newest: Outcome) -> dict[str, int]:
    total: dict[str, int] = {}
    for outcome in visible_commits(log, run_key, newest):
        total = add_counts(total, outcome.counts)
    return total


def _refuse_corrections(bound: BoundPipeline, corrected: Gaps, versions: list[int]) -> None:
    """Refuse to read new versions if versions are outdated and the source does not let runs reprocess them."""
    source = bound.pipeline.source
    if source.on_reprocess not in (None, "reprocess"):
        if bound.pipeline.state is not None:
            raise SourceChangedError(
                "the source has replaced or removed records that this pipeline has read, and its state contains them; nothing was planned",
                pipeline=bound.pipeline.name,
                versions=versions,
            ).advising(before_version(bound.pipeline, versions[0]))
        raise SourceChangedError(
            "the source has replaced records that this pipeline has read, so the rows of these versions are outdated; nothing was planned",
            pipeline=bound.pipeline.name,
            versions=versions,
            replaced={partition: list(ranges) for partition, ranges in corrected.items()},
        ).advising(_advice_for_outdated(bound.pipeline, source.on_reprocess, versions[0]))


def _advice_for_outdated(pipeline: Pipeline, on_reprocess: str, first: int) -> str:
    """Return the advice for outdated rows. With ``ignore``, the source removed their records: it delivers them again, so the rows cannot be kept."""
    if pipeline.sinks_that_cannot_remove_rows:
        keep = "" if on_reprocess == "ignore" else 'set on_reprocess of the source to "ignore" to keep the rows, or '
        return f"{keep}{before_version(pipeline, first)} The sinks of this pipeline cannot replace rows."
    reprocess = "run `streamsem reprocess PIPELINE VERSION` for each of `versions`, then run again"
    keep = "" if on_reprocess == "ignore" else ', or to "ignore" to keep the rows'
    return f'{reprocess}. Or set on_reprocess of the source to "reprocess"{keep}.'


def _refuse_unfinished_drain(ready: Ready) -> None:
    """Below the target of a drain, there must be records."""
    if ready.before is not None and ready.target is not None:
        raise InternalError(
            "a drain has not reached its target, but the source returned nothing to read; nothing was planned",
            target=dict(ready.target),
            next=dict(ready.head.next),
        )


def due_watermark(pipeline: Pipeline, last: Outcome | None, *, now_ms: int) -> int | None:
    """Return the watermark of a no-data batch, in milliseconds since the epoch; ``None`` if none is due (W29)."""
    state = None if last is None else operator_state(last.state)
    if pipeline.state is None or last is None or state is None:
        return None
    return no_data_watermark_ms(pipeline.state, state, closed_ms=last.decided_at_ms, now_ms=now_ms)
