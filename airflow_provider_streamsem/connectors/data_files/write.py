"""Writes DataFrames with Spark for the file sink. Imports pyspark, so only engines import this module."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from airflow_provider_streamsem.connectors.columns import identifiers
from airflow_provider_streamsem.connectors.columns.identifiers import more_than_once
from airflow_provider_streamsem.connectors.columns.nested import anywhere, holds
from airflow_provider_streamsem.connectors.data_files import direct_commit as direct
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.stores.local import process_umask

_LONGEST_VALUE = 100
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
UMASK = "fs.permissions.umask-mode"
_NO_PARTITION = (ArrayType, MapType, StructType, BinaryType, VariantType)
_NULL_TEXT_MESSAGE = "streamsem: the text that stands for null in column "
_DUPLICATE_KEY_MESSAGE = "streamsem: a map with a key twice in column "
_BAD_TEXT_MESSAGE = "streamsem: text that is not UTF-8 in column "
_LOST_DAY_MESSAGE = "streamsem: a day that ORC lacks in column "
_VIOLATION_MESSAGE = "streamsem: a row that violates the constraint "
UNKNOWN_COLUMN_MESSAGE = "streamsem: a column that the rows lack is named in column "
_REFUSAL_SUMMARIES = {
    UNKNOWN_COLUMN_MESSAGE: "an upsert names an unchanged column that the rows lack, because the transform has renamed or removed it; nothing became visible",
    _LOST_DAY_MESSAGE: "a date is between 1582-10-05 and 1582-10-14, which ORC cannot store; nothing became visible",
    _NULL_TEXT_MESSAGE: "a string is \\N, which represents null in CSV files, so readers would return null; nothing became visible",
    _DUPLICATE_KEY_MESSAGE: "a map has a duplicate key, and this sink would keep only one of its values; nothing became visible",
    _BAD_TEXT_MESSAGE: "a string has bytes that are not UTF-8, which this sink cannot store; nothing became visible",
    _VIOLATION_MESSAGE: "a row violates a CHECK or NOT NULL constraint of the table; nothing became visible",
}
_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",  # historical UTC offsets have seconds
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
TEXT_OPTIONS: dict[str, dict[str, str]] = {
    "csv": {
        "header": "true",
        "escape": '"',  # RFC 4180 quoting
        "nullValue": "\\N",  # distinguishes null from an empty string
        "multiLine": "true",  # for reading, because a field may contain a line break
        "lineSep": "\n",
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
        **_TIMES,
    },
    "json": _TIMES,
}
"""Spark options for writing text formats and for reading the same values back"""


class _Sink(Protocol):
    """The arguments of ``FilesSink`` that determine how its files are written."""

    @property
    def path(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def partition_by(self) -> Sequence[str]: ...
    @property
    def codec(self) -> str | None: ...
    @property
    def target_file_bytes(self) -> int | None: ...


def write_files(frame: DataFrame, sink: _Sink, location: str) -> frozenset[str] | None:
    """
    Write a DataFrame into the directory of an attempt. Returns what ``direct_commit.write`` does; ``None``: all files below ``location`` are accepted.

    Spark partitions by encoded copies of the partition columns under reserved names. Files contain the columns themselves, and not the copies.
    """
    by_name = {field.name: field.dataType for field in frame.schema.fields}
    copies = partition_columns(sink.partition_by)
    _refuse_names_differing_in_case(frame, sink)
    _check_partition_columns(sink, by_name, copies)
    if sink.format in TEXT_OPTIONS or sink.partition_by:
        frame = refusing_lossy_values(frame, None if sink.format in TEXT_OPTIONS else sink.partition_by)
    if sink.format == "csv":
        frame = _refusing(frame, StringType, _is_null_text, _NULL_TEXT_MESSAGE)
    if sink.format == "orc":
        frame = _refusing(frame, DateType, _is_lost_day, _LOST_DAY_MESSAGE)
    for copy, name in zip(copies, sink.partition_by, strict=True):
        frame = frame.withColumn(copy, directory_value(quoted(name), by_name[name]))
    if sink.target_file_bytes is not None:
        frame.sparkSession.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", str(sink.target_file_bytes))
        frame = frame.hint("rebalance", *copies)
    codec = sink.codec or ("zstd" if sink.format in ("parquet", "orc") else "none")
    options = {**_OPTIONS, **TEXT_OPTIONS.get(sink.format, {}), "compression": codec}
    if not _is_on_s3(location):
        options |= direct.PLAIN_FILES  # Hadoop's checksum files are not needed, because the log stores checksums
        options |= _umask_option(frame.sparkSession)
    elif direct.is_possible(frame.sparkSession):
        # On S3, Hadoop's committers copy each file when they rename it, or send many requests.
        with _naming_refusals(sink):
            return direct.write(frame, location, sink.format, partition_by=copies, options=options)
    # The location is empty, because its name contains the random id of the attempt. All modes except append first search the location for files.
    writer = frame.write.format(sink.format).mode("append").options(**options)
    with _naming_refusals(sink):
        (writer.partitionBy(*copies) if copies else writer).save(location)
    return None


def _check_partition_columns(sink: _Sink, by_name: Mapping[str, DataType], copies: Sequence[str]) -> None:
    """``copies`` are the names of the encoded copies of the partition columns."""
    missing = [name for name in sink.partition_by if name not in by_name]
    if missing:
        raise DataError(
            "the transform's result lacks partition columns",
            location=sink.path,
            missing=missing,
            columns=list(by_name),
        )
    reserved = sorted(name for name in by_name if name.lower() in {copy.lower() for copy in copies})
    if reserved:
        summary = "columns have names that are reserved for partition directories"
        raise DataError(summary, location=sink.path, columns=reserved, partition_by=list(sink.partition_by)).advising(
            "rename the columns in the transform, and run again."
        )
    unsupported = [name for name in sink.partition_by if isinstance(by_name[name], _NO_PARTITION)]
    if unsupported:
        summary = "columns of this type cannot partition a dataset"
        raise DataError(summary, location=sink.path, columns=unsupported)


def refusing_lossy_values(
    frame: DataFrame, names: Sequence[str] | None = None, *, keeps_maps: bool = False
) -> DataFrame:
    """
    Make the write fail for values that JSON, CSV or a Python client would change: texts of invalid UTF-8, and maps with duplicate keys.

    :param keeps_maps: whether the output keeps duplicate keys of maps. If so, maps are not checked
    """
    fields = frame.schema.fields
    columns = [_refused(f, keeps_maps) if names is None or f.name in names else quoted(f.name) for f in fields]
    return frame.select(*columns)


def refusing_violations(frame: DataFrame, constraints: Mapping[str, str]) -> DataFrame:
    """
    Make the write fail for a row that violates a constraint.

    :param constraints: name → SQL expression, which must be true. As in Delta, a row violates a constraint whose result is null
    """
    if not constraints:
        return frame
    first = frame.schema.fields[0]
    value = quoted(first.name)
    for name, expression in constraints.items():
        holds = F.coalesce(F.expr(expression), F.lit(False))
        value = F.when(holds, value).otherwise(refusal(_VIOLATION_MESSAGE, name, first.dataType))
    return frame.withColumn(first.name, value)


def _refused(field: StructField, keeps_maps: bool) -> Column:
    value = quoted(field.name)
    if not keeps_maps:
        value = _checked(value, field, MapType, _has_duplicate_key, _DUPLICATE_KEY_MESSAGE)
    value = _checked(value, field, StringType, lambda text: ~F.is_valid_utf8(text), _BAD_TEXT_MESSAGE)
    return value.alias(field.name)


def _checked(
    value: Column, field: StructField, sought: type[DataType], is_bad: Callable[[Column], Column], message: str
) -> Column:
    """Return the value. Its evaluation fails if it, or a value nested in it, has the sought type and is bad."""
    if not holds(field.dataType, sought):
        return value
    return F.when(
        anywhere(quoted(field.name), field.dataType, sought, is_bad), refusal(message, field.name, field.dataType)
    ).otherwise(value)


def refusal(message: str, name: str, kind: DataType) -> Column:
    """Return a column whose evaluation fails the write with the summary of a message of this module."""
    return F.raise_error(F.lit(f"{message}{json.dumps(name)}")).cast(kind)


def _has_duplicate_key(value: Column) -> Column:
    keys = F.map_keys(value)
    return F.size(keys) > F.size(F.array_distinct(keys))


def _refusing(frame: DataFrame, sought: type[DataType], is_bad: Callable[[Column], Column], message: str) -> DataFrame:
    fields = frame.schema.fields
    return frame.select(*[_checked(quoted(f.name), f, sought, is_bad, message).alias(f.name) for f in fields])


def _is_lost_day(day: Column) -> Column:
    """ORC cannot store some dates: readers would get 1582-10-15 instead."""
    return (day >= F.expr("date'1582-10-05'")) & (day <= F.expr("date'1582-10-14'"))


def _is_null_text(text: Column) -> Column:
    return text == TEXT_OPTIONS["csv"]["nullValue"]


@contextmanager
def _naming_refusals(sink: _Sink) -> Iterator[None]:
    refused = None
    try:
        yield
    except Exception as error:
        refused = re.search(f"({'|'.join(_REFUSAL_SUMMARIES)})" + r'("(?:[^"\\]|\\.)*")', str(error))
        if refused is None:
            raise
    if refused is not None:
        name = json.loads(refused[2])
        named = {"constraint": name} if refused[1] == _VIOLATION_MESSAGE else {"column": name}
        raise DataError(_REFUSAL_SUMMARIES[refused[1]], location=sink.path, **named)


def _umask_option(session: SparkSession) -> dict[str, str]:
    """With Hadoop's default umask, every user could read the files."""
    names = (UMASK, f"spark.hadoop.{UMASK}")
    is_set = any(session.conf.get(name, "") for name in names)
    return {} if is_set else {UMASK: f"{process_umask():03o}"}


