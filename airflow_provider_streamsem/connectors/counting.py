"""Counts ranges of offsets, as messages and metrics show them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from airflow_provider_streamsem.connectors.contract import Source
from airflow_provider_streamsem.protocol.offsets import Gaps, Ranges, length


@runtime_checkable
class CountsRanges(Protocol):
    """Additional interface of a ``Source`` whose offsets do not number its items, such as times or sequence numbers."""

    @property
    def counted(self) -> str:
        """The plural noun for the unit of :meth:`count`, such as ``cursor values``. ``Source.unit`` remains the noun for items."""
        ...

    def count(self, ranges: Ranges) -> int:
        """Return the length of the ranges in this unit. Sends no request."""
        ...


def counted(source: Source) -> str:
    """Return the plural noun for the unit of :func:`count`: ``Source.unit``, unless the source is a :class:`CountsRanges`."""
    return source.counted if isinstance(source, CountsRanges) else source.unit


def count(source: Source, ranges: Ranges) -> int:
    """Return the length of ranges: the number of offsets, unless the source is a :class:`CountsRanges`."""
    return source.count(ranges) if isinstance(source, CountsRanges) else length(ranges)


def count_gaps(source: Source, gaps: Gaps) -> int:
    """Return the total length of gaps, in the unit of :func:`count`."""
    return sum(count(source, {name: piece}) for name, pieces in gaps.items() for piece in pieces)
