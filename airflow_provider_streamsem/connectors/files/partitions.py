"""
Partition columns of files in directories named ``column=value``, as Hive and Spark write them: ``day=2026-01-01/part-0.parquet``.

The partition columns of a file are the consecutive directories of this form that are nearest to the file. A value is text with ``%XX`` escapes. Types are
inferred as in Spark's partition discovery, with one exception: text that is a number only in Java (``1d``, ``0x1p3``, `` 1``) stays a string.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import Json

NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,17})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INFERRED_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9])?")
_TIMESTAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?")
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_MAX_FLOAT, _MAX_DOUBLE = 3.4028234663852886e38, sys.float_info.max
_MAX_DIGITS = 38
_DIGITS = {"int": 10, "bigint": 20}


@dataclass(frozen=True, slots=True)
class Layout:
    """``base`` is the directory above the partition directories; ``values`` are ``(column, escaped value)`` from the outermost directory to the innermost."""

    base: str
    values: tuple[tuple[str, str], ...]


def layout(path: str) -> Layout:
    """Parse a path, relative to the source's. Refuses empty names and values, and repeated or reserved names (``DataError``)."""
    directories = path.split("/")[:-1]
    end = len(directories)
    while end and "=" not in directories[end - 1]:
        end -= 1
    start = end
    while start and "=" in directories[start - 1]:
        start -= 1
    values = []
    for directory in directories[start:end]:
        name, _, value = directory.partition("=")
        if not name or not value:
            raise DataError(
                "a directory has '=' in its name but is not of the form column=value",
                file=path,
                directory=directory,
            ).advising("rename the directory, or set hive_partitions=False; then run again.")
        values.append((_unescaped(name), value))
    names = [name.lower() for name, _ in values]
    if len(set(names)) < len(names) or any(name.startswith("__streamsem") for name in names):
        raise DataError(
            "the directories of a file name one partition column twice, or a reserved column",
            file=path,
            columns=names,
        ).advising("rename the directories, or set hive_partitions=False; then run again.")
    return Layout(base="/".join(directories[:start]), values=tuple(values))


def types_of(paths: Iterable[str], recorded: Mapping[str, str]) -> dict[str, str]:
    """Return partition column → Spark type. A column in ``recorded`` keeps its type, so the caller must check with :func:`fits` that its values fit."""
    types = dict(recorded)
    recorded_keys = {name.lower() for name in recorded}
    spelling: dict[str, str] = {}
    inferred_types: dict[str, str] = {}
    for path in paths:
        for name, value in layout(path).values:
            key = name.lower()
            if key not in recorded_keys:
                spelling.setdefault(key, name)
                inferred_types[key] = _wider(inferred_types.get(key, "void"), _inferred(value))
    for key, inferred in inferred_types.items():
        types[spelling[key]] = "string" if inferred == "void" else inferred
    return types


def pinned_types(pins: Iterable[FilePin]) -> dict[str, str]:
    """Return partition column → type, from the pins of a plan."""
    return {name: type for pin in pins for name, type in pin.partition_types.items()}


def recorded_types(hint: Json) -> dict[str, str]:
    """Return partition column → type from a hint; ``{}`` if it has none. A hint of another form is ignored, because the log is not trusted."""
    types = hint.get("partition_columns") if isinstance(hint, Mapping) else None
    if not isinstance(types, Mapping) or not all(isinstance(type, str) for type in types.values()):
        return {}
    return dict(types)


def hint(types: Mapping[str, str]) -> dict[str, Json]:
    """Return the part of a hint that :func:`recorded_types` reads; ``{}`` if there are no types."""
    return {"partition_columns": dict(types)} if types else {}


def fits(value: str, type: str) -> bool:
    """Return whether Spark reads an escaped partition value as this type without a change."""
    if value == NULL or type == "string":
        return True
    if type in _BITS:
        return _INTEGER.fullmatch(value) is not None and -(1 << _BITS[type] - 1) <= int(value) < 1 << _BITS[type] - 1
    if type in ("float", "double"):
        if value in ("NaN", "Infinity", "-Infinity"):
            return True
        largest = _MAX_FLOAT if type == "float" else _MAX_DOUBLE
        return _NUMBER.fullmatch(value) is not None and abs(float(value)) <= largest
    if type.startswith("decimal("):
        precision, scale = (int(part) for part in type[len("decimal(") : -1].split(","))
        return _fits_decimal(value, precision, scale)
    if type == "boolean":
        return value.lower() in ("true", "false")
    if type == "date":
        return _DATE.fullmatch(value) is not None and _is_date(value)
    if type in ("timestamp", "timestamp_ntz"):
        plain = _unescaped(value)
        return _TIMESTAMP.fullmatch(plain) is not None and _is_time(plain)
    return False


def _unescaped(text: str) -> str:
    return re.sub("%([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), text)


def _inferred(value: str) -> str:
    if value == NULL:
        return "void"
    for type in ("int", "bigint"):
        if fits(value, type):
            return type
    digits = _whole_digits(value)
    if digits is not None and digits <= _MAX_DIGITS:
        return f"decimal({digits},0)"
    if fits(value, "double"):
        return "double"
    plain = _unescaped(value)
    if _INFERRED_TIMESTAMP.fullmatch(plain) and _is_time(plain):
        return "timestamp"
    return "date" if fits(value, "date") else "string"


def _wider(first: str, second: str) -> str:
    """Return the narrowest type for the values of two inferred types, by Spark's rule for partition columns."""
    kinds = {first, second}
    if first == second or "void" in kinds:
        return second if first == "void" else first
    if kinds == {"int", "bigint"}:
        return "bigint"
    if kinds == {"int", "double"}:
        return "double"
    if kinds == {"date", "timestamp"}:
        return "timestamp"
    if all(kind in _DIGITS or kind.startswith("decimal") for kind in kinds):
        return f"decimal({min(_MAX_DIGITS, max(_DIGITS.get(k) or int(k[8:-3]) for k in kinds))},0)"
    return "string"


def _whole_digits(value: str) -> int | None:
    if not _NUMBER.fullmatch(value):
        return None
    _, digits, exponent = Decimal(value).as_tuple()
    return len(digits) + exponent if isinstance(exponent, int) and exponent >= 0 else None


def _fits_decimal(value: str, precision: int, scale: int) -> bool:
    if not _NUMBER.fullmatch(value):
        return False
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    significant = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(significant)
    return not significant or (-exponent <= scale and len(significant) + exponent <= precision - scale)


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_time(text: str) -> bool:
    day, _, time = text.replace("T", " ").partition(" ")
    whole, _, _ = (time or "00:00:00").partition(".")
    try:
        datetime.fromisoformat(f"{day} {whole}")
    except ValueError:
        return False
    return True
