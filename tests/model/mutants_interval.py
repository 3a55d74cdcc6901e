"""Mutants of intervals."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.mutant import Mutant, caught_by
from tests.model.state import Outcome, Plan, State, intervals_after


@caught_by("I28", "interval")
class IntervalIgnoresNeighbors(Mutant):
    """The offsets of an interval are always those that the source has for its start and its end."""

    def bounds(self, s: State, interval: int, head: int, offset_of: Callable[[int], int]) -> tuple[int, int]:
        return offset_of(interval), offset_of(interval + 1)


@caught_by("I28", "interval_unknown")
class AbortReadsInterval(Mutant):
    """The abort of an interval adds the interval to those that were read."""

    def abort_of(self, s: State, n: int) -> Outcome:
        return super().abort_of(s, n)._replace(intervals=self.intervals_of(s, n))


@caught_by("I28", "interval_rollback")
class RollbackKeepsIntervals(Mutant):
    """The outcome of a rollback keeps the intervals. Those of the removed rows are never read again."""

    def rollback_of(self, s: State, plan: Plan) -> Outcome:
        return super().rollback_of(s, plan)._replace(intervals=intervals_after(s.log, len(s.log) - 2))


@caught_by("W53", "interval_rollback")
class RolledBackIntervalStaysComplete(Mutant):
    """The run of an interval whose version was rolled back returns that version."""

    def remains(self, s: State, head: int, n: int) -> bool:
        return True
