"""Writes the rows of a test as files, and provides a source that reads them in place of the pipeline's source."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.files.source import FilesSource
from airflow_provider_streamsem.connectors.kafka.source import KafkaSource
from airflow_provider_streamsem.connectors.replay.source import ReplaySource
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing import messages
from airflow_provider_streamsem.testing.lines import csv_line, json_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows: TypeAlias = Iterable[Any]
"""
One batch: an iterable of rows, or a DataFrame or table of Spark, pandas, Polars or pyarrow. A row that is a mapping is a row as the transform receives it. A
row that is ``str`` or ``bytes`` is a raw record of the source, before parsing.
"""
_FIRST_MTIME_NS = 1_767_225_600_000_000_000


class Arrivals:
    """
    A directory with one file for each batch of a test, and the source that reads the directory in place of the pipeline's source.

    * For files of JSON lines, CSV or text, also replayed ones, the pipeline's source reads the directory. Only its path is replaced, so its options, schema and
      quarantine apply.
    * For Kafka, the pipeline's source decodes the messages (:class:`messages.GivenMessages`).
    * For Parquet, ORC and sources of other types, a row has typed columns. These sources have no raw records.

    :param source: the pipeline's source
    :param location: a directory that does not exist yet
    :param spark: the session that writes the files; required for all formats except JSON lines
    :attr source: the source of the pipeline in the test
    :attr loads: the source from which the engine loads the records, if it is not :attr:`source`; otherwise ``None``
    :raises InvalidError: the source requires Spark, and ``spark`` is ``None``
    """

    def __init__(self, source: Source, location: Path, spark: SparkSession | None) -> None:
        self._spark = spark
        self._location = location
        self._files = 0
        self._line: Callable[[Any], str | bytes] | None = None
        self.loads: Any = None
        if isinstance(source, ReplaySource):
            source = source.files()
        if isinstance(source, KafkaSource):
            self.source = FilesSource(path=str(location), format="json", schema=messages.COLUMNS)
            self.loads = messages.GivenMessages(source, str(location))
            self._line = messages.Messages(source).line
        elif isinstance(source, FilesSource):
            self.source = dataclasses.replace(source, path=str(location), glob="*", start_after="", lookback_days=0)
            self._line = self._record if source.format in ("csv", "json", "text") else None
        else:
            self.source = FilesSource(path=str(location), format="parquet")
        if spark is None and (self.loads is not None or self.source.format != "json"):
            raise InvalidError(
                "without Spark, a test can only read files of JSON lines",
                source=type(source).__name__,
                accepted="spark=",
            )
        location.mkdir(parents=True)

    def add(self, rows: Rows) -> None:
        """
        Add one batch as a file, with a later modification time than all files before it.

        :raises InvalidError: a row is not one that the source could contain. No file was added
        """
        if isinstance(rows, (Mapping, str, bytes)):
            raise InvalidError("a batch must be a list of rows, or a DataFrame", given=type(rows).__name__)
        path = self._location / f"{self._files:05d}.{self.source.format}"
        unfinished = self._location / f"_{path.name}"
        if self._line is None:
            self._write_columns(unfinished, rows)
        else:
            lines = [line.encode() if isinstance(line, str) else line for line in map(self._line, _rows(rows))]
            unfinished.write_bytes(b"".join(line + b"\n" for line in [*self._header(), *lines]))
        mtime_ns = _FIRST_MTIME_NS + self._files * 1_000_000
        os.utime(unfinished, ns=(mtime_ns, mtime_ns))
        unfinished.rename(path)
        self._files += 1

    def _header(self) -> list[bytes]:
        options = {name.lower(): value.lower() for name, value in self.source.options.items()}
        if self.source.format != "csv" or options.get("header") != "true":
            return []
        return [csv_line({name: name for name in self._columns}, self._columns, self.source.options).encode()]

    def _record(self, row: Any) -> str | bytes:
        if isinstance(row, (str, bytes)):
            return row
        if not isinstance(row, Mapping):
            raise InvalidError("a row must be a mapping, or the text of a record", given=type(row).__name__)
        if self._spark is not None:
            arguments.known_keys("a row", row, self._columns)
        if self.source.format == "text":
            return str(row["value"])
        if self.source.format == "json":
            return json_line(row)
        return csv_line(row, self._columns, self.source.options)

    def _write_columns(self, path: Path, rows: Rows) -> None:
        assert self._spark is not None
        frame: Any = rows
        if not hasattr(rows, "toArrow"):
            mappings = [*_rows(rows)]
            for row in mappings:
                if not isinstance(row, Mapping):
                    summary = "records of this source are not text: a row must be a mapping"
                    raise InvalidError(summary, given=type(row).__name__, format=self.source.format)
                if self.source.schema is not None:
                    arguments.known_keys("a row", row, self._columns)
            frame = self._spark.createDataFrame(mappings, self.source.schema)
        elif self.source.schema is not None:  # add missing columns, because the source refuses files without them
            from pyspark.sql import functions as F
            from pyspark.sql.types import StructType

            missing = [f for f in StructType.fromDDL(self.source.schema).fields if f.name not in frame.columns]
            frame = frame.withColumns({f.name: F.lit(None).cast(f.dataType) for f in missing}) if missing else frame
        written = path.with_suffix(".written")
        frame.coalesce(1).write.format(self.source.format).mode("overwrite").save(str(written))
        (part_file,) = written.glob("part-*")
        part_file.rename(path)
        shutil.rmtree(written)

    @cached_property
    def _columns(self) -> list[str]:
        if self.source.format == "text":
            return ["value"]
        from airflow_provider_streamsem.connectors.parsing import parsed as parsing

        return [f.name for f in parsing.struct(self.source.schema or "", "source files").fields]


def _rows(rows: Rows) -> Iterator[Any]:
    """Return an iterator over the rows of a batch. The rows of a DataFrame become mappings."""
    table: Any = rows
    if hasattr(rows, "toArrow"):
        table = rows.toArrow()
    elif hasattr(rows, "__arrow_c_stream__"):
        import pyarrow

        table = pyarrow.table(rows)
    return iter(table.to_pylist() if hasattr(table, "to_pylist") else table)
