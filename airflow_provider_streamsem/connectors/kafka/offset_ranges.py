"""Arithmetic on offset ranges: distributes the row limit of a batch over partitions, and merges adjacent ranges."""

from __future__ import annotations

from collections.abc import Mapping


def joined(pieces: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge adjacent ranges ``[start, end)``, which ascend without overlap."""
    merged: list[tuple[int, int]] = []
    for first, last in pieces:
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def shared(lags: Mapping[str, int], most: int | None) -> dict[str, int]:
    """
    Distribute ``most`` offsets (``None``: no limit) over partitions in proportion to their lag.

    Each partition with lag gets at least one offset, so that every partition makes progress. So the batch may exceed ``most`` by up to the number of partitions
    with lag.
    """
    total = sum(lags.values())
    if most is None or total <= most:
        return dict(lags)
    shares = {name: max(1, lag * most // total) if lag else 0 for name, lag in lags.items()}
    remainder = most - sum(shares.values())
    for name in sorted(lags, key=lambda name: (-lags[name], name)):  # distributes the remainder of the integer division
        more = min(max(remainder, 0), lags[name] - shares[name], 1)
        shares[name], remainder = shares[name] + more, remainder - more
    return shares
