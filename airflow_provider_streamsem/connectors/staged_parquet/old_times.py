"""
Detects dates and times in Parquet files that Arrow reads as different values. delta-rs and pyiceberg also read with Arrow.

Spark writes timestamps as INT96 by default. Arrow reads INT96 as nanoseconds, so years before 1678 and after 2261 overflow. Spark 2, and later versions
with a setting, write dates before 1582 and times before 1900 in the legacy hybrid calendar. A merge would read
these different values and write them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from typing import Any, BinaryIO

from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.errors import PublishError

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2261, 12, 31)
"""Arrow reads all dates and times from ``FIRST_DAY`` to ``LAST_DAY`` correctly (both inclusive), whichever engine wrote them."""
REWRITE_BY_SPARK = (
    "rewrite the file with Spark and the settings spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS and "
    "spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED, and run again"
)
"""Advice for a file with such dates or times."""
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


def is_near(value: Any) -> bool:
    """Return whether Arrow reads a date or time correctly, whichever engine wrote it. Returns ``False`` for ``None``, an unknown bound."""
    if value is None:
        return False
    day = value.date() if isinstance(value, datetime) else value
    return bool(FIRST_DAY <= day <= LAST_DAY)


def misread_columns(file: BinaryIO) -> list[str]:
    """Return the columns of a Parquet file with dates or times that Arrow reads as different values. Reads only columns that may have such values."""
    import pyarrow.parquet

    parquet = pyarrow.parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
    is_old = any(name in (parquet.metadata.metadata or {}) for name in _OLD_CALENDAR)
    paths = enumerate(parquet.reader.column_paths)  # as lists, because a name may contain dots
    candidates = {path[0] for at, path in paths if is_old or parquet.schema.column(at).physical_type == "INT96"}
    return sorted(name for name in candidates if _has_far_times(parquet, name))


def refuse_misread(table: str, batch: SinkCommit, file: str, columns: list[str]) -> None:
    """Refuse to merge into a file with :func:`misread_columns`, because the merge would write the misread values back."""
    if not columns:
        return
    summary = (
        "a file of the table contains dates or times that the merge would change; nothing of the batch is in the table"
    )
    raise PublishError(summary, table=table, version=batch.version, file=file, columns=columns).advising(
        f"{REWRITE_BY_SPARK}; or skip the version with `streamsem skip`."
    )


def _has_far_times(parquet: Any, name: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in parquet.iter_batches(columns=[name]):
        for values in _leaves(batch.column(name)):
            kind = values.type
            if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                continue
            zone = timezone.utc if getattr(kind, "tz", None) else None
            first, last = (
                pa.scalar(day if pa.types.is_date(kind) else datetime(day.year, day.month, day.day, tzinfo=zone), kind)
                for day in (FIRST_DAY, LAST_DAY)
            )
            if pc.any(pc.or_(pc.less(values, first), pc.greater(values, last))).as_py():
                return True
    return False


def _leaves(values: Any) -> Iterator[Any]:
    import pyarrow as pa

    if pa.types.is_struct(values.type):
        for part in values.flatten():
            yield from _leaves(part)
    elif pa.types.is_map(values.type):
        yield from _leaves(values.keys)
        yield from _leaves(values.items)
    elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        yield from _leaves(values.flatten())
    else:
        yield values
