"""Determines the work that a run would find. It plans like a run, but keeps every object that the planner creates in memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.source import Planner
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.run.plan import due_watermark, may_wait
from airflow_provider_streamsem.pipeline.spec.binding import read_head
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol import invariants, offsets
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges
from airflow_provider_streamsem.protocol.view import Head, OpenHead
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.overlay import OverlayStore


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """
    An open log whose store keeps all writes in memory, with the planner of the source.

    :param log: the log
    :param is_new: whether there is no log yet
    :param head: the newest version. If ``is_new``, the head at which a first run would start
    :param planner: the planner of the source
    """

    log: CommitLog
    is_new: bool
    head: Head
    planner: Planner


def dry_run(pipeline: Pipeline, *, clock: Clock = SYSTEM_CLOCK) -> DryRun:
    """
    Open the log and the source of a pipeline for planning without writing. The returned planner sends requests to the source when it is called.

    Opening the log costs a GET, a LIST and one to four more GETs. For a new pipeline, the source also determines its initial offsets.
    """
    log = CommitLog(OverlayStore(open_store(pipeline.log)), clock)
    record, source = log.read_pipeline(), pipeline.source
    head = read_head(pipeline, log)
    source_log = log.of_source(source.immutable_config())
    planner = source.peek(source_log, head.hint)
    return DryRun(log=log, is_new=record is None, head=head, planner=planner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """
    The work that a run would find if it started now.

    :param pipeline: name of the pipeline
    :param log: URL of the log
    :param is_due: whether the run would find work. Work is a batch, a no-data batch that closes windows, an open version without progress, or a commit with
        pending publishes. Without a log, this is true too, because the first run creates the log
    :param is_new: whether there is no log yet. The first run creates it
    :param version: the newest closed version; -1 before the first
    :param open_version: the version that has a plan and no outcome, or ``None``
    :param ranges: the ranges of the run's first batch. If the run would continue work of other runs, all remaining ranges of that work
    :param planned_ends: partition → end, exclusive, of the offsets that are claimed: runs have planned them, or a drain will read them
    :param rows: number of records in the first batch after ``planned_ends``, an estimate (Kafka: an upper bound)
    :param lag: number of items of the source that no commit covers, in ``unit``
    :param unit: unit of ``lag``, for example ``files`` or ``offsets``
    """

    pipeline: str
    log: str
    is_due: bool
    is_new: bool
    version: int
    open_version: int | None
    ranges: Ranges
    planned_ends: Offsets
    rows: int
    lag: int
    unit: str

    def to_json(self) -> Json:
        """Return the fields as a JSON object for XCom and events, without ``is_due`` and ``planned_ends``."""
        return {name: value for name, value in plain(self).items() if name not in ("is_due", "planned_ends")}


def limited(pipeline: Pipeline, *, min_rows: int | None, max_delay_s: int | None) -> Pipeline:
    """
    Return the pipeline with other values for ``limits.min_rows`` and ``limits.max_delay_s``. ``None`` keeps the pipeline's value.

    If the result has a delay but no number of rows, its number of rows is 1.

    :raises InvalidError: the result has a number of rows but no delay
    """
    rows = pipeline.limits.min_rows if min_rows is None else min_rows
    delay = pipeline.limits.max_delay_s if max_delay_s is None else max_delay_s
    if delay is not None and rows is None:
        rows = 1
    return pipeline.replace(limits=dataclasses.replace(pipeline.limits, min_rows=rows, max_delay_s=delay))


@with_log_location
def waiting(pipeline: Pipeline, *, clock: Clock = SYSTEM_CLOCK) -> Waiting:
    """
    Plan the next batch as a run would, and determine whether it is due.

    Offsets that a run has planned, or that are below the fixed target of a drain, are claimed and do not count as waiting. If that run makes no progress in
    the log for ``limits.max_delay_s``, another run may continue its work, so they are due. Without that limit they are due immediately.

    :raises StreamsemError: any error that a run would raise before it writes, such as :class:`SourceChangedError` for missing records
    """
    if pipeline.intervals:
        raise InvalidError(
            "a pipeline with intervals reads the interval of each run, so no batch is waiting", pipeline=pipeline.name
        ).advising("schedule its DAG by time. To wait for intervals, use PartitionCompleteSensor.")
    dry = dry_run(pipeline, clock=clock)
    head, limits = dry.head, pipeline.limits
    newest = head.plan if isinstance(head, OpenHead) else _newest_plan(dry)
    planned_ends = _planned_ends(head, newest)
    times = [] if newest is None else [newest.planned_at_ms]
    times += [] if head.outcome is None else [head.outcome.decided_at_ms]
    since_ms = max(times, default=None)
    # The hint in an open plan describes the source at `planned_ends`. The hint in the outcome before it describes an earlier state.
    hint = head.plan.hint if isinstance(head, OpenHead) and head.plan.work.reads_new_records else head.hint
    end = dry.planner.poll(hint)
    batch = dry.planner.slice(planned_ends, end, limits, hint, on_data_loss=pipeline.on_data_loss)
    rows = 0 if batch is None else batch.rows
    now_ms = clock.now_ms()
    is_open = isinstance(head, OpenHead) or planned_ends != dict(head.next)
    is_left = is_open and not may_wait(limits, 0, since_ms=since_ms, now_ms=now_ms)
    is_ready = batch is not None and not may_wait(limits, rows, since_ms=since_ms, now_ms=now_ms)
    closes_windows = batch is None and not is_open and due_watermark(pipeline, head.outcome, now_ms=now_ms) is not None
    unfinished = offsets.between(head.next, planned_ends) if is_left else {}
    return Waiting(
        pipeline=pipeline.name,
        log=pipeline.log,
        is_due=is_left or is_ready or closes_windows or dry.is_new or head.has_pending_publishes,
        is_new=dry.is_new,
        version=head.closed,
        open_version=head.plan.version if isinstance(head, OpenHead) else None,
        ranges=unfinished if batch is None or unfinished else batch.ranges,
        planned_ends=planned_ends,
        rows=rows,
        lag=pipeline.source.count(offsets.between(head.next, end.offsets)),
        unit=pipeline.source.range_unit,
    )


def _newest_plan(dry: DryRun) -> Plan | None:
    """Return the plan of the newest closed version, or ``None``. Between two batches of a drain, only this plan has the drain's target."""
    return None if dry.head.outcome is None else dry.log.plan(dry.head.closed)


def _planned_ends(head: Head, newest: Plan | None) -> Offsets:
    """Return partition → end, exclusive, of the offsets that runs have planned or that the newest drain will read."""
    if newest is None:
        return dict(head.next)
    planned = head.next
    if isinstance(head, OpenHead):
        planned = invariants.next_after(head.plan, before=head.next, committed=True)
    target = newest.target or {}
    return {p: max(offsets.position(planned, p), offsets.position(target, p)) for p in sorted({*planned, *target})}
