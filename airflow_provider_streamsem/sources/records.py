"""Files as records on Spark: every physical record is either parsed or told apart as bad. Imports pyspark: only engines import this."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, StringType, StructField, StructType

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.sources import columnar, parsing, partitions
from airflow_provider_streamsem.sources.columnar import Footer
from airflow_provider_streamsem.sources.contract import BadRecord
from airflow_provider_streamsem.sources.csv_lines import Csv
from airflow_provider_streamsem.sources.files import ENCODING
from airflow_provider_streamsem.sources.sql import Parsed, quoted
from airflow_provider_streamsem.sources.text_lines import (
    PATH,
    RAW,
    decoded,
    lines,
    lines_below_headers,
    plain_path,
    refuse_lines_inside_records,
    text_of,
)
from airflow_provider_streamsem.stores.contract import spark_path, split_url

if TYPE_CHECKING:
    from airflow_provider_streamsem.sources.files import FilesSource

_RECORD, _BAD = "__streamsem_record", "__streamsem_record_bad"
_UTC = ("UTC", "Etc/UTC", "GMT", "Z")
_WIDE = 100
"""columns, above which Spark infers nothing from filters"""
_MANY = 100
"""files, above which small ones share tasks"""
_OPEN_COST = "spark.sql.files.openCostInBytes"
_OPEN_COST_BYTES = 1 << 18
"""what Spark adds to the size of each file when it assigns files to tasks: with its default of 4 MiB, 10,000 small files become 312 tasks"""
# Hadoop keeps checksums of local files beside them, under names that it cannot form for a name with a colon. S3A keeps blocks in local files
# and needs the file system with checksums for them.
_RAW_LOCAL = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


@dataclass(frozen=True)
class _Group:
    """
    Files that one reader can read: their partition directories name the same columns below the same directory.

    :param partitions: the partition columns and their types
    :param options: options of Spark's reader
    :param located: the paths as Spark's reader takes them
    """

    partitions: StructType
    options: Mapping[str, str]
    located: list[str]


class FileRecords:
    """
    The records of some files (:class:`airflow_provider_streamsem.sources.contract.Loaded`).

    JSON and CSV are read as lines of text and parsed by this package: Spark's own readers change values and drop what follows a record.

    :param pins: the pinned files: path, bytes, identity and, where the directories hold partition columns, the type of each
    """

    bad: Column | None
    frame: DataFrame
    drop: tuple[str, ...]

    def __init__(self, spark: SparkSession, source: FilesSource, pins: Json) -> None:
        self._spark, self._source = spark, source
        if len(pins) > _MANY and spark.conf.get(_OPEN_COST, None) is None:
            spark.conf.set(_OPEN_COST, _OPEN_COST_BYTES)  # the session is the attempt's own
        self._schema = None if source.schema is None else parsing.struct(source.schema, "source files")
        self._partitions = self._typed_partitions(pins)
        self._footers = self._checked_footers(pins)
        self._first: str = pins[0][0]
        self._csv_lines: list[tuple[DataFrame, Csv]] = []
        frames = []
        self._groups = self._grouped([pin[0] for pin in pins])
        for group in self._groups:
            self._group = group
            if source.format == "csv":
                self._read_csv(spark, group.located)
            elif source.format == "json":
                self._read_json(spark, group.located)
            elif source.format == "text":
                self._read_text(spark, group.located)
            else:
                self.bad, self.drop = None, ()
                self.frame = self._read_columnar(spark)
            frames.append(self._ordered(self.frame))
        self._refuse_contradictions(frames)
        self.frame = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)

    def _refuse_contradictions(self, frames: list[DataFrame]) -> None:
        """A union would change the values of a column that has several types into those of another type."""
        types: dict[str, DataType] = {}
        for frame in frames if len(frames) > 1 else ():
            for field in frame.schema.fields:
                if types.setdefault(field.name.lower(), field.dataType) != field.dataType:
                    what = "a column has one type in some planned files and another in others; nothing became visible"
                    raise DataError(what, column=field.name, **self._contradiction())

    def check_read(self, read: int) -> None:
        """
        Compare the records that were read with the rows that the footers of Parquet and ORC files say they hold.

        :raises DataError: they differ; names the first file that does
        """
        if self._footers is None or read == sum(footer.rows for footer in self._footers.values()):
            return
        root = plain_root(self._source.path)
        counted: dict[str, int] = {}
        for group in self._groups:
            self._group = group
            paths = self._read_columnar(self.frame.sparkSession).select(F.col("_metadata.file_path").alias(PATH))
            for path, rows in paths.groupBy(PATH).count().collect():
                counted[plain_path(path).removeprefix(root)] = rows
        differing = [path for path, footer in self._footers.items() if counted.get(path, 0) != footer.rows]
        path = differing[0] if differing else None
        raise DataError(
            "Spark read another number of rows than the footers of the planned files say; nothing became visible",
            file=path or next(iter(self._footers)),
            files=len(differing) or len(self._footers),
            footer=self._footers[path].rows if path else sum(footer.rows for footer in self._footers.values()),
            read=counted.get(path, 0) if path else read,
        )

    def _typed_partitions(self, pins: Json) -> dict[str, StructField]:
        """Lower-case name → partition column, in the schema's type, else in the recorded one; every value of it fits."""
        if not self._source.hive_partitions:
            return {}
        paths = [pin[0] for pin in pins]
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
                        "a partition column has the name of the column of text lines; nothing became visible. Rename the "
                        "directories, or set hive_partitions=False",
                        file=path,
                        column=name,
                    )
                if not partitions.fits(value, field.dataType.simpleString()):
                    raise DataError(
                        "the value of a partition column does not fit the column's type; nothing became visible. Name the column "
                        "in the source's schema with a type that holds every value, such as string, or rename the directory",
                        file=path,
                        column=field.name,
                        type=field.dataType.simpleString(),
                        type_from="schema" if name.lower() in declared else "earlier values",
                    )
        return {**ordered, **fields}

    def _checked_footers(self, pins: Json) -> dict[str, Footer] | None:
        """The footers of Parquet and ORC files, whose columns fit the schema."""
        if self._source.format not in ("parquet", "orc"):
            return None
        found = columnar.footers(self._source.path, self._source.format, pins)
        local = columnar.local_times(found) if self._source.format == "orc" else None
        if local is not None:
            self._check_zone(*local)
        if self._schema is not None:
            wanted = {path: self._data_columns(names) for path, names in self._names(found).items()}
            columnar.check_columns(found, wanted, format=self._source.format, missing=self._source.missing_columns)
        return found

    def _check_zone(self, path: str, columns: list[str]) -> None:
        """
        Spark reads ORC's times without a zone by the time zone of Java, whatever the session's is: a retry on another worker would give other rows.

        :raises DataError: it is not UTC
        """
        (zone,) = self._spark.sql("SELECT java_method('java.time.ZoneId', 'systemDefault')").first() or ("",)
        if zone not in _UTC:
            raise DataError(
                "an ORC file holds times without a time zone, which Spark reads by the time zone of Java; nothing became visible. "
                "Set -Duser.timezone=UTC in spark.driver.extraJavaOptions and spark.executor.extraJavaOptions",
                file=path,
                columns=columns,
                java_zone=zone,
            )

    def _grouped(self, paths: list[str]) -> list[_Group]:
        """Spark drops files beside partition directories without an error, so each layout gets a reader of its own."""
        members: dict[Any, list[str]] = {}
        for path, names in self._names(paths).items():
            where = spark_path(self._source.path, path)
            # A path with a colon cannot be globbed. One that has to be, for its other characters, is read alone and as it is.
            alone = path if ":" in where.removeprefix("s3a:") and "\\" in where else None
            key = (partitions.layout(path).base if names else "", names, ":" in where.removeprefix("s3a:"), alone)
            members.setdefault(key, []).append(path)
        root = plain_root(self._source.path)
        groups = []
        for (base, names, has_colon, alone), group in members.items():
            options = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
            if self._source.format == "parquet":
                options["parquet.page.verify-checksum.enabled"] = "true"
            if names:
                options["basePath"] = root + base
            if has_colon and root.startswith("/"):
                options |= _RAW_LOCAL
            if alone is not None:
                options["__globPaths__"] = "false"
            located = [root + path if alone else spark_path(self._source.path, path) for path in group]
            groups.append(_Group(StructType([_as_read(self._partitions[name]) for name in names]), options, located))
        return groups

    def _names(self, paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Path → lower-case names of the partition columns that its directories give."""
        if not self._source.hive_partitions:
            return dict.fromkeys(paths, ())
        return {path: tuple(name.lower() for name, _ in partitions.layout(path).values) for path in paths}

    def _data_columns(self, partitions: Collection[str]) -> StructType:
        """The schema's columns that come from the files themselves, where the directories give those of ``partitions``."""
        return StructType([f for f in (self._schema or StructType()).fields if f.name.lower() not in partitions])

    def _columns(self) -> StructType:
        """The schema's columns that the files of the group hold."""
        return self._data_columns({field.name.lower() for field in self._group.partitions.fields})

    def _reader(self, spark: SparkSession, columns: StructType, options: Mapping[str, str]) -> DataFrameReader:
        """A reader of the group's files with these columns and, last, the partition columns."""
        schema = StructType([*columns.fields, *self._group.partitions.fields])
        return spark.read.options(**{**options, **self._group.options}).schema(schema)

    def _read_columnar(self, spark: SparkSession) -> DataFrame:
        if self._schema is not None:
            reader = self._reader(spark, self._columns(), self._source.options)
            return reader.format(self._source.format).load(self._group.located)
        reader = spark.read.options(**{**self._source.options, **self._group.options}).format(self._source.format)
        # Files of one batch may have different columns: without a schema all are taken, and a contradiction is an error.
        frame = self._merged(reader.option("mergeSchema", "true"))
        typed = {field.name.lower(): field for field in self._group.partitions.fields}
        fields = [typed.get(field.name.lower(), field) for field in frame.schema.fields]
        if [f.dataType for f in fields] != [f.dataType for f in frame.schema.fields]:
            # The batch alone gives other types than those that are recorded.
            return reader.schema(StructType(fields)).load(self._group.located)
        return frame

    def _merged(self, reader: DataFrameReader) -> DataFrame:
        """
        The group's files with the columns of all of them.

        :raises DataError: names a file whose columns Spark cannot read, or that contradict those of the others
        """
        assert self._footers is not None
        try:
            frame = reader.load(self._group.located)
            frame.schema  # noqa: B018  behind Spark Connect the columns are merged when they are asked for
            return frame
        except Exception as error:
            condition = error.getCondition() if isinstance(error, PySparkException) else ""
            if "CANNOT_MERGE_SCHEMAS" in str(error):  # a classic session raises it as an error of the JVM
                condition = "CANNOT_MERGE_SCHEMAS"
            if not condition or condition == "PATH_NOT_FOUND":
                raise
            what = "the columns of a planned file cannot be read, or contradict those of the other files; nothing became visible"
            raise DataError(what, condition=condition, **self._culprit(reader)) from error

    def _culprit(self, reader: DataFrameReader) -> dict[str, str]:
        """The file whose columns Spark cannot read alone, else two files that contradict each other."""
        assert self._footers is not None
        for path in columnar.distinct(self._footers):
            try:
                reader.load(spark_path(self._source.path, path)).schema  # noqa: B018
            except PySparkException:
                return {"file": path}
        return self._contradiction()

    def _contradiction(self) -> dict[str, str]:
        """Two files whose columns contradict each other; the first file where the footers do not show it."""
        pair = columnar.contradicting(self._footers or {})
        return {"first_file": self._first} if pair is None else {"file": pair[0], "other_file": pair[1]}

    def _ordered(self, frame: DataFrame) -> DataFrame:
        """The columns as Spark orders them: those of the schema, then partition columns, null where a file has none."""
        # Behind Spark Connect a question for the columns is a request: they are known where there is a schema.
        names = (
            frame.columns
            if self._schema is None
            else [f.name for f in (*self._columns().fields, *self._group.partitions.fields)]
        )
        held = {name.lower() for name in names}
        absent = [field for key, field in self._partitions.items() if key not in held]
        frame = frame.select("*", *[F.lit(None).cast(f.dataType).alias(f.name) for f in absent])
        for read in self._group.partitions.fields:
            field = self._partitions[read.name.lower()]
            if field != read:
                frame = frame.withColumn(read.name, _quoted(read.name).cast(field.dataType))
        if self._schema is None:
            return frame
        names = [f.name for f in (*self._data_columns(self._partitions).fields, *self._partitions.values())]
        return frame.selectExpr(*map(quoted, (*names, *self.drop)))

    @property
    def _error(self) -> str:
        if self._source.format == "text":
            return 'not a line of UTF-8: the source option "encoding" names another character encoding'
        return f"not a {self._source.format} record of the schema {self._source.schema}"

    def _read_csv(self, spark: SparkSession, located: list[str]) -> None:
        csv = Csv(self._columns(), self._source.options)
        reader, partitions = spark.read.options(**self._group.options), self._group.partitions
        encoding = self._source.encoding
        read = partial(lines_below_headers, csv=csv, encoding=encoding) if csv.has_header else lines
        found = read(reader, located, partitions).where(F.col(RAW).rlike(r"[^\x00-\x20]"))
        parsed = csv.with_columns(found, decoded(RAW, encoding), _RECORD)
        self._csv_lines.append((parsed.frame, csv))
        self._set(parsed)

    def _read_json(self, spark: SparkSession, located: list[str]) -> None:
        reader = spark.read.options(**self._group.options)
        found = lines(reader, located, self._group.partitions).where(F.trim(RAW) != "")
        options = {name: text for name, text in self._source.options.items() if name.lower() != ENCODING}
        text = decoded(RAW, self._source.encoding)
        self._set(parsing.with_json(found, text, self._columns(), options, _RECORD))

    def _read_text(self, spark: SparkSession, located: list[str]) -> None:
        found = lines(spark.read.options(**self._group.options), located, self._group.partitions)
        text = decoded(RAW, self._source.encoding)
        partitions = [_quoted(field.name) for field in self._group.partitions.fields]
        is_bad = F.expr(f"NOT is_valid_utf8({text})").alias(_BAD)
        self.frame = found.select(F.expr(text).alias("value"), *partitions, is_bad, RAW, PATH)
        self.bad, self.drop = F.col(_BAD), (_BAD, RAW, PATH)

    def _set(self, parsed: Parsed) -> None:
        if len(self._columns().fields) > _WIDE:
            # What Spark infers from the filters of a plan takes minutes where it has thousands of columns. The session is the attempt's own.
            self._spark.conf.set("spark.sql.constraintPropagation.enabled", "false")
        partitions = [quoted(field.name) for field in self._group.partitions.fields]
        self.frame = parsed.frame.selectExpr(*parsed.columns, *partitions, _BAD, RAW, PATH)
        self.bad, self.drop = F.col(_BAD), (_BAD, RAW, PATH)

    def bad_records(self) -> Iterator[BadRecord]:
        """
        A second pass over the same files, for the bad records only.

        :raises DataError: CSV: a line inside a record with quoted line breaks looks like a record
        """
        if self.bad is None:
            return
        for parsed, csv in self._csv_lines:
            refuse_lines_inside_records(parsed, _BAD, csv)
        asked = [F.expr(f"count({quoted(name)}) AS c{i}") for i, name in enumerate(self.frame.columns)]
        from pyspark.sql import Observation

        # Observing every column keeps Spark from reading fewer of them, which would change what counts as bad.
        rows = self.frame.observe(Observation(), *asked).where(self.bad).select(PATH, F.col(RAW).cast("binary"))
        for path, line in rows.toLocalIterator():
            raw, encoding = text_of(bytes(line))
            yield BadRecord(
                place={"path": plain_path(path), "encoding": encoding},
                raw=raw,
                error=self._error,
            )


def _as_read(field: StructField) -> StructField:
    """A partition column as Spark is asked for it: it gives ``1.5`` in a column of ``decimal(9,2)`` as 0.15 (4.1, Parquet), so decimals come as text."""
    return StructField(field.name, StringType()) if isinstance(field.dataType, DecimalType) else field


def _quoted(name: str) -> Column:
    return F.col(quoted(name))


def plain_root(place: str) -> str:
    """A source's path as :func:`plain_path` gives it, with a slash at its end."""
    scheme, rest = split_url(place)
    return (f"s3a://{rest}" if scheme == "s3" else rest.rstrip("/")) + "/"
