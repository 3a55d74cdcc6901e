"""Marks the rows of a sink with ``changes`` as upserts, deletes and truncates. This module imports pyspark."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors.changes import CHANGE, DELETE, TRUNCATE, UPSERT, Changes
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.spark import causes


def marked(sink: str, frame: DataFrame, changes: Changes) -> DataFrame:
    """Return the columns that the table gets, and :data:`CHANGE`. A truncate keeps only its sequence, because it is no change of a key."""
    named = [*changes.required, *(changes.column_list or ()), *(changes.except_column_list or ())]
    missing = sorted({*named} - {*frame.columns})
    if missing:
        summary = "the transform does not return columns that changes names"
        raise DataError(summary, sink=sink, missing=missing, columns=frame.columns).advising(
            "return them from the transform; or correct keys, sequence_by, column_list or except_column_list of changes. Then run again."
        )
    if CHANGE in (name.lower() for name in frame.columns):
        summary = "the rows have a column with a reserved name"
        raise DataError(summary, sink=sink, column=CHANGE).advising(
            "rename the column in the transform, then run again."
        )
    deletes, truncates = changes.apply_as_deletes, changes.apply_as_truncates
    try:
        change = F.when(_is_true(truncates), F.lit(TRUNCATE)).when(_is_true(deletes), F.lit(DELETE))
        rows = frame.withColumn(CHANGE, change.otherwise(F.lit(UPSERT)))
        rows.schema  # noqa: B018  with Spark Connect, reading the schema analyzes the plan, which raises AnalysisException
    except AnalysisException as error:
        summary = "Spark cannot evaluate apply_as_deletes or apply_as_truncates of changes on the columns that the transform returns"
        predicates = {"apply_as_deletes": deletes, "apply_as_truncates": truncates}
        given = {name: predicate for name, predicate in predicates.items() if predicate is not None}
        raise DataError(summary, sink=sink, **given, condition=error.getCondition(), columns=frame.columns).advising(
            "correct the predicate, then run again. The next run reads the same offsets."
        ) from causes.short(error)
    kept = {name: F.col(quoted(name)) for name in frame.columns if changes.keeps(name)}
    if truncates is not None:
        is_truncate = F.col(CHANGE) == TRUNCATE
        kept |= {
            name: F.when(~is_truncate, column).alias(name)
            for name, column in kept.items()
            if name not in changes.sequence_by
        }
    return rows.select(*kept.values(), CHANGE)


def _is_true(predicate: str | None) -> Column:
    return F.lit(False) if predicate is None else F.coalesce(F.expr(predicate), F.lit(False))
