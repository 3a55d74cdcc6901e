"""Checks each rewrite against the versions before it, and each later version against the bound rewrites (I23, W44, W45)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_streamsem.protocol.entries import Outcome, Rewritten


def wrong_rewrites(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, int, str]]:
    """
    Yield the versions that break the rules of rewrites: invariant, version and description.

    :param outcomes: the outcomes of a log in ascending order of versions
    """
    commits: dict[int, Outcome] = {}  # the commits whose rows are visible
    removed_at: dict[str, int] = {}  # sink → the newest alter that has removed it
    rewrites: list[Rewritten] = []  # those that apply
    for outcome in outcomes:
        if not outcome.committed:
            continue
        bound = _bound_commits(rewrites, outcome.oldest_readable or 0)
        if outcome.rewritten is not None:
            rewritten = outcome.rewritten
            if not _is_right(rewritten, commits, removed_at):
                yield (
                    "I23",
                    outcome.version,
                    "a rewrite names rows that are not visible before it, or has another number of rows",
                )
            if bound & _named(rewritten) and rewritten.commits[-1] >= (outcome.oldest_readable or 0):
                yield (
                    "I24",
                    outcome.version,
                    "a rewrite names commits of a bound rewrite, and commits that have not expired",
                )
            rewrites = [each for each in rewrites if not _named(each) & _named(rewritten)] + [rewritten]
        elif outcome.rolled_back is not None:
            if outcome.rolled_back.to < (outcome.oldest_readable or 0):
                yield "I24", outcome.version, "a rollback returns to an expired version"
            commits = {version: commit for version, commit in commits.items() if version <= outcome.rolled_back.to}
            rewrites = [each for each in rewrites if each.commits[-1] <= outcome.rolled_back.to]
        elif outcome.altered is not None:
            removed_at |= dict.fromkeys(outcome.altered.removed, outcome.version)
            rewrites = [each for each in rewrites if each.sink not in outcome.altered.removed]
        elif outcome.expires is None:
            if outcome.replaces is not None:
                replaced = outcome.replaces.version
                if replaced in {commit for _, commit in bound}:
                    yield "I24", outcome.version, "a reprocessing run replaces a commit of a bound rewrite"
                commits.pop(replaced, None)
                rewrites = [each for each in rewrites if replaced not in each.commits]
            commits[outcome.version] = outcome


def _named(rewritten: Rewritten) -> set[tuple[str, int]]:
    return {(rewritten.sink, commit) for commit in rewritten.commits}


def _bound_commits(rewrites: Sequence[Rewritten], oldest_readable: int) -> set[tuple[str, int]]:
    """Return sink and version of the commits of rewrites whose commits have all expired."""
    return {named for each in rewrites if each.commits[-1] < oldest_readable for named in _named(each)}


def _is_right(rewritten: Rewritten, commits: dict[int, Outcome], removed_at: dict[str, int]) -> bool:
    first = removed_at.get(rewritten.sink, -1) + 1
    found = [commits[version].sinks.get(rewritten.sink) for version in rewritten.commits if version in commits]
    rows = sum(output.rows for output in found if output is not None)
    are_all = len(found) == len(rewritten.commits) and None not in found and min(rewritten.commits) >= first
    return are_all and rows == rewritten.rows
