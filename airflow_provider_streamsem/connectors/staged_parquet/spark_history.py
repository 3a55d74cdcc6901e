"""
Applies the changes of a batch to the history of rows in a table (SCD type 2) with Spark, as
:mod:`airflow_provider_streamsem.connectors.staged_parquet.row_history` does in one process. Imports pyspark only when it reads rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_streamsem.connectors.changes import CHANGE, DELETE, END, START, UNCHANGED, UPSERT, Changes
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet import partial_changes
from airflow_provider_streamsem.connectors.staged_parquet.spark_rows import AT, ROW, is_named, last_of_each, tombstones

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SEQUENCE, _NEXT, _FIRST = "__streamsem_sequence", "__streamsem_next", "__streamsem_first"
_SEQUENCE_IN_TABLE, _OF_BATCH, _IN_TABLE = (
    "__streamsem_sequence_in_table",
    "__streamsem_of_batch",
    "__streamsem_in_table",
)
_RANK, _DELETES, _BEGINS, _RUN = "__streamsem_rank", "__streamsem_deletes", "__streamsem_begins", "__streamsem_run"
_BATCH_RANK = 2


def applied(session: SparkSession, rows: DataFrame, table: str, batch: SinkCommit, changes: Changes) -> DataFrame:
    """
    Return the upserts and deletes of versions, as :func:`airflow_provider_streamsem.connectors.staged_parquet.row_history.applied` does. The column
    :data:`UNCHANGED` of a version that only ends has the positions in ``changes.values`` of all columns.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    sequence = changes.sequence_by[0]
    keys = [F.col(quoted(key)) for key in changes.keys]
    staged = [name for name in rows.columns if name != AT]
    names = changes.values(staged)
    in_table = _versions(session, rows, table, changes.history_columns(staged), batch, changes)
    events = _events(session, rows, in_table, names, batch, changes)

    by_key = Window.partitionBy(*keys).orderBy(_SEQUENCE)
    is_upsert = F.col(CHANGE) == UPSERT
    events = events.withColumn(_DELETES, F.sum(F.when(~is_upsert, 1).otherwise(0)).over(by_key))
    if UNCHANGED in staged:
        events = _filled(events, names, batch, changes)
    joins = changes.joins_versions
    texts = F.struct(F.lit(0), *(F.col(quoted(name)) for name in changes.tracked(names)))
    previous = F.lag(F.struct(is_upsert.alias("upsert"), texts.alias("values"))).over(by_key)
    is_joined = F.coalesce(previous.getField("upsert") & previous.getField("values").eqNullSafe(texts), F.lit(False))
    begins = is_upsert & ~is_joined if joins else is_upsert
    events = events.withColumn(_NEXT, F.lead(_SEQUENCE).over(by_key)).withColumn(_BEGINS, begins)
    events = events.withColumn(_RUN, F.sum(F.when(F.col(_BEGINS), 1).otherwise(0)).over(by_key))
    # A null sequence is before every value in a struct. Otherwise, max_by and min ignore it.
    at = F.struct(_SEQUENCE)
    values = (F.col(quoted(name)) for name in names)
    last = F.max_by(F.struct(*values, _SEQUENCE, _NEXT, _SEQUENCE_IN_TABLE), at)
    grouped_by = [key.alias(f"__streamsem_key{at}") for at, key in enumerate(keys)]
    versions = (
        events.where(is_upsert)
        .groupBy(*grouped_by, _RUN)
        .agg(last.alias(ROW), F.min(at).getField(_SEQUENCE).alias(START), F.max(_OF_BATCH).alias(_OF_BATCH))
    )
    newest = F.col(ROW).getField(_SEQUENCE)
    if not joins:
        newest = F.when(F.col(_OF_BATCH), newest).otherwise(F.col(ROW).getField(_SEQUENCE_IN_TABLE))
    versions = versions.select(
        *(F.col(f"__streamsem_key{at}").alias(name) for at, name in enumerate(changes.keys)),
        newest.alias(sequence), START, F.col(ROW).getField(_NEXT).alias(END),
        *(F.col(ROW).getField(name).alias(name) for name in names), _OF_BATCH,
    )  # fmt: skip
    return _differences(versions, in_table, names, changes)


def _versions(
    session: SparkSession, rows: DataFrame, table: str, columns: Sequence[str], batch: SinkCommit, changes: Changes
) -> DataFrame:
    """Return the versions in the table of the keys of the batch, without those that end before its first change of the key."""
    from pyspark.sql import functions as F

    first = rows.groupBy(*(F.col(quoted(key)) for key in changes.keys)).agg(
        F.min(quoted(changes.sequence_by[0])).alias(_FIRST)
    )
    in_table = session.sql(f"SELECT {', '.join(quoted(name) for name in columns)} FROM {table}")
    in_table = in_table.join(first, list(changes.keys))
    in_table = in_table.where(F.col(END).isNull() | (F.col(END) >= F.col(_FIRST))).drop(_FIRST)
    # A checkpoint, because Spark 4.1 cannot plan a MERGE whose source is a view of a table of a catalog.
    found = in_table.select(*map(quoted, columns)).localCheckpoint()
    if not found.groupBy(*map(quoted, changes.row_keys)).count().where("count > 1").isEmpty():
        partial_changes.refuse_repeated(batch)
    return found


