"""
Reads the row count, checksum and partition values of a written file. pyarrow is imported on first use.

The checksum is the ETag if the store provides one. On disk, the checksum of a Parquet file is the sha256 of its footer, which contains the location, size and
statistics of every column chunk. For other formats it is the sha256 of the whole content. If the format has no row counts, the rows are counted by reading the
file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, BinaryIO
from urllib.parse import unquote

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.stores.dataset import Dataset

_PARQUET_TAIL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Row count and checksum of one file. ``parquet`` is pyarrow's metadata of a Parquet file; ``None`` for other formats."""

    rows: int
    checksum: str
    parquet: Any = None


def describe(dataset: Dataset, stat: ObjectStat, format: str) -> Described:
    """Count the rows of a file and compute its checksum. Refuses an incomplete file (``DataError``)."""
    try:
        with dataset.open(stat) as file:
            parquet = _metadata(file) if format == "parquet" else None
            rows = _rows(file, stat.key, format) if parquet is None else int(parquet.num_rows)
        return Described(rows=rows, checksum=checksum(dataset, stat, format), parquet=parquet)
    except (OSError, ValueError) as error:  # pyarrow raises subclasses of ValueError and OSError
        raise DataError(
            "a file of the dataset is not a complete file of its format", file=stat.key, format=format
        ) from error


def checksum(dataset: Dataset, stat: ObjectStat, format: str) -> str:
    """Return ``etag:…`` if the store provides one, else ``footer:<sha256>`` (Parquet; ``""`` without a footer) or ``content:<sha256>``."""
    if stat.etag:
        return f"etag:{stat.etag}"
    with dataset.open(stat) as file:
        if format != "parquet":
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            return f"content:{digest.hexdigest()}"
        if stat.bytes < _PARQUET_TAIL:
            return ""
        file.seek(stat.bytes - _PARQUET_TAIL)
        tail = file.read(_PARQUET_TAIL)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != b"PAR1" or length > stat.bytes - _PARQUET_TAIL:
            return ""
        file.seek(stat.bytes - _PARQUET_TAIL - length)
        return f"footer:{hashlib.sha256(file.read(length)).hexdigest()}"


def _metadata(file: BinaryIO) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(file)


def _rows(file: BinaryIO, name: str, format: str) -> int:
    if format == "orc":
        import pyarrow.orc

        return int(pyarrow.orc.ORCFile(file).nrows)
    if format == "json":
        return _json_lines(file, name)
    return int(_csv_table(file, name).num_rows)


def _stream(file: BinaryIO, name: str) -> Any:
    import pyarrow

    return pyarrow.input_stream(file, compression="gzip" if name.endswith(".gz") else None)


def _json_lines(file: BinaryIO, name: str) -> int:
    with _stream(file, name) as stream:
        count, last = 0, b"\n"
        while block := stream.read(1 << 20):
            count, last = count + block.count(b"\n"), block[-1:]
        return count + (last != b"\n")


def _csv_table(file: BinaryIO, name: str) -> Any:
    """Read a CSV file written with :data:`airflow_provider_streamsem.connectors.data_files.write.TEXT_OPTIONS`, every column as a string."""
    import pyarrow
    from pyarrow import csv

    with _stream(file, name) as stream:
        data = stream.read()
    header = csv.read_csv(
        pyarrow.BufferReader(data[: data.find(b"\n") + 1] or data), parse_options=_csv_dialect()
    ).column_names
    return csv.read_csv(
        pyarrow.BufferReader(data),
        read_options=csv.ReadOptions(block_size=max(len(data), 1 << 20)),  # a field may exceed the default block size
        parse_options=_csv_dialect(),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(header, pyarrow.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=["\\N"],
        ),
    )


def _csv_dialect() -> Any:
    from pyarrow import csv

    return csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)


def partition_values(
    relative: str, dataset: Dataset, stat: ObjectStat, format: str, columns: Sequence[str]
) -> dict[str, str | None]:
    """
    Return column → value of the partition to which a file belongs, as text. Timestamps are ISO 8601 in UTC; null is ``None``.

    The values are parsed from the directory names that :func:`airflow_provider_streamsem.connectors.data_files.write.directory_value` has created. A value that
    is too long for a directory name is read from the file. The log stores the values, so readers do not parse directory names.

    :raises DataError: a timestamp is outside the years 1 to 9999. Nothing became visible
    """
    values: dict[str, str | None] = {}
    for column, part in zip(columns, relative.split("/"), strict=False):
        name = part.partition("=")[2]
        if name == "_null":
            values[column] = None
        elif name == "_empty":
            values[column] = ""
        elif name.startswith("_sha256-"):
            with dataset.open(stat) as file:
                values[column] = _first_value(file, stat.key, format, column)
        elif "~" in name:
            values[column] = _timestamp(name, column)
        else:
            values[column] = unquote(name.replace("_", "%"))
    return values


def _timestamp(name: str, column: str) -> str:
    """``2026-01-01~120000.5Z`` becomes ``2026-01-01T12:00:00.500000Z``; without ``Z``, Spark's text ``2026-01-01 12:00:00.5``."""
    day, _, time = name.partition("~")
    time_of_day = f"{time[:2]}:{time[2:4]}:{time[4:]}"
    if not time.endswith("Z"):
        return f"{day} {time_of_day}"
    try:
        midnight = datetime.combine(date.fromisoformat(day), datetime.min.time())
    except ValueError as error:
        raise DataError("a partition value is outside the years 1 to 9999", column=column) from error
    seconds = Decimal(time[4:-1])
    micros = timedelta(hours=int(time[:2]), minutes=int(time[2:4]), microseconds=int(seconds * 1_000_000))
    return f"{(midnight + micros).isoformat(timespec='microseconds')}Z"


def _first_value(file: BinaryIO, name: str, format: str, column: str) -> str:
    if format == "parquet":
        import pyarrow.parquet

        return str(pyarrow.parquet.ParquetFile(file).read_row_group(0, columns=[column])[column][0].as_py())
    if format == "orc":
        import pyarrow.orc

        # Reads all columns, because pyarrow parses a dot in a column name as a nested field.
        stripe = pyarrow.orc.ORCFile(file).read_stripe(0)
        return str(stripe.column(column)[0].as_py())
    if format == "csv":
        return str(_csv_table(file, name)[column][0].as_py())
    import json

    with _stream(file, name) as stream:
        return str(json.loads(stream.read().split(b"\n", 1)[0])[column])
