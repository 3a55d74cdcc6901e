"""Reads text files as lines on Spark, with the stored bytes unchanged. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, DataFrameReader, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.parsing.parsed import REASON, Csv, Records
from airflow_provider_streamsem.errors import DataError

RAW = "__streamsem_raw"
PATH = "__streamsem_path"
START = "__streamsem_start"
_ORDER = "__streamsem_order"
_BAD, _SETS, _CHANGES, _GROUP = "__streamsem_bad", "__streamsem_sets", "__streamsem_changes", "__streamsem_group"
_OUTSIDE, _INSIDE = "__streamsem_outside", "__streamsem_inside"
_BYTES = "ISO-8859-1"
_CONTROLS = "".join(map(chr, range(0x80, 0xA0)))
_WINDOWS = "".join(bytes([byte]).decode("cp1252", errors="ignore") or chr(byte) for byte in range(0x80, 0xA0))


def lines(reader: DataFrameReader, located: list[str], partitions: StructType, *, with_location: bool) -> DataFrame:
    """
    Return the column :data:`RAW` and the partition columns.

    ``with_location`` adds :data:`PATH` and :data:`START`, the offset of the split in the file. They make reading slower, also if they are dropped later.
    """
    schema = StructType([StructField(RAW, StringType()), *partitions.fields])
    frame = reader.schema(schema).text(located)
    return frame.select(RAW, *_location_columns(with_location), *_partition_columns(partitions))


def decoded(raw: str, encoding: str) -> Column:
    """
    Decode a ``string`` column with the bytes as Spark's text reader returns them, in one of ``reader_options.ENCODINGS``.

    Spark's ``decode`` supports windows-1252 only with a session setting, so this function decodes ISO 8859-1 and replaces the 27 characters that differ. The
    five bytes that windows-1252 does not define become control characters, as in browsers.
    """
    if encoding == "UTF-8":
        return F.col(raw)
    text = F.decode(F.col(raw).cast("binary"), _BYTES)
    return F.translate(text, _CONTROLS, _WINDOWS) if encoding == "windows-1252" else text


class LinesBelowHeaders:
    """
    Reads the lines of CSV files without the header line of each file. Spark fails if the header of a file differs from the expected header.

    Spark's CSV reader reads each line as one column. The encoding is ISO 8859-1, in which each byte is a character, so lines stay unchanged. Separator, quote
    and the other special characters are outside ISO 8859-1, so no line contains them.
    """

    def __init__(
        self, reader: DataFrameReader, located: list[str], partitions: StructType, *, csv: Csv, encoding: str
    ) -> None:
        signs = {"sep": "\uffff", "quote": "\ufffe", "escape": "\ufffd", "comment": "\ufffc", "nullValue": "\ufffb"}
        self._reader = reader.options(header="true", enforceSchema="false", encoding=_BYTES, mode="FAILFAST", **signs)
        self._located, self._partitions = located, partitions
        partition_names = {field.name.lower() for field in partitions.fields}
        header_names = [name for name in self._reader.csv(located).columns if name.lower() not in partition_names]
        header = csv.header(header_names[0].encode(_BYTES).decode(encoding, errors="replace") if header_names else "")
        self._header = header.encode(encoding, errors="replace").decode(_BYTES)

    def __call__(self, *, with_location: bool) -> DataFrame:
        schema = StructType([StructField(self._header, StringType()), *self._partitions.fields])
        line = F.encode(_quoted(self._header), _BYTES).cast("string").alias(RAW)
        frame = self._reader.schema(schema).csv(self._located)
        return frame.select(line, *_location_columns(with_location), *_partition_columns(self._partitions))


def refuse_lines_inside_records(frame: DataFrame, text: str, bad: DataFrame, csv: Csv, records: Records) -> None:
    """
    Refuse CSV files in which a line inside a record with quoted line breaks looks like a complete record.

    A position of a file is inside or outside quotes. Each line keeps this state, sets it, or toggles it. The state before a line is that of the last line above
    it that sets it, toggled once for each toggling line in between. ``frame`` has the columns :data:`PATH` and :data:`START`.
    """
    from_outside, from_inside = F.col(_OUTSIDE), F.col(_INSIDE)

    def with_states(explained: DataFrame) -> DataFrame:
        lines_to_check = explained.select(PATH, START, F.col(REASON).isNotNull().alias(_BAD), text)
        return csv.with_quote_states(lines_to_check, text, (_OUTSIDE, _INSIDE))

    open_lines = with_states(bad).where(from_outside)
    paths = [path for (path,) in open_lines.select(PATH).distinct().collect()]
    if not paths:
        return
    in_paths = frame.where(F.col(PATH).isin(paths))
    ordered = with_states(records.explained(in_paths, text, only_bad=False)).select(
        PATH, START, _BAD, F.monotonically_increasing_id().alias(_ORDER),
        F.when(from_outside == from_inside, from_outside).alias(_SETS), (from_outside & ~from_inside).cast("long").alias(_CHANGES),
    )  # fmt: skip
    above = Window.partitionBy(PATH).orderBy(START, _ORDER).rowsBetween(Window.unboundedPreceding, -1)
    grouped = ordered.withColumn(_GROUP, F.count(_SETS).over(above)).withColumn(
        _SETS, F.coalesce(F.last(_SETS, ignorenulls=True).over(above), F.lit(False))
    )
    since = Window.partitionBy(PATH, _GROUP).orderBy(START, _ORDER).rowsBetween(Window.unboundedPreceding, -1)
    changes = F.coalesce(F.sum(_CHANGES).over(since), F.lit(0)) % 2 == 1
    inside = grouped.withColumn(_SETS, F.col(_SETS) != changes).where(F.col(_SETS) & ~F.col(_BAD)).select(PATH).first()
    if inside is not None:
        raise DataError(
            "a CSV file has a record with line breaks inside quotes, and a line of it looks like a record; no rows were committed",
            file=plain_path(inside[0]),
        ).advising(
            "put a copy without line breaks inside fields into the source under another name, delete this file, set "
            'on_data_loss="record_gap", and run again.'
        )


def _location_columns(with_location: bool) -> list[Column]:
    if not with_location:
        return []
    return [F.col("_metadata.file_path").alias(PATH), F.col("_metadata.file_block_start").alias(START)]


def _partition_columns(partitions: StructType) -> list[Column]:
    return [_quoted(field.name) for field in partitions.fields]


def _quoted(name: str) -> Column:
    return F.col(quoted(name))


def plain_path(uri: str) -> str:
    """Return a human-readable path from Spark's percent-encoded URI."""
    plain = unquote(uri)
    return plain.removeprefix("file://").removeprefix("file:") if plain.startswith("file:") else plain
