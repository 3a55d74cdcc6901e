"""
Converts the values of a Debezium event to the values of columns. Each is converted exactly, or refused. Executors run this module.

A Kafka Connect schema says what a value means. Without one, the settings of the connector say it. What neither says is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as is_

from airflow_provider_streamsem.connectors.parsing.exact.json_records import (
    NON_NUMERIC,
    Unfit,
    list_reader,
    map_reader,
    struct_reader,
    value_reader,
)
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings, converter, days

ConnectSchema: TypeAlias = Mapping[str, Any]
"""A schema of Kafka Connect as its JSON converter writes it: ``type``, and for some types ``name``, ``parameters``, ``items``, ``values`` and ``fields``."""
UTC = Settings()
"""Debezium converts times to UTC."""
_DECIMAL, _VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
_DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_ISO_DATE, _ISO_TIMESTAMP = "io.debezium.time.IsoDate", "io.debezium.time.IsoTimestamp"
_ZONED = "io.debezium.time.ZonedTimestamp"
_LOGICAL: Mapping[str, ConnectSchema] = {
    "decimal": {"type": "decimal"},
    "date": {"type": "string", "name": _ISO_DATE},
    **{
        f"{local}timestamp-{unit}": {"type": "string", "name": _ISO_TIMESTAMP}
        for local in ("", "local-")
        for unit in ("millis", "micros")
    },
}
"""logical type of Avro → schema of what Spark's ``to_json`` writes"""
_MILLIS, _MICROS, _NANOS = 1_000, 1_000_000, 1_000_000_000
_UNITS = {
    "io.debezium.time.Timestamp": _MILLIS,
    "org.apache.kafka.connect.data.Timestamp": _MILLIS,
    "io.debezium.time.MicroTimestamp": _MICROS,
    "io.debezium.time.NanoTimestamp": _NANOS,
}
"""name of a schema → units in a second"""
_UNITS_OF_MODES = {"connect": _MILLIS, "microseconds": _MICROS, "nanoseconds": _NANOS}
_DAYS = (-719_162, 2_932_896)
"""0001-01-01 and 9999-12-31 in days since 1970."""
_LONGEST_DECIMAL = 1_024
"""In bytes. Python converts a number to digits in quadratic time, and refuses more than 4,300 digits."""
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact])
_MICROS_OF_DAY = 86_400 * _MICROS


@dataclass(frozen=True)
class Modes:
    """Settings of the connector. They are used for values without a schema."""

    decimal_handling_mode: str
    time_precision_mode: str


class UnknownEncodingError(Unfit):
    """Neither a schema nor a setting says what the value means. The message says which setting would."""


def event_value_reader(kind: pa.DataType, schema: ConnectSchema | None, modes: Modes) -> Callable[[Any], Any]:
    """Return a function from a parsed value, which is not null, to the value of a type. The function raises :class:`Unfit`."""
    if is_.is_struct(kind):
        inner = field_schemas(schema)
        return struct_reader([(f.name, event_value_reader(f.type, inner.get(f.name), modes), f.nullable) for f in kind])
    if is_.is_list(kind):
        return list_reader(event_value_reader(kind.value_type, _part(schema, "items"), modes))
    if is_.is_map(kind):
        return map_reader(event_value_reader(kind.item_type, _part(schema, "values"), modes))
    if is_.is_date(kind):
        return _date(schema)
    if is_.is_timestamp(kind):
        return _timestamp(kind, schema, modes)
    if is_.is_decimal(kind):
        return _decimal(kind, schema, modes)
    if is_.is_binary(kind):
        return _binary(schema)
    if is_.is_string(kind) and schema is not None and schema.get("name") in (_DECIMAL, _VARIABLE):
        return _decimal_text(schema)
    return value_reader(kind, UTC, frozenset({NON_NUMERIC}) if is_.is_floating(kind) else frozenset())


def is_as_in_json(kind: pa.DataType, schema: ConnectSchema | None) -> bool:
    """Return whether the values of a type are those that JSON itself has, so that a column of them can be converted at once."""
    if is_.is_string(kind):
        return schema is None or schema.get("name") not in (_DECIMAL, _VARIABLE)
    return bool(is_.is_integer(kind) or is_.is_boolean(kind))


def connect_schema_of_avro(schema: Any, types: dict[str, Any] | None = None) -> ConnectSchema:
    """
    Return the schema of Kafka Connect from which an Avro schema was made, for the values that Spark's ``to_json`` writes.

    :param types: full name → definition, of the types defined so far
    """
    types = {} if types is None else types
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        return connect_schema_of_avro(branches[0], types) if len(branches) == 1 else {}
    if isinstance(schema, str):
        known: ConnectSchema | None = types.get(schema)
        return known if known is not None else {"type": {"int": "int32", "long": "int64"}.get(schema, schema)}
    kind = schema["type"]
    if not isinstance(kind, str):
        return connect_schema_of_avro(kind, types)
    name, parameters = schema.get("connect.name"), schema.get("connect.parameters", {})
    logical = schema.get("logicalType")
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    made: dict[str, Any] = {"type": kind if kind != "record" else "struct"}
    if kind in ("record", "enum", "fixed"):
        space = schema.get("namespace")
        for own in {schema["name"], f"{space}.{schema['name']}" if space else schema["name"]}:
            types[own] = made
    if name is not None:
        made |= {"name": name, "parameters": parameters}
    if kind == "record":
        made["fields"] = [
            {"field": field["name"], **connect_schema_of_avro(field["type"], types)} for field in schema["fields"]
        ]
    elif kind in ("array", "map"):
        part = "items" if kind == "array" else "values"
        made[part] = connect_schema_of_avro(schema[part], types)
    elif kind in ("int", "long"):
        made["type"] = {"int": "int32", "long": "int64"}[kind]
    return made


