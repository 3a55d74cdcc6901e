"""What waits to be read, found by planning without writing: discoveries and all else that a planner creates stay in memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from airflow_provider_streamsem.batch.location import on_its_log
from airflow_provider_streamsem.batch.opening import read_head
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.plan import may_wait
from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.protocol import invariants, offsets
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges
from airflow_provider_streamsem.protocol.view import Head
from airflow_provider_streamsem.sources.contract import Planner, Taking
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.overlay import OverlayStore


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """A log as it stands, where nothing can be written. ``is_new``: there is no log yet, and ``head`` is where a first run would start."""

    log: CommitLog
    is_new: bool
    head: Head
    planner: Planner


def dry_run(pipeline: Pipeline, *, clock: Clock = SYSTEM_CLOCK) -> DryRun:
    """
    Open a pipeline that is on its log, to look at it there: its planner asks the source later, too.

    The log costs a GET, a listing and one to four more GETs; a new pipeline's source is asked where it starts.
    """
    log = CommitLog(OverlayStore(open_store(pipeline.log)), clock)
    record, source = log.read_pipeline(), pipeline.source
    head = read_head(pipeline, log)
    kept = log.of_source(source.guarded())
    planner = source.look(kept, head.outcome) if isinstance(source, Taking) else source.open(kept, head.outcome)
    return DryRun(log=log, is_new=record is None, head=head, planner=planner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """
    What a run that starts now would find.

    :param is_due: whether it would find work: a batch, a version that nobody closes, or no log yet
    :param is_new: there is no log yet; the first run makes it
    :param version: the newest closed version; -1 before the first
    :param open_version: a version that is planned and not decided, or ``None``
    :param ranges: what it would read in its first batch; where it would go on with what others left, all of that
    :param taken: up to where runs have planned, or will within a drain: exclusive
    :param rows: about how many records the first batch of what nobody planned yet has (Kafka: at most)
    :param lag: items of the source that no commit covers, in ``unit``
    """

    pipeline: str
    log: str
    is_due: bool
    is_new: bool
    version: int
    open_version: int | None
    ranges: Ranges
    taken: Offsets
    rows: int
    lag: int
    unit: str

    def to_json(self) -> Json:
        """What XCom and events tell: small JSON, partitions only where something waits."""
        return {name: value for name, value in plain(self).items() if name not in ("is_due", "taken")}


def limited(pipeline: Pipeline, *, min_rows: int | None, max_delay_s: int | None) -> Pipeline:
    """
    The pipeline with the two limits that let rows wait as they are given; what is not given stays the pipeline's. A delay alone is for one row.

    :raises InvalidError: rows, and no delay anywhere
    """
    rows = pipeline.limits.min_rows if min_rows is None else min_rows
    delay = pipeline.limits.max_delay_s if max_delay_s is None else max_delay_s
    if delay is not None and rows is None:
        rows = 1
    return pipeline.replace(limits=dataclasses.replace(pipeline.limits, min_rows=rows, max_delay_s=delay))


@on_its_log
def waiting(pipeline: Pipeline, *, clock: Clock = SYSTEM_CLOCK) -> Waiting:
    """
    Plan the next batch as a run would, and say whether it is due.

    Rows that a run has planned, or that lie below the frozen target of a drain, are taken: they do not wait. Where that run makes no step for
    ``limits.max_delay_s``, they wait for another. Without that limit they are not waited for at all.

    :raises StreamsemError: what a run would raise before it writes, such as :class:`SourceChangedError` for records that are gone
    """
    dry = dry_run(pipeline, clock=clock)
    head, limits = dry.head, pipeline.limits
    newest = head.plan or _newest_plan(dry)
    taken = _taken(head, newest)
    times = [] if newest is None else [newest.planned_at_ms]
    times += [] if head.outcome is None else [head.outcome.decided_at_ms]
    since_ms = max(times, default=None)
    dry.planner.follow(head.outcome)
    end = dry.planner.latest_offsets()
    cut = dry.planner.cut(taken, end, limits, on_data_loss=pipeline.on_data_loss)
    rows = 0 if cut is None else dry.planner.rows(cut)
    now_ms = clock.now_ms()
    is_open = head.plan is not None or taken != dict(head.next)
    is_left = is_open and not may_wait(limits, 0, since_ms=since_ms, now_ms=now_ms)
    is_ready = cut is not None and not may_wait(limits, rows, since_ms=since_ms, now_ms=now_ms)
    left = offsets.between(head.next, taken) if is_left else {}
    return Waiting(
        pipeline=pipeline.name,
        log=pipeline.log,
        is_due=is_left or is_ready or dry.is_new or head.owes,
        is_new=dry.is_new,
        version=head.closed,
        open_version=None if head.plan is None else head.plan.version,
        ranges=left if cut is None or left else cut.ranges,
        taken=taken,
        rows=rows,
        lag=offsets.length(offsets.between(head.next, end)),
        unit=pipeline.source.unit,
    )


def _newest_plan(dry: DryRun) -> Plan | None:
    """The plan of the newest closed version: of a drain that is between two batches, only it knows the target."""
    found = None if dry.head.outcome is None else dry.log.plan(dry.head.closed)
    return None if found is None else found[0]


def _taken(head: Head, newest: Plan | None) -> Offsets:
    """Up to where runs have planned, or will within the drain that planned last."""
    if newest is None:
        return dict(head.next)
    planned = head.next if head.plan is None else invariants.next_after(head.plan, before=head.next, committed=True)
    target = newest.target or {}
    return {p: max(offsets.position(planned, p), offsets.position(target, p)) for p in sorted({*planned, *target})}
