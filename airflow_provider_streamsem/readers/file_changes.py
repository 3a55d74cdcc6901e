"""The files that a reader of one version reads and a reader of another version does not."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_streamsem.protocol.entries import Outcome, SegmentFile
from airflow_provider_streamsem.protocol.view import fold
from airflow_provider_streamsem.readers.history import History


def file_changes(
    history: History, older: Outcome, later: Sequence[Outcome]
) -> tuple[list[SegmentFile], list[SegmentFile]]:
    """
    Return the files that became visible after a version, and those that are no longer visible, as of the last of the later versions (R4, R8).

    Files that are published to sinks outside the log are left out. The function reads no version before the oldest one whose files the later versions change.

    :param older: the outcome of the version
    :param later: the outcomes of the versions after it, in ascending order, without gaps
    """
    first = _first_changed(history, older, later)
    parts = history.parts(range(first, older.version + 1))
    was = fold(parts, initial_offsets={}, first=first).files
    now = fold([*parts, *later], initial_offsets={}, first=first).files
    return _without(history, now, was), _without(history, was, now)


def _first_changed(history: History, older: Outcome, later: Sequence[Outcome]) -> int:
    """If a commit of a rewrite changes its visibility, the rewrite may cease to apply. Then the files of all its commits are visible again."""
    if any(outcome.hidden.sinks for outcome in later):
        return 0  # the files of these sinks
    changed: set[int] = set()
    kept = older.version  # the newest version that no rollback removed
    for outcome in later:
        changed |= {*outcome.hidden.commits} | {commit for each in outcome.rewrites for commit in each.commits}
        kept = kept if outcome.hidden.after is None else min(kept, outcome.hidden.after)
    oldest = min(changed | {kept + 1})
    touched = [
        rewrite.commits
        for rewrite in history.opened.log.rewrites_of(older, after=oldest)
        if any(commit > kept or commit in changed for commit in rewrite.commits)
    ]
    return min([oldest, *(commits[0] for commits in touched)])


def _without(history: History, files: Sequence[SegmentFile], others: Sequence[SegmentFile]) -> list[SegmentFile]:
    """
    The files of a sink outside the log are staged rows. The newest version with files of a sink shows whether the sink is one, because only an alter that hides
    these files replaces a sink by another one.
    """
    known = {(file.version, file.sink) for file in others}
    found = [file for file in files if (file.version, file.sink) not in known]
    newest = {file.sink: file.version for file in found}
    versions = {sink: history.version(version) for sink, version in newest.items()}
    published = {
        sink
        for sink, version in versions.items()
        if version is not None and version.outcome is not None and sink in version.outcome.publish
    }
    return [file for file in found if file.sink not in published]