def _events(
    session: SparkSession,
    rows: DataFrame,
    in_table: DataFrame,
    names: Sequence[str],
    batch: SinkCommit,
    changes: Changes,
) -> DataFrame:
    """Return the upserts and deletes of each key and sequence. Of several, the last one counts: tombstones come first, then the table, then the batch."""
    from pyspark.sql import functions as F

    sequence = changes.sequence_by[0]
    keys = [F.col(quoted(key)) for key in changes.keys]
    values = [F.col(quoted(name)) for name in names if name in in_table.columns]
    marks = [UNCHANGED] if UNCHANGED in rows.columns else []

    def of(frame: DataFrame, at: str, change: str | Column, rank: int, *others: Column) -> DataFrame:
        return frame.select(
            *keys, F.col(quoted(at)).alias(_SEQUENCE), (F.lit(change) if isinstance(change, str) else change).alias(CHANGE),
            F.lit(rank).alias(_RANK), F.lit(rank == _BATCH_RANK).alias(_OF_BATCH), *others,
        )  # fmt: skip

    own = [F.col(quoted(name)) for name in names]
    parts = [
        of(rows, sequence, F.col(CHANGE), _BATCH_RANK, F.col(AT), *own, *marks),
        of(in_table, START, UPSERT, 1, F.col(quoted(sequence)).alias(_SEQUENCE_IN_TABLE), *values),
        of(in_table.where(F.col(END).isNotNull()), END, DELETE, 0),
    ]
    if changes.joins_versions:  # a version may hold several changes, of which the first and the last are known
        newest, start, end = (F.col(quoted(name)) for name in (sequence, START, END))
        is_known = newest.isNotNull() & (start.isNull() | (newest >= start)) & (end.isNull() | (newest < end))
        parts.append(of(in_table.where(is_known), sequence, UPSERT, 1, *values))
    if batch.tombstones:
        wanted = rows.select(*keys).distinct()
        parts.append(of(tombstones(session, rows, batch, changes).join(wanted, list(changes.keys), "left_semi"), sequence, DELETE, 0))  # fmt: skip
    union = parts[0]
    for part in parts[1:]:
        union = union.unionByName(part, allowMissingColumns=True)
    return last_of_each(union, [*changes.keys, _SEQUENCE], (_RANK, AT))


def _filled(events: DataFrame, names: Sequence[str], batch: SinkCommit, changes: Changes) -> DataFrame:
    """Return upserts that have the values of the change before them for the columns that they leave unchanged."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = [F.col(quoted(key)) for key in changes.keys]
    since_delete = Window.partitionBy(*keys, _DELETES).orderBy(_SEQUENCE)
    is_upsert = F.col(CHANGE) == UPSERT
    sets = {name: is_upsert & ~is_named(F.col(UNCHANGED), name) for name in names}
    values = {
        name: F.last(F.when(is_set, F.struct(F.col(quoted(name)).alias("value"))), ignorenulls=True).over(since_delete)
        for name, is_set in sets.items()
    }
    others = [F.col(quoted(name)) for name in events.columns if name not in names]
    filled = events.select(*others, *(value.alias(name) for name, value in values.items())).localCheckpoint()
    if changes.refuses_unknown:
        lacks = [F.when(F.col(quoted(name)).isNull(), F.lit(name)) for name in names]
        unknown = filled.where(is_upsert).select(F.explode(F.array_compact(F.array(*lacks).cast("array<string>"))))
        partial_changes.refuse_unknown(sorted(name for (name,) in unknown.distinct().collect()), batch, changes)
    known = [F.col(quoted(name)).getField("value").alias(name) for name in names]
    return filled.select(*others, *known)


def _differences(versions: DataFrame, in_table: DataFrame, names: Sequence[str], changes: Changes) -> DataFrame:
    """Return the upserts and deletes that make the versions of the table equal to ``versions``."""
    from pyspark.sql import functions as F

    row_keys, compared = changes.row_keys, [END, changes.sequence_by[0]]
    old = in_table.select(
        *(F.col(quoted(name)).alias(f"__streamsem_old{at}") for at, name in enumerate((*row_keys, *compared)))
    )
    olds = [F.col(f"__streamsem_old{at}") for at in range(len(old.columns))]
    is_same_row = F.lit(True)
    for name, before in zip(row_keys, olds, strict=False):
        is_same_row = is_same_row & F.col(quoted(name)).eqNullSafe(before)
    both = versions.join(old.withColumn(_IN_TABLE, F.lit(True)), is_same_row, "full_outer")
    is_new = F.col(_IN_TABLE).isNull() | F.col(_OF_BATCH)
    differs = F.lit(False)
    for name, before in zip(compared, olds[len(row_keys) :], strict=True):
        differs = differs | ~F.col(quoted(name)).eqNullSafe(before)
    is_gone = F.col(_OF_BATCH).isNull()
    changed = both.where(is_gone | is_new | differs)
    every = F.array(*(F.lit(at) for at in range(len(names)))).cast("array<int>")
    marks = [] if {*names} <= {*in_table.columns} else [F.when(~is_gone & ~is_new, every).alias(UNCHANGED)]
    return changed.select(
        *(F.when(is_gone, before).otherwise(F.col(quoted(name))).alias(name) for name, before in zip(row_keys, olds, strict=False)),
        *(quoted(name) for name in (*compared, *names)),
        F.when(is_gone, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(CHANGE), *marks,
    ).localCheckpoint()  # fmt: skip
