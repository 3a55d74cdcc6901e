"""Spark's writer, as a file sink uses it. Imports pyspark: only engines reach this."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING

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

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.nested_values import anywhere, holds
from airflow_provider_streamsem.sinks import direct
from airflow_provider_streamsem.sinks.column_names import more_than_once
from airflow_provider_streamsem.stores.local import process_umask

if TYPE_CHECKING:
    from airflow_provider_streamsem.sinks.files import FilesSink

_LONGEST_VALUE = 100
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
UMASK = "fs.permissions.umask-mode"
_NO_PARTITION = (ArrayType, MapType, StructType, BinaryType, VariantType)
_NULL_TEXT_FOUND = "streamsem: the text that stands for null in column "
_KEY_TWICE_FOUND = "streamsem: a map with a key twice in column "
_BAD_TEXT_FOUND = "streamsem: text that is not UTF-8 in column "
_LOST_DAY_FOUND = "streamsem: a day that ORC lacks in column "
_REFUSED_TEXTS = {
    _LOST_DAY_FOUND: "a date is one of 1582-10-05 to 1582-10-14, which ORC files do not have; nothing became visible",
    _NULL_TEXT_FOUND: "a text is \\N, which stands for null in CSV files, and would be read back as null; nothing became visible",
    _KEY_TWICE_FOUND: "a map has a key twice, of which this sink would keep one value; nothing became visible",
    _BAD_TEXT_FOUND: "a text has bytes that are not UTF-8, which this sink cannot keep; nothing became visible",
}
_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",  # old offsets have seconds
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
TEXT_OPTIONS: dict[str, dict[str, str]] = {
    "csv": {
        "header": "true",
        "escape": '"',  # RFC 4180 quoting
        "nullValue": "\\N",  # a null that an empty text is not
        "multiLine": "true",  # when read back: a field may hold a line break
        "lineSep": "\n",
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
        **_TIMES,
    },
    "json": _TIMES,
}
"""Options by which rows of a text format are written, and read back as they were"""


def write_files(frame: DataFrame, sink: FilesSink, place: str) -> frozenset[str] | None:
    """
    Write a DataFrame into an attempt's own directory.

    Partition columns are written twice: as they are, and encoded under a name of ours, by which Spark partitions and which it then leaves out.

    :returns: names below ``place`` of the files that count; ``None``: all that lie there, since Spark's committer moved only accepted ones to it
    """
    by_name = {field.name: field.dataType for field in frame.schema.fields}
    _refuse_twins(frame, sink)
    missing = [name for name in sink.partition_by if name not in by_name]
    if missing:
        raise DataError(
            "the transform's result lacks partition columns", sink=sink.path, missing=missing, columns=list(by_name)
        )
    copies = partition_columns(sink.partition_by)
    taken = sorted(name for name in by_name if name.lower() in {copy.lower() for copy in copies})
    if taken:
        what = "columns have names that directories of partitions need; rename them"
        raise DataError(what, sink=sink.path, columns=taken, partition_by=list(sink.partition_by))
    odd = [name for name in sink.partition_by if isinstance(by_name[name], _NO_PARTITION)]
    if odd:
        raise DataError("columns of this type cannot partition a dataset", sink=sink.path, columns=odd)
    if sink.format in TEXT_OPTIONS or sink.partition_by:
        frame = refusing_lossy_values(frame, None if sink.format in TEXT_OPTIONS else sink.partition_by)
    if sink.format == "csv":
        frame = _refusing(frame, StringType, _is_null_text, _NULL_TEXT_FOUND)
    if sink.format == "orc":
        frame = _refusing(frame, DateType, _is_lost_day, _LOST_DAY_FOUND)
    for copy, name in zip(copies, sink.partition_by, strict=True):
        frame = frame.withColumn(copy, directory_value(quoted(name), by_name[name]))
    if sink.target_file_bytes is not None:
        frame.sparkSession.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", str(sink.target_file_bytes))
        frame = frame.hint("rebalance", *copies)
    codec = sink.codec or ("zstd" if sink.format in ("parquet", "orc") else "none")
    options = {**_OPTIONS, **TEXT_OPTIONS.get(sink.format, {}), "compression": codec}
    if not _is_on_s3(place):
        options |= direct.PLAIN_FILES  # the manifest has checksums of its own
        options |= _modes(frame.sparkSession)
    elif direct.is_possible(frame.sparkSession):
        # A committer renames, which is a copy there, or asks the store at each of many steps.
        with _refusals_named(sink):
            return direct.write(frame, place, sink.format, partition_by=copies, options=options)
    # Nothing can be there: the place holds the attempt's own random id. Any other mode asks the store whether there is.
    writer = frame.write.format(sink.format).mode("append").options(**options)
    with _refusals_named(sink):
        (writer.partitionBy(*copies) if copies else writer).save(place)
    return None


def refusing_lossy_values(
    frame: DataFrame, names: Sequence[str] | None = None, *, keeps_maps: bool = False
) -> DataFrame:
    """
    The same rows. Writing them fails where JSON, CSV or a Python client would change a value: a text with bytes that are not UTF-8, a map with a key twice.

    :param names: the columns that are looked at; ``None``: all
    :param keeps_maps: what is written keeps a key that a map has twice
    """
    fields = frame.schema.fields
    columns = [_refused(f, keeps_maps) if names is None or f.name in names else quoted(f.name) for f in fields]
    return frame.select(*columns)


def _refused(field: StructField, keeps_maps: bool) -> Column:
    """The value of a column; evaluating it fails where a sink that writes JSON would lose a part of it."""
    value = quoted(field.name)
    if not keeps_maps:
        value = _checked(value, field, MapType, _has_key_twice, _KEY_TWICE_FOUND)
    value = _checked(value, field, StringType, lambda text: ~F.is_valid_utf8(text), _BAD_TEXT_FOUND)
    return value.alias(field.name)


def _checked(
    value: Column, field: StructField, sought: type[DataType], is_bad: Callable[[Column], Column], found: str
) -> Column:
    """The value; evaluating it fails where the column, or a part of it, is of the sought type and bad."""
    if not holds(field.dataType, sought):
        return value
    return F.when(anywhere(quoted(field.name), field.dataType, sought, is_bad), _refusal(found, field)).otherwise(value)


def _refusal(found: str, field: StructField) -> Column:
    return F.raise_error(F.lit(f"{found}{json.dumps(field.name)}")).cast(field.dataType)


def _has_key_twice(value: Column) -> Column:
    keys = F.map_keys(value)
    return F.size(keys) > F.size(F.array_distinct(keys))


def _refusing(frame: DataFrame, sought: type[DataType], is_bad: Callable[[Column], Column], found: str) -> DataFrame:
    """The same rows. Writing them fails where a value of the sought type is bad."""
    fields = frame.schema.fields
    return frame.select(*[_checked(quoted(f.name), f, sought, is_bad, found).alias(f.name) for f in fields])


def _is_lost_day(day: Column) -> Column:
    """Whether ORC lacks the day: it would be read back as 1582-10-15. Dates of Python would be moved, too."""
    return (day >= F.expr("date'1582-10-05'")) & (day <= F.expr("date'1582-10-14'"))


def _is_null_text(text: Column) -> Column:
    """Whether a text is what stands for null: it would be read back as null."""
    return text == TEXT_OPTIONS["csv"]["nullValue"]


@contextmanager
def _refusals_named(sink: FilesSink) -> Iterator[None]:
    refused = None
    try:
        yield
    except Exception as error:
        refused = re.search(f"({'|'.join(_REFUSED_TEXTS)})" + r'("(?:[^"\\]|\\.)*")', str(error))
        if refused is None:
            raise
    if refused is not None:
        raise DataError(_REFUSED_TEXTS[refused[1]], sink=sink.path, column=json.loads(refused[2]))


def _modes(session: SparkSession) -> dict[str, str]:
    """The process's umask, where Spark's configuration names none: Hadoop would write for every user to read."""
    names = (UMASK, f"spark.hadoop.{UMASK}")
    is_given = any(session.conf.get(name, "") for name in names)
    return {} if is_given else {UMASK: f"{process_umask():03o}"}


def _is_on_s3(place: str) -> bool:
    return place.startswith("s3a://")


def _refuse_twins(frame: DataFrame, sink: FilesSink) -> None:
    """Names that Spark's readers take for one, unless ``spark.sql.caseSensitive`` is set in every session that will ever read."""
    twins = more_than_once(frame.columns)
    if twins:
        what = "columns have the same name, or names that differ only in upper and lower case; nothing became visible"
        raise DataError(what, sink=sink.path, columns=twins)


