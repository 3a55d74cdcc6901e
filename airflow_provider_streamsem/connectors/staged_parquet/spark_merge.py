"""Merges the staged rows of a batch into a table by key with Spark's MERGE. Imports pyspark only when it merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.changes import CHANGE, DELETE, TRUNCATE, UPSERT, Changes, with_change
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.data_files.read import read_files
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TARGET, _SOURCE = "`__streamsem_target`", "`__streamsem_source`"
_ROW, _AT, _TOMBSTONE = "__streamsem_row", "__streamsem_at", "__streamsem_tombstone"


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

    With ``changes``, a row that is older than that of the table, or than a tombstone, changes nothing, and a delete deletes the row of the table.

    :param table: the name of the table in Spark SQL
    :param defaults: the columns of the table that inserted rows lack
    """
    rows = last_of_each(session, sink, batch, keys)
    if sink.changes is not None:
        rows = _applied(session, rows, table, batch, sink.changes)
    source = f"__streamsem_{SYSTEM_CLOCK.new_id()}"
    rows.createOrReplaceTempView(source)
    try:
        session.sql(_statement(table, quoted(source), keys, rows.columns, defaults, sink.changes)).collect()
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
        schema=batch.staged_schema if sink.changes is None else with_change(batch.staged_schema),
        metadata=[F.struct("_metadata.file_name", "_metadata.row_index").alias(_AT)],
    )
    names = [name for name in rows.columns if name != _AT]
    columns = [F.col(quoted(name)) for name in names]
    last = F.max_by(F.struct(*columns), F.col(_AT)).alias(_ROW)
    by_key = [F.col(quoted(name)).alias(f"__streamsem_key{at}") for at, name in enumerate(keys)]
    grouped = rows.groupBy(*by_key).agg(last)
    return grouped.select(*(F.col(_ROW).getField(name).alias(name) for name in names))


def _applied(session: SparkSession, rows: DataFrame, table: str, batch: SinkCommit, changes: Changes) -> DataFrame:
    """Return the rows that are not before a tombstone, and a delete for each older key of the table if the batch has a truncate."""
    import pyarrow
    from pyspark.sql import functions as F

    from airflow_provider_streamsem.connectors.staged_parquet.changed_rows import tombstones

    if not batch.tombstones:  # no delete, and no truncate
        return rows
    columns = rows.select(*(quoted(name) for name in changes.required)).schema
    # The publisher reads the tombstones, because the executors may not reach the log.
    stored = session.createDataFrame(pyarrow.concat_tables(tombstones(batch), promote_options="permissive")).to(columns)
    has_key, keys = F.col(quoted(changes.keys[0])).isNotNull(), [F.col(quoted(name)) for name in changes.keys]
    sequence = F.struct(*(F.col(quoted(name)) for name in changes.sequence_by))
    newest = F.max(sequence).alias(_TOMBSTONE)
    applies = F.col(_TOMBSTONE).isNull() | (sequence >= F.col(_TOMBSTONE))
    truncates = F.broadcast(stored.where(~has_key).agg(newest))
    deletes = stored.where(has_key).groupBy(*keys).agg(newest)
    rows = rows.crossJoin(truncates).where(applies).drop(_TOMBSTONE)
    own = rows.where(F.col(CHANGE) == TRUNCATE)
    keyed = rows.where(F.col(CHANGE) != TRUNCATE).join(deletes, list(changes.keys), "left").where(applies)
    keyed = keyed.select(*map(quoted, rows.columns))
    if own.isEmpty():
        return keyed
    in_table = session.sql(f"SELECT {', '.join(quoted(name) for name in changes.required)} FROM {table}")
    at = [F.col(_TOMBSTONE).getField(name).alias(name) for name in changes.sequence_by]
    truncated = in_table.crossJoin(F.broadcast(own.agg(newest))).where(sequence < F.col(_TOMBSTONE))
    truncated = truncated.select(*keys, *at, F.lit(DELETE).alias(CHANGE)).distinct()
    truncated = truncated.join(keyed.select(*keys), list(changes.keys), "left_anti")
    # A checkpoint, because Spark 4.1 cannot plan a MERGE whose source is a view of a table of a catalog.
    return keyed.unionByName(truncated.localCheckpoint(), allowMissingColumns=True)


def _statement(
    table: str,
    source: str,
    keys: Sequence[str],
    columns: Sequence[str],
    defaults: Sequence[str],
    changes: Changes | None,
) -> str:
    equals = "=" if changes is None else "<=>"  # a truncate deletes rows without a key, too
    on = " AND ".join(f"{_TARGET}.{quoted(key)} {equals} {_SOURCE}.{quoted(key)}" for key in keys)
    values: Mapping[str, str] = {quoted(name): f"{_SOURCE}.{quoted(name)}" for name in columns if name != CHANGE}
    changed = {name: value for name, value in values.items() if name not in {quoted(key) for key in keys}} or values
    update = ", ".join(f"{_TARGET}.{name} = {value}" for name, value in changed.items())
    inserted = {**values, **{quoted(name): "DEFAULT" for name in defaults}}
    matched, delete, not_matched = "", "", ""
    if changes is not None:
        mine, theirs = (
            f"struct({', '.join(f'{side}.{quoted(name)}' for name in changes.sequence_by)})"
            for side in (_SOURCE, _TARGET)
        )
        matched = f" AND {mine} >= {theirs}"  # a null in the table is before every value
        delete = f"WHEN MATCHED{matched} AND {_SOURCE}.{CHANGE} = '{DELETE}' THEN DELETE "
        not_matched = f" AND {_SOURCE}.{CHANGE} = '{UPSERT}'"
    return (
        f"MERGE INTO {table} AS {_TARGET} USING {source} AS {_SOURCE} ON {on} {delete}WHEN MATCHED{matched} THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED{not_matched} THEN INSERT ({', '.join(inserted)}) VALUES ({', '.join(inserted.values())})"
    )
