"""Finds the oldest version whose state vacuum keeps (PROTOCOL.md, V7)."""

from __future__ import annotations

from functools import cache
from itertools import islice

from airflow_provider_streamsem.commitlog.log import CommitLog


def oldest_kept(log: CommitLog, closed: int, keep_versions: int) -> int | None:
    """
    Return the version whose state is the oldest that vacuum keeps: ``keep_versions`` before the newest; ``None`` if there are fewer. Only commits with rows
    count, and no version that a rollback removed.

    The result is at least what it was before each rollback, because an earlier vacuum may have deleted states up to there. A version that was rolled back since
    then is never the result: it was not the oldest at that time, because ``keep_versions`` was higher, and newer states do not build on its state.
    """
    outcome_of = cache(log.closed_outcome)
    oldest: list[int] = []
    remaining: list[range] = []
    heads, found = [closed], {closed}  # the newest version now, and before each rollback
    for head in heads:
        newest = log.outcome(head)
        kept = [] if newest is None else log.remaining_versions(newest)
        remaining = remaining or kept
        before = {versions[0] - 1 for versions in kept[1:]} - found
        heads += before
        found |= before
        versions = (version for versions in reversed(kept) for version in reversed(versions))
        counted = (version for version in versions if outcome_of(version).has_rows)
        oldest += islice(counted, keep_versions, keep_versions + 1)
    return max((version for version in oldest if any(version in versions for versions in remaining)), default=None)
