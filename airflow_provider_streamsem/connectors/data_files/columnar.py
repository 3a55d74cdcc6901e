"""Reads the number of rows and the columns from the footers of Parquet and ORC files, and compares the columns. pyarrow is imported on first use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.errors import UNREADABLE_FILE, DataError, StoreRefusedError
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_BUFFER_BYTES = 1 << 16
"""Without a buffer of this size, pyarrow reads whole column chunks."""
_SIGNED = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_SPARK_DIGITS = 38
"""The largest precision of a decimal in Spark."""
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}


@dataclass(frozen=True, slots=True)
class Footer:
    """The number of rows and the columns (a ``pyarrow.Schema``) of a file."""

    rows: int
    columns: Any


def footers(location: str, format: str, pins: Sequence[FilePin]) -> dict[str, Footer]:
    """Return path → footer of each pinned file. Reads with up to 16 threads. Refuses files that are not complete (``DataError``)."""
    dataset = open_dataset(location)
    schemas: dict[Any, Any] = {}

    def read(pin: FilePin) -> Footer:
        footer = _footer(dataset, ObjectStat(key=pin.path, bytes=pin.bytes, etag="", mtime_ns=0), format)
        # Files that differ only in the field ids of their columns have equal schemas.
        return Footer(footer.rows, schemas.setdefault(footer.columns.serialize().to_pybytes(), footer.columns))

    paths = [pin.path for pin in pins]
    return dict(zip(paths, in_threads(read, pins), strict=True))


def check_columns(
    file_footers: Mapping[str, Footer], expected: Mapping[str, StructType], *, format: str, missing: str
) -> None:
    """
    Refuse files (path → footer) with a column whose values the expected type (path → columns to read) cannot all hold.

    ``missing``: what to do if no file has a column or nested field: ``"refuse"`` raises ``DataError``; with ``"null"``, Spark reads null.
    """
    _refuse_mixed_units(file_footers, expected)
    absent: set[str] | None = None
    absent_by_columns: dict[Any, set[str]] = {}
    for path, footer in file_footers.items():
        key = (footer.columns, tuple(expected[path].names))
        if key not in absent_by_columns:
            absent_by_columns[key] = _absent(footer.columns, expected[path], path, format)
        absent = set(absent_by_columns[key]) if absent is None else absent & absent_by_columns[key]
    if absent and missing == "refuse":
        raise DataError(
            "the schema names columns that no file of the batch has, so that they would be null",
            columns=sorted(absent),
            file=next(iter(file_footers)),
            files=len(file_footers),
        ).advising('correct the names, or set missing_columns="null" if files may lack the columns; then run again.')


def check_types(file_footers: Mapping[str, Footer]) -> None:
    """Refuse columns of Parquet files for which Spark has no type. Called if Spark cannot read the files without a schema."""
    for path, footer in file_footers.items():
        for column in footer.columns:
            kind = _without_spark_type(column.type)
            if kind is not None:
                summary = "a file has a column of a type that Spark can only read with a schema"
                raise DataError(summary, file=path, column=column.name, found=str(column.type)).advising(
                    _typed_by_schema(kind)
                )


def _without_spark_type(kind: Any) -> Any:
    """Return the Arrow type, or the first type inside it, that Spark cannot read from Parquet without a schema; ``None`` if there is none."""
    from pyarrow import types

    if types.is_nested(kind):
        inside = (_without_spark_type(kind.field(n).type) for n in range(kind.num_fields))
        return next((found for found in inside if found is not None), None)
    is_nanos = types.is_timestamp(kind) and kind.unit == "ns"
    is_wide = types.is_decimal(kind) and kind.precision > _SPARK_DIGITS
    return kind if is_nanos or is_wide or types.is_time(kind) or types.is_float16(kind) else None


def _typed_by_schema(kind: Any) -> str:
    from pyarrow import types

    if types.is_timestamp(kind):
        read = "long: its values are then nanoseconds since 1970-01-01. Or write the files with microseconds"
    elif types.is_time(kind):
        read = "long: its values are then in the unit that `found` names"
    else:
        read = "binary: its values are then the bytes in the file. Or write the files with another type"
    return f"set `schema` of the source, and give the column, or the field inside it, the type {read}; then run again."


def check_names(file_footers: Mapping[str, Footer], expected: Mapping[str, StructType] | None) -> None:
    """Refuse names that are equal, or differ only in case, because Spark cannot choose between them. ``expected=None``: check all columns."""
    checked: dict[Any, list[str]] = {}
    for path, footer in file_footers.items():
        read = None if expected is None else expected[path]
        key = (footer.columns, None if read is None else tuple(read.names))
        if key not in checked:
            checked[key] = _repeated(footer.columns, read, "")
        if checked[key]:
            summary = "a file has columns with the same name, or with names that differ only in upper and lower case"
            raise DataError(summary, file=path, columns=checked[key]).advising(
                "put a copy with other column names into the source under another name, delete this file, and run again with "
                'on_data_loss="record_gap": the file becomes a gap, and the copy is read. Or set a `schema` without these columns.'
            )


def _repeated(stored: Iterable[Any], expected: Any, prefix: str) -> list[str]:
    """Spark reads only the fields of the type ``expected``; all, if it is ``None``. Names are compared without regard to case."""
    wanted = (
        None if expected is None else {field.name.lower(): field.dataType for field in getattr(expected, "fields", ())}
    )
    names: dict[str, list[str]] = {}
    inside: list[str] = []
    for field in stored:
        name = field.name.lower()
        if wanted is None or name in wanted:
            names.setdefault(name, []).append(prefix + field.name)
            inside += _repeated_inside(field.type, None if wanted is None else wanted[name], f"{prefix}{field.name}.")
    return [path for same in names.values() if len(same) > 1 for path in same] + inside


def _repeated_inside(kind: Any, expected: Any, prefix: str) -> list[str]:
    from pyarrow import types

    if types.is_struct(kind):
        return _repeated([kind.field(n) for n in range(kind.num_fields)], expected, prefix)
    if types.is_map(kind):
        key, value = getattr(expected, "keyType", None), getattr(expected, "valueType", None)
        return _repeated_inside(kind.key_type, key, f"{prefix}key.") + _repeated_inside(
            kind.item_type, value, f"{prefix}value."
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _repeated_inside(kind.value_type, getattr(expected, "elementType", None), f"{prefix}element.")
    return []


def local_times(file_footers: Mapping[str, Footer]) -> tuple[str, list[str]] | None:
    """Return the first file that has timestamp columns without a time zone, and these columns; ``None`` if there is no such file."""
    for path, footer in file_footers.items():
        local = [column.name for column in footer.columns if _holds_local_times(column.type)]
        if local:
            return path, local
    return None


def _holds_local_times(stored: Any) -> bool:
    from pyarrow import types

    if types.is_timestamp(stored):
        return bool(stored.tz is None)
    return types.is_nested(stored) and any(_holds_local_times(stored.field(n).type) for n in range(stored.num_fields))


def _refuse_mixed_units(file_footers: Mapping[str, Footer], expected: Mapping[str, StructType]) -> None:
    """Values that Spark reads as ``long`` would otherwise be, for example, seconds in some rows and microseconds in others."""
    first_seen: dict[str, tuple[str, str]] = {}
    for path, footer in file_footers.items():
        numbers = {field.name.lower() for field in expected[path].fields if field.dataType.typeName() == "long"}
        for column in footer.columns:
            unit = getattr(column.type, "unit", None)
            if unit is None or column.name.lower() not in numbers:
                continue
            first_unit, first_path = first_seen.setdefault(column.name.lower(), (unit, path))
            if first_unit != unit:
                summary = "the schema reads a time column as long, but the files store it in different units"
                raise DataError(
                    summary, file=path, column=column.name, unit=unit, other_file=first_path, other_unit=first_unit
                )


def contradicting(file_footers: Mapping[str, Footer]) -> tuple[str, str] | None:
    """Return the first file with a column that has another type in an earlier file, and that earlier file; ``None`` if there is no such file."""
    first_seen: dict[str, tuple[Any, str]] = {}
    for path, footer in file_footers.items():
        for column in footer.columns:
            first_type, first_path = first_seen.setdefault(column.name, (column.type, path))
            if first_type != column.type:
                return path, first_path
    return None


def distinct(file_footers: Mapping[str, Footer]) -> Iterable[str]:
    """Return one file for each distinct set of columns."""
    files: dict[Any, str] = {}
    for path, footer in file_footers.items():
        files.setdefault(footer.columns, path)
    return files.values()


def _footer(dataset: Dataset, stat: ObjectStat, format: str) -> Footer:
    try:
        with dataset.open(stat) as file:
            footer, group_rows = _parquet(file) if format == "parquet" else _orc(file)
    except (OSError, ValueError, NotImplementedError, StoreRefusedError) as error:  # pyarrow raises all except the last
        summary = "a planned file cannot be read as its format"
        raise DataError(summary, file=stat.key, format=format).advising(UNREADABLE_FILE) from error
    if footer.rows != group_rows:
        summary = "a file's footer contradicts itself about the number of rows"
        raise DataError(summary, file=stat.key, footer=footer.rows, row_groups=group_rows).advising(UNREADABLE_FILE)
    return footer


def _parquet(file: Any) -> tuple[Footer, int]:
    import pyarrow.parquet

    # Spark reads the old type INT96 as microseconds. So nanoseconds are then only those that Spark has no type for.
    reader = pyarrow.parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
    metadata = reader.metadata
    rows = sum(metadata.row_group(n).num_rows for n in range(metadata.num_row_groups))
    _read_first_records(file, metadata)
    return Footer(metadata.num_rows, reader.schema_arrow.remove_metadata()), rows


def _read_first_records(file: Any, metadata: Any) -> None:
    """
    Read the first record of each row group, of the columns with lists and maps: one page of each column.

    If a writer divides a record between two row groups, the second one does not begin with repetition level 0. pyarrow then raises an error. Spark moves values
    to other rows, and leaves out the last ones, without an error.
    """
    import pyarrow.parquet

    columns = [metadata.schema.column(n) for n in range(metadata.num_columns)]
    repeated = [column.path for column in columns if column.max_repetition_level]
    if not repeated:
        return
    reader = pyarrow.parquet.ParquetFile(file, metadata=metadata, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    for group in range(metadata.num_row_groups):
        with suppress(NotImplementedError):  # Spark may read an encoding that pyarrow does not
            next(reader.iter_batches(1, row_groups=[group], columns=repeated), None)


def _orc(file: Any) -> tuple[Footer, int]:
    import pyarrow.orc

    reader = pyarrow.orc.ORCFile(file)
    return Footer(reader.nrows, reader.schema.remove_metadata()), reader.nrows


def _stored_types(columns: Any, expected: StructType, format: str) -> dict[str, Any]:
    """If all columns of an ORC file are called ``_col<n>``, Spark reads them by position."""
    if format == "orc" and len(columns) and all(column.name.startswith("_col") for column in columns):
        return {field.name.lower(): column.type for field, column in zip(expected.fields, columns, strict=False)}
    return {column.name.lower(): column.type for column in columns}


def _absent(columns: Any, expected: StructType, path: str, format: str) -> set[str]:
    absent: set[str] = set()
    stored = _stored_types(columns, expected, format)
    for field in expected.fields:
        kind = stored.get(field.name.lower())
        if kind is None:
            absent.add(field.name)
        elif not _fits(kind, field.dataType, field.name, absent, format):
            error = DataError(
                "a file has a column of a type that the schema's type cannot hold, so that values would be changed or lost",
                file=path,
                column=field.name,
                found=str(kind),
                schema=field.dataType.simpleString(),
            )
            untyped = _without_spark_type(kind) if format == "parquet" else None
            if untyped is not None:
                error.advising(_typed_by_schema(untyped))
            raise error
    return absent


def _fits(stored: Any, expected: DataType, name: str, absent: set[str], format: str) -> bool:
    """Return whether Spark reads every value without a change. ``absent`` receives the names of struct fields that the file lacks."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(stored):
        return _fits(stored.value_type, expected, name, absent, format)
    if isinstance(stored, pyarrow.BaseExtensionType):
        return _fits(stored.storage_type, expected, name, absent, format)
    kind: str = expected.typeName()
    inner: Any = expected
    if types.is_null(stored):
        return True
    if kind == "struct":
        if not types.is_struct(stored):
            return False
        fields = {stored.field(n).name.lower(): stored.field(n).type for n in range(stored.num_fields)}
        absent |= {f"{name}.{field.name}" for field in inner.fields if field.name.lower() not in fields}
        return all(
            _fits(fields[field.name.lower()], field.dataType, f"{name}.{field.name}", absent, format)
            for field in inner.fields
            if field.name.lower() in fields
        )
    if kind == "array":
        is_list = types.is_list(stored) or types.is_large_list(stored) or types.is_fixed_size_list(stored)
        return bool(is_list) and _fits(stored.value_type, inner.elementType, f"{name}.element", absent, format)
    if kind == "map":
        return (
            bool(types.is_map(stored))
            and _fits(stored.key_type, inner.keyType, f"{name}.key", absent, format)
            and _fits(stored.item_type, inner.valueType, f"{name}.value", absent, format)
        )
    if types.is_integer(stored):
        return _holds_integers(stored, expected, format)
    if types.is_decimal(stored):
        return _holds_decimals(stored, expected, format)
    if types.is_float16(stored) and format == "parquet":
        return kind == "binary"
    if types.is_floating(stored):
        return kind == "double" or (kind == "float" and bool(stored.bit_width <= 32))
    if types.is_timestamp(stored):
        # Spark has no type for nanoseconds in Parquet. As ``long``, Spark reads the integer of a Parquet file unchanged.
        is_typed = format != "parquet" or stored.unit != "ns"
        return (is_typed and kind in ("timestamp", "timestamp_ntz")) or (kind == "long" and format == "parquet")
    if types.is_date(stored):
        return kind in ("date", "timestamp_ntz")
    if types.is_duration(stored):
        # Spark reads the integer as microseconds, whatever the unit in the file.
        return kind == "long" or (stored.unit == "us" and kind.startswith(("interval", "day")))
    if types.is_time(stored):
        return kind == "long" or kind.startswith("time")
    if types.is_string(stored) or types.is_large_string(stored):
        return kind in ("string", "binary", "char", "varchar")
    if types.is_binary(stored) or types.is_large_binary(stored) or types.is_fixed_size_binary(stored):
        return kind == "binary"
    return kind == "boolean" or not bool(types.is_boolean(stored))


