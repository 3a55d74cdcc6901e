"""Merges the staged rows of a batch into a table by key with Spark's MERGE. Imports pyspark only when it merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.data_files.read import read_files
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TARGET, _SOURCE = "`__streamsem_target`", "`__streamsem_source`"
_ROW, _AT = "__streamsem_row", "__streamsem_at"


def merge(
    session: SparkSession,
    table: str,
    sink: StagedSink,
    batch: SinkCommit,
    keys: Sequence[str],
    *,
    defaults: Sequence[str] = (),
) -> None:
    """
    Replace the row of the table with the same keys by each row of the batch, or insert the row. Of rows with equal keys, the last in the order of the staged
    files is used. A replaced row keeps its values of the columns that the batch lacks.

    :param table: the name of the table in Spark SQL
    :param defaults: the columns of the table that inserted rows lack
    """
    rows = last_of_each(session, sink, batch, keys)
    source = f"__streamsem_{SYSTEM_CLOCK.new_id()}"
    rows.createOrReplaceTempView(source)
    try:
        session.sql(_statement(table, quoted(source), keys, rows.columns, defaults)).collect()
    finally:
        session.catalog.dropTempView(source)


def last_of_each(session: SparkSession, sink: StagedSink, batch: SinkCommit, keys: Sequence[str]) -> DataFrame:
    """Return the last row of each key. The order of the staged files is that of their names (see ``Store.list``)."""
    from pyspark.sql import functions as F

    assert not batch.replaced_files  # a sink that merges rows can remove none (`can_remove_rows`)
    rows = read_files(
        session,
        sink.urls(batch.committable.files),
        format=batch.committable.format,
        schema=batch.staged_schema,
        metadata=[F.struct("_metadata.file_name", "_metadata.row_index").alias(_AT)],
    )
    names = [name for name in rows.columns if name != _AT]
    columns = [F.col(quoted(name)) for name in names]
    last = F.max_by(F.struct(*columns), F.col(_AT)).alias(_ROW)
    by_key = [F.col(quoted(name)).alias(f"__streamsem_key{at}") for at, name in enumerate(keys)]
    grouped = rows.groupBy(*by_key).agg(last)
    return grouped.select(*(F.col(_ROW).getField(name).alias(name) for name in names))


def _statement(table: str, source: str, keys: Sequence[str], columns: Sequence[str], defaults: Sequence[str]) -> str:
    on = " AND ".join(f"{_TARGET}.{quoted(key)} = {_SOURCE}.{quoted(key)}" for key in keys)
    values: Mapping[str, str] = {quoted(name): f"{_SOURCE}.{quoted(name)}" for name in columns}
    changed = {name: value for name, value in values.items() if name not in {quoted(key) for key in keys}} or values
    update = ", ".join(f"{_TARGET}.{name} = {value}" for name, value in changed.items())
    inserted = {**values, **{quoted(name): "DEFAULT" for name in defaults}}
    return (
        f"MERGE INTO {table} AS {_TARGET} USING {source} AS {_SOURCE} ON {on} WHEN MATCHED THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(inserted)}) VALUES ({', '.join(inserted.values())})"
    )
