"""Converts staged rows to values for JSON, as Spark's ``to_json`` does. Every publisher converts a row to the same values."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

from airflow_provider_streamsem.errors import DataError

_PLAIN = {"boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date"}
_PLAIN |= {"timestamp", "timestamp_ntz"}
_SIZED = ("decimal(", "char(", "varchar(")


def check_types(schema: str) -> list[str]:
    """Return the columns of a schema (Spark schema JSON). Intervals, variants, and maps whose keys are not strings are refused (``DataError``)."""
    fields = json.loads(schema)["fields"]
    for field in fields:
        if not _is_known(field["type"]):
            raise DataError(
                "a column has a type that JSON cannot represent",
                column=field["name"],
                given=field["type"],
            )
    return [field["name"] for field in fields]


def _is_known(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in _PLAIN or kind.startswith(_SIZED)
    if kind["type"] == "struct":
        return all(_is_known(field["type"]) for field in kind["fields"])
    if kind["type"] == "array":
        return _is_known(kind["elementType"])
    return bool(kind["type"] == "map" and kind["keyType"] == "string" and _is_known(kind["valueType"]))


def json_rows(batch: Any) -> list[dict[str, Any]]:
    """
    Convert a pyarrow record batch to rows, whose values :mod:`json` can write.

    Dates and timestamps become ISO 8601 strings; timestamps with a time zone are in UTC. Decimals become strings, so that no digit is lost. Binary values
    become base64. Non-finite floats become ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``.
    """
    converters = {field.name: _converter(field.type) for field in batch.schema}
    return [{name: converters[name](value) for name, value in row.items()} for row in batch.to_pylist()]


def _converter(kind: Any) -> Callable[[Any], Any]:
    from pyarrow import types

    convert: Callable[[Any], Any] = _unchanged
    if types.is_floating(kind):
        convert = _number
    elif types.is_decimal(kind):
        convert = lambda value: format(value, "f")  # noqa: E731
    elif types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        convert = lambda value: base64.b64encode(value).decode()  # noqa: E731
    elif types.is_timestamp(kind) or types.is_date(kind):
        convert = lambda value: value.isoformat().replace("+00:00", "Z")  # noqa: E731
    elif types.is_map(kind):
        item = _converter(kind.item_type)
        convert = lambda value: {key: item(inner) for key, inner in value}  # noqa: E731
    elif types.is_list(kind) or types.is_large_list(kind):
        element = _converter(kind.value_type)
        convert = lambda value: [element(inner) for inner in value]  # noqa: E731
    elif types.is_struct(kind):
        parts = {field.name: _converter(field.type) for field in kind}
        convert = lambda value: {name: parts[name](inner) for name, inner in value.items()}  # noqa: E731
    return lambda value: None if value is None else convert(value)


def _unchanged(value: Any) -> Any:
    return value


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
