"""Counts the items in ranges of offsets, as messages and metrics show them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from airflow_provider_streamsem.protocol.offsets import Gaps, Ranges, length


@runtime_checkable
class CountsItems(Protocol):
    """Additional interface of a ``Source`` whose offsets are not consecutive, such as sequence numbers, so that their differences count nothing."""

    def items_in(self, ranges: Ranges) -> int:
        """Return the number of items in the ranges, in the source's unit. Sends no request, so it may be a lower bound."""
        ...


def items_in(source: object, ranges: Ranges) -> int:
    """Return the number of items in the ranges of a source: the number of offsets, unless the source is a :class:`CountsItems`."""
    return source.items_in(ranges) if isinstance(source, CountsItems) else length(ranges)


def items_in_gaps(source: object, gaps: Gaps) -> int:
    """Return the number of items in the gaps of a source."""
    return sum(items_in(source, {name: piece}) for name, pieces in gaps.items() for piece in pieces)
