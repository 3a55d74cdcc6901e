"""Reads the planned files of a Delta table with Spark. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DateType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.data_files import groups, ordered
from airflow_provider_streamsem.connectors.data_files.read import plain_root
from airflow_provider_streamsem.connectors.delta.columns import (
    CHANGE_COLUMNS,
    fields_of,
    physical_name,
    spark_type,
    with_zone,
)
from airflow_provider_streamsem.connectors.delta.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.source import ParsedRecords
from airflow_provider_streamsem.connectors.table_files import rows
from airflow_provider_streamsem.connectors.table_files.batches import adjacent
from airflow_provider_streamsem.errors import DataError

_TYPE, _VERSION, _TIME = CHANGE_COLUMNS
_SCHEMA_MODE = "spark.databricks.delta.changeDataFeed.defaultSchemaModeForColumnMappingTable"
_PATH, _ROW = "__streamsem_path", "__streamsem_row"
_KINDS = {"": (1,), "insert": (1,), "delete": (0,), "in_file": (0, 1)}
"""For each :attr:`FilePin.change`: whether the rows have former values (0), new values (1), or both."""
_HASHED = (StringType, NumericType, BooleanType, DateType, TimestampType, TimestampNTZType)
_NO_PACKAGE = ("DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG")


class DeltaRecords(rows.TableRecords):
    """
    The rows of the planned files. ``deleted``: file → numbers of its deleted rows, as a numpy array.

    With ``in_order``, rows are distributed by the table's version. Within a version, rows with former values precede rows with new values.
    """

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        table: TablePin,
        files: Sequence[FilePin],
        *,
        reads_changes: bool,
        deleted: Mapping[str, Any],
        in_order: bool,
    ) -> None:
        self._spark, self._location, self._table, self._files = spark, location, table, files
        self._positions = (ordered.FILE, ordered.BLOCK) if in_order and not reads_changes else ()
        self._deleted = deleted
        if table.reader == "delta":
            self.frame = self._feed()
        elif not files:
            self.frame = without_rows(spark, table.schema, reads_changes=reads_changes).frame
        else:
            kinds = {file.change: None for file in files}
            frames = [self._read([file for file in files if file.change == kind]) for kind in kinds]
            self.frame = reduce(DataFrame.unionByName, frames)
            if self._positions:
                self.frame, self.groups = rows.in_groups(self.frame, location, files, [file.version for file in files])
        if in_order and reads_changes and files:
            self.frame, self.groups = self._changes_in_groups()

    def check_read(self, read: int) -> None:
        if self._table.reader == "parquet":
            versions = (self._table.start, self._table.end)
            rows.check_read(self._location, self._files, read, table=self._location, versions=versions)

    def _read(self, files: Sequence[FilePin]) -> DataFrame:
        """Read files that all have the same :attr:`FilePin.change`."""
        fields = fields_of(self._table.schema)
        stored = [field for field in fields if field["name"] not in self._table.partition_by]
        columns = _struct(stored, physical=True)
        change = files[0].change
        if change == "in_file":
            columns = StructType([*columns.fields, StructField(_TYPE, StringType())])
        root = plain_root(self._location)
        read = rows.read(self._spark, self._location, files, columns, positions=bool(self._positions))
        frame = self._without_deleted(read, root)
        frame, values = self._with_values(frame, files, root)
        selected = [_logical(field, values.get(physical_name(field))) for field in fields]
        if change:
            kind = F.col(_TYPE) if change == "in_file" else F.lit(change)
            time = F.timestamp_millis(values[_TIME].cast("long"))
            selected += [kind.alias(_TYPE), values[_VERSION].cast("long").alias(_VERSION), time.alias(_TIME)]
        return frame.select(*selected, *self._positions)

    def _without_deleted(self, frame: DataFrame, root: str) -> DataFrame:
        if not self._deleted:
            return frame
        import numpy
        import pyarrow

        paths = numpy.repeat(
            [root + key for key in self._deleted], [len(row_numbers) for row_numbers in self._deleted.values()]
        )
        numbers = numpy.concatenate([*self._deleted.values()])
        deleted = self._spark.createDataFrame(pyarrow.table({_PATH: paths, _ROW: numbers.astype("int64")}))
        numbered = frame.withColumns({_PATH: _row_path(), _ROW: F.col("_metadata.row_index")})
        return numbered.join(F.broadcast(deleted), [_PATH, _ROW], "left_anti").drop(_ROW)

    def _with_values(
        self, frame: DataFrame, files: Sequence[FilePin], root: str
    ) -> tuple[DataFrame, Mapping[str, Column]]:
        """The mapping: physical name of a partition column, ``_commit_version`` or ``_commit_timestamp`` (milliseconds) → its value as text."""
        types = {physical_name(f): f["type"] for f in fields_of(self._table.schema)}
        names = [*files[0].partition, *([_VERSION, _TIME] if files[0].change else [])]

        def values_of(file: FilePin) -> tuple[str | None, ...]:
            texts = {**file.partition, _VERSION: str(file.version), _TIME: str(file.committed_ms)}
            return tuple(with_zone(texts[name], types.get(name)) for name in names)

        values_by_path = {root + file.key: values_of(file) for file in files}
        if len({*values_by_path.values()}) == 1:
            only = next(iter(values_by_path.values()))
            return frame, {name: F.lit(value).cast("string") for name, value in zip(names, only, strict=True)}
        columns = [f"__streamsem_value_{at}" for at in range(len(names))]
        schema = ", ".join(f"{name} string" for name in [_PATH, *columns])
        values_frame = self._spark.createDataFrame([(path, *row) for path, row in values_by_path.items()], schema)
        frame = frame if _PATH in frame.columns else frame.withColumn(_PATH, _row_path())
        joined = frame.join(F.broadcast(values_frame), _PATH)
        return joined, {name: F.col(column) for name, column in zip(names, columns, strict=True)}

    def _changes_in_groups(self) -> tuple[DataFrame, Sequence[int]]:
        """Distribute the rows of a change feed by version, and by whether they have new values. Return them, and the group of each Spark partition."""
        sizes: Counter[int] = Counter()
        for file in self._files:
            kinds = (0, 1) if self._table.reader == "delta" else _KINDS[file.change]
            sizes.update({2 * file.version + is_new: max(file.bytes, 0) for is_new in kinds})
        numbers = groups.of_items((place, place, place) for place in sizes)
        layout = groups.partitions(numbers, sizes)
        if not layout:
            return self.frame, layout
        place = (2 * F.col(_VERSION) + F.col(_TYPE).isin("insert", "update_postimage").cast("long")).cast("long")
        values = [F.col(quoted(f.name)) for f in self.frame.schema if isinstance(f.dataType, _HASHED)]
        return groups.distributed(self.frame, place, numbers, layout, F.struct(*values)), layout

    def _feed(self) -> DataFrame:
        fields = [quoted(field["name"]) for field in fields_of(self._table.schema)]
        frames = []
        # By default, Spark's Delta reads old versions with the newest columns. The session is a clone that only this attempt uses.
        self._spark.conf.set(_SCHEMA_MODE, "endVersion")
        try:
            for start, end in adjacent(file.version for file in self._files):
                options = {"readChangeFeed": "true", "startingVersion": str(start), "endingVersion": str(end - 1)}
                frame = self._spark.read.format("delta").options(**options).load(plain_root(self._location))
                frames.append(frame.selectExpr(*fields, *CHANGE_COLUMNS))
                frame.schema  # noqa: B018  Spark Connect resolves the data source when the schema is requested
        except Exception as error:  # a classic session raises a JVM error for a missing class
            if not any(condition in str(error) for condition in _NO_PACKAGE):
                raise
            summary = (
                "the planned versions of the Delta table change rows by deletion vectors. Reading them needs Spark's Delta package, "
                "which Spark does not have or which is not enabled"
            )
            versions = (self._table.start, self._table.end)
            raise DataError(summary, table=self._location, versions=versions).advising(
                "add io.delta:delta-spark_2.13 in the version for your Spark to spark.jars.packages, and set "
                "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
                "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog; then run again."
            ) from error
        return reduce(DataFrame.unionByName, frames)


def without_rows(spark: SparkSession, schema: str, *, reads_changes: bool) -> ParsedRecords:
    """``schema`` has columns in Delta's form."""
    columns = _struct(fields_of(schema), physical=False)
    frame = spark.createDataFrame([], columns)
    if reads_changes:
        types = ("string", "long", "timestamp")
        frame = frame.select("*", *[F.lit(None).cast(t).alias(n) for n, t in zip(CHANGE_COLUMNS, types, strict=True)])
    return ParsedRecords(frame)


def _row_path() -> Column:
    return ordered.plain_path(F.col("_metadata.file_path"))


def _struct(fields: Sequence[Mapping[str, Any]], *, physical: bool) -> StructType:
    return StructType.fromJson(spark_type({"type": "struct", "fields": [*fields]}, physical=physical))


def _logical(field: Mapping[str, Any], value: Column | None) -> Column:
    """``value`` is the partition value as text, if the field is a partition column."""
    target = _struct([field], physical=False).fields[0]
    stored = F.col(quoted(physical_name(dict(field)))) if value is None else value
    return stored.cast(target.dataType).alias(target.name)
