"""
Deduplication on Spark: drops duplicate records.

The ids of a batch come to the driver, which decides which records pass. A record without an id always passes. This module imports pyspark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, DataType, DateType, DecimalType, IntegralType, StringType

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.deduplication.batch import DedupBatch
from airflow_provider_streamsem.deduplication.ids import ID_BYTES, halves
from airflow_provider_streamsem.errors import DataError

_KEY_TYPES = (StringType, IntegralType, DecimalType, DateType, BooleanType, BinaryType)
_ID, _ROW = "__streamsem_id", "__streamsem_id_row"
_MAX_BROADCAST_ROWS = 500_000
"""Up to this many dropped records are broadcast to the tasks that write, so that the records are not shuffled."""


@dataclass(slots=True)
class Deduplication:
    """Deduplicates the records of one attempt. ``counts`` has the row counts by name, after :meth:`passing`."""

    batch: DedupBatch
    counts: dict[str, int] = field(default_factory=dict)

    def passing(self, records: DataFrame, store: Callable[[DataFrame], DataFrame]) -> DataFrame:
        """
        Return the records that pass, with unchanged columns.

        ``store`` evaluates a DataFrame once, and returns one that reads the stored rows. So a record that is dropped is the one whose id was compared.
        """
        numbered = records.withColumns({_ID: self._id(records), _ROW: F.monotonically_increasing_id()})
        stored = store(numbered)
        found = stored.select(_ID, _ROW).toArrow()
        with_id = found.filter(pc.is_valid(found.column(_ID)))
        rows = with_id.column(_ROW)
        is_dropped = np.ones(len(rows), bool)
        is_dropped[self.batch.passing(*halves(_bytes(with_id.column(_ID))))] = False
        dropped = rows.filter(pa.array(is_dropped))
        self.counts = {
            "duplicates": len(dropped),
            "late_duplicates": self.batch.late_duplicates,
            "without_id": len(found) - len(with_id),
        }
        passed = stored
        if len(dropped):
            drop = stored.sparkSession.createDataFrame(pa.table({_ROW: dropped}))
            is_small = len(dropped) <= _MAX_BROADCAST_ROWS
            passed = stored.join(F.broadcast(drop) if is_small else drop, _ROW, "left_anti")
        return passed.drop(_ID, _ROW)

    def _id(self, records: DataFrame) -> Column:
        types = {f.name: f.dataType for f in records.schema.fields}
        missing = [name for name in self.batch.dedup.keys if name not in types]
        if missing:
            raise DataError("the records lack key columns of dedup", missing=missing, columns=list(types))
        unsupported = [name for name in self.batch.dedup.keys if not isinstance(types[name], _KEY_TYPES)]
        if unsupported:
            raise DataError(
                "dedup does not accept key columns of these types, because equal values may have different text forms",
                columns=unsupported,
            )
        # Each value is preceded by its length, so that different lists of values have different bytes.
        names = {name: quoted(name) for name in self.batch.dedup.keys}
        parts = [part for name, column in names.items() for part in _length_prefixed(column, types[name])]
        has_all = " AND ".join(f"{column} IS NOT NULL" for column in names.values())
        return F.expr(f"IF({has_all}, substring(unhex(sha2(concat({', '.join(parts)}), 256)), 1, {ID_BYTES}), NULL)")


def _length_prefixed(column: str, kind: DataType) -> list[str]:
    data = column if isinstance(kind, BinaryType) else f"CAST({_text(column, kind)} AS BINARY)"
    return [f"CAST(CAST(octet_length({data}) AS STRING) AS BINARY)", "X'3A'", data]


def _text(column: str, kind: DataType) -> str:
    """The text does not depend on the width of the type: 5, 5.0 and 5.00 have one id. A cast of a decimal would depend on settings and scale."""
    if not isinstance(kind, DecimalType):
        return f"CAST({column} AS STRING)"
    digits = f"replace(format_number({column}, {kind.scale}), ',')"
    return f"rtrim('.', rtrim('0', {digits}))" if kind.scale else digits


def _bytes(ids: pa.ChunkedArray) -> pa.Buffer | bytes:
    """Return the bytes of ids, which have no nulls."""
    column = ids.cast(pa.binary(ID_BYTES)).combine_chunks()
    return column.buffers()[1].slice(column.offset * ID_BYTES, len(column) * ID_BYTES) if len(column) else b""
