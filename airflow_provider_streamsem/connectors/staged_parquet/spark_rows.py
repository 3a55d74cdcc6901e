"""The staged rows of a batch, and what they are compared with, as DataFrames. Imports pyspark only when it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_streamsem.connectors.changes import Changes, with_marks
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.data_files.read import read_files
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink, parquet_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

AT, ROW = "__streamsem_at", "__streamsem_row"


def staged_rows(session: SparkSession, sink: StagedSink, batch: SinkCommit) -> DataFrame:
    """Return the staged rows with the column :data:`AT` of their positions. The order of the staged files is that of their names (see ``Store.list``)."""
    from pyspark.sql import functions as F

    assert not batch.replaced_files  # a sink that writes rows again can remove none (`can_remove_rows`)
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
        metadata=[F.struct("_metadata.file_name", "_metadata.row_index").alias(AT)],
    )


def last_of_each(rows: DataFrame, keys: Sequence[str], order: Sequence[str] = (AT,)) -> DataFrame:
    """
    Return the last row of each key by the columns ``order``, without these columns.

    A join by the keys uses the shuffle and the sort of the window again. An aggregation would sort the rows twice more.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy(*map(quoted, keys)).orderBy(*order)
    return rows.withColumn(ROW, F.lead(F.lit(1)).over(window)).where(F.col(ROW).isNull()).drop(ROW, *order)


def tombstones(session: SparkSession, rows: DataFrame, batch: SinkCommit, changes: Changes) -> DataFrame:
    """The publisher reads the tombstones, because the executors may not reach the log."""
    import pyarrow

    from airflow_provider_streamsem.connectors.staged_parquet import changed_rows

    columns = rows.select(*(quoted(name) for name in changes.required)).schema
    stored = pyarrow.concat_tables(changed_rows.tombstones(batch), promote_options="permissive")
    return session.createDataFrame(stored).to(columns)


def is_named(names: Column, name: str) -> Column:
    """Return whether an array of names has a name. Null has none."""
    from pyspark.sql import functions as F

    return F.coalesce(F.array_contains(names, name), F.lit(False))
