"""Additional interfaces of sources and sinks for which the order of records and rows matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.connectors.contract import Loaded


@runtime_checkable
class LoadsInOrder(Protocol):
    """Additional interface of a :class:`Source` whose :meth:`Source.load` returns the records in another order than that of their offsets."""

    def load_in_order(self, spark: SparkSession, pins: Sequence[Any]) -> Loaded:
        """Return the records of :meth:`Source.load`, sorted by their offsets. Spark reads and sorts the records once more for it."""
        ...


@runtime_checkable
class LoadedInGroups(Protocol):
    """
    Additional interface of a :class:`Loaded` that :meth:`LoadsInOrder.load_in_order` returns: its records are ordered between groups, such as the versions
    of a table, but not within a group.
    """

    @property
    def groups(self) -> Sequence[int]:
        """The group of the records of each Spark partition, ascending. Empty: all records are of one group."""
        ...


@runtime_checkable
class PartlyOrdered(Protocol):
    """Additional interface of a :class:`Source` of which some records have no order, such as those of one version of a table."""

    @property
    def order(self) -> str:
        """Which records have an order, as a reason of the guarantee of a pipeline with a sink for which the order matters."""
        ...


SENT_IN_ORDER = (
    "the rows of a batch are sent in the order of the staged files. It is the order of the source if the transform only selects, filters or adds columns. "
    "After a repartition, a join or another shuffle, they are sent in any order{unless}, and an older row of a key may be sent after a newer one"
)
"""The reason of sinks that send every row. ``{unless}`` is replaced by what defines another order."""


@runtime_checkable
class Sequenced(Protocol):
    """
    Additional interface of a :class:`Sink` for which the order of the rows of a batch matters.

    The sink applies the rows in the order of the staged files. The engine stages them in the order of the source, or in that of :attr:`sequence_by`.
    """

    @property
    def is_sequenced(self) -> bool:
        """Whether the order matters with the settings of this sink."""
        ...

    @property
    def last_of(self) -> Sequence[str]:
        """The columns of which the sink keeps only the last row with equal values; empty if it keeps every row."""
        ...

    @property
    def sequence_by(self) -> Sequence[str]:
        """The columns by which the rows of a batch are ordered, ascending. Empty: the order of the source."""
        ...
