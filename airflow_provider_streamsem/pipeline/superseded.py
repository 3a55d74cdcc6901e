"""
Finds superseded commits, whose data files only readers of old versions need (PROTOCOL.md, V8).

A commit is superseded at version m if m reprocessed it or rolled it back. It is then visible at no version from m on, because an outcome adds only its own
files to what is visible (R4).
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.pipeline.closing_times import first_closed_after
from airflow_provider_streamsem.protocol.entries import Outcome

_DAY_MS = 86_400_000


def compute_oldest_readable(log: CommitLog, closed: int, *, versions: int, days: int) -> int:
    """
    Return the oldest version that stays readable: the oldest of the newest ``versions``, or the one that was the newest ``days`` days ago, whichever is older.

    :param closed: the newest closed version
    :returns: 0 or less if all versions stay readable
    """
    newest_then = first_closed_after(log, log.clock.now_ms() - days * _DAY_MS, 0, closed + 1) - 1
    return min(newest_then, closed + 1 - versions)


def superseded_commits(log: CommitLog, begin: int, end: int) -> Iterator[Outcome]:
    """
    Yield each commit of rows that was superseded at a version in ``[begin, end]``, once.

    A rollback to a version before a rewrite does not supersede the rewrite.
    """
    found: set[int] = set()
    for version in range(begin, end + 1):
        outcome = log.outcome(version)
        if outcome is None or not outcome[0].committed:
            continue
        replaced = [] if outcome[0].replaces is None else [outcome[0].replaces.version]
        if outcome[0].rolled_back is not None:
            replaced += range(outcome[0].rolled_back.to + 1, version)
        for number in sorted({*replaced} - found):
            found.add(number)
            commit = log.outcome(number)
            if commit is not None and commit[0].committed and commit[0].rewritten is None:
                yield commit[0]


def superseded_rewrites(log: CommitLog, begin: int, end: int) -> Iterator[Outcome]:
    """Yield the rewrites that do not apply at version ``end``, unless they did not apply at ``begin`` already. They apply at no later version (R8)."""
    newest = log.outcome(end)
    if newest is None or newest[0].newest_rewrite is None:
        return
    before, now = ({each.version for each in log.view(version=version).rewrites} for version in (begin, end))
    later = {rewrite.version for rewrite in log.rewrites(newest[0], after=begin)}
    for version in sorted((before | later) - now):
        rewrite = log.outcome(version)
        if rewrite is not None:
            yield rewrite[0]
