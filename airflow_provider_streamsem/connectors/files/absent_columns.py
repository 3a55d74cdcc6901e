"""Finds columns of the schema that are null in every parsed record of a batch. The masks are aggregates of the pass that counts the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from airflow_provider_streamsem.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

_PER_MASK = 60
"""Columns of one mask, which is a ``bigint``."""


@runtime_checkable
class ReportsAbsentColumns(Protocol):
    """
    Additional interface of a :class:`airflow_provider_streamsem.connectors.contract.Loaded` with records that may lack a column of the schema.

    :attr declared: the columns of the schema, in a fixed order
    """

    declared: tuple[str, ...]

    def report_absent(self, columns: Sequence[str], records: int) -> None:
        """
        Report columns that are null in every parsed record of the batch. Called once for each batch that has such a column.

        :param records: number of parsed records
        :raises DataError: the source refuses such batches. Nothing became visible
        """
        ...


def masks(declared: Sequence[str], bad: Column) -> dict[str, Column]:
    """
    Return name → aggregate with one bit for each column that is not null in some parsed record.

    :param bad: whether a record cannot be parsed
    """
    from pyspark.sql import functions as F

    aggregates = {}
    for start in range(0, len(declared), _PER_MASK):
        columns = declared[start : start + _PER_MASK]
        bits = " | ".join(f"IF({quoted(name)} IS NULL, 0L, {1 << n}L)" for n, name in enumerate(columns))
        aggregates[_name(start)] = F.bit_or(F.when(~bad, F.expr(bits)).otherwise(F.lit(0).cast("bigint")))
    return aggregates


def names(declared: Sequence[str]) -> list[str]:
    """Return the names of the masks."""
    return [_name(start) for start in range(0, len(declared), _PER_MASK)]


def absent(declared: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """
    Return the columns whose bit is not set.

    :param counts: name → value of the mask
    """
    return [
        name for n, name in enumerate(declared) if not counts.get(_name(n - n % _PER_MASK), 0) >> (n % _PER_MASK) & 1
    ]


def _name(start: int) -> str:
    return f"present{start}"
