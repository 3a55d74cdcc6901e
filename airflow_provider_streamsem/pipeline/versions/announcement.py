"""
Determines which versions the result of a run announces: the versions of the run, and all other closed versions that no result has announced (PROTOCOL.md, 4.8).

Airflow emits an asset event only for a task that succeeds. A run that commits versions and then fails emits no event, so the next run that succeeds
announces these versions. A run creates its announcement before it returns its result. If the process dies before the create, the next run announces the
versions. If it dies after the create, the retry of the run announces them.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Announcement, Outcome, Plan

LISTED = 20
"""Maximum number of versions of other runs that a result lists. If there are more, it lists the newest."""

Completed = list[tuple[Plan, Outcome]]


def announce_run(
    log: CommitLog, last: Plan, closed: int, *, resumed: bool, request_of: str | None = None
) -> tuple[tuple[int, int], Completed]:
    """
    Create the announcement of a run whose last version is closed.

    :param closed: the newest closed version. Other runs may have planned versions after the run's last one
    :param resumed: whether the run was complete when this process began. If so, and if its announcement is stored, nothing is written
    :param request_of: for a request to reprocess the versions of a run: the key of that run. Each request has other run keys, so a later request announces
        again what an earlier one announced, because the result of the earlier one may not have been delivered (A6)
    :returns: ``[start, end)``, and the newest :data:`LISTED` commits of other runs in it, in ascending order. This announcement or an earlier one announces
        every committed version in ``[start, end)``, which includes all versions of the run
    """
    first = last.version if last.j == 0 else _first_version(log, last.run_key)
    is_contiguous = last.version - first == last.j
    between = [] if is_contiguous else log.others_between(last.run_key, (0, first), (last.j, last.version))
    stored = log.announcement(keys.announced(last.version)) if resumed else None
    if stored is None:
        since, upto = _unannounced(log, last, first, closed, between)
        if request_of is not None:
            own = _announcement(log, last.version, since, upto, request_of)
            since = min(since, log.put_announcement(keys.announced_by(request_of), own).since)
        wanted = _announcement(log, last.version, since, upto, last.run_key)
        stored = log.put_announcement(keys.announced(last.version), wanted)
    since, upto = stored.since, stored.upto
    before, after = range(since + 1, first), range(last.version + 1, upto + 1)
    versions = [*before, *(n for n in between if n > since), *after]
    return (min(since + 1, first), upto + 1), commits_of_others(log, versions, last.run_key)


def _unannounced(log: CommitLog, last: Plan, first: int, closed: int, between: list[int]) -> tuple[int, int]:
    """``between`` are versions of other runs between those of this run. Return an exclusive lower and an inclusive upper bound."""
    follows_announced = not between and (first == 0 or log.announcement(keys.announced(first - 1)) is not None)
    newest_announced = first - 1 if follows_announced else log.newest_announced()
    # An earlier process of this run may have created an announcement, and died before it returned its result (A6): when the run had not planned a version
    # yet (key `announced_by`), or when the run was complete and a rollback had not removed its last versions yet (key of the version before the rollback).
    earlier = [keys.announced_by(last.run_key), *(keys.announced(n - 1) for n in between if n - 1 not in between)]
    undelivered = [stored for key in earlier if (stored := log.announcement(key)) and stored.run_key == last.run_key]
    since = min([newest_announced, *(stored.since for stored in undelivered)])
    # Another run may have announced this run's commits already. This run still creates its announcement: if another process of this run created it
    # before it died, the create returns that announcement (A2).
    return (since, closed) if since < last.version else (last.version, last.version)


def announce_others(log: CommitLog, closed: int, run_key: str) -> tuple[tuple[int, int], Completed]:
    """
    Create the announcement of a run that planned nothing. It covers only versions of other runs. ``closed``: the newest closed version; -1 if there is none.

    Return the same as :func:`announce_run`, with an empty range if all versions are announced already.
    """
    nothing: tuple[tuple[int, int], Completed] = (closed + 1, closed + 1), []
    if closed < 0:
        return nothing
    own = keys.announced_by(run_key)
    stored = log.announcement(own)
    if stored is None:
        if log.announcement(keys.announced(closed)) is not None:
            return nothing
        since = log.newest_announced()
        if since >= closed:
            return nothing
        # Create the run's own announcement first (A3). Once the announcement of the version exists, no other run announces these versions.
        stored = log.put_announcement(own, _announcement(log, closed, since, closed, run_key))
        log.put_announcement(keys.announced(stored.version), stored)
    versions = range(stored.since + 1, stored.upto + 1)
    return (stored.since + 1, stored.upto + 1), commits_of_others(log, versions, run_key)


def _announcement(log: CommitLog, version: int, since: int, upto: int, run_key: str) -> Announcement:
    return Announcement(version=version, since=since, upto=upto, run_key=run_key, nonce=log.clock.new_id())


def _first_version(log: CommitLog, run_key: str) -> int:
    pointer = log.pointer(run_key, 0)
    if pointer is None:
        raise LogDamagedError("the first pointer of a run is missing", invariant="I16", key=keys.pointer(run_key, 0))
    return pointer.version


def commits_of_others(log: CommitLog, versions: Sequence[int], run_key: str) -> Completed:
    """
    Return the commits of other runs among the newest :data:`LISTED` of these closed versions, all in ascending order.

    Versions that change no rows are not counted, such as rewrites.
    """
    newest, older = versions[-LISTED:], versions[:-LISTED]
    closed = [log.closed_version(version) for version in newest]
    not_counted = sum(not plan.work.is_announced for plan, _ in closed)
    for version in reversed(older):
        if not not_counted:
            break
        plan, outcome = log.closed_version(version)
        closed.insert(0, (plan, outcome))
        not_counted -= plan.work.is_announced
    return [
        (plan, outcome)
        for plan, outcome in closed
        if outcome.committed and plan.work.is_announced and plan.run_key != run_key
    ]
