"""Writes the staged rows of a batch to a table with Spark: merges them by key, or appends them. Imports pyspark only when it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.changes import CHANGE, DELETE, UNCHANGED, UPSERT, Changes
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet import spark_changes, spark_history
from airflow_provider_streamsem.connectors.staged_parquet.spark_rows import AT, last_of_each, staged_rows
from airflow_provider_streamsem.connectors.staged_parquet.table_sink import TableSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TARGET, _SOURCE = "`__streamsem_target`", "`__streamsem_source`"


def write(
    session: SparkSession,
    table: str,
    sink: TableSink[Any],
    batch: SinkCommit,
    *,
    defaults: Sequence[str] = (),
    keeps_source: bool = False,
) -> None:
    """
    Append the rows of the batch, or in mode ``upsert``, replace the row of the table with the same keys by each row of the batch, or insert the row. Of rows
    with equal keys, the last in the order of the staged files is used. A replaced row keeps its values of the columns that the batch lacks.

    With ``changes``, a row that is older than that of the table, or than a tombstone, changes nothing, and a delete deletes the row of the table. If the
    table keeps the history of rows, each change begins or ends a version.

    :param table: the name of the table in Spark SQL
    :param defaults: the columns of the table that inserted rows lack
    :param keeps_source: keep the rows to merge in the memory and on the disks of the executors, because a merge into a table of this format reads them twice
    """
    rows, keys = staged_rows(session, sink, batch), sink.keys
    if not sink.merges:
        rows = rows.drop(AT)
    elif sink.changes is None:
        rows = last_of_each(rows, keys)
    elif sink.changes.keeps_history:
        rows, keys = spark_history.applied(session, rows, table, batch, sink.changes), sink.changes.row_keys
    else:
        rows = spark_changes.applied(session, rows, table, batch, sink.changes)
    source = f"__streamsem_{SYSTEM_CLOCK.new_id()}"
    if keeps_source and sink.merges:
        rows = rows.persist()
    rows.createOrReplaceTempView(source)
    statement = (
        _merge(table, quoted(source), keys, rows.columns, defaults, sink.changes)
        if sink.merges
        else _insert(table, quoted(source), rows.columns, defaults)
    )
    try:
        session.sql(statement).collect()
    finally:
        session.catalog.dropTempView(source)
        rows.unpersist()


def _insert(table: str, source: str, columns: Sequence[str], defaults: Sequence[str]) -> str:
    values = {**{quoted(name): quoted(name) for name in columns}, **{quoted(name): "DEFAULT" for name in defaults}}
    return f"INSERT INTO {table} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {source}"


def _merge(
    table: str,
    source: str,
    keys: Sequence[str],
    columns: Sequence[str],
    defaults: Sequence[str],
    changes: Changes | None,
) -> str:
    equals = "=" if changes is None else "<=>"  # a truncate deletes rows without a key, too
    on = " AND ".join(f"{_TARGET}.{quoted(key)} {equals} {_SOURCE}.{quoted(key)}" for key in keys)
    values: Mapping[str, str] = {
        quoted(name): f"{_SOURCE}.{quoted(name)}" for name in columns if name not in (CHANGE, UNCHANGED)
    }
    changed = {name: value for name, value in values.items() if name not in {quoted(key) for key in keys}} or values
    if UNCHANGED in columns:
        assert changes is not None
        for at, name in enumerate(map(quoted, changes.values(columns))):
            kept = f"array_contains({_SOURCE}.{UNCHANGED}, {at})"
            changed = {**changed, name: f"CASE WHEN {kept} THEN {_TARGET}.{name} ELSE {values[name]} END"}
    update = ", ".join(f"{_TARGET}.{name} = {value}" for name, value in changed.items())
    inserted = {**values, **{quoted(name): "DEFAULT" for name in defaults}}
    matched, delete, not_matched = "", "", ""
    if changes is not None:
        mine, theirs = (
            f"struct({', '.join(f'{side}.{quoted(name)}' for name in changes.sequence_by)})"
            for side in (_SOURCE, _TARGET)
        )
        # A null in the table is before every value. A version that ends is not newer than itself.
        matched = "" if changes.keeps_history else f" AND {mine} >= {theirs}"
        delete = f"WHEN MATCHED{matched} AND {_SOURCE}.{CHANGE} = '{DELETE}' THEN DELETE "
        not_matched = f" AND {_SOURCE}.{CHANGE} = '{UPSERT}'"
    return (
        f"MERGE INTO {table} AS {_TARGET} USING {source} AS {_SOURCE} ON {on} {delete}WHEN MATCHED{matched} THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED{not_matched} THEN INSERT ({', '.join(inserted)}) VALUES ({', '.join(inserted.values())})"
    )
