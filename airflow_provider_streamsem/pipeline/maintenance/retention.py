"""
Expires versions, and finds the files that no reader of a later version needs (PROTOCOL.md, 4.12 and V8).

The visible files at the oldest readable version follow from the outcomes up to it. Of the files of these versions, readers from there on need only the visible
ones, because an outcome adds only its own files (R4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import OpenVersionError
from airflow_provider_streamsem.pipeline.maintenance.idle import idle_head
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline
from airflow_provider_streamsem.pipeline.versions.closing_times import first_closed_after
from airflow_provider_streamsem.pipeline.versions.commit import commit, plan_maintenance
from airflow_provider_streamsem.protocol.entries import Outcome, SegmentRewrite
from airflow_provider_streamsem.protocol.kinds.erase import Erase
from airflow_provider_streamsem.protocol.kinds.expire import Expire
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.view import Head

_DAY_MS = 86_400_000


def compute_oldest_readable(log: CommitLog, head: Head, *, keep_versions: int | None, keep_days: int) -> int:
    """
    Return the oldest version to keep, 0 or less for all: the oldest of the newest ``keep_versions``, or the one that was the newest ``keep_days`` days ago,
    whichever is older. Expiries at the head do not count, so a repeated call finds the same version.
    """
    if keep_versions is None:
        return 0
    closed = head.closed
    while closed > 0 and isinstance(log.closed_outcome(closed).work, Expire):
        closed -= 1
    newest_then = first_closed_after(log, log.clock.now_ms() - keep_days * _DAY_MS, 0, closed + 1) - 1
    return min(newest_then, closed + 1 - keep_versions)


def expire(bound: BoundPipeline, oldest: int) -> Outcome:
    """
    Commit an expiry: from then on, no reader reads a version below ``oldest``, and no rollback returns to one. No run reprocesses such a version if its rows
    are only in a rewrite, or with deduplication across batches (W43, W44).

    Return the newest outcome. Its oldest readable version may be higher than ``oldest``, because another process may have committed an expiry.
    """
    log = bound.log
    head = idle_head(bound, "expiry", closes_staged=False)
    if head.outcome is not None and oldest <= head.oldest_readable:
        return head.outcome
    _, outcome = commit(log, head, plan_maintenance(log, head, Expire(oldest=oldest), run_key="expire"))
    if outcome is None or not outcome.committed:
        what = "another writer created the next version" if outcome is None else "the expiry was aborted"
        summary = f"{what}, so no version has expired"
        raise OpenVersionError(summary, version=head.closed + 1)
    return outcome


def new_rewrites(log: CommitLog, newest: Outcome, begin: int, end: int) -> list[SegmentRewrite]:
    """
    Return the rewrites of versions in ``(begin, end]`` that apply at the newest version. Readers find the rows of their commits only in their files.

    If a later rewrite has the rows of an erasure, the erasure is returned, too: it was bound from its commit on, so the later one is bound, and no reader needs
    the files of the commits again (W45). Without the erasure, the files with the erased rows would stay until the version of the later rewrite expires.
    """
    if Rewrite.kind not in newest.newest or end <= begin:
        return []
    found = log.view(version=newest.version, outcomes_from=begin).rewrites
    erasures = {version for version, _ in log.commits_of(Erase, newest, after=begin) if version <= end}
    applied = {rewrite.version for rewrite in found}
    superseded = log.view(version=end).rewrites if erasures - applied else ()
    return [
        *(rewrite for rewrite in found if begin < rewrite.version <= end),
        *(rewrite for rewrite in superseded if rewrite.version in erasures - applied),
    ]


def unneeded_attempts(
    log: CommitLog, newest: Outcome, begin: int, oldest: int, rewrites: Sequence[SegmentRewrite]
) -> Iterator[tuple[Outcome, str | None]]:
    """
    Yield ``(outcome, sink)`` for the versions up to ``oldest`` whose data files no reader of ``oldest`` or a later version needs. ``None``: of all sinks.

    :param begin: an earlier vacuum has deleted what was unneeded at this version
    """
    if oldest <= begin:
        return
    for outcome in _superseded_commits(log, begin, oldest):
        yield outcome, None
    if Rewrite.kind not in newest.newest:
        return
    yield from _superseded_rewrites(log, newest, begin, oldest)
    # If a later rewrite has the rows of a rewrite, readers of the versions between the two still need either the files of the commits or of the first rewrite.
    # So the files of the commits are unneeded when the later rewrite is not above ``oldest`` either.
    for rewrite in rewrites:
        for version in rewrite.commits:
            yield log.closed_outcome(version), rewrite.sink


def _superseded_commits(log: CommitLog, begin: int, end: int) -> Iterator[Outcome]:
    """Yield each commit that was superseded in ``[begin, end]`` once. A rollback to before a rewrite does not supersede the rewrite."""
    found: set[int] = set()
    for version in range(begin, end + 1):
        outcome = log.outcome(version)
        if outcome is None:
            continue
        hidden = outcome.hidden
        removed = range(version if hidden.after is None else hidden.after + 1, version)
        for number in sorted({*hidden.commits, *removed} - found):
            found.add(number)
            commit = log.outcome(number)
            if commit is not None and commit.committed and not commit.rewrites:
                yield commit


def _superseded_rewrites(log: CommitLog, newest: Outcome, begin: int, end: int) -> Iterator[tuple[Outcome, None]]:
    """Yield the rewrites that do not apply at version ``end``, unless they did not apply at ``begin`` already. They apply at no later version (R8)."""
    before, now = ({each.version for each in log.view(version=version).rewrites} for version in (begin, end))
    later = {rewrite.version for rewrite in log.rewrites_of(newest, after=begin) if rewrite.version <= end}
    for version in sorted((before | later) - now):
        yield log.closed_outcome(version), None
