"""Loads files as records with Spark. Every record in the files is either parsed or marked as bad. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, StringType, StructField, StructType

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.data_files import columnar, ordered
from airflow_provider_streamsem.connectors.data_files.columnar import Footer
from airflow_provider_streamsem.connectors.data_files.direct_commit import PLAIN_FILES
from airflow_provider_streamsem.connectors.data_files.read import plain_root
from airflow_provider_streamsem.connectors.files import absent_columns, partitions
from airflow_provider_streamsem.connectors.files.reader_options import ENCODING
from airflow_provider_streamsem.connectors.files.text_lines import (
    PATH,
    RAW,
    START,
    LinesBelowHeaders,
    decoded,
    lines,
    plain_path,
    refuse_lines_inside_records,
)
from airflow_provider_streamsem.connectors.parsing import parsed as parsing
from airflow_provider_streamsem.connectors.parsing.bad_rows import text_of
from airflow_provider_streamsem.connectors.parsing.exact.blocks import MANY, Checksums
from airflow_provider_streamsem.connectors.parsing.message_records import refuse_reserved
from airflow_provider_streamsem.connectors.parsing.parsed import REASON, Csv, Records
from airflow_provider_streamsem.connectors.source import BadRecord, Loaded, ParsedRecords
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.stores.contract import spark_path

if TYPE_CHECKING:
    from airflow_provider_streamsem.connectors.data_files.pins import FilePin

logger = telemetry.log_of(__name__)

_TEXT, _BAD, _CHECKSUMS = "__streamsem_text", "__streamsem_record_bad", "__streamsem_bad_checksums"
_UTC = ("UTC", "Etc/UTC", "GMT", "Z")
_WIDE = 100
"""Spark's constraint propagation is disabled for more columns than this."""
_MANY = 100
"""With more files than this, several small files share a Spark task."""
_OPEN_COST = "spark.sql.files.openCostInBytes"
_OPEN_COST_BYTES = 1 << 18
"""The cost that Spark adds to the size of each file when it assigns files to tasks. With Spark's default of 4 MiB, 10,000 small files become 312 tasks."""


@dataclass(frozen=True)
class _Group:
    """Files that one reader can read: their partition directories name the same columns below the same directory."""

    partitions: StructType
    options: Mapping[str, str]
    located: list[str]


@dataclass(frozen=True)
class _Lines:
    """The lines of a group of files. ``is_filled=None``: every line is a record. ``records=None``: a line is a record if it is text."""

    read: _ReadLines
    is_filled: Column | None = None
    records: Records | None = None
    csv: Csv | None = None

    def frame(self, *, with_location: bool) -> DataFrame:
        frame = self.read(with_location=with_location)
        return frame if self.is_filled is None else frame.where(self.is_filled)


class _ReadLines(Protocol):
    def __call__(self, *, with_location: bool) -> DataFrame: ...


