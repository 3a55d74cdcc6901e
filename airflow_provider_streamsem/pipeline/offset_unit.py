"""The noun by which messages and metrics name the values between two offsets."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from airflow_provider_streamsem.connectors.contract import Source


@runtime_checkable
class HasOffsetUnit(Protocol):
    """
    Additional interface of a :class:`Source` whose offsets do not count its items, such as times. :attr:`Source.unit` remains the noun for items.

    :attr offset_unit: the plural noun for the values between two offsets, such as ``cursor values``
    """

    offset_unit: ClassVar[str]


def offset_unit(source: Source) -> str:
    """Return the plural noun for the values between two offsets of a source."""
    return source.offset_unit if isinstance(source, HasOffsetUnit) else source.unit
