"""
Finds columns of the schema that are null in every parsed record of a batch.

The parser adds columns of masks, which the pass that counts the records combines with ``bit_or``. A mask has one bit for each column that is not null in some
parsed record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PER_MASK = 60
"""Columns of one mask, which is a ``bigint``."""


def bits(declared: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return name of each mask → the columns of its bits, from the lowest bit."""
    return {_name(start): declared[start : start + _PER_MASK] for start in range(0, len(declared), _PER_MASK)}


def names(declared: Sequence[str]) -> list[str]:
    """Return the names of the masks."""
    return [*bits(declared)]


def absent(declared: Sequence[str], counts: Mapping[str, Any]) -> list[str]:
    """Return the columns whose bit is not set in the masks ``counts``."""
    return [
        name for n, name in enumerate(declared) if not counts.get(_name(n - n % _PER_MASK), 0) >> (n % _PER_MASK) & 1
    ]


def _name(start: int) -> str:
    return f"__streamsem_present{start}"