def _is_on_s3(location: str) -> bool:
    return location.startswith("s3a://")


def _refuse_names_differing_in_case(frame: DataFrame, sink: _Sink) -> None:
    """Spark's readers treat names that differ only in case as one column, unless the session sets ``spark.sql.caseSensitive``."""
    duplicates = more_than_once(frame.columns)
    if duplicates:
        summary = "columns have the same name, or names that differ only in upper and lower case"
        raise DataError(summary, location=sink.path, columns=duplicates)


def partition_columns(names: Sequence[str]) -> list[str]:
    """
    Return the names of the encoded copies of partition columns, such as ``__day`` for ``day``. The directory is then ``__day=2026-01-01``.

    A name that is longer than 100 characters, or has characters other than ASCII letters, digits and ``_``, becomes ``__p<n>``. The name of the column itself
    is never used, because readers with Hive partition discovery would replace the column's value with the text of the directory.
    """
    plain = [f"__{name}" for name in names if _PLAIN_NAME.fullmatch(name)]
    numbered = (f"__p{n}" for n in range(2 * len(names)))
    unused = (name for name in numbered if name.lower() not in {used.lower() for used in plain})
    return [f"__{name}" if _PLAIN_NAME.fullmatch(name) else next(unused) for name in names]


def directory_value(value: Column, kind: DataType) -> Column:
    """
    Return a column with the encoded form of a value, for a directory name. Letters, digits, ``.`` and ``-`` stay unchanged. Different values give different
    names.

    * ``_XX``: a byte of UTF-8 in hexadecimal digits
    * ``_null``: null
    * ``_empty``: an empty string
    * ``_sha256-<hex>``: a long string
    * ``2026-01-01~120000Z``: a timestamp in UTC; without ``Z`` if the type has no time zone
    """
    if isinstance(kind, TimestampType):
        return F.coalesce(F.concat(_timestamp(_in_utc(value)), F.lit("Z")), F.lit("_null"))
    if isinstance(kind, TimestampNTZType):
        return F.coalesce(_timestamp(value), F.lit("_null"))
    if isinstance(kind, (DoubleType, FloatType)):
        value = F.when(value == 0, F.lit(0).cast(kind)).otherwise(value)  # -0.0 equals 0.0
    text = value.cast("string")
    escaped = F.url_encode(text)
    for character, escape in (("_", "%5F"), ("+", "%20"), ("*", "%2A"), ("%", "_")):
        escaped = F.replace(escaped, F.lit(character), F.lit(escape))
    return (
        F.when(value.isNull(), F.lit("_null"))
        .when(text == "", F.lit("_empty"))
        .when(F.length(escaped) <= _LONGEST_VALUE, escaped)
        .otherwise(F.concat(F.lit("_sha256-"), F.sha2(text.cast("binary"), 256)))
    )


def _timestamp(value: Column) -> Column:
    """Format a timestamp without a time zone as ``2026-01-01~120000.5``. Encoded strings do not contain ``~``, so the forms are distinct."""
    return F.translate(value.cast("string"), " :+", "~")


def _in_utc(value: Column) -> Column:
    """The session's local time is not used, because two instants have the same local time when clocks are set back."""
    micros = F.unix_micros(value)
    micros_of_day = F.pmod(micros, F.lit(_DAY_US))
    days = F.call_function("div", micros - micros_of_day, F.lit(_DAY_US)).cast("int")
    midnight = F.date_add(F.lit(_EPOCH), days).cast("timestamp_ntz")
    return midnight + F.make_dt_interval(secs=(micros_of_day / 1_000_000).cast("decimal(18,6)"))


def quoted(name: str) -> Column:
    """Return a column by its name, which may contain any character."""
    return F.col(identifiers.quoted(name))
