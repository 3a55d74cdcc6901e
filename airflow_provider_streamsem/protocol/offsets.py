"""
Offsets, offset ranges and operations on them.

Every range is ``[start, end)``. ``end`` is the next offset to read. A partition that is absent from :data:`Offsets` is at offset 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Offsets: TypeAlias = Mapping[str, int]
"""Partition → next offset to read."""

Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""Partition → ``[start, end)``."""

Gaps: TypeAlias = Mapping[str, tuple[tuple[int, int], ...]]
"""Partition → ranges ``[start, end)`` of offsets inside a planned range that will not be read."""


def position(offsets: Offsets, partition: str) -> int:
    """Return the next offset to read of a partition; 0 if the partition is absent."""
    return offsets.get(partition, 0)


def starts(ranges: Ranges) -> dict[str, int]:
    """Return the start offset of each range, inclusive."""
    return {partition: start for partition, (start, _) in sorted(ranges.items())}


def ends(ranges: Ranges) -> dict[str, int]:
    """Return the end offset of each range, exclusive. The next plan starts there."""
    return {partition: end for partition, (_, end) in sorted(ranges.items())}


def advance(offsets: Offsets, to: Offsets) -> dict[str, int]:
    """Return ``offsets`` with the partitions of ``to`` set to their values in ``to``. Other partitions keep their offsets."""
    return dict(sorted({**offsets, **to}.items()))


def between(start: Offsets, end: Offsets) -> dict[str, tuple[int, int]]:
    """
    Return the ranges from ``start`` to ``end``. Partitions without offsets in between are absent.

    If ``end`` is below ``start``, the partition has no range. This function does not report such partitions; the source does.
    """
    return {p: (position(start, p), end[p]) for p in sorted(end) if end[p] > position(start, p)}


def length(ranges: Ranges) -> int:
    """Return the number of offsets in the ranges, summed over all partitions."""
    return sum(end - start for start, end in ranges.values())


def reached(offsets: Offsets, target: Offsets) -> bool:
    """Whether every partition of ``target`` is at or above its target offset."""
    return all(position(offsets, partition) >= end for partition, end in target.items())


def within(ranges: Ranges, target: Offsets) -> bool:
    """Whether no range exceeds ``target``. A partition that is absent from the target must not have a range."""
    return all(partition in target and end <= target[partition] for partition, (_, end) in ranges.items())
