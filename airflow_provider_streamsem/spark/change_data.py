"""Marks the rows of a sink with ``changes`` as upserts, deletes and truncates. This module imports pyspark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType

from airflow_provider_streamsem.connectors.changes import (
    CHANGE,
    DELETE,
    END,
    START,
    TRUNCATE,
    UNCHANGED,
    UPSERT,
    Changes,
)
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.columns.nested import holds
from airflow_provider_streamsem.connectors.data_files.write import UNKNOWN_COLUMN_MESSAGE, refusal
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.spark import causes


def marked(sink: str, frame: DataFrame, changes: Changes) -> DataFrame:
    """Return the columns that the table gets, and :data:`CHANGE`. A truncate keeps only its sequence, because it is no change of a key."""
    named = [*changes.required, *(changes.column_list or ()), *(changes.except_column_list or ())]
    named += [*(changes.track_history_column_list or ()), *(changes.track_history_except_column_list or ())]
    named += [changes.unchanged_columns] if changes.unchanged_columns is not None else []
    missing = sorted({*named} - {*frame.columns})
    if missing:
        summary = "the transform does not return columns that changes names"
        raise DataError(summary, sink=sink, missing=missing, columns=frame.columns).advising(
            "return them from the transform; or correct the arguments of changes that name columns. Then run again."
        )
    reserved = [CHANGE, UNCHANGED, *((START, END) if changes.keeps_history else ())]
    found = {name.lower() for name in frame.columns} & {name.lower() for name in reserved}
    if found:
        summary = "the rows have columns with reserved names"
        raise DataError(summary, sink=sink, columns=sorted(found)).advising(
            "rename the columns in the transform, then run again."
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
    maps = [name for name in changes.tracked([*kept]) if holds(frame.schema[name].dataType, MapType)]
    if changes.joins_versions and maps:
        summary = "columns whose history is tracked have maps, which Spark does not compare"
        raise DataError(summary, sink=sink, columns=maps).advising(
            "name the columns in track_history_except_column_list, or convert them in the transform. Then run again."
        )
    if truncates is not None:
        is_truncate = F.col(CHANGE) == TRUNCATE
        kept |= {
            name: F.when(~is_truncate, column).alias(name)
            for name, column in kept.items()
            if name not in changes.sequence_by
        }
    unchanged = [_unchanged(sink, rows, changes, [*kept]).alias(UNCHANGED)] if changes.is_partial else []
    return rows.select(*kept.values(), *_history(frame, changes), CHANGE, *unchanged)


def _history(frame: DataFrame, changes: Changes) -> list[Column]:
    """The publisher sets the values of these columns, because they depend on the other versions of the row. The staged rows only define their types."""
    if not changes.keeps_history:
        return []
    sequence = changes.sequence_by[0]
    kind = frame.schema[sequence].dataType
    return [F.col(quoted(sequence)).alias(START), F.lit(None).cast(kind).alias(END)]


def _unchanged(sink: str, rows: DataFrame, changes: Changes, kept: Sequence[str]) -> Column:
    """Return the names of the columns that an upsert does not change; null if there are none."""
    own = [name for name in kept if name not in changes.required]
    names = F.array(*(F.lit(name) for name in own)).cast("array<string>")
    found = F.array().cast("array<string>")
    if changes.unchanged_columns is not None:
        kind = rows.schema[changes.unchanged_columns].dataType
        if kind.simpleString() != "array<string>":
            summary = "the column of unchanged_columns of changes is no array of strings"
            raise DataError(summary, sink=sink, column=changes.unchanged_columns, type=kind.simpleString()).advising(
                "return an array of names of columns from the transform, then run again."
            )
        given = F.col(quoted(changes.unchanged_columns))
        lacking = F.size(F.array_except(given, F.array(*map(F.lit, rows.columns)).cast("array<string>")))
        refused = refusal(UNKNOWN_COLUMN_MESSAGE, changes.unchanged_columns, kind)
        found = F.when(lacking > 0, refused).otherwise(F.coalesce(F.array_intersect(names, given), found))
    if changes.ignore_null_updates:
        nulls = [F.when(F.col(quoted(name)).isNull(), F.lit(name)) for name in own]
        found = F.array_union(found, F.array_compact(F.array(*nulls).cast("array<string>")))
    return F.when((F.col(CHANGE) == UPSERT) & (F.size(found) > 0), found)


def _is_true(predicate: str | None) -> Column:
    return F.lit(False) if predicate is None else F.coalesce(F.expr(predicate), F.lit(False))
