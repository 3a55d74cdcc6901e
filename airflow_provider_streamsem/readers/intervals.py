"""The intervals that a pipeline has read, and the time between them that it has not (``streamsem partitions``)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from airflow_provider_streamsem.protocol.entries import Outcome
from airflow_provider_streamsem.protocol.kinds.interval import Interval, text_of
from airflow_provider_streamsem.readers.files import CommittedLog


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalState:
    """
    An interval, or time between two intervals that was not read.

    :param start: its start, inclusive, as ISO 8601 text in UTC
    :param end: its end, exclusive
    :param rows: number of visible rows of each sink
    :param read_in: the version that read it first; ``None`` if it was not read
    :param newest: the version that holds its rows now; ``None`` if it was not read
    """

    start: str
    end: str
    rows: dict[str, int]
    read_in: int | None
    newest: int | None


def interval_states(
    opened: CommittedLog, *, since: str | None = None, until: str | None = None, versions: int = 10_000
) -> list[IntervalState]:
    """
    Return the intervals that were read, and the unread time between them, in ascending order.

    :param since: the start of the first interval, inclusive; a prefix names all that begin with it, such as ``2026-01``
    :param until: the start of the last interval, inclusive; as for ``since``
    :param versions: how many of the newest versions are read, 1 or more. Intervals that earlier ones have read are missing
    """
    log, head = opened.log, opened.head
    if head < 0:
        return []
    newest = log.closed_outcome(head)
    first = max(0, head - versions + 1)
    kept = [version for span in log.remaining_versions(newest) for version in span if version >= first]
    commits = [outcome for outcome in map(log.closed_outcome, kept) if outcome.has_rows]
    found = [(each.work, each) for each in commits if isinstance(each.work, Interval)]
    current = _current(commits)
    states = [
        _state(work, root, current[root.version]) for work, root in sorted(found, key=lambda each: each[0].start_ms)
    ]
    gaps = [
        IntervalState(start=text_of(left.end_ms), end=text_of(right.start_ms), rows={}, read_in=None, newest=None)
        for left, right in pairwise(newest.intervals)
    ]
    wanted = [each for each in [*states, *gaps] if _is_within(each.start, since, until)]
    return sorted(wanted, key=lambda each: each.start)


def _current(commits: list[Outcome]) -> dict[int, Outcome]:
    """Return version → the commit that holds its rows. ``commits`` are in ascending order."""
    current = {each.version: each for each in commits}
    for each in reversed(commits):
        if each.replaces is not None:
            current[each.replaces] = current[each.version]
    return current


def _state(work: Interval, root: Outcome, current: Outcome) -> IntervalState:
    return IntervalState(
        start=text_of(work.start_ms),
        end=text_of(work.end_ms),
        rows={name: output.rows for name, output in current.sinks.items()},
        read_in=root.version,
        newest=current.version,
    )


def _is_within(start: str, since: str | None, until: str | None) -> bool:
    return (since is None or since <= start[: len(since)]) and (until is None or start[: len(until)] <= until)
