"""
Orders the rows of a batch for the sinks in which the order matters, and proves that the order is that of the source.

This module imports pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, VariantType

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.data_files import groups
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.connectors.source import Loaded, LoadedTogether, Source
from airflow_provider_streamsem.connectors.staged_parquet import keyed_rows
from airflow_provider_streamsem.engine import Job
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import Committable

_AT = "__streamsem_at"
ORDERED_NODES = {"Project", "Filter", "CollectMetrics", "Generate", "SubqueryAlias", "View", "MapInPandas", "MapInArrow", "ResolvedHint"}  # fmt: skip
"""The nodes of Spark's query plans that return rows in the order of their input."""


class _Inspection(Protocol):
    def keeps_order(self, frame: DataFrame, records: DataFrame) -> bool: ...


@dataclass(slots=True)
class Sequencing:
    """
    The order of the rows of one attempt. It is *defined* for a sink if the staged rows are certain to be in the order of the source. The records of some
    sources are ordered between groups only (:attr:`Loaded.groups`).
    """

    inspect: _Inspection
    job: Job
    _is_defined: dict[str, bool] = field(default_factory=dict)
    _groups: Sequence[int] | None = None
    """The group of the records of each Spark partition; ``None`` if the source orders all records."""

    @property
    def _sinks(self) -> dict[str, Sink]:
        return {name: sink for name, sink in self.job.sinks.items() if sink.is_sequenced}

    @property
    def needs_source_order(self) -> bool:
        """Whether a sink depends on the order of the rows. It also decides between rows that are equal in ``sequence_by``."""
        return self.job.state_settings is None and bool(self._sinks)

    def load(self, session: SparkSession, source: Source, pins: Sequence[Any]) -> Loaded | LoadedTogether:
        """Load the records of a plan, in the order of the source if a sink needs it."""
        if not self.needs_source_order:
            return source.load(session, pins)
        loaded = source.load_in_order(session, pins)
        self._groups = loaded.groups if isinstance(loaded, Loaded) else None
        return loaded

    def numbered(self, records: DataFrame) -> DataFrame:
        """Add the position of each record, before a step that shuffles the records."""
        return records.withColumn(_AT, F.monotonically_increasing_id()) if self.needs_source_order else records

    def restored(self, records: DataFrame) -> DataFrame:
        """Restore the order of records that :meth:`numbered` has numbered, and remove the position."""
        if not self.needs_source_order:
            return records
        if self._groups is None:
            return records.orderBy(_AT).drop(_AT)
        if not self._groups:
            return records.drop(_AT)
        return groups.in_partitions(records, F.shiftright(_AT, 33).cast("int"), len(self._groups)).drop(_AT)

    def compare(self, records: Mapping[str, DataFrame], result: Any) -> None:
        """Record for which sinks the transform, which has returned ``result``, keeps the order of its input."""
        for name in self._sinks:
            frame = result.get(name) if isinstance(result, Mapping) else result
            self._is_defined[name] = (
                self.needs_source_order
                and isinstance(frame, DataFrame)
                and len(records) == 1
                and self.inspect.keeps_order(frame, next(iter(records.values())))
            )

    def ordered(self, name: str, frame: DataFrame) -> DataFrame:
        """Sort the rows of a sink by its ``sequence_by``. Rows with equal values stay in the order of the source."""
        by = self._sinks[name].sequence_by if name in self._sinks else ()
        if not by:
            return frame
        types = {column.name: column.dataType for column in frame.schema.fields}
        missing = [column for column in by if column not in types]
        if missing:
            summary = "the rows lack columns of sequence_by"
            raise DataError(summary, sink=name, missing=missing, columns=list(types))
        unsorted = [c for c in by if not isinstance(types[c], AtomicType) or isinstance(types[c], VariantType)]
        if unsorted:
            summary = "columns of sequence_by must be numbers, strings, dates, times, booleans or binary"
            raise DataError(summary, sink=name, columns=unsorted)
        numbered = frame.withColumn(_AT, F.monotonically_increasing_id())
        return numbered.orderBy(*[F.col(quoted(column)) for column in by], _AT).drop(_AT)

    def check(self, name: str, location: str, staged: Committable) -> None:
        """Refuse staged rows of which the sink would keep an arbitrary one: their order is not defined, and rows with equal keys differ."""
        sink = self._sinks.get(name)
        if sink is None or not sink.last_of:
            return
        is_defined = self._is_defined.get(name, False)
        if is_defined and self._groups is None:
            return
        is_grouped = is_defined and not sink.sequence_by  # a sort by `sequence_by` distributes the rows again
        keyed_rows.refuse_ambiguous(
            location, staged, sink.last_of, sink.sequence_by,
            groups=self._groups or () if is_grouped else (), of_changes=sink.changes is not None,
        )  # fmt: skip