def _holds_decimals(stored: Any, expected: DataType, format: str) -> bool:
    kind: str = expected.typeName()
    digits: Any = expected
    if kind == "binary" and format == "parquet":
        return bool(stored.precision > _SPARK_DIGITS)
    if kind != "decimal":
        return False
    whole = stored.precision - stored.scale
    return bool(digits.scale >= stored.scale and digits.precision - digits.scale >= whole)


def _holds_integers(stored: Any, expected: DataType, format: str) -> bool:
    from pyarrow import types

    kind: str = expected.typeName()
    bits: int = stored.bit_width
    signed: bool = types.is_signed_integer(stored)
    if kind in _SIGNED:
        return _SIGNED[kind] >= bits if signed else _SIGNED[kind] > bits
    if kind == "double":
        return bits <= (32 if signed else 16)
    if kind != "decimal":
        return False
    inner: Any = expected
    whole: int = inner.precision - inner.scale
    if format == "parquet":  # Spark's two Parquet readers read only these combinations, and read them alike
        if not signed:
            return bits == 64 and (inner.precision, inner.scale) == (20, 0)
        return bits >= 32 and whole >= _INTEGER_DIGITS[bits]
    digits = 19 if bits == 64 and signed else _INTEGER_DIGITS[bits]
    return whole >= digits
