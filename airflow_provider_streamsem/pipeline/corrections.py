"""Finds the versions that read records which the source has replaced since then (W25)."""

from __future__ import annotations

from airflow_provider_streamsem.connectors.upstreams import Repinning
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.pipeline.opening import OpenPipeline
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Gaps
from airflow_provider_streamsem.protocol.view import Head


def repinned(opened: OpenPipeline, plan: Plan) -> Json:
    """
    Return the pins with which a reprocessing run of a plan reads: those of the plan, or the newest ones if the source replaces records.

    :param plan: the plan of the commit that is replaced
    """
    source = opened.pipeline.source
    if not isinstance(source, Repinning):
        return plan.pins
    return plain(source.repin(plan.ranges, plan.gaps, source.read_pins(plan.pins)), sparse=True)


def outdated(opened: OpenPipeline, head: Head, corrected: Gaps) -> list[int]:
    """
    Return the versions whose rows were computed from former records, in ascending order. A version that was reprocessed since is not outdated.

    :param corrected: partition → ``[start, end)`` of the replaced records, below ``head.next``
    """
    versions: set[int] = set()
    for partition, ranges in corrected.items():
        for offset in (offset for start, end in ranges for offset in range(start, end)):
            batch = _reader(opened, head, partition, offset)
            if batch is not None and (batch in versions or _is_outdated(opened, head, batch)):
                versions.add(batch)
    return sorted(versions)


def _reader(opened: OpenPipeline, head: Head, partition: str, offset: int) -> int | None:
    """Return the committed batch that read an offset and was not rolled back; ``None`` if the offset is below the initial offsets, or in a gap."""
    if head.outcome is None:
        return None
    kept = opened.log.lineage(head.outcome)
    versions = next((v for v in kept if offsets.position(_stored(opened, v[-1])[1].next, partition) > offset), kept[-1])
    low, high = versions[0], versions[-1]
    # Without the versions that were rolled back, the next offset never decreases. So the first version whose next offset is above the offset has read it.
    while low < high:
        middle = (low + high) // 2
        if offsets.position(_stored(opened, middle)[1].next, partition) > offset:
            high = middle
        else:
            low = middle + 1
    plan, outcome = _stored(opened, low)
    start, end = plan.ranges.get(partition, (0, 0))
    is_gap = any(first <= offset < last for first, last in plan.gaps.get(partition, ()))
    was_read = outcome.committed and plan.replaces is None and start <= offset < end and not is_gap
    return low if was_read else None


def _is_outdated(opened: OpenPipeline, head: Head, batch: int) -> bool:
    source = opened.pipeline.source
    newest = opened.log.find_current(batch, head)
    assert newest is not None  # the batch was not rolled back
    current, _ = _stored(opened, newest)
    pins = source.read_pins(current.pins)
    return isinstance(source, Repinning) and [*source.repin(current.ranges, current.gaps, pins)] != [*pins]


def _stored(opened: OpenPipeline, version: int) -> tuple[Plan, Outcome]:
    plan, outcome = opened.log.plan(version), opened.log.outcome(version)
    if plan is None or outcome is None:
        raise LogDamagedError("a closed version lacks its plan or its outcome", invariant="I2", version=version)
    return plan[0], outcome[0]
