"""
Writes rows to Parquet files of a table, and proves that the files have exactly these rows before the table references them.

pyarrow reads the old files and writes the new files. The libraries of table formats convert nested values on the way, and have lost nulls there. Imports
pyarrow, so only sinks import this module, when they rewrite rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet

from airflow_provider_streamsem.connectors.data_files.contents import changed_columns, contents

_ROWS = 65_536
_GROUP_BYTES = 128 * 2**20
_GROUP_ROWS = 1_048_576

Read = Callable[[], Iterable[Any]]
"""A function that reads rows as pyarrow tables. It returns the same rows in each call."""


class RowsDifferError(Exception):
    """The rows of new files differ from those that were to be written. The new files were deleted. ``facts``: the numbers of rows, and the columns."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self.facts = facts


def batches(file: BinaryIO) -> Iterator[Any]:
    """Yield the rows of a Parquet file as pyarrow tables, with the names and types of the file."""
    parquet = pyarrow.parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
    for batch in parquet.iter_batches(batch_size=_ROWS):
        yield pa.Table.from_batches([batch])


def write(target: Any, rows: Iterable[Any], schema: pa.Schema, **options: Any) -> Any:
    """Write rows to a Parquet file, and return its metadata. The footer has no statistics of floats and nested columns. Columns that rows lack become null."""
    # pyarrow leaves NaN out of the bounds of a row group, so that DuckDB, which orders NaN above all numbers, would skip the group.
    bounded = [
        each.name for each in schema if not pa.types.is_nested(each.type) and not pa.types.is_floating(each.type)
    ]
    options |= {"write_statistics": bounded, "store_schema": False}
    collected: list[Any] = []
    with pyarrow.parquet.ParquetWriter(target, schema, metadata_collector=collected, **options) as writer:  # fmt: skip
        for group in _groups(_aligned(table, schema) for table in rows):
            writer.write_table(group, row_group_size=_GROUP_ROWS)
    return collected[0]


def changed(before: Read, after: Read, schema: pa.Schema) -> dict[str, Any] | None:
    """Compare rows in any order. Return ``None`` if all values are equal, else the facts for an error: the numbers of rows, and the columns that differ."""
    expected, found = contents(before(), schema), contents(after(), schema)
    if expected == found:
        return None
    columns = changed_columns(before, after, schema) if expected.rows == found.rows else []
    return {"rows_read": expected.rows, "rows_written": found.rows, "columns": columns}


def _aligned(table: Any, schema: pa.Schema) -> Any:
    names = table.schema.names
    columns = [
        table[field.name].cast(field.type) if field.name in names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _groups(tables: Iterable[Any]) -> Iterator[Any]:
    """Many small row groups are slow to read."""
    group: list[Any] = []
    for table in tables:
        group.append(table)
        if sum(part.nbytes for part in group) >= _GROUP_BYTES or sum(map(len, group)) >= _GROUP_ROWS:
            yield pa.concat_tables(group)
            group = []
    if group:
        yield pa.concat_tables(group)
