"""
Finds versions by the time at which they were closed, and leaves out those that were rolled back.

The times increase with the versions if the clocks of the machines differ by less than an hour (:func:`airflow_provider_streamsem.clock.later`).
"""

from __future__ import annotations

from bisect import bisect_left

from airflow_provider_streamsem.clock import iso_time
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError


def first_closed_after(log: CommitLog, decided_ms: int, begin: int, end: int) -> int:
    """Return the first version in ``[begin, end)`` that was closed after ``decided_ms`` (milliseconds UTC); ``end`` if there is none."""

    def is_after(version: int) -> bool:
        outcome = log.outcome(version)
        return outcome is None or outcome.decided_at_ms > decided_ms

    return bisect_left(range(end), True, lo=min(begin, end), key=is_after)


def newest_closed_until(log: CommitLog, until_ms: int) -> int:
    """Return the newest version that was closed at or before a time and was not rolled back."""
    closed = log.newest_head().closed
    last = first_closed_after(log, until_ms, 0, closed + 1) - 1
    version = max(
        (min(last, kept.stop - 1) for kept in remaining_versions(log, closed) if kept.start <= last), default=-1
    )
    if version < 0:
        first = log.outcome(0)
        raise InvalidError(
            "no version was closed by this time, except those that were rolled back; nothing was written",
            log=log.store.url,
            given=iso_time(until_ms),
            version_0_closed_at=iso_time(first.decided_at_ms) if first else None,
        ).advising("give a later time.")
    return version


def remaining_versions(log: CommitLog, closed: int) -> list[range]:
    """Return the versions up to ``closed`` that no rollback has removed, as ranges in ascending order."""
    newest = log.outcome(closed) if closed >= 0 else None
    return [] if newest is None else log.remaining_versions(newest)
