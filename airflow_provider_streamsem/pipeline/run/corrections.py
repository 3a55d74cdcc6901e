"""Finds the versions that read records which the source has replaced since then (W25)."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache

from airflow_provider_streamsem.pipeline.spec.binding import BoundPipeline
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json, Plan
from airflow_provider_streamsem.protocol.offsets import Gaps
from airflow_provider_streamsem.protocol.view import Head


def repinned(bound: BoundPipeline, plan: Plan) -> Json:
    """Return the pins with which a reprocessing run of a plan reads: those of the plan, or the newest ones if the source replaces records."""
    source = bound.pipeline.source
    if source.on_reprocess is None:
        return plan.pins
    return plain(source.repin(plan.ranges, plan.gaps, source.read_pins(plan.pins)), sparse=True)


def is_outdated(bound: BoundPipeline, plan: Plan) -> bool:
    """Return whether the source has replaced or removed records that a plan has read."""
    source = bound.pipeline.source
    return source.on_reprocess is not None and source.is_outdated(plan.ranges, plan.gaps, source.read_pins(plan.pins))


def before_version(pipeline: Pipeline, version: int) -> str:
    """Return the advice for a version whose former records are in the state: start again before this version."""
    if version == 0 or pipeline.sinks_that_cannot_remove_rows:
        return f"fork the pipeline into a new log and new datasets or tables: streamsem fork NEW.toml LOG --at {version - 1}."
    return f"run `streamsem rollback PIPELINE {version - 1}`, then run again: the newest records are read."


def outdated(bound: BoundPipeline, head: Head, corrected: Gaps) -> list[int]:
    """
    Return the versions whose rows were computed from former records, in ascending order. A version that was reprocessed since is not outdated.

    :param corrected: partition → ``[start, end)`` of the replaced records, below ``head.next``
    """
    versions: set[int] = set()
    read = _Reader(bound, head)
    for partition, ranges in corrected.items():
        for offset in (offset for start, end in ranges for offset in range(start, end)):
            batch = read.batch_of(partition, offset)
            if batch is not None and batch not in versions and read.is_outdated(batch):
                versions.add(batch)
    return sorted(versions)


class _Reader:
    """Finds the batches of this pipeline that have read an offset. It reads each entry once."""

    def __init__(self, bound: BoundPipeline, head: Head) -> None:
        self._bound, self._head = bound, head
        self._kept = [] if head.outcome is None else bound.log.remaining_versions(head.outcome)
        self._stored = cache(bound.log.closed_version)
        self.is_outdated = cache(self._is_outdated)

    def batch_of(self, partition: str, offset: int) -> int | None:
        """Return the committed batch that read an offset and was not rolled back; ``None`` if the offset is below the initial offsets, or in a gap."""
        if not self._kept:
            return None
        # Without the versions that were rolled back, the next offset never decreases. So the first version whose next offset is above the offset has read it.
        versions = next((v for v in self._kept if self._next(v[-1], partition) > offset), self._kept[-1])
        first = bisect_right(versions, offset, key=lambda version: self._next(version, partition))
        plan, outcome = self._stored(versions[min(first, len(versions) - 1)])
        start, end = plan.ranges.get(partition, (0, 0))
        is_gap = any(first <= offset < last for first, last in plan.gaps.get(partition, ()))
        was_read = outcome.committed and plan.work.reads_new_records and start <= offset < end and not is_gap
        return plan.version if was_read else None

    def _next(self, version: int, partition: str) -> int:
        return offsets.position(self._stored(version)[1].next, partition)

    def _is_outdated(self, batch: int) -> bool:
        newest = self._bound.log.find_current(batch, self._head)
        assert newest is not None  # the batch was not rolled back
        return is_outdated(self._bound, self._stored(newest)[0])
