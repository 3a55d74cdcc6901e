"""Merges the staged rows of a batch into a table by key with Spark's MERGE. Imports pyspark only when it merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.changes import (
    CHANGE,
    DELETE,
    TRUNCATE,
    UNCHANGED,
    UPSERT,
    Changes,
    with_marks,
)
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.data_files.read import read_files
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink, parquet_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TARGET, _SOURCE = "`__streamsem_target`", "`__streamsem_source`"
_ROW, _AT, _TOMBSTONE = "__streamsem_row", "__streamsem_at", "__streamsem_tombstone"
_DELETED, _HAS_ROW, _VALUE = "__streamsem_deleted", "__streamsem_has_row", "__streamsem_value"


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
    rows = staged_rows(session, sink, batch)
    rows = last_of_each(rows, keys) if sink.changes is None else _applied(session, rows, table, batch, sink.changes)
    source = f"__streamsem_{SYSTEM_CLOCK.new_id()}"
    rows.createOrReplaceTempView(source)
    try:
        session.sql(_statement(table, quoted(source), keys, rows.columns, defaults, sink.changes)).collect()
    finally:
        session.catalog.dropTempView(source)


def staged_rows(session: SparkSession, sink: StagedSink, batch: SinkCommit) -> DataFrame:
    """Return the staged rows with the column :data:`_AT` of their positions. The order of the staged files is that of their names (see ``Store.list``)."""
    from pyspark.sql import functions as F

    assert not batch.replaced_files  # a sink that merges rows can remove none (`can_remove_rows`)
    schema = batch.staged_schema
    if sink.changes is not None:
        # The arguments may have changed since the rows were staged, so the files say whether upserts leave columns unchanged.
        first = next(parquet_files(sink.location, batch.committable, is_committed=True), None)
        schema = with_marks(schema, [] if first is None else first.schema_arrow.names)
    return read_files(
        session,
        sink.urls(batch.committable.files),
        format=batch.committable.format,
        schema=schema,
        metadata=[F.struct("_metadata.file_name", "_metadata.row_index").alias(_AT)],
    )


def last_of_each(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the last row of each key, without its position."""
    from pyspark.sql import functions as F

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

    is_partial = UNCHANGED in rows.columns
    if not is_partial:
        rows = last_of_each(rows, changes.keys)
    if not batch.tombstones:  # no delete, and no truncate
        return _merged(session, rows, table, batch, changes, None) if is_partial else rows
    columns = rows.select(*(quoted(name) for name in changes.required)).schema
    # The publisher reads the tombstones, because the executors may not reach the log.
    stored = session.createDataFrame(pyarrow.concat_tables(tombstones(batch), promote_options="permissive")).to(columns)
    has_key, keys = F.col(quoted(changes.keys[0])).isNotNull(), [F.col(quoted(name)) for name in changes.keys]
    newest = F.max(_sequence(changes)).alias(_TOMBSTONE)
    applies = F.col(_TOMBSTONE).isNull() | (_sequence(changes) >= F.col(_TOMBSTONE))
    truncates = F.broadcast(stored.where(~has_key).agg(newest))
    deletes = stored.where(has_key).groupBy(*keys).agg(newest)
    rows = rows.crossJoin(truncates).where(applies).drop(_TOMBSTONE)
    own = rows.where(F.col(CHANGE) == TRUNCATE)
    keyed = rows.where(F.col(CHANGE) != TRUNCATE).join(deletes, list(changes.keys), "left").where(applies)
    keyed = keyed.select(*map(quoted, rows.columns))
    is_truncating = not own.isEmpty()
    if is_partial:
        keyed = _merged(session, keyed, table, batch, changes, own.agg(newest) if is_truncating else None)
    if not is_truncating:
        return keyed
    at = [F.col(_TOMBSTONE).getField(name).alias(name) for name in changes.sequence_by]
    truncated = _in_table(session, table, changes).crossJoin(F.broadcast(own.agg(newest)))
    truncated = truncated.where(_sequence(changes) < F.col(_TOMBSTONE))
    truncated = truncated.select(*keys, *at, F.lit(DELETE).alias(CHANGE)).distinct()
    truncated = truncated.join(keyed.select(*keys), list(changes.keys), "left_anti")
    # A checkpoint, because Spark 4.1 cannot plan a MERGE whose source is a view of a table of a catalog.
    return keyed.unionByName(truncated.localCheckpoint(), allowMissingColumns=True)


def _sequence(changes: Changes) -> Column:
    from pyspark.sql import functions as F

    return F.struct(*(F.col(quoted(name)) for name in changes.sequence_by))


def _in_table(session: SparkSession, table: str, changes: Changes) -> DataFrame:
    return session.sql(f"SELECT {', '.join(quoted(name) for name in changes.required)} FROM {table}")


