"""Counts ranges of offsets, as messages and metrics show them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from airflow_provider_streamsem.connectors.contract import Source
from airflow_provider_streamsem.protocol.offsets import Gaps, Ranges, length


@runtime_checkable
class CountsRanges(Protocol):
    """
    Additional interface of a ``Source`` whose offsets are not consecutive, such as times or sequence numbers.

    The length of a range of such offsets is not a number of items.
    """

    @property
    def range_unit(self) -> str:
        """
        The plural noun for what :meth:`count` counts, such as ``cursor values``. Messages about ranges and gaps show it.

        Messages about unread items show ``Source.unit``.
        """
        ...

    def count(self, ranges: Ranges) -> int:
        """Return the length of the ranges in this unit. Sends no request."""
        ...


def range_unit(source: Source) -> str:
    """Return the plural noun for the unit of :func:`count`: ``Source.unit``, unless the source is a :class:`CountsRanges`."""
    return source.range_unit if isinstance(source, CountsRanges) else source.unit


def count(source: Source, ranges: Ranges) -> int:
    """Return the length of ranges: the number of offsets, unless the source is a :class:`CountsRanges`."""
    return source.count(ranges) if isinstance(source, CountsRanges) else length(ranges)


def count_gaps(source: Source, gaps: Gaps) -> int:
    """Return the total length of gaps, in the unit of :func:`count`."""
    return sum(count(source, {name: piece}) for name, pieces in gaps.items() for piece in pieces)
