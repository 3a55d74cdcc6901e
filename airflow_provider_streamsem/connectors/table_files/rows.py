"""Reads planned Parquet files of a table with Spark. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from airflow_provider_streamsem.connectors.data_files import columnar, groups
from airflow_provider_streamsem.connectors.data_files import pins as file_pins
from airflow_provider_streamsem.connectors.data_files.columnar import Footer
from airflow_provider_streamsem.connectors.data_files.direct_commit import PLAIN_FILES
from airflow_provider_streamsem.connectors.data_files.read import plain_root
from airflow_provider_streamsem.connectors.source import Loaded
from airflow_provider_streamsem.connectors.table_files.batches import PlannedFile
from airflow_provider_streamsem.errors import DataError

_OPTIONS = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
    "__globPaths__": "false",  # the paths are literal: Hadoop would interpret [ ] { } * ? in them
}


class TableRecords(Loaded):
    """The rows of planned files, which are Parquet files: every row is a record. In order, they are ordered between groups only."""

    groups: Sequence[int] | None = ()


def read(
    spark: SparkSession, location: str, files: Sequence[PlannedFile], columns: StructType, *, positions: bool
) -> DataFrame:
    """A column that a file lacks is null there. ``positions``: add the columns by which :func:`in_groups` distributes the rows."""
    root = plain_root(location)
    located = [root + file.key for file in files]
    has_colon = root.startswith("/") and any(":" in path for path in located)
    # Hadoop cannot name the checksum file of a local file whose name has a colon. S3A needs the file system with checksums, so only such paths get this one.
    options = {**_OPTIONS, **(PLAIN_FILES if has_colon else {})}
    frame = spark.read.options(**options).schema(columns).format("parquet").load(located)
    return frame.select("*", *groups.block()) if positions else frame


def in_groups(
    frame: DataFrame, location: str, files: Sequence[PlannedFile], versions: Sequence[int]
) -> tuple[DataFrame, Sequence[int]]:
    """Distribute rows that were read with ``positions``, which are dropped, by the version of their file. Return the group of each Spark partition too."""
    root = plain_root(location)
    of_versions = zip(files, versions, strict=True)
    return groups.by_file(frame, [groups.GroupedFile(root + file.key, at, at, file.bytes) for file, at in of_versions])


def footers(location: str, files: Sequence[PlannedFile]) -> dict[str, Footer]:
    """Return key → footer of each file. Sends one or two requests for each file. Refuses incomplete files (``DataError``)."""
    pins = [file_pins.FilePin(path=file.key, bytes=file.bytes, identity="") for file in files]
    return columnar.footers(location, "parquet", pins) if pins else {}


def check_read(location: str, files: Sequence[PlannedFile], read: int, **facts: Any) -> None:
    """Raise ``DataError`` if Spark has read another number of rows than the table's metadata states, or else the footers of the files."""
    footers_by_key = footers(location, [file for file in files if file.rows < 0 <= file.bytes])
    rows = [footers_by_key[file.key].rows if file.key in footers_by_key else file.rows for file in files]
    stated = sum(rows) - sum(file.deleted for file in files)
    if stated != read and all(number >= 0 for number in rows):
        summary = "the number of rows that Spark read differs from that in the metadata of the table"
        first = files[0].key if files else None
        raise DataError(summary, **facts, files=len(files), first_file=first, stated=stated, read=read).advising(
            "run again. If it repeats, run `streamsem doctor-spark`."
        )
