"""Reads the number of rows and the columns from the footers of Parquet and ORC files, and compares the columns. pyarrow is imported on first use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.files.pins import FilePin
from airflow_provider_streamsem.errors import UNREADABLE_FILE, DataError, StoreRefusedError
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_SIGNED = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}


@dataclass(frozen=True, slots=True)
class Footer:
    """
    The row count and the columns of a file, as its footer states them.

    :param rows: number of rows
    :param columns: the file's columns, a ``pyarrow.Schema``
    """

    rows: int
    columns: Any


def footers(location: str, format: str, pins: Sequence[FilePin]) -> dict[str, Footer]:
    """
    Return path → footer of each pinned file. Up to 16 threads read the footers, on S3 with one request for each file.

    :raises DataError: a file is not a complete file of its format; the error names the first such file. Nothing became visible
    """
    dataset = open_dataset(location)
    schemas: dict[Any, Any] = {}

    def read(pin: FilePin) -> Footer:
        found = _footer(dataset, ObjectStat(key=pin.path, bytes=pin.bytes, etag="", mtime_ns=0), format)
        # Files that differ only in the field ids of their columns have equal schemas.
        return Footer(found.rows, schemas.setdefault(found.columns.serialize().to_pybytes(), found.columns))

    paths = [pin.path for pin in pins]
    return dict(zip(paths, in_threads(read, pins), strict=True))


def check_columns(found: Mapping[str, Footer], wanted: Mapping[str, StructType], *, format: str, missing: str) -> None:
    """
    Compare the columns of files with the schema that reads them.

    :param found: path → footer
    :param wanted: path → columns to read from that file
    :param missing: what to do about a column or nested field that no file has: ``"refuse"`` raises an error, ``"null"`` accepts it, and Spark reads null
    :raises DataError: the schema's type cannot hold all values of a file's column, or no file holds a column and ``missing`` is ``"refuse"``
    """
    _refuse_mixed_units(found, wanted)
    absent: set[str] | None = None
    judged: dict[Any, set[str]] = {}
    for path, footer in found.items():
        key = (footer.columns, tuple(wanted[path].names))
        if key not in judged:
            judged[key] = _absent(footer.columns, wanted[path], path, format)
        absent = set(judged[key]) if absent is None else absent & judged[key]
    if absent and missing == "refuse":
        raise DataError(
            "the schema names columns that no file of the batch has, so that they would be null; nothing became visible",
            columns=sorted(absent),
            file=next(iter(found)),
            files=len(found),
        ).advising('correct the names, or set missing_columns="null" if files may lack the columns; then run again.')


def local_times(found: Mapping[str, Footer]) -> tuple[str, list[str]] | None:
    """Return the first file that has timestamp columns without a time zone, and these columns; ``None`` if there is no such file."""
    for path, footer in found.items():
        local = [column.name for column in footer.columns if _holds_local_times(column.type)]
        if local:
            return path, local
    return None


def _holds_local_times(held: Any) -> bool:
    from pyarrow import types

    if types.is_timestamp(held):
        return bool(held.tz is None)
    return types.is_nested(held) and any(_holds_local_times(held.field(n).type) for n in range(held.num_fields))


def _refuse_mixed_units(found: Mapping[str, Footer], wanted: Mapping[str, StructType]) -> None:
    """
    Refuse files that store one time column in different units, if the schema reads the column as ``long``.

    The values of the column would otherwise be, for example, seconds in some rows and microseconds in others.
    """
    first: dict[str, tuple[str, str]] = {}
    for path, footer in found.items():
        numbers = {field.name.lower() for field in wanted[path].fields if field.dataType.typeName() == "long"}
        for column in footer.columns:
            unit = getattr(column.type, "unit", None)
            if unit is None or column.name.lower() not in numbers:
                continue
            known, other = first.setdefault(column.name.lower(), (unit, path))
            if known != unit:
                what = "the schema reads a time column as long, but the files store it in different units; nothing became visible"
                raise DataError(what, file=path, column=column.name, unit=unit, other_file=other, other_unit=known)


def contradicting(found: Mapping[str, Footer]) -> tuple[str, str] | None:
    """Return the first file with a column that has another type in an earlier file, and that earlier file; ``None`` if there is no such file."""
    first: dict[str, tuple[Any, str]] = {}
    for path, footer in found.items():
        for column in footer.columns:
            type, other = first.setdefault(column.name, (column.type, path))
            if type != column.type:
                return path, other
    return None


def distinct(found: Mapping[str, Footer]) -> Iterable[str]:
    """Return one file for each distinct set of columns."""
    files: dict[Any, str] = {}
    for path, footer in found.items():
        files.setdefault(footer.columns, path)
    return files.values()


def _footer(dataset: Dataset, stat: ObjectStat, format: str) -> Footer:
    what = "a planned file cannot be read as its format; nothing became visible"
    try:
        with dataset.open(stat) as file:
            found, counted = _parquet(file) if format == "parquet" else _orc(file)
    except (OSError, ValueError, NotImplementedError, StoreRefusedError) as error:  # pyarrow raises all except the last
        raise DataError(what, file=stat.key, format=format).advising(UNREADABLE_FILE) from error
    if found.rows != counted:
        what = "a file's footer contradicts itself about the number of rows; nothing became visible"
        raise DataError(what, file=stat.key, footer=found.rows, row_groups=counted).advising(UNREADABLE_FILE)
    return found


def _parquet(file: Any) -> tuple[Footer, int]:
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(file)
    rows = sum(metadata.row_group(n).num_rows for n in range(metadata.num_row_groups))
    return Footer(metadata.num_rows, metadata.schema.to_arrow_schema().remove_metadata()), rows


def _orc(file: Any) -> tuple[Footer, int]:
    import pyarrow.orc

    reader = pyarrow.orc.ORCFile(file)
    return Footer(reader.nrows, reader.schema.remove_metadata()), reader.nrows


def _held(columns: Any, wanted: StructType, format: str) -> dict[str, Any]:
    """
    Return lower-case name → Arrow type of a file's columns.

    If all columns of an ORC file are called ``_col<n>``, Spark reads them by position.
    """
    if format == "orc" and len(columns) and all(column.name.startswith("_col") for column in columns):
        return {field.name.lower(): column.type for field, column in zip(wanted.fields, columns, strict=False)}
    return {column.name.lower(): column.type for column in columns}


def _absent(columns: Any, wanted: StructType, path: str, format: str) -> set[str]:
    """
    Return the wanted columns and nested fields that a file lacks.

    :raises DataError: the schema's type cannot hold all values of a column
    """
    absent: set[str] = set()
    held = _held(columns, wanted, format)
    for field in wanted.fields:
        if field.name.lower() not in held:
            absent.add(field.name)
        elif not _fits(held[field.name.lower()], field.dataType, field.name, absent, format):
            raise DataError(
                "a file has a column of a type that the schema's type cannot hold, so that values would be changed or lost; nothing became visible",
                file=path,
                column=field.name,
                found=str(held[field.name.lower()]),
                schema=field.dataType.simpleString(),
            )
    return absent


def _fits(held: Any, wanted: DataType, name: str, absent: set[str], format: str) -> bool:
    """
    Return whether Spark reads every value of an Arrow type as this Spark type without a change.

    :param absent: receives the names of struct fields that the file lacks
    """
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(held):
        return _fits(held.value_type, wanted, name, absent, format)
    if isinstance(held, pyarrow.BaseExtensionType):
        return _fits(held.storage_type, wanted, name, absent, format)
    kind: str = wanted.typeName()
    inner: Any = wanted
    if types.is_null(held):
        return True
    if kind == "struct":
        if not types.is_struct(held):
            return False
        fields = {held.field(n).name.lower(): held.field(n).type for n in range(held.num_fields)}
        absent |= {f"{name}.{field.name}" for field in inner.fields if field.name.lower() not in fields}
        return all(
            _fits(fields[field.name.lower()], field.dataType, f"{name}.{field.name}", absent, format)
            for field in inner.fields
            if field.name.lower() in fields
        )
    if kind == "array":
        is_list = types.is_list(held) or types.is_large_list(held) or types.is_fixed_size_list(held)
        return bool(is_list) and _fits(held.value_type, inner.elementType, f"{name}.element", absent, format)
    if kind == "map":
        return (
            bool(types.is_map(held))
            and _fits(held.key_type, inner.keyType, f"{name}.key", absent, format)
            and _fits(held.item_type, inner.valueType, f"{name}.value", absent, format)
        )
    if types.is_integer(held):
        return _holds_integers(held, wanted, format)
    if types.is_decimal(held):
        whole = held.precision - held.scale
        return kind == "decimal" and bool(inner.scale >= held.scale and inner.precision - inner.scale >= whole)
    if types.is_floating(held):
        return kind == "double" or (kind == "float" and bool(held.bit_width <= 32))
    if types.is_timestamp(held):
        # Spark has no type for some units, such as nanoseconds. As ``long``, Spark reads the integer of a Parquet file unchanged.
        return kind in ("timestamp", "timestamp_ntz") or (kind == "long" and format == "parquet")
    if types.is_date(held):
        return kind in ("date", "timestamp_ntz")
    if types.is_duration(held):
        # Spark reads the integer as microseconds, whatever the unit in the file.
        return kind == "long" or (held.unit == "us" and kind.startswith(("interval", "day")))
    if types.is_time(held):
        return kind == "long" or kind.startswith("time")
    if types.is_string(held) or types.is_large_string(held):
        return kind in ("string", "binary", "char", "varchar")
    if types.is_binary(held) or types.is_large_binary(held) or types.is_fixed_size_binary(held):
        return kind == "binary"
    return kind == "boolean" or not bool(types.is_boolean(held))


def _holds_integers(held: Any, wanted: DataType, format: str) -> bool:
    from pyarrow import types

    kind: str = wanted.typeName()
    bits: int = held.bit_width
    signed: bool = types.is_signed_integer(held)
    if kind in _SIGNED:
        return _SIGNED[kind] >= bits if signed else _SIGNED[kind] > bits
    if kind == "double":
        return bits <= (32 if signed else 16)
    if kind != "decimal":
        return False
    inner: Any = wanted
    whole: int = inner.precision - inner.scale
    if format == "parquet":  # Spark's two Parquet readers read only these combinations, and read them alike
        if not signed:
            return bits == 64 and (inner.precision, inner.scale) == (20, 0)
        return bits >= 32 and whole >= _INTEGER_DIGITS[bits]
    digits = 19 if bits == 64 and signed else _INTEGER_DIGITS[bits]
    return whole >= digits
