"""Files as records on Spark: every physical record is either parsed or told apart as bad. Imports pyspark: only engines import this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from airflow_provider_streamsem.sources import parsing
from airflow_provider_streamsem.sources.contract import BadRecord
from airflow_provider_streamsem.stores.contract import spark_path

if TYPE_CHECKING:
    from airflow_provider_streamsem.sources.files import FilesSource

RAW = "__streamsem_raw"
PATH = "__streamsem_path"
_RECORD = parsing.RECORD


class FileRecords:
    """
    The records of some files (:class:`airflow_provider_streamsem.sources.contract.Loaded`).

    CSV goes through Spark's own reader: it judges a row by the columns it is asked for, so the engine asks for all of them whatever the transform
    uses. JSON lines are read as text and parsed after it, since Spark's JSON reader drops what follows the first object of a line without a word.
    """

    bad: Column | None
    frame: DataFrame
    drop: tuple[str, ...]

    def __init__(self, spark: SparkSession, source: FilesSource, paths: list[str]) -> None:
        self._source = source
        located = [spark_path(source.path, path) for path in paths]
        reader = spark.read.options(ignoreCorruptFiles="false", ignoreMissingFiles="false", **source.options)
        if source.format == "csv":
            self._read_csv(spark, located)
        elif source.format == "json":
            self._read_json(spark, located)
        elif source.format == "text":
            self.frame, self.bad, self.drop = reader.text(located), None, ()
        else:
            # Files of one batch may have different columns: without a schema all are taken, and a contradiction is an error.
            given = source.schema is not None
            reader = (
                reader.schema(parsing.struct(source.schema or "", "source files"))
                if given
                else reader.option("mergeSchema", "true")
            )
            self.frame, self.bad, self.drop = reader.format(source.format).load(located), None, ()

    def _read_csv(self, spark: SparkSession, located: list[str]) -> None:
        columns = parsing.struct(self._source.schema or "", "source files")
        options = dict(self._source.options)
        reader = spark.read.schema(StructType([*columns.fields]).add(RAW, StringType()))
        reader = reader.options(
            ignoreCorruptFiles="false", ignoreMissingFiles="false", mode="PERMISSIVE", columnNameOfCorruptRecord=RAW
        )
        # enforceSchema=false makes Spark compare headers with the schema; true would map columns by position and swap them silently.
        reader = reader.options(columnPruning="false", enforceSchema="false", **options)
        self.frame = reader.csv(located).select(
            *[_quoted(f.name) for f in columns.fields], F.col(RAW), F.col("_metadata.file_path").alias(PATH)
        )
        self.bad, self.drop = F.col(RAW).isNotNull(), (RAW, PATH)

    def _read_json(self, spark: SparkSession, located: list[str]) -> None:
        columns = parsing.struct(self._source.schema or "", "source files")
        lines = spark.read.options(ignoreCorruptFiles="false", ignoreMissingFiles="false").text(located)
        lines = lines.select(F.col("value").alias(RAW), F.col("_metadata.file_path").alias(PATH)).where(
            F.trim(RAW) != ""
        )
        parsed = lines.select(RAW, PATH, parsing.parsed_json(F.col(RAW), columns, self._source.options).alias(_RECORD))
        is_bad = parsing.is_bad_json(F.col(RAW), F.col(_RECORD))
        self.frame = parsed.select(
            *[F.col(_RECORD)[f.name].alias(f.name) for f in columns.fields], is_bad.alias(_RECORD), RAW, PATH
        )
        self.bad, self.drop = F.col(_RECORD), (_RECORD, RAW, PATH)

    def bad_records(self) -> Iterator[BadRecord]:
        """A second pass over the same files, for the bad records only."""
        if self.bad is None:
            return
        asked = [F.count(_quoted(name)).alias(f"c{i}") for i, name in enumerate(self.frame.columns)]
        from pyspark.sql import Observation

        # Observing every column keeps Spark from reading fewer of them, which would change what counts as bad.
        rows = self.frame.observe(Observation(), *asked).where(self.bad).select(PATH, RAW)
        for path, raw in rows.toLocalIterator():
            yield BadRecord(
                place={"path": plain_path(path)},
                raw=raw,
                error=f"not a {self._source.format} record of the schema {self._source.schema}",
            )


def _quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def plain_path(uri: str) -> str:
    """A path as people write it, from Spark's percent-encoded URI."""
    plain = unquote(uri)
    return plain.removeprefix("file://").removeprefix("file:") if plain.startswith("file:") else plain
