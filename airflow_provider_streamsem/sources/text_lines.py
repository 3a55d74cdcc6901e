"""Text files as lines on Spark, byte by byte as they are stored. Imports pyspark: only engines import this."""

from __future__ import annotations

import base64
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, DataFrameReader, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.sources.csv_lines import Csv
from airflow_provider_streamsem.sources.sql import literal, quoted

RAW = "__streamsem_raw"
PATH = "__streamsem_path"
START = "__streamsem_start"
_ORDER = "__streamsem_order"
_BYTES = "ISO-8859-1"
_CONTROLS = "".join(map(chr, range(0x80, 0xA0)))
_WINDOWS = "".join(bytes([byte]).decode("cp1252", errors="ignore") or chr(byte) for byte in range(0x80, 0xA0))


def lines(reader: DataFrameReader, located: list[str], partitions: StructType) -> DataFrame:
    """
    The lines of text files: columns :data:`RAW`, :data:`PATH`, :data:`START` (offset of the split in the file) and the partition columns.

    :param partitions: the partition columns that the directories give
    """
    schema = StructType([StructField(RAW, StringType()), *partitions.fields])
    return reader.schema(schema).text(located).select(RAW, *_where(partitions))


def decoded(raw: str, encoding: str) -> str:
    """
    SQL of the text of stored bytes.

    Java's ``decode`` of windows-1252 needs a setting of the session, so its 27 characters that ISO 8859-1 lacks are replaced here. The five bytes that it
    leaves undefined become control characters, as in browsers.

    :param raw: name of a column of type ``string`` with bytes, as Spark's text reader gives them
    :param encoding: one of :data:`airflow_provider_streamsem.sources.files.ENCODINGS`
    """
    if encoding == "UTF-8":
        return raw
    text = f"decode(CAST({raw} AS BINARY), '{_BYTES}')"
    return f"translate({text}, {literal(_CONTROLS)}, {literal(_WINDOWS)})" if encoding == "windows-1252" else text


def lines_below_headers(
    reader: DataFrameReader, located: list[str], partitions: StructType, *, csv: Csv, encoding: str
) -> DataFrame:
    """
    The lines of CSV files without the first line of each file, which Spark compares with the expected header. Columns as :func:`lines` gives them.

    Spark's CSV reader reads each line as one column. In ISO 8859-1 a character is a byte, so no line changes, and no line contains the characters
    of the options.
    """
    signs = {"sep": "\uffff", "quote": "\ufffe", "escape": "\ufffd", "comment": "\ufffc", "nullValue": "\ufffb"}
    reader = reader.options(header="true", enforceSchema="false", encoding=_BYTES, mode="FAILFAST", **signs)
    given = {field.name.lower() for field in partitions.fields}
    found = [name for name in reader.csv(located).columns if name.lower() not in given]
    header = csv.header(found[0].encode(_BYTES).decode(encoding, errors="replace") if found else "")
    header = header.encode(encoding, errors="replace").decode(_BYTES)
    schema = StructType([StructField(header, StringType()), *partitions.fields])
    line = F.encode(_quoted(header), _BYTES).cast("string").alias(RAW)
    return reader.schema(schema).csv(located).select(line, *_where(partitions))


def refuse_lines_inside_records(parsed: DataFrame, bad: str, csv: Csv) -> None:
    """
    Refuse CSV files in which a line inside a record with quoted line breaks looks like a record of its own.

    A line with an odd number of quotes begins or ends such a record.

    :param parsed: lines as :func:`lines` gives them, and the boolean column ``bad``
    :raises DataError: names the file
    """
    is_part = F.expr(csv.has_open_quote(RAW))
    paths = [path for (path,) in parsed.where(F.col(bad) & is_part).select(PATH).distinct().collect()]
    if not paths:
        return
    ordered = parsed.where(F.col(PATH).isin(paths)).withColumn(_ORDER, F.monotonically_increasing_id())
    above = Window.partitionBy(PATH).orderBy(START, _ORDER).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    has_begun = F.sum(is_part.cast("long")).over(above) % 2 == 1
    inside = ordered.withColumn(_ORDER, has_begun).where(F.col(_ORDER) & ~F.col(bad)).select(PATH).first()
    if inside is not None:
        raise DataError(
            "a CSV file has a record with line breaks inside quotes, and a line of it looks like a record. No rows were committed. "
            "Do: replace the file by one without line breaks inside fields",
            file=plain_path(inside[0]),
        )


def _where(partitions: StructType) -> list[Column]:
    columns = [_quoted(field.name) for field in partitions.fields]
    return [F.col("_metadata.file_path").alias(PATH), F.col("_metadata.file_block_start").alias(START), *columns]


def _quoted(name: str) -> Column:
    return F.col(quoted(name))


def text_of(data: bytes) -> tuple[str, str]:
    """Bytes as text, and how: ``utf-8``; ``base64`` where they are not UTF-8."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def plain_path(uri: str) -> str:
    """A path as people write it, from Spark's percent-encoded URI."""
    plain = unquote(uri)
    return plain.removeprefix("file://").removeprefix("file:") if plain.startswith("file:") else plain
