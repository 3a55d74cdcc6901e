"""Plans the version that reads an interval, before any row is read (PROTOCOL.md, 4.14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_streamsem.arguments import time_ms
from airflow_provider_streamsem.connectors.source import Planner, SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import InternalError, InvalidError, SourceChangedError, UnavailableError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline
from airflow_provider_streamsem.pipeline.spec.lookups import pin_lookups
from airflow_provider_streamsem.pipeline.versions.commit import plan_of
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json, Plan, ReadInterval
from airflow_provider_streamsem.protocol.kinds import interval as kinds
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges
from airflow_provider_streamsem.protocol.procedures import Ready


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """
    A period of time.

    :param start_ms: its start, inclusive, in milliseconds since the epoch
    :param end_ms: its end, exclusive
    :raises InvalidError: it is empty, or begins before the epoch
    """

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if not 0 <= self.start_ms < self.end_ms:
            raise InvalidError("an interval must begin before it ends, and not before 1970", given=str(self))

    def __str__(self) -> str:
        return f"{kinds.text_of(self.start_ms)}/{kinds.text_of(self.end_ms)}"

    @property
    def texts(self) -> tuple[str, str]:
        """The start and the end as ISO 8601 text in UTC, such as ``2026-01-31T05:00:00+00:00``."""
        return kinds.text_of(self.start_ms), kinds.text_of(self.end_ms)

    @property
    def key(self) -> str:
        """The run key under which the log finds the versions of the interval."""
        return f"interval:{self.start_ms}/{self.end_ms}"


def parse_interval(text: str) -> TimeInterval:
    """
    Return the interval that a text such as ``2026-01-31T05:00Z/2026-01-31T06:00Z`` names.

    :raises InvalidError: the text has another form
    """
    start, slash, end = text.partition("/")
    if not slash:
        raise InvalidError(
            "an interval must have the form START/END", given=text, accepted="2026-01-31T05:00Z/2026-01-31T06:00Z"
        )
    return TimeInterval(time_ms("the start of the interval", start), time_ms("the end of the interval", end))


def plan_interval(
    bound: BoundPipeline, planner: Planner, ready: Ready, *, interval: TimeInterval, request: str
) -> Plan:
    """
    Build the plan of the version that reads an interval. Does not store it.

    :param request: identifies the caller. A repeated call with the same request returns the committed result
    :raises InvalidError: the interval overlaps one that was read. Nothing was written
    :raises UnavailableError: the interval is not over yet
    :raises SourceChangedError: the source no longer has all records of the interval, and ``on_data_loss`` is ``fail``
    """
    log, pipeline, last = bound.log, bound.pipeline, ready.head.outcome
    began_ms, planned_at_ms = log.clock.now_ms(), log.now_ms(ready.head)
    if log.clock.now_ms() < interval.end_ms:
        raise UnavailableError("the interval is not over yet; nothing was written", interval=str(interval)).advising(
            "run the task after the end of its interval. If the interval is over, correct the clock of this machine."
        )
    known = () if last is None else last.intervals
    _refuse_overlap(interval, kinds.overlapping(known, interval.start_ms, interval.end_ms))
    limits = kinds.Limits.of(known, interval.start_ms, interval.end_ms)
    bounds = _bounds(bound, planner, ready, interval, limits)
    ranges: Ranges = {partition: (first, end) for partition, (first, end) in bounds.items() if first < end}
    end = SourceEnd(offsets.ends(bounds))
    part = planner.slice(offsets.starts(bounds), end, Limits(), ready.head.hint, on_data_loss=pipeline.on_data_loss)
    part = part or SourceSlice(ranges={}, pins=(), hint=ready.head.hint, rows=0)  # the interval has no records
    if dict(part.ranges) != ranges or part.corrected:
        raise InternalError(
            "the source planned other offset ranges than those of the interval; nothing was written",
            interval=str(interval),
            requested=dict(ranges),
            returned=dict(part.ranges),
        )
    work = kinds.Interval(start_ms=interval.start_ms, end_ms=interval.end_ms, bounds=bounds, request=request)
    transform = pipeline.transform_name
    plan = plan_of(log, ready.head, work, run_key=interval.key, j=ready.j, spec=bound.spec, transform=transform)
    return replace(
        plan,
        initial_offsets=ready.head.next if last is None else None,
        ranges=ranges,
        gaps=part.gaps,
        pins=plain(part.pins, sparse=True),
        lookups=pin_lookups(pipeline, planned_at_ms),
        hint=part.hint,
        run_start=offsets.starts(ranges),
        planned_at_ms=planned_at_ms,
        planning_ms=max(0, log.clock.now_ms() - began_ms),
    )


def _refuse_overlap(interval: TimeInterval, overlapping: Sequence[ReadInterval]) -> None:
    if overlapping:
        read = [str(TimeInterval(each.start_ms, each.end_ms)) for each in overlapping]
        raise InvalidError(
            "the interval overlaps intervals that were read, so records would be written twice; nothing was written",
            interval=str(interval),
            read=read,
        ).advising(
            "if the schedule has changed, set start_date of the DAG with the new schedule to the end of the last interval in `read`, or use a pipeline with "
            "another name, log and dataset."
        )


def _bounds(
    bound: BoundPipeline, planner: Planner, ready: Ready, interval: TimeInterval, limits: kinds.Limits
) -> dict[str, tuple[int, int]]:
    """Return the offsets at the start and the end of the interval, by partition: those of its neighbors, or those that the source returns for the times."""
    source, hint = bound.pipeline.source, ready.head.hint
    polled = planner.poll(hint).offsets  # also discovers the files whose times are compared
    section = bound.log.of_source(source.immutable_config())
    at_start = {} if limits.follows else source.offsets_for_time_in(section, interval.start_ms)
    at_end = source.offsets_for_time_in(section, interval.end_ms)
    if not offsets.reached(polled, at_end) and not offsets.reached(planner.poll(hint).offsets, at_end):
        raise UnavailableError(
            "the source has records of the interval that cannot be read yet, such as those of open transactions; nothing was written",
            interval=str(interval),
        ).advising("run the task again later, or end the transactions.")
    if not limits.follows and bound.pipeline.on_data_loss == "fail":
        _refuse_deleted(bound, interval, at_start, source.offsets_for_time_in(section, 0))
    return limits.bounds(at_start, at_end)


def _refuse_deleted(bound: BoundPipeline, interval: TimeInterval, at_start: Offsets, oldest: Offsets) -> None:
    """Refuse the interval if the source may have deleted records of it."""
    lost: dict[str, int] = {}
    for name, part in bound.pipeline.source.parts.items():
        prefix = f"{name}/" if name else ""
        own = {partition: at for partition, at in at_start.items() if partition.startswith(prefix)}
        lost |= {p: at for p, at in own.items() if part.lowest_offset < at == oldest.get(p)}
    if lost:
        raise SourceChangedError(
            "the oldest record of the source is not before the start of the interval, so it may have deleted records of the interval; nothing was written",
            interval=str(interval),
            oldest=lost,
        ).advising('to read the remaining records, set on_data_loss="record_gap" of the pipeline.')


def replanned_pins(bound: BoundPipeline, planner: Planner, replaced: Plan) -> Json:
    """
    Return pins of the records that the source has now in the ranges of a plan. A source whose rows may change, such as a database, may have others than before.

    :raises SourceChangedError: the source no longer has all records
    """
    end = SourceEnd(offsets.ends(replaced.ranges))
    hint = bound.head.hint
    part = planner.slice(offsets.starts(replaced.ranges), end, Limits(), hint, on_data_loss="fail")
    if part is None or dict(part.ranges) != dict(replaced.ranges):
        raise InternalError(
            "the source planned other offset ranges than those of the interval; nothing was written",
            version=replaced.version,
            requested=dict(replaced.ranges),
        )
    return plain(part.pins, sparse=True)
