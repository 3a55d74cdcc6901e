"""
Offsets and ranges, and their algebra.

Every range is ``[start, end)``; ``end`` is the next offset to read. A partition that is absent from :data:`Offsets` stands at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Offsets: TypeAlias = Mapping[str, int]
"""partition → offset of the next record to read"""

Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""partition → ``[start, end)``"""

Gaps: TypeAlias = Mapping[str, tuple[tuple[int, int], ...]]
"""partition → ``[start, end)`` of offsets that are inside a range and will not be read"""


def position(offsets: Offsets, partition: str) -> int:
    """The next offset to read of one partition; 0 where the partition is not named."""
    return offsets.get(partition, 0)


def starts(ranges: Ranges) -> dict[str, int]:
    """The first offset of each range, inclusive."""
    return {partition: start for partition, (start, _) in sorted(ranges.items())}


def ends(ranges: Ranges) -> dict[str, int]:
    """The end of each range, exclusive: where the next plan starts."""
    return {partition: end for partition, (_, end) in sorted(ranges.items())}


def advance(offsets: Offsets, to: Offsets) -> dict[str, int]:
    """``offsets`` with the partitions named in ``to`` set to it; the others are carried."""
    return dict(sorted({**offsets, **to}.items()))


def between(start: Offsets, end: Offsets) -> dict[str, tuple[int, int]]:
    """
    The ranges from ``start`` to ``end``; a partition with nothing in between is absent.

    An ``end`` below its ``start`` gives no range: offsets that went back are the source's to report.
    """
    return {p: (position(start, p), end[p]) for p in sorted(end) if end[p] > position(start, p)}


def length(ranges: Ranges) -> int:
    """How many offsets the ranges span, over all partitions."""
    return sum(end - start for start, end in ranges.values())


def reached(offsets: Offsets, target: Offsets) -> bool:
    """Whether every partition of ``target`` stands at its target or beyond."""
    return all(position(offsets, partition) >= end for partition, end in target.items())


def within(ranges: Ranges, target: Offsets) -> bool:
    """Whether no range reads beyond ``target``; a partition that the target does not name may not be read at all."""
    return all(partition in target and end <= target[partition] for partition, (_, end) in ranges.items())


def gap_length(gaps: Gaps) -> int:
    """How many offsets the gaps span, over all partitions."""
    return sum(end - start for pieces in gaps.values() for start, end in pieces)