def _merged(
    session: SparkSession, rows: DataFrame, table: str, batch: SinkCommit, changes: Changes, truncate: DataFrame | None
) -> DataFrame:
    """
    Merge the changes of each key into the last one, as :func:`airflow_provider_streamsem.connectors.staged_parquet.partial_changes.merged` does. The column
    :data:`UNCHANGED` of an upsert has the positions in :func:`_values` of the columns that no change sets.

    :param truncate: one row with the sequence of the newest truncate of the batch, which deletes older rows of the table
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = [F.col(quoted(name)) for name in changes.keys]
    names = _values(rows.columns, changes)
    in_table = _in_table(session, table, changes).select(*keys, _sequence(changes).alias(_TOMBSTONE))
    if truncate is not None:
        newest = F.broadcast(truncate.withColumnRenamed(_TOMBSTONE, _ROW))
        in_table = in_table.crossJoin(newest).where(F.col(_TOMBSTONE) >= F.col(_ROW)).drop(_ROW)
    in_table = in_table.groupBy(*keys).agg(F.max(_TOMBSTONE).alias(_TOMBSTONE))
    compared = rows.join(in_table, list(changes.keys), "left")
    compared = compared.where(F.col(_TOMBSTONE).isNull() | (_sequence(changes) >= F.col(_TOMBSTONE)))
    deleted = F.max(F.when(F.col(CHANGE) == DELETE, F.col(_AT))).over(Window.partitionBy(*keys))
    compared = compared.withColumn(_DELETED, deleted)
    is_set = (F.col(CHANGE) == UPSERT) & F.coalesce(F.col(_AT) > F.col(_DELETED), F.lit(True))
    values = [
        F.max_by(
            F.struct(F.col(quoted(name)).alias("value")), F.when(is_set & ~_names(F.col(UNCHANGED), name), F.col(_AT))
        ).alias(f"{_VALUE}{at}")
        for at, name in enumerate(names)
    ]
    last = F.max_by(F.struct(*(F.col(quoted(name)) for name in (*changes.required, CHANGE))), F.col(_AT))
    has_row = F.max(F.col(_TOMBSTONE).isNotNull() & F.col(_DELETED).isNull())
    by_key = [key.alias(f"__streamsem_key{at}") for at, key in enumerate(keys)]
    grouped = compared.groupBy(*by_key).agg(last.alias(_ROW), has_row.alias(_HAS_ROW), *values)
    is_upsert = F.col(_ROW).getField(CHANGE) == UPSERT
    unset = [F.when(is_upsert & F.col(f"{_VALUE}{at}").isNull(), F.lit(at)) for at in range(len(names))]
    made = grouped.select(
        *(F.col(_ROW).getField(name).alias(name) for name in (*changes.required, CHANGE)),
        *(F.col(f"{_VALUE}{at}").getField("value").alias(name) for at, name in enumerate(names)),
        F.array_compact(F.array(*unset).cast("array<int>")).alias(UNCHANGED),
        _HAS_ROW,
    ).localCheckpoint()
    if changes.refuses_unknown:
        from airflow_provider_streamsem.connectors.staged_parquet import partial_changes

        unknown = made.where(~F.col(_HAS_ROW)).select(F.explode(UNCHANGED)).distinct().collect()
        partial_changes.refuse_unknown(sorted(names[at] for (at,) in unknown), batch, changes)
    return made.drop(_HAS_ROW)


def _values(columns: Sequence[str], changes: Changes) -> list[str]:
    """Return the columns that an upsert may leave unchanged."""
    return [name for name in columns if name not in (_AT, CHANGE, UNCHANGED, *changes.required)]


def _names(names: Column, name: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.array_contains(names, name), F.lit(False))


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
    values: Mapping[str, str] = {
        quoted(name): f"{_SOURCE}.{quoted(name)}" for name in columns if name not in (CHANGE, UNCHANGED)
    }
    changed = {name: value for name, value in values.items() if name not in {quoted(key) for key in keys}} or values
    if UNCHANGED in columns:
        assert changes is not None
        for at, name in enumerate(map(quoted, _values(columns, changes))):
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
        matched = f" AND {mine} >= {theirs}"  # a null in the table is before every value
        delete = f"WHEN MATCHED{matched} AND {_SOURCE}.{CHANGE} = '{DELETE}' THEN DELETE "
        not_matched = f" AND {_SOURCE}.{CHANGE} = '{UPSERT}'"
    return (
        f"MERGE INTO {table} AS {_TARGET} USING {source} AS {_SOURCE} ON {on} {delete}WHEN MATCHED{matched} THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED{not_matched} THEN INSERT ({', '.join(inserted)}) VALUES ({', '.join(inserted.values())})"
    )
