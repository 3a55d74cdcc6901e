"""
Expires versions, and finds the files that no reader of a later version needs (PROTOCOL.md, 4.12 and V8).

The visible files at the oldest readable version follow from the outcomes up to it. Of the files of these versions, readers from there on need only the visible
ones, because an outcome adds only its own files (R4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import OpenVersionError
from airflow_provider_streamsem.pipeline.closing_times import first_closed_after
from airflow_provider_streamsem.pipeline.idle import idle_head
from airflow_provider_streamsem.pipeline.opening import OpenPipeline
from airflow_provider_streamsem.pipeline.outcomes import expiry_outcome
from airflow_provider_streamsem.protocol.entries import Outcome, Plan, SegmentRewrite
from airflow_provider_streamsem.protocol.view import ClosedHead, Head, OpenHead

logger = telemetry.log_of(__name__)

_DAY_MS = 86_400_000


def compute_oldest_readable(log: CommitLog, head: Head, *, keep_versions: int | None, keep_days: int) -> int:
    """
    Return the oldest version to keep: the oldest of the newest ``keep_versions``, or the one that was the newest ``keep_days`` days ago, whichever is older.

    Expiries at the head do not count, so a repeated call finds the same version.

    :param keep_versions: ``None``: all
    :returns: 0 or less if all versions are kept
    """
    if keep_versions is None:
        return 0
    closed = head.closed
    while closed > 0 and log.closed_version(closed)[1].expires is not None:
        closed -= 1
    newest_then = first_closed_after(log, log.clock.now_ms() - keep_days * _DAY_MS, 0, closed + 1) - 1
    return min(newest_then, closed + 1 - keep_versions)


def expire(opened: OpenPipeline, oldest: int) -> Outcome:
    """
    Commit an expiry: from then on, no reader reads a version below ``oldest``, and no rollback returns to one. No run reprocesses such a version if its rows
    are only in a rewrite, or with deduplication across batches (W43, W44).

    :returns: the newest outcome. Its oldest readable version may be higher than ``oldest``, because another process may have committed an expiry
    :raises OpenVersionError: a version is open or not published yet, or another writer created the next version. Nothing has expired
    :raises HeldVersionError: the open version is held
    :raises ConflictError: the log has other immutable fields than the pipeline
    """
    log = opened.log
    head = idle_head(opened, "expiry", closes=("expire",))
    if head.outcome is not None and oldest <= (head.outcome.oldest_readable or 0):
        return head.outcome
    plan = _plan(opened, head, oldest)
    stored, _ = log.put_plan(head, plan)
    if not isinstance(stored, OpenHead) or stored.plan != plan:
        summary = "another writer created the next version, so no version has expired"
        raise OpenVersionError(summary, version=plan.version)
    closed, outcome = log.decide(stored, expiry_outcome(log, stored))
    log.write_segments(outcome.version, [(outcome, closed.outcome_sha)])
    if outcome.expires is None:
        raise OpenVersionError("the expiry was aborted, so no version has expired", version=plan.version)
    logger.info("version %d: the versions below %d have expired", outcome.version, oldest)
    return outcome


def _plan(opened: OpenPipeline, head: ClosedHead, oldest: int) -> Plan:
    log, version = opened.log, head.closed + 1
    assert head.outcome is not None  # there are versions that expire
    return Plan(
        version=version,
        kind="expire",
        previous=head.outcome_sha,
        ranges={},
        expires=oldest,
        run_key=f"expire:{version}:{log.clock.new_id()}",
        j=0,
        run_start={},
        planned_at_ms=log.now_ms(head),
        spec=head.outcome.spec,
        transform=head.outcome.transform,
        nonce=log.clock.new_id(),
    )


def new_rewrites(log: CommitLog, newest: Outcome, begin: int, end: int) -> list[SegmentRewrite]:
    """
    Return the rewrites of versions in ``(begin, end]`` that apply at the newest version. Readers find the rows of their commits only in their files.

    :param newest: the newest outcome
    :raises LogDamagedError: a rewrite breaks a rule, so it does not show where the rows are (I23, I24)
    """
    if newest.newest_rewrite is None or end <= begin:
        return []
    found = log.view(version=newest.version, outcomes_from=begin).rewrites
    return [rewrite for rewrite in found if begin < rewrite.version <= end]


def unneeded_attempts(
    log: CommitLog, newest: Outcome, begin: int, oldest: int, rewrites: Sequence[SegmentRewrite]
) -> Iterator[tuple[Outcome, str | None]]:
    """
    Yield the outcomes of the versions up to ``oldest`` whose data files no reader of ``oldest`` or a later version needs.

    :param newest: the newest outcome
    :param begin: an earlier vacuum has deleted what was unneeded at this version
    :param rewrites: those that :func:`new_rewrites` returns
    :returns: each outcome with the sink whose files are unneeded; ``None``: all sinks
    """
    if oldest <= begin:
        return
    for outcome in _superseded_commits(log, begin, oldest):
        yield outcome, None
    if newest.newest_rewrite is None:
        return
    yield from _superseded_rewrites(log, newest, begin, oldest)
    # If a later rewrite has the rows of a rewrite, readers of the versions between the two still need either the files of the commits or of the first rewrite.
    # So the files of the commits are unneeded when the later rewrite is not above ``oldest`` either.
    for rewrite in rewrites:
        for commit in rewrite.rewritten.commits:
            yield log.closed_version(commit)[1], rewrite.rewritten.sink


def _superseded_commits(log: CommitLog, begin: int, end: int) -> Iterator[Outcome]:
    """
    Yield each commit of rows that was superseded at a version in ``[begin, end]``, once: it was reprocessed or rolled back.

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


def _superseded_rewrites(log: CommitLog, newest: Outcome, begin: int, end: int) -> Iterator[tuple[Outcome, None]]:
    """Yield the rewrites that do not apply at version ``end``, unless they did not apply at ``begin`` already. They apply at no later version (R8)."""
    before, now = ({each.version for each in log.view(version=version).rewrites} for version in (begin, end))
    later = {rewrite.version for rewrite in log.rewrites(newest, after=begin) if rewrite.version <= end}
    for version in sorted((before | later) - now):
        yield log.closed_version(version)[1], None
