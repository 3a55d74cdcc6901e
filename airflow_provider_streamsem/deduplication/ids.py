"""Sets of ids in memory, with the times at which they passed. An id is 16 bytes of a hash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

ID_BYTES = 16
Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Ids:
    """
    Ids in the order of their first eight bytes. An id may occur several times, with different times.

    :param high: the first eight bytes of each id, as a big-endian number (``uint64``)
    :param low: the last eight bytes
    :param at_ms: when the batch of each id was planned, in milliseconds UTC (``int64``)
    """

    high: Array
    low: Array
    at_ms: Array

    def __len__(self) -> int:
        return len(self.high)

    def where(self, chosen: Array | slice) -> Ids:
        """Return some ids: those at which a mask is true, or those of a slice."""
        return Ids(self.high[chosen], self.low[chosen], self.at_ms[chosen])

    def equal(self, others: Ids) -> tuple[Array, Array]:
        """Return the pairs of equal ids: their positions in this set, and in the other."""
        first = np.searchsorted(others.high, self.high, "left")
        counts = np.searchsorted(others.high, self.high, "right") - first
        mine = np.repeat(np.arange(len(self)), counts)
        theirs = np.arange(len(mine)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        is_equal = self.low[mine] == others.low[theirs]
        return mine[is_equal], theirs[is_equal]

    def are_in(self, others: Ids) -> Array:
        """Return whether each id is in another set."""
        found = np.zeros(len(self), bool)
        found[self.equal(others)[0]] = True
        return found

    def to_arrow(self) -> pa.FixedSizeBinaryArray:
        """Return the ids as a column."""
        data = np.empty((len(self), 2), ">u8")
        data[:, 0], data[:, 1] = self.high, self.low
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(ID_BYTES), len(self), [None, pa.py_buffer(data)])


NO_IDS = Ids(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))


def halves(data: pa.Buffer | bytes) -> tuple[Array, Array]:
    """Return the first and the last eight bytes of consecutive ids, as numbers."""
    numbers = np.frombuffer(data, ">u8").reshape(-1, 2)
    return numbers[:, 0].astype(np.uint64), numbers[:, 1].astype(np.uint64)


def in_order(high: Array, low: Array, at_ms: Array) -> Ids:
    """Return ids in any order as a set."""
    if (high[1:] >= high[:-1]).all():
        return Ids(high, low, at_ms)
    order = np.argsort(high, kind="stable")
    return Ids(high[order], low[order], at_ms[order])


def union(sets: Iterable[Ids]) -> Ids:
    """Return the ids of all sets."""
    parts = [part for part in sets if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else NO_IDS
    high, low, at_ms = (np.concatenate([getattr(p, name) for p in parts]) for name in ("high", "low", "at_ms"))
    return in_order(high, low, at_ms)


def first_of_equal(high: Array, low: Array) -> Array:
    """Return the position of the first of each group of equal ids, in the order of the ids."""
    order = np.argsort(high, kind="stable")
    is_tie = high[order[1:]] == high[order[:-1]]
    if (low[order[1:]][is_tie] != low[order[:-1]][is_tie]).any():  # different ids with equal first halves
        order = np.lexsort((low, high))
        is_tie = high[order[1:]] == high[order[:-1]]
    is_repeated = is_tie & (low[order[1:]] == low[order[:-1]])
    first: Array = order[np.concatenate([np.ones(min(len(order), 1), bool), ~is_repeated])]
    return first
