"""Checks the rewrites of a log against the versions before them (I23)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_streamsem.protocol.entries import Outcome, Rewritten


def wrong_rewrites(outcomes: Sequence[Outcome]) -> Iterator[int]:
    """
    Yield each rewrite that names a commit whose rows are not visible before it, or has another number of rows than its commits.

    :param outcomes: the outcomes of a log in ascending order of versions
    """
    commits: dict[int, Outcome] = {}  # the commits whose rows are visible
    removed_at: dict[str, int] = {}  # sink → the newest alter that has removed it
    for outcome in outcomes:
        if not outcome.committed:
            continue
        if outcome.rewritten is not None:
            if not _is_right(outcome.rewritten, commits, removed_at):
                yield outcome.version
        elif outcome.rolled_back is not None:
            commits = {version: commit for version, commit in commits.items() if version <= outcome.rolled_back.to}
        elif outcome.altered is not None:
            removed_at |= dict.fromkeys(outcome.altered.removed, outcome.version)
        else:
            if outcome.replaces is not None:
                commits.pop(outcome.replaces.version, None)
            commits[outcome.version] = outcome


def _is_right(rewritten: Rewritten, commits: dict[int, Outcome], removed_at: dict[str, int]) -> bool:
    first = removed_at.get(rewritten.sink, -1) + 1
    found = [commits[version].sinks.get(rewritten.sink) for version in rewritten.commits if version in commits]
    rows = sum(output.rows for output in found if output is not None)
    are_all = len(found) == len(rewritten.commits) and None not in found and min(rewritten.commits) >= first
    return are_all and rows == rewritten.rows
