"""
Finds superseded commits, whose data files only readers of old versions need (PROTOCOL.md, V8).

A commit is superseded at version m if m reprocessed it or rolled it back. It is then visible at no version from m on: a rollback never undoes a reprocessing
run of an earlier version, and no version that was rolled back returns.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.pipeline.closing_times import first_closed_after
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical
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
    """Yield the commits that were superseded at a version in ``[begin, end]``."""
    for version in range(begin, end + 1):
        outcome = log.outcome(version)
        if outcome is None or not outcome[0].committed:
            continue
        replaced = [] if outcome[0].replaces is None else [outcome[0].replaces.version]
        if outcome[0].rolled_back is not None:
            replaced += range(outcome[0].rolled_back.to + 1, version)
        for number in replaced:
            commit = log.outcome(number)
            if commit is not None and commit[0].committed:
                yield commit[0]


def read_expired_note(log: CommitLog) -> int:
    """Return the version up to which an earlier vacuum has deleted the data of all superseded commits; 0 if there is none. The value is a hint."""
    return _newest(log, keys.EXPIRED)


def read_expiring_note(log: CommitLog) -> int:
    """Return the oldest version whose data no vacuum has deleted or is deleting; 0 if no vacuum has. The value is a hint (W8)."""
    return _newest(log, keys.EXPIRING)


def write_note(log: CommitLog, prefix: str, version: int) -> None:
    """Write the note ``EXPIRING`` (before the deletion) or ``EXPIRED`` (after it), and delete all earlier ones."""
    log.create(keys.newest_first(prefix, version), canonical({"version": version}))
    for key in log.list_keys(prefix):
        if (keys.parse_newest_first(key) or 0) < version:
            log.store.delete(key)


def _newest(log: CommitLog, prefix: str) -> int:
    return max((keys.parse_newest_first(key) or 0 for key in log.list_keys(prefix, 1)), default=0)
