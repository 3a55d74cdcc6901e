"""Counts the staged rows of an attempt by partitions of their event time. This module imports pyspark."""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.partitions import NULL, Partitions

_BUCKET_US = 15 * 60 * 1_000_000
"""Microseconds of an interval that is in one partition in every time zone since 1972."""
_MOST = 100_000
_WALL_US = "timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', {})"


def count(
    frame: DataFrame, partitions: Partitions, sink: str, *, not_after_ms: int
) -> tuple[dict[str, int], int | None]:
    """
    Return partition → number of rows, and the newest event time that is not after ``not_after_ms``, in milliseconds since the epoch.

    The executors count intervals of 15 minutes, and the driver assigns them to partitions, so that the time zone of the Spark session is not used.

    :raises DataError: the rows have no such column, it has another type, or the rows are in too many intervals
    """
    micros, is_wall = _micros(frame, partitions.by, sink)
    times = frame.select(micros.alias("at"))
    bucket = (F.col("at") - F.pmod(F.col("at"), F.lit(_BUCKET_US))).alias("bucket")
    last_us = (partitions.wall_ms(not_after_ms) if is_wall else not_after_ms) * 1000 + 999
    newest_at = F.max(F.when(F.col("at") <= last_us, F.col("at")))
    found = times.groupBy(bucket).agg(F.count(F.lit(1)), newest_at).limit(_MOST + 1).collect()
    if len(found) > _MOST:
        summary = "the event times of a batch are in too many intervals of 15 minutes to count their partitions"
        raise DataError(summary, sink=sink, column=partitions.by, most=_MOST).advising(
            "name the column with the event time in `by` of partitions, or read smaller batches: limits.max_files, max_bytes or max_rows."
        )
    counts: dict[str, int] = {}
    newest: int | None = None
    for start_us, rows, newest_us in found:
        start_ms = _ms(start_us, partitions, is_wall)
        key = NULL if start_ms is None else partitions.key(start_ms)
        counts[key] = counts.get(key, 0) + rows
        at_ms = None if key == NULL else _ms(newest_us, partitions, is_wall)
        newest = at_ms if newest is None else newest if at_ms is None else max(newest, at_ms)
    return counts, newest


def _micros(frame: DataFrame, name: str, sink: str) -> tuple[Column, bool]:
    """Return the event time in microseconds, and whether it is a time without a zone."""
    types = {field.name: field.dataType for field in frame.schema.fields}
    kind = types.get(name)
    if isinstance(kind, TimestampType):
        return F.unix_micros(F.col(quoted(name))), False
    if isinstance(kind, TimestampNTZType):
        return F.expr(_WALL_US.format(quoted(name))), True
    if isinstance(kind, DateType):
        return F.unix_date(F.col(quoted(name))).cast("long") * F.lit(86_400_000_000), True
    raise DataError(
        "the column `by` of partitions is missing, or is neither a timestamp nor a date",
        sink=sink,
        column=name,
        type=None if kind is None else kind.simpleString(),
        columns=[*types],
    ).advising("correct `by` of partitions, or return the column from the transform; then run again.")


def _ms(micros: int | None, partitions: Partitions, is_wall: bool) -> int | None:
    """Return a time in milliseconds since the epoch; ``None`` for null, or a time that Python does not have."""
    if micros is None:
        return None
    if not is_wall:
        return micros // 1000
    try:
        return partitions.at_ms(datetime(1970, 1, 1) + timedelta(microseconds=micros))  # noqa: DTZ001
    except (OverflowError, ValueError):
        return None