def partition_columns(names: Sequence[str]) -> list[str]:
    """
    The columns that name the directories, ``__day=2026-01-01`` for ``day``; ``__p<n>`` where a name is long or holds odd characters.

    Never the column's own name: readers that look for Hive partitions would take the directory's text for its value.
    """
    plain = [f"__{name}" for name in names if _PLAIN_NAME.fullmatch(name)]
    odd = (f"__p{n}" for n in range(2 * len(names)))
    free = (name for name in odd if name.lower() not in {taken.lower() for taken in plain})
    return [f"__{name}" if _PLAIN_NAME.fullmatch(name) else next(free) for name in names]


def directory_value(value: Column, kind: DataType) -> Column:
    """
    A value as a directory is named: as text where all of it is letters, digits, ``.`` and ``-``. Different values have different names.

    ``_XX`` is a byte of UTF-8 in hexadecimal digits · ``_null`` · ``_empty`` an empty text · ``_sha256-<hex>`` a long text · timestamps
    ``2026-01-01~120000Z`` in UTC, or without ``Z`` where the type has no zone.
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
    """A timestamp without a zone as ``2026-01-01~120000.5``. No text has a ``~`` that is not escaped."""
    return F.translate(value.cast("string"), " :+", "~")


def _in_utc(value: Column) -> Column:
    """A timestamp without a zone, whatever the session's zone: two instants have one local time there when clocks go back."""
    micros = F.unix_micros(value)
    of_day = F.pmod(micros, F.lit(_DAY_US))
    days = F.call_function("div", micros - of_day, F.lit(_DAY_US)).cast("int")
    midnight = F.date_add(F.lit(_EPOCH), days).cast("timestamp_ntz")
    return midnight + F.make_dt_interval(secs=(of_day / 1_000_000).cast("decimal(18,6)"))


def quoted(name: str) -> Column:
    """A column by its name, whatever signs the name holds."""
    return F.col("`" + name.replace("`", "``") + "`")
