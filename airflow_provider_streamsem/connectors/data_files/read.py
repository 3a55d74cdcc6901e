"""Reads data files with Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_streamsem.connectors.columns.recorded import fields
from airflow_provider_streamsem.errors import LogDamagedError, StreamsemError
from airflow_provider_streamsem.stores.contract import spark_path, split_url

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_READ_OPTIONS = {
    # The session's own settings could make Spark skip a missing or corrupt file. For committed files, Spark must raise an error.
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mapreduce.input.linerecordreader.line.maxlength": str(2**31 - 1),
    "orc.force.positional.evolution": "false",
    # Otherwise Spark would write the text of corrupt lines into a user's column with Spark's default name, _corrupt_record.
    "columnNameOfCorruptRecord": "__streamsem_corrupt_record",
}
_STRICT = {"json": {"mode": "FAILFAST", "maxStringLen": str(2**31 - 1)}}
"""Options per format. A line that cannot be read must raise an error, not become a row of nulls. Spark's default limit for a JSON string is 20 MB."""


def read_files(
    spark: SparkSession, paths: Sequence[str], *, format: str, schema: str, metadata: Sequence[Column] = ()
) -> DataFrame:
    """
    Return the rows of data files (absolute paths or URLs). A column that a file does not have is null in its rows.

    The schema comes from the log: one that this Spark version cannot parse, or with a user-defined type, is refused (``LogDamagedError``).
    """
    from pyspark.sql.types import StructType

    from airflow_provider_streamsem.connectors.data_files.write import TEXT_OPTIONS

    try:
        columns = StructType.fromJson({"type": "struct", "fields": fields(schema)})
    except StreamsemError:
        raise
    except Exception as error:
        summary = "this Spark version cannot parse the recorded schema; no row was read"
        raise LogDamagedError(summary, invariant="R6") from error
    if not paths:
        return spark.createDataFrame([], columns)
    frame = (
        spark.read.schema(columns)
        .format(format)
        .options(**TEXT_OPTIONS.get(format, {}), **_READ_OPTIONS, **_STRICT.get(format, {}))
        .load([spark_path(path) for path in paths])
    )
    return frame.select("*", *metadata) if metadata else frame


def plain_root(location: str) -> str:
    """Return a location as the prefix of the paths that Spark reports for its rows, after their percent escapes are decoded."""
    scheme, rest = split_url(location)
    return (f"s3a://{rest}" if scheme == "s3" else rest.rstrip("/")) + "/"
