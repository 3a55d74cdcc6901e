"""The result of a run: small, serializable as JSON, and a function of the log (I12), except for ``with_others``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.partitions import Partitions
from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline
from airflow_provider_streamsem.pipeline.versions.announcement import (
    LISTED,
    Completed,
    announce_others,
    announce_run,
    commits_of_others,
)
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback
from airflow_provider_streamsem.protocol.offsets import Ranges
from airflow_provider_streamsem.protocol.procedures import RunComplete
from airflow_provider_streamsem.protocol.view import Head, add_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedVersion:
    """
    A committed version of another run that no earlier result announced. Either this run closed the version, or the other run failed after the commit.

    :param run_key: run key of the run that planned the version
    :param ranges: partition → ``[start, end)``
    :param counts: row counts of this version, as in :class:`RunResult`
    :param outcome: key of the version's outcome under the log's root
    """

    version: int
    run_key: str
    ranges: Ranges
    counts: Mapping[str, int]
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """
    The result of a run.

    :param status: ``committed``: this result announces commits of this run or in ``completed``. ``empty``: it announces no commit
    :param pipeline: name of the pipeline
    :param log: URL of the log
    :param run_key: run key of the run
    :param version: the run's last version. If the run committed no version: the newest of ``completed``. If the run planned nothing and ``completed`` is empty:
        the newest closed version; -1 before the first
    :param ranges: partition → ``[start, end)``. For a drain: from the start of its first batch to the end of its last, including batches of other runs in
        between. Empty if the run planned nothing
    :param counts: row counts summed over all commits of the run: ``read``, ``parsed``, ``quarantined``, ``filtered``, ``written.<sink>``. If they apply:
        ``duplicates``, ``late_duplicates`` and ``without_id`` (dedup), ``gaps`` (offsets), ``discarded_rows.<sink>`` and ``discarded_values.<sink>``
        (contract)
    :param batches: number of versions that the run planned, both committed and aborted
    :param outcome: key of the outcome of ``version``, relative to the log's root; ``""`` if the run planned nothing and ``completed`` is empty
    :param versions: ``[start, end)``. This result or an earlier one announces every committed version in this range
    :param complete_partitions: with ``partitions``: the starts of the partitions by event time that became complete in ``versions``, such as
        ``2026-01-31T05:00:00``, in ascending order
    :param interval: the start and the end of the interval that the run has read, such as ``2026-01-31T05:00:00+00:00``; empty without one
    :param completed: versions of other runs that this result announces, in ascending order, at most the newest 20. ``counts`` excludes their rows
    """

    status: str
    pipeline: str
    log: str
    run_key: str
    version: int
    ranges: Ranges
    counts: Mapping[str, int]
    batches: int
    outcome: str
    versions: tuple[int, int]
    completed: tuple[CompletedVersion, ...] = ()
    complete_partitions: tuple[str, ...] = ()
    interval: tuple[str, ...] = ()

    def with_interval(self, interval: tuple[str, str]) -> RunResult:
        """Return the result of a run that has read an interval."""
        return replace(self, interval=interval)

    def to_json(self) -> Json:
        """Return the result as JSON, small enough for XCom and asset events."""
        return plain(self)


def run_result(
    bound: BoundPipeline, complete: RunComplete, run_key: str, *, resumed: bool, announces: bool = True
) -> RunResult:
    """
    Build the result of a complete run, and create its announcement if ``announces`` is set. ``resumed``: it was complete when this process began.

    Callers set ``announces=False`` if another process returns the result of the run, or if no process repeats the run.
    """
    plan, outcome = complete.plan, complete.outcome
    counts = add_counts(plan.run_counts, outcome.counts) if outcome.committed else dict(plan.run_counts)
    versions = (plan.version, plan.version + 1)
    completed: tuple[CompletedVersion, ...] = ()
    if announces:
        versions, commits = announce_run(bound.log, plan, complete.head.closed, resumed=resumed)
        completed = _completed(commits)
    last = completed[-1].version if completed and not counts else outcome.version
    return RunResult(
        status="committed" if counts or completed else "empty",
        pipeline=bound.pipeline.name,
        log=bound.pipeline.log,
        run_key=run_key,
        version=last,
        ranges=plan.ranges
        if plan.target is None
        else {
            p: (start, outcome.next[p])
            for p, start in sorted(plan.run_start.items())
            if outcome.next.get(p, start) > start
        },
        counts=counts,
        batches=plan.j + 1,
        outcome=keys.outcome(last),
        versions=versions,
        completed=completed,
        complete_partitions=complete_partitions(bound.log, bound.pipeline.partitions, range(*versions)),
    )


def complete_partitions(log: CommitLog, partitions: Partitions | None, versions: range) -> tuple[str, ...]:
    """Return the starts of the partitions that became complete in some consecutive versions. After a rollback, partitions become complete again."""
    newest = log.closed_outcome(versions[-1]) if partitions is not None and versions else None
    if partitions is None or newest is None or newest.complete is None:
        return ()
    last_before = max(versions[0] - 1, newest.newest.get(Rollback.kind, -1))
    before = None if last_before < 0 else log.closed_outcome(last_before).complete
    # Read only if very many partitions became complete at once. A partition may have got its rows long before.
    written = (key for version in range(versions[-1] + 1) for key in log.closed_outcome(version).time_partitions)
    found = partitions.completed(
        newest.complete, before_ms=None if before is None else before.until_ms, written=written
    )
    return tuple(partitions.event_key(key) for key in found)


def empty_result(bound: BoundPipeline, head: Head, run_key: str, *, announces: bool = True) -> RunResult:
    """Build the result of a run that planned nothing, and create its announcement if ``announces`` is set."""
    versions = (head.closed + 1, head.closed + 1)
    completed: tuple[CompletedVersion, ...] = ()
    if announces:
        versions, commits = announce_others(bound.log, head.closed, run_key)
        completed = _completed(commits)
    last = completed[-1].version if completed else head.closed
    return RunResult(
        status="committed" if completed else "empty",
        pipeline=bound.pipeline.name,
        log=bound.pipeline.log,
        run_key=run_key,
        version=last,
        ranges={},
        counts={},
        batches=0,
        outcome=keys.outcome(last) if completed else "",
        versions=versions,
        completed=completed,
        complete_partitions=complete_partitions(bound.log, bound.pipeline.partitions, range(*versions)),
    )


def with_others(log: CommitLog, result: RunResult, *, before: int, after: int) -> RunResult:
    """
    Return the result with ``completed`` set to the versions of other runs that were committed during the run. Only for a run that creates no announcement.
    Writes nothing.

    :param before: the newest closed version when the run began; -1 if there was none
    :param after: the newest closed version now
    """
    completed = _completed(commits_of_others(log, [*range(before + 1, after + 1)], result.run_key))
    if not completed:
        return result
    last = max(result.version, completed[-1].version)
    return replace(result, status="committed", version=last, outcome=keys.outcome(last), completed=completed)


def announce_planned(
    log: CommitLog, version: int, *, request_of: str
) -> tuple[tuple[int, int], tuple[CompletedVersion, ...]]:
    """
    Create the announcement of the run that planned ``version``, unless it exists. Return ``versions`` and ``completed`` of the result.

    :param request_of: run key of the run whose versions were reprocessed, as in :func:`announce_run`
    """
    plan, _ = log.closed_version(version)
    versions, commits = announce_run(log, plan, version, resumed=True, request_of=request_of)
    return versions, _completed(commits)


def merge_completed(parts: Iterable[Iterable[CompletedVersion]]) -> tuple[CompletedVersion, ...]:
    """Merge the completed versions of several results: in ascending order, at most the newest :data:`LISTED`."""
    by_version = {completed.version: completed for part in parts for completed in part}
    return tuple(by_version[version] for version in sorted(by_version))[-LISTED:]


def _completed(commits: Completed) -> tuple[CompletedVersion, ...]:
    return tuple(
        CompletedVersion(
            version=plan.version,
            run_key=plan.run_key,
            ranges=plan.ranges,
            counts=outcome.counts,
            outcome=keys.outcome(plan.version),
        )
        for plan, outcome in commits
    )