def field_schemas(schema: ConnectSchema | None) -> dict[str, ConnectSchema]:
    """Return field → schema of a struct."""
    return {} if schema is None else {str(field["field"]): field for field in schema.get("fields", ())}


def _part(schema: ConnectSchema | None, name: str) -> ConnectSchema | None:
    return None if schema is None else schema.get(name)


def _date(schema: ConnectSchema | None) -> Callable[[Any], int]:
    name = None if schema is None else schema.get("name")

    def date(value: Any) -> int:
        if isinstance(value, str) and (schema is None or name == _ISO_DATE):
            found = days(value.removesuffix("Z"))
        elif isinstance(value, bytes) and (schema is None or name in _DATES):
            found = _integer(value)
        else:
            found = None
        return _within(found, *_DAYS)

    return date


def _timestamp(kind: pa.DataType, schema: ConnectSchema | None, modes: Modes) -> Callable[[Any], int]:
    name = None if schema is None else schema.get("name")
    units = _UNITS_OF_MODES.get(modes.time_precision_mode) if schema is None else _UNITS.get(str(name))
    parse = converter(kind, UTC)
    is_iso = name == _ISO_TIMESTAMP or (schema is None and modes.time_precision_mode == "isostring")

    def timestamp(value: Any) -> int:
        if isinstance(value, bytes):
            if units is None and schema is None:
                why = f"with time_precision_mode={modes.time_precision_mode!r}, a number has no unit without a schema"
                raise UnknownEncodingError(why)
            found = None if units is None else _micros(_integer(value), units)
        elif isinstance(value, str) and (schema is None or name in (_ZONED, _ISO_TIMESTAMP)):
            found = parse(value.removesuffix("Z") if is_iso and not kind.tz else value)
        else:
            found = None
        return _within(found, _DAYS[0] * _MICROS_OF_DAY, (_DAYS[1] + 1) * _MICROS_OF_DAY - 1)

    return timestamp


def _micros(value: int | None, units: int) -> int | None:
    if value is None:
        return None
    micros, rest = divmod(value * _MICROS, units)
    return None if rest else micros


def _decimal(kind: pa.DataType, schema: ConnectSchema | None, modes: Modes) -> Callable[[Any], Decimal]:
    fit = converter(kind, UTC)
    text_of = _decimal_text(schema)

    def decimal(value: Any) -> Decimal:
        if schema is None and isinstance(value, str) and modes.decimal_handling_mode == "precise":
            raise UnknownEncodingError("with decimal_handling_mode='precise', a decimal has no scale without a schema")
        found = fit(text_of(value))
        if found is None:
            raise Unfit
        return found  # type: ignore[no-any-return]

    return decimal


def _decimal_text(schema: ConnectSchema | None) -> Callable[[Any], str]:
    name = None if schema is None else schema.get("name")
    scale = _integer_of((schema or {}).get("parameters", {}).get("scale")) if name == _DECIMAL else None

    def text(value: Any) -> str:
        if name == _DECIMAL:
            return _scaled(value, scale)
        if isinstance(value, dict):
            return _scaled(value.get("value"), _integer_of(value.get("scale")))
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str) and (schema is None or schema.get("type") == "string"):
            return value
        raise Unfit

    return text


def _scaled(unscaled: Any, scale: int | None) -> str:
    """Return the digits of a decimal in the form of Java's ``BigInteger.toByteArray``."""
    if scale is None:
        raise Unfit
    data = _bytes(unscaled)
    if len(data) > _LONGEST_DECIMAL:
        raise Unfit
    return f"{Decimal(int.from_bytes(data, 'big', signed=True)).scaleb(-scale, _EXACT):f}"


def _binary(schema: ConnectSchema | None) -> Callable[[Any], bytes]:
    if schema is not None and schema.get("type") not in ("bytes", "fixed"):
        return _refuse
    return _bytes


def _refuse(value: Any) -> Any:
    raise Unfit


def _bytes(value: Any) -> bytes:
    found = _base64(value) if isinstance(value, str) else None
    if found is None:
        raise Unfit
    return bytes(found)


_base64 = converter(pa.binary(), UTC)


def _integer(value: bytes) -> int | None:
    found: int | None = converter(pa.int64(), UTC)(value.decode())
    return found


def _integer_of(value: Any) -> int | None:
    text = value.decode() if isinstance(value, bytes) else value
    return int(text) if isinstance(text, str) and text.lstrip("-").isdecimal() and len(text) < 5 else None


def _within(value: int | None, least: int, most: int) -> int:
    if value is None or not least <= value <= most:
        raise Unfit
    return value
