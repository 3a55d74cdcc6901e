"""Finds the changes of a batch that apply to a table, with Spark. Imports pyspark only when it reads rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_streamsem.connectors.changes import CHANGE, DELETE, TRUNCATE, UNCHANGED, UPSERT, Changes
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.spark_rows import (
    AT,
    ROW,
    is_named,
    last_of_each,
    tombstones,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TOMBSTONE = "__streamsem_tombstone"
_DELETED, _HAS_ROW, _VALUE = "__streamsem_deleted", "__streamsem_has_row", "__streamsem_value"


def applied(session: SparkSession, rows: DataFrame, table: str, batch: SinkCommit, changes: Changes) -> DataFrame:
    """Return the rows that are not before a tombstone, and a delete for each older key of the table if the batch has a truncate."""
    from pyspark.sql import functions as F

    is_partial = UNCHANGED in rows.columns
    if not is_partial:
        rows = last_of_each(rows, changes.keys)
    if not batch.tombstones:  # no delete, and no truncate
        return _merged(session, rows, table, batch, changes, None) if is_partial else rows
    stored = tombstones(session, rows, batch, changes)
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
    :data:`UNCHANGED` of an upsert has the positions in ``changes.values`` of the columns that no change sets.

    :param truncate: one row with the sequence of the newest truncate of the batch, which deletes older rows of the table
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = [F.col(quoted(name)) for name in changes.keys]
    names = changes.values([name for name in rows.columns if name != AT])
    in_table = _in_table(session, table, changes).select(*keys, _sequence(changes).alias(_TOMBSTONE))
    if truncate is not None:
        newest = F.broadcast(truncate.withColumnRenamed(_TOMBSTONE, ROW))
        in_table = in_table.crossJoin(newest).where(F.col(_TOMBSTONE) >= F.col(ROW)).drop(ROW)
    in_table = in_table.groupBy(*keys).agg(F.max(_TOMBSTONE).alias(_TOMBSTONE))
    compared = rows.join(in_table, list(changes.keys), "left")
    compared = compared.where(F.col(_TOMBSTONE).isNull() | (_sequence(changes) >= F.col(_TOMBSTONE)))
    deleted = F.max(F.when(F.col(CHANGE) == DELETE, F.col(AT))).over(Window.partitionBy(*keys))
    compared = compared.withColumn(_DELETED, deleted)
    is_set = (F.col(CHANGE) == UPSERT) & F.coalesce(F.col(AT) > F.col(_DELETED), F.lit(True))
    values = [
        F.max_by(
            F.struct(F.col(quoted(name)).alias("value")), F.when(is_set & ~is_named(F.col(UNCHANGED), name), F.col(AT))
        ).alias(f"{_VALUE}{at}")
        for at, name in enumerate(names)
    ]
    last = F.max_by(F.struct(*(F.col(quoted(name)) for name in (*changes.required, CHANGE))), F.col(AT))
    has_row = F.max(F.col(_TOMBSTONE).isNotNull() & F.col(_DELETED).isNull())
    by_key = [key.alias(f"__streamsem_key{at}") for at, key in enumerate(keys)]
    grouped = compared.groupBy(*by_key).agg(last.alias(ROW), has_row.alias(_HAS_ROW), *values)
    is_upsert = F.col(ROW).getField(CHANGE) == UPSERT
    unset = [F.when(is_upsert & F.col(f"{_VALUE}{at}").isNull(), F.lit(at)) for at in range(len(names))]
    made = grouped.select(
        *(F.col(ROW).getField(name).alias(name) for name in (*changes.required, CHANGE)),
        *(F.col(f"{_VALUE}{at}").getField("value").alias(name) for at, name in enumerate(names)),
        F.array_compact(F.array(*unset).cast("array<int>")).alias(UNCHANGED),
        _HAS_ROW,
    ).localCheckpoint()
    if changes.refuses_unknown:
        from airflow_provider_streamsem.connectors.staged_parquet import partial_changes

        unknown = made.where(~F.col(_HAS_ROW)).select(F.explode(UNCHANGED)).distinct().collect()
        partial_changes.refuse_unknown(sorted(names[at] for (at,) in unknown), batch, changes)
    return made.drop(_HAS_ROW)
