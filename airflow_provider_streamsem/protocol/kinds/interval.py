"""An interval: reads the records that arrived in a period of time, in any order of the periods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.entries import Kind, Outcome, Plan, ReadInterval
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Kind):
    """
    The payload of a version that reads an interval.

    The versions of a log with intervals do not move ``next``. The outcome names the time that was read instead, with the offsets at its ends.

    :param start_ms: the start of the interval, inclusive, in milliseconds since the epoch
    :param end_ms: its end, exclusive
    :param bounds: partition → the offsets at the start and at the end, those of partitions without records included
    :param request: identifies the caller that planned the version. A repeated call with the same request returns the committed result
    """

    kind = "interval"
    name = "interval"
    label = "committed"
    color = "green.solid"
    invariant = "I28"
    has_rows = True
    reads_new_records = True
    is_planned_again = True
    stages = True
    uses_spec = True
    start_ms: int
    end_ms: int
    bounds: Ranges
    request: str

    def describe(self) -> str:
        return f"interval {text_of(self.start_ms)}/{text_of(self.end_ms)}"

    def intervals_after(self, intervals: tuple[ReadInterval, ...]) -> tuple[ReadInterval, ...]:
        """Return the intervals with this one, joined with those that end or start where it starts or ends."""
        own = ReadInterval(start_ms=self.start_ms, end_ms=self.end_ms, bounds=self.bounds)
        joined: list[ReadInterval] = []
        for each in sorted([*intervals, own], key=lambda interval: interval.start_ms):
            if joined and joined[-1].end_ms == each.start_ms:
                joined[-1] = _join(joined[-1], each)
            else:
                joined.append(each)
        return tuple(joined)

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """Check that the interval overlaps none that was read, and that its offsets are those between its neighbors (I28)."""
        known = () if before is None else before.intervals
        if not self.start_ms < self.end_ms or overlapping(known, self.start_ms, self.end_ms):
            raise self.damaged("an interval is empty, or overlaps one that was read before", plan.version)
        expected = {partition: (first, last) for partition, (first, last) in self.bounds.items() if first < last}
        if dict(plan.ranges) != expected or plan.watermark_ms is not None or plan.target is not None:
            raise self.damaged("the ranges of an interval are not those between its bounds", plan.version)
        limits = Limits.of(known, self.start_ms, self.end_ms)
        if {*limits.lowest, *limits.highest} - {*self.bounds}:
            raise self.damaged("an interval lacks a partition that its neighbors have", plan.version)
        for partition, (first, last) in self.bounds.items():
            if not limits.permits(partition, first, last):
                raise self.damaged(
                    "the offsets of an interval overlap those of another one, or leave offsets between two adjacent intervals unread",
                    plan.version,
                    partition=partition,
                    range=(first, last),
                )


def text_of(at_ms: int) -> str:
    """Return milliseconds since the epoch as ISO 8601 text in UTC, such as ``2026-01-31T05:00:00+00:00``."""
    try:
        at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return at.isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds")


def overlapping(intervals: Sequence[ReadInterval], start_ms: int, end_ms: int) -> list[ReadInterval]:
    """Return the intervals that have a time in common with ``[start_ms, end_ms)``."""
    return [each for each in intervals if each.start_ms < end_ms and start_ms < each.end_ms]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    The offsets that an interval may have, given those of the intervals that were read.

    :param lowest: partition → the offset at which the newest earlier interval that has the partition ends
    :param highest: partition → the offset at which the oldest later interval that has the partition starts
    :param follows: whether an adjacent interval ends where the planned one starts. The planned offsets then begin at ``lowest``
    :param ends: partition → the start offset of the adjacent later interval. The planned offsets end there. A partition that is missing here was created after
        the later interval was read, and is not limited by it
    """

    lowest: Offsets
    highest: Offsets
    follows: bool
    ends: Offsets

    @classmethod
    def of(cls, intervals: Sequence[ReadInterval], start_ms: int, end_ms: int) -> Limits:
        """Return the limits of ``[start_ms, end_ms)``, which overlaps none of the intervals."""
        earlier = [each for each in intervals if each.end_ms <= start_ms]
        later = [each for each in intervals if each.start_ms >= end_ms]
        return cls(
            lowest={partition: end for each in earlier for partition, (_, end) in each.bounds.items()},
            highest={p: start for each in reversed(later) for p, (start, _) in each.bounds.items()},
            follows=bool(earlier) and earlier[-1].end_ms == start_ms,
            ends=offsets.starts(later[0].bounds) if later and later[0].start_ms == end_ms else {},
        )

    def bounds(self, at_start: Offsets, at_end: Offsets) -> dict[str, tuple[int, int]]:
        """
        Return the offsets of the interval, by partition.

        :param at_start: what the source returns for the start of the interval
        :param at_end: what the source returns for its end
        """
        partitions = sorted({*at_start, *at_end, *self.lowest, *self.highest})
        return {partition: self._bounds(partition, at_start, at_end) for partition in partitions}

    def _bounds(self, partition: str, at_start: Offsets, at_end: Offsets) -> tuple[int, int]:
        lowest, highest = self.lowest.get(partition, 0), self.highest.get(partition)
        first = lowest if self.follows else max(lowest, at_start.get(partition, lowest))
        last = at_end.get(partition, first)
        if highest is not None:
            first, last = min(first, highest), min(last, highest)
        return first, max(first, self.ends.get(partition, last))

    def permits(self, partition: str, first: int, last: int) -> bool:
        """Return whether the interval may have these offsets: no record is in two intervals, or between two that follow each other (I28)."""
        lowest, highest = self.lowest.get(partition, 0), self.highest.get(partition)
        starts_well = first == lowest if self.follows else lowest <= first
        return (
            starts_well
            and first <= last <= (last if highest is None else highest)
            and last == self.ends.get(partition, last)
        )


def _join(left: ReadInterval, right: ReadInterval) -> ReadInterval:
    """Return two adjacent intervals as one. A partition that only one of them has was unknown when the other one was read."""
    bounds = {
        partition: (
            left.bounds.get(partition, right.bounds.get(partition, (0, 0)))[0],
            right.bounds.get(partition, left.bounds.get(partition, (0, 0)))[1],
        )
        for partition in sorted({*left.bounds, *right.bounds})
    }
    return ReadInterval(start_ms=left.start_ms, end_ms=right.end_ms, bounds=bounds)