class _Source(Protocol):
    """The arguments of ``FilesSource`` that determine how its files are read."""

    @property
    def path(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def schema(self) -> str | None: ...
    @property
    def options(self) -> Mapping[str, str]: ...
    @property
    def missing_columns(self) -> str | None: ...
    @property
    def encoding(self) -> str: ...
    @property
    def hive_partitions(self) -> bool: ...
    @property
    def positions(self) -> bool: ...


class FileRecords(Loaded):
    """
    The records of the pinned files (at least one).

    JSON and CSV files are read as lines of text and parsed by this package, because Spark's own readers change values and drop text after a record.

    :param in_order: whether to sort the records in the order of the pins
    """

    bad: Column | None
    frame: DataFrame
    drop: tuple[str, ...]
    aggregates: Mapping[str, Column]

    def __init__(
        self, spark: SparkSession, source: _Source, pins: Sequence[FilePin], *, in_order: bool = False
    ) -> None:
        self._spark, self._source = spark, source
        self._positions = ordered.POSITION if source.positions or (in_order and len(pins) > 1) else ()
        if len(pins) > _MANY and spark.conf.get(_OPEN_COST, None) is None:
            spark.conf.set(_OPEN_COST, _OPEN_COST_BYTES)  # the session is a clone that only this attempt uses
        self._schema = None if source.schema is None else parsing.struct(source.schema, "source files")
        self._partitions = self._typed_partitions(pins)
        is_parsed = source.format in ("json", "csv")
        self._declared = tuple(self._data_columns(self._partitions).names) if is_parsed else ()
        self.aggregates = {name: F.bit_or(name) for name in absent_columns.names(self._declared)}
        self._checksums = _checksums(sum(pin.bytes for pin in pins), len(pins)) if is_parsed else None
        self.aggregates |= {} if self._checksums is None else {_CHECKSUMS: parsing.bad_checksums(_CHECKSUMS)}
        self._bad_checksums = MANY
        self._footers = self._checked_footers(pins)
        self._first = pins[0].path
        self._lines: list[_Lines] = []
        frames = []
        self._groups = self._grouped([pin.path for pin in pins])
        for group in self._groups:
            if source.format == "csv":
                self._read_csv(group)
            elif source.format == "json":
                self._read_json(group)
            elif source.format == "text":
                self._read_text(group)
            else:
                self.bad, self.drop = None, ()
                self.frame = self._read_columnar(spark, group)
                self.frame = self.frame.select("*", *ordered.position()) if self._positions else self.frame
            frames.append(self._ordered(self.frame, group))
        self._refuse_contradictions(frames)
        self.frame = reduce(lambda merged, frame: merged.unionByName(frame, allowMissingColumns=True), frames)
        paths = [plain_root(source.path) + pin.path for pin in pins]
        if source.positions:
            refuse_reserved(self.frame.columns, ordered.OFFERED)
            self.frame = ordered.with_offered(
                self.frame, {path: pin.ordinal for path, pin in zip(paths, pins, strict=True)}
            )
            self.frame = self.frame.orderBy(ordered.OFFERED[1]) if in_order else self.frame
        elif self._positions:
            self.frame = ordered.in_order(self.frame, paths)

    def _refuse_contradictions(self, frames: list[DataFrame]) -> None:
        """A union would convert the values of a column with different types to another type."""
        types: dict[str, DataType] = {}
        for frame in frames if len(frames) > 1 else ():
            for field in frame.schema.fields:
                if types.setdefault(field.name.lower(), field.dataType) != field.dataType:
                    summary = "a column has one type in some planned files and another in others"
                    raise DataError(summary, column=field.name, **self._contradiction())

    def check_read(self, read: int) -> None:
        """Compares with the row counts in the footers of Parquet and ORC files. The error names the first file that differs."""
        if self._footers is None or read == sum(footer.rows for footer in self._footers.values()):
            return
        root = plain_root(self._source.path)
        rows_read: dict[str, int] = {}
        for group in self._groups:
            paths = self._read_columnar(self.frame.sparkSession, group).select(F.col("_metadata.file_path").alias(PATH))
            for path, rows in paths.groupBy(PATH).count().collect():
                rows_read[plain_path(path).removeprefix(root)] = rows
        differing = [path for path, footer in self._footers.items() if rows_read.get(path, 0) != footer.rows]
        path = differing[0] if differing else None
        raise DataError(
            "the number of rows that Spark read differs from the footers of the planned files",
            file=path or next(iter(self._footers)),
            files=len(differing) or len(self._footers),
            footer=self._footers[path].rows if path else sum(footer.rows for footer in self._footers.values()),
            read=rows_read.get(path, 0) if path else read,
        ).advising("run again. If it repeats, run `streamsem doctor-spark`.")

    def take_observed(self, values: Mapping[str, Any], records: int) -> None:
        """Reports, or refuses, columns of the schema that are null in every JSON or CSV record, and keeps the checksums of the bad texts."""
        self._bad_checksums = values.get(_CHECKSUMS, MANY)  # no value if the input is large
        columns = absent_columns.absent(self._declared, values) if records else []
        if not columns:
            return
        summary = "columns of the schema are null in every record of the batch"
        if self._source.missing_columns == "refuse":
            raise DataError(f"{summary}", columns=[*columns], records=records, first_file=self._first).advising(
                'correct the names in `schema`, or set missing_columns="null" if the records may lack the columns; then run again.'
            )
        if self._source.missing_columns is None:
            logger.warning("%s: %s (%d records, first file %s)", summary, ", ".join(columns), records, self._first)

    def _typed_partitions(self, pins: Sequence[FilePin]) -> dict[str, StructField]:
        """Return lower-case name → partition column. The type in the schema has precedence over that in the pins."""
        if not self._source.hive_partitions:
            return {}
        paths = [pin.path for pin in pins]
        types = partitions.types_of(paths, partitions.pinned_types(pins))
        declared = {} if self._schema is None else {field.name.lower(): field for field in self._schema.fields}
        fields = {
            name.lower(): declared.get(name.lower())
            or StructField(name, parsing.struct(f"`c` {type}", "").fields[0].dataType)
            for name, type in types.items()
        }
        ordered: dict[str, StructField] = {}
        for path in paths:
            for name, value in partitions.layout(path).values:
                field = ordered.setdefault(name.lower(), fields[name.lower()])
                if self._source.format == "text" and field.name.lower() == "value":
                    raise DataError(
                        "a partition column and the column of text lines are both named value",
                        file=path,
                        column=name,
                    ).advising("rename the directories, or set hive_partitions=False; then run again.")
                if not partitions.fits(value, field.dataType.simpleString()):
                    raise DataError(
                        "the value of a partition column does not fit the column's type",
                        file=path,
                        column=field.name,
                        type=field.dataType.simpleString(),
                        type_from="schema" if name.lower() in declared else "earlier values",
                    ).advising(
                        "name the column in the source's schema with a type that holds every value, such as string, or rename the directory; then run again."
                    )
        return {**ordered, **fields}

    def _checked_footers(self, pins: Sequence[FilePin]) -> dict[str, Footer] | None:
        """``None`` for formats without footers."""
        if self._source.format not in ("parquet", "orc"):
            return None
        footers = columnar.footers(self._source.path, self._source.format, pins)
        local_times = columnar.local_times(footers) if self._source.format == "orc" else None
        if local_times is not None:
            self._check_zone(*local_times)
        if self._schema is not None:
            expected = {path: self._data_columns(names) for path, names in self._names(footers).items()}
            columnar.check_names(footers, expected)
            columnar.check_columns(
                footers, expected, format=self._source.format, missing=self._source.missing_columns or "refuse"
            )
        return footers

    def _check_zone(self, path: str, columns: list[str]) -> None:
        """Spark reads ORC timestamps without a zone in Java's default time zone, so a retry on another worker could return other values."""
        (zone,) = self._spark.sql("SELECT java_method('java.time.ZoneId', 'systemDefault')").first() or ("",)
        if zone not in _UTC:
            raise DataError(
                "an ORC file contains timestamps without a time zone, which Spark reads in the time zone of the Java process",
                file=path,
                columns=columns,
                java_zone=zone,
            ).advising(
                "set -Duser.timezone=UTC in spark.driver.extraJavaOptions and spark.executor.extraJavaOptions, and run again."
            )

    def _grouped(self, paths: list[str]) -> list[_Group]:
        """A single reader for files with different partition directories would silently drop files."""
        members: dict[Any, list[str]] = {}
        for path, names in self._names(paths).items():
            located_path = spark_path(self._source.path, path)
            has_colon = ":" in located_path.removeprefix("s3a:")
            # Hadoop cannot glob a path with a colon. If such a path also needs escaping, it gets its own reader, which does not glob.
            separate = path if has_colon and "\\" in located_path else None
            key = (partitions.layout(path).base if names else "", names, has_colon, separate)
            members.setdefault(key, []).append(path)
        root = plain_root(self._source.path)
        groups = []
        for (base, names, has_colon, separate), paths_in_group in members.items():
            options = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
            if self._source.format == "parquet":
                options["parquet.page.verify-checksum.enabled"] = "true"
            if names:
                options["basePath"] = root + base
            if has_colon and root.startswith("/"):
                # Hadoop stores checksums beside local files, under names that it cannot build from a name with a colon. S3A buffers blocks in local files
                # and needs the checksummed file system for them. These options therefore apply only to local paths with a colon.
                options |= PLAIN_FILES
            if separate is not None:
                options["__globPaths__"] = "false"
            located = [root + path if separate else spark_path(self._source.path, path) for path in paths_in_group]
            groups.append(_Group(StructType([_as_read(self._partitions[name]) for name in names]), options, located))
        return groups

    def _names(self, paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
        if not self._source.hive_partitions:
            return dict.fromkeys(paths, ())
        return {path: tuple(name.lower() for name, _ in partitions.layout(path).values) for path in paths}

    def _data_columns(self, partitions: Collection[str]) -> StructType:
        return StructType([f for f in (self._schema or StructType()).fields if f.name.lower() not in partitions])

    def _columns(self, group: _Group) -> StructType:
        return self._data_columns({field.name.lower() for field in group.partitions.fields})

    def _read_columnar(self, spark: SparkSession, group: _Group) -> DataFrame:
        reader = spark.read.options(**{**self._source.options, **group.options}).format(self._source.format)
        if self._schema is not None:
            schema = StructType([*self._columns(group).fields, *group.partitions.fields])
            return reader.schema(schema).load(group.located)
        # Without a schema, the result has the columns of all files. A column with different types in two files is an error.
        frame = self._merged(reader.option("mergeSchema", "true"), group)
        typed = {field.name.lower(): field for field in group.partitions.fields}
        fields = [typed.get(field.name.lower(), field) for field in frame.schema.fields]
        if [f.dataType for f in fields] != [f.dataType for f in frame.schema.fields]:
            # Spark has inferred the types of the partition columns from the files of this batch. They differ from the types in the schema or the plan.
            return reader.schema(StructType(fields)).load(group.located)
        return frame

    def _merged(self, reader: DataFrameReader, group: _Group) -> DataFrame:
        assert self._footers is not None
        try:
            frame = reader.load(group.located)
            frame.schema  # noqa: B018  Spark Connect merges the columns when the schema is requested
            return frame
        except Exception as error:
            condition = error.getCondition() if isinstance(error, PySparkException) else ""
            if "CANNOT_MERGE_SCHEMAS" in str(error):  # a classic session raises a JVM error
                condition = "CANNOT_MERGE_SCHEMAS"
            if not condition or condition == "PATH_NOT_FOUND":
                raise
            columnar.check_names(self._footers, None)
            columnar.check_types(self._footers)
            summary = "the columns of a planned file cannot be read, or contradict those of the other files"
            raise DataError(summary, condition=condition, **self._find_unreadable_file(reader)) from error

    def _find_unreadable_file(self, reader: DataFrameReader) -> dict[str, str]:
        """Return the file whose columns Spark cannot read, else two files that contradict each other."""
        assert self._footers is not None
        for path in columnar.distinct(self._footers):
            try:
                reader.load(spark_path(self._source.path, path)).schema  # noqa: B018
            except PySparkException:
                return {"file": path}
        return self._contradiction()

    def _contradiction(self) -> dict[str, str]:
        """Fields of an error: two files in which a column has different types, or the first file if the footers show none."""
        pair = columnar.contradicting(self._footers or {})
        return {"first_file": self._first} if pair is None else {"file": pair[0], "other_file": pair[1]}

    def _ordered(self, frame: DataFrame, group: _Group) -> DataFrame:
        """Order the columns as Spark does: the columns of the schema, then the partition columns. Add missing partition columns as null."""
        # In Spark Connect, the columns of a frame cost a request. With a schema, they are known without the request.
        names = (
            frame.columns
            if self._schema is None
            else [f.name for f in (*self._columns(group).fields, *group.partitions.fields)]
        )
        present = {name.lower() for name in names}
        absent = [field for key, field in self._partitions.items() if key not in present]
        if absent:
            frame = frame.select("*", *[F.lit(None).cast(f.dataType).alias(f.name) for f in absent])
        for requested in group.partitions.fields:
            field = self._partitions[requested.name.lower()]
            if field != requested:
                frame = frame.withColumn(requested.name, _quoted(requested.name).cast(field.dataType))
        if self._schema is None:
            return frame
        ordered_names = [f.name for f in (*self._data_columns(self._partitions).fields, *self._partitions.values())]
        if ordered_names == names:
            return frame
        return frame.selectExpr(*map(quoted, (*ordered_names, *self.drop, *self._positions)))

    @property
    def _error(self) -> str:
        if self._source.format == "text":
            return 'not valid UTF-8: set the source option "encoding" if the files have another character encoding'
        return f"not a {self._source.format} record of the schema {self._source.schema}"

    def _read_csv(self, group: _Group) -> None:
        csv = Csv(self._columns(group), self._source.options)
        read = self._text_lines(group)
        if csv.has_header:
            reader = self._spark.read.options(**group.options)
            read = LinesBelowHeaders(reader, group.located, group.partitions, csv=csv, encoding=self._source.encoding)
        self._parse(_Lines(read, csv.has_values(RAW), csv.records(self._spark), csv), group)

    def _read_json(self, group: _Group) -> None:
        options = {name: text for name, text in self._source.options.items() if name.lower() != ENCODING}
        records = parsing.records_of_json(self._spark, self._columns(group), options)
        self._parse(_Lines(self._text_lines(group), F.trim(RAW) != "", records), group)

    def _text_lines(self, group: _Group) -> _ReadLines:
        return partial(lines, self._spark.read.options(**group.options), group.located, group.partitions)

    def _parse(self, read_lines: _Lines, group: _Group) -> None:
        """Set the frame of a group. Nothing else crosses to the Python workers than the columns that it needs."""
        assert read_lines.records is not None
        partitions = [quoted(field.name) for field in group.partitions.fields]
        text = decoded(RAW, self._source.encoding).alias(_TEXT)
        frame = read_lines.frame(with_location=bool(self._positions))
        sent = frame.select(text, *map(F.expr, partitions), *self._line_positions())
        parsed = read_lines.records.parsed(
            sent, _TEXT, masks=absent_columns.bits(self._declared), checksums=self._checksums
        )
        if len(self._columns(group).fields) > _WIDE:
            # Constraint propagation takes seconds for a plan with thousands of columns. The session is a clone that only this attempt uses.
            self._spark.conf.set("spark.sql.constraintPropagation.enabled", "false")
        self.frame, self.bad = parsed.frame, F.expr(parsed.bad)
        self.drop = (parsed.reason, *self.aggregates)
        self._lines.append(read_lines)

    def _read_text(self, group: _Group) -> None:
        read = self._text_lines(group)
        text = decoded(RAW, self._source.encoding)
        partitions = [_quoted(field.name) for field in group.partitions.fields]
        is_bad = (~F.is_valid_utf8(text)).alias(_BAD)
        frame = read(with_location=bool(self._positions))
        self.frame = frame.select(text.alias("value"), *partitions, is_bad, *self._line_positions())
        self.bad, self.drop = F.col(_BAD), (_BAD,)
        self._lines.append(_Lines(read))

    def _line_positions(self) -> list[Column]:
        return ordered.position(F.col(PATH), F.col(START)) if self._positions else []

    def bad_records(self) -> Iterator[BadRecord]:
        """Raises ``DataError`` if a line of a CSV record with quoted line breaks looks like a complete record."""
        frames = []
        is_decoded = self._source.encoding != "UTF-8"
        text = decoded(RAW, self._source.encoding).alias(_TEXT)
        for read_lines in self._lines:
            frame = read_lines.frame(with_location=True)
            if read_lines.records is None:
                frames.append(frame.where(~F.is_valid_utf8(text)).select(RAW, PATH, F.lit("").alias(REASON)))
                continue
            frame = frame.select(RAW, PATH, START, *([text] if is_decoded else []))
            name = _TEXT if is_decoded else RAW
            candidates = parsing.among_bad(frame, name, self._bad_checksums)
            bad = read_lines.records.explained(candidates, name, only_bad=True)
            if read_lines.csv is not None and read_lines.csv.dialect.quote:
                refuse_lines_inside_records(frame, name, bad, read_lines.csv, read_lines.records)
            frames.append(bad)
        for frame in frames:
            rows = frame.select(PATH, F.col(RAW).cast("binary"), REASON)
            for path, line, reason in rows.toLocalIterator(prefetchPartitions=True):
                raw, encoding = text_of(bytes(line))
                error = f"not a {self._source.format} record of the schema: {reason}" if reason else self._error
                yield BadRecord(location={"path": plain_path(path), "encoding": encoding}, raw=raw, error=error)


def _checksums(size: int, files: int) -> Checksums | None:
    """``None`` for much input (``size`` in bytes), because Spark's driver joins the checksums of all tasks after each task."""
    most = min(2_000, 10_000 * (128 << 20) // max(size, 1), 200_000 // files)
    return Checksums(_CHECKSUMS, most) if most >= 20 else None


def _as_read(field: StructField) -> StructField:
    """Spark 4.1 returns ``1.5`` in a ``decimal(9,2)`` partition column of Parquet files as 0.15, so decimals are requested as strings."""
    return StructField(field.name, StringType()) if isinstance(field.dataType, DecimalType) else field


def _quoted(name: str) -> Column:
    return F.col(quoted(name))


def no_records(spark: SparkSession, source: _Source) -> ParsedRecords:
    """Columns of directories are missing, unless the schema names them. Fails without a schema, because the columns are then those of the files."""
    columns = _columns_without_records(spark, source)
    if source.positions:
        columns.frame = columns.frame.withColumns({name: F.lit(None).cast("string") for name in ordered.OFFERED})
    return columns


def _columns_without_records(spark: SparkSession, source: _Source) -> ParsedRecords:
    if source.format == "text":
        return ParsedRecords(spark.createDataFrame([], "value string"))
    if source.schema is None:
        summary = "a batch has no files of this source, and its columns are unknown without a file"
        raise DataError(summary, path=source.path).advising("give the source a schema, and run again.")
    columns = parsing.struct(source.schema, "source files")
    return ParsedRecords(spark.createDataFrame([], parsing.nullable(columns)))
