"""
Checks whether an Avro reader schema reads the values of a writer schema without changing them. It works on schemas only, without Spark.

Avro's schema resolution ignores logical types. It reads milliseconds as microseconds and 1.23 as 0.0123. It also rounds a long to a double.
Schema registries call such versions compatible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Schema: TypeAlias = str | Mapping[str, Any] | Sequence[Any]

_UNITS = (
    "date", "decimal", "duration", "local-timestamp-micros", "local-timestamp-millis", "local-timestamp-nanos", "time-micros", "time-millis",
    "timestamp-micros", "timestamp-millis", "timestamp-nanos",
)  # fmt: skip
_PRIMITIVE = ("boolean", "bytes", "double", "float", "int", "long", "null", "string")
_INEXACT = {("int", "float"), ("long", "float"), ("long", "double")}
_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def inexact_field(writer: str, reader: str) -> str | None:
    """
    Return the first field whose values change if the reader schema reads records of the writer schema, as ``field (long is read as double)``.

    ``None`` if no value changes, or if the reader schema cannot read the records at all. If the writer type has no logical type, its values have no unit, so
    the unit of the reader's logical type is accepted.
    """
    written, read = _Named(json.loads(writer)), _Named(json.loads(reader))
    return next(_Walk(written.types, read.types).changed(written.schema, read.schema, ""), None)


class _Walk:
    """Visits each pair of records, arrays or maps once, because a record may contain a field of its own type."""

    def __init__(self, written: Mapping[str, Schema], read: Mapping[str, Schema]) -> None:
        self._written, self._read = written, read
        self._entered: set[tuple[int, int]] = set()

    def changed(self, writer: Schema, reader: Schema, at: str) -> Iterator[str]:
        """Yields ``field (long is read as double)``."""
        writer, reader = self._resolved(writer, self._written), self._resolved(reader, self._read)
        if isinstance(writer, list):
            for branch in writer:
                yield from self.changed(branch, reader, at)
        elif isinstance(reader, list):
            chosen = self._branch(writer, reader)
            if chosen is not None:
                yield from self.changed(writer, chosen, at)
        elif _type(writer) == _type(reader) and _type(writer) in ("record", "array", "map"):
            yield from self._inside(_attributes(writer), _attributes(reader), at)
        elif not _is_exact(writer, reader):
            yield f"{at.lstrip('.') or 'value'} ({_schema_text(writer)} is read as {_schema_text(reader)})"

    def _inside(self, writer: Mapping[str, Any], reader: Mapping[str, Any], at: str) -> Iterator[str]:
        if (id(writer), id(reader)) in self._entered:
            return
        self._entered.add((id(writer), id(reader)))
        if writer["type"] == "array":
            yield from self.changed(writer["items"], reader["items"], f"{at}[]")
        elif writer["type"] == "map":
            yield from self.changed(writer["values"], reader["values"], f"{at}[]")
        else:
            written = {field["name"]: field["type"] for field in writer.get("fields", ())}
            for field in reader.get("fields", ()):
                for name in (field["name"], *field.get("aliases", ())):
                    if name in written:
                        yield from self.changed(written[name], field["type"], f"{at}.{field['name']}")
                        break

    def _branch(self, writer: Schema, union: Sequence[Any]) -> Schema | None:
        """A branch of the writer's type comes first (preferably with the same name), then a branch to which Avro promotes the writer's type."""
        kind = _type(writer)
        branches = [self._resolved(branch, self._read) for branch in union]
        same_type = [branch for branch in branches if _type(branch) == kind]
        same_name = [
            branch for branch in same_type if _attributes(branch).get("name") == _attributes(writer).get("name")
        ]
        promoted = [branch for branch in branches if _type(branch) in _PROMOTED.get(kind, ())]
        return next(iter([*same_name, *same_type, *promoted]), None)

    def _resolved(self, schema: Schema, types: Mapping[str, Schema]) -> Any:
        return types.get(schema, schema) if isinstance(schema, str) else schema


class _Named:
    """A schema in which every type name is a fullname (Avro specification, *Names*). ``types`` maps a fullname to its definition."""

    def __init__(self, schema: Schema) -> None:
        self.types: dict[str, Schema] = {}
        self.schema = self._full(schema, "")

    def _full(self, schema: Schema, namespace: str) -> Any:
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVE else _full_name(schema, namespace)
        if not isinstance(schema, Mapping):
            return [self._full(branch, namespace) for branch in schema]
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._full(kind, namespace)
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema, _full_name(schema["name"], schema.get("namespace", namespace)))
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return {**schema, part: self._full(schema[part], namespace)}
        return schema if kind in _PRIMITIVE else _full_name(kind, namespace)

    def _definition(self, schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        fields = [{**f, "type": self._full(f["type"], name.rpartition(".")[0])} for f in schema.get("fields", ())]
        kind = "record" if schema["type"] == "error" else schema["type"]
        self.types[name] = {**schema, "type": kind, "name": name, **({"fields": fields} if fields else {})}
        return self.types[name]  # type: ignore[return-value]


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _attributes(schema: Schema) -> Mapping[str, Any]:
    return schema if isinstance(schema, Mapping) else {}


def _type(schema: Schema) -> str:
    return schema if isinstance(schema, str) else str(_attributes(schema)["type"])


def _unit(schema: Schema) -> tuple[Any, ...] | None:
    attributes = _attributes(schema)
    if attributes.get("logicalType") not in _UNITS:
        return None
    if attributes["logicalType"] == "decimal":
        return "decimal", attributes.get("scale", 0)
    return (attributes["logicalType"],)


def _is_exact(writer: Schema, reader: Schema) -> bool:
    if (_type(writer), _type(reader)) in _INEXACT:
        return False
    unit = _unit(writer)
    if _unit(reader) is not None and "string" in (_type(writer), _type(reader)) and _type(writer) != _type(reader):
        return False  # Avro promotes between string and bytes, but the bytes of a string are not an encoded number.
    if unit is not None and unit != _unit(reader):
        return False
    return unit is None or unit[0] != "decimal" or _precision(writer) <= _precision(reader)


def _precision(schema: Schema) -> int:
    return int(_attributes(schema).get("precision", 0))


def _schema_text(schema: Schema) -> str:
    attributes = _attributes(schema)
    if attributes.get("logicalType") == "decimal":
        return f"decimal({attributes.get('precision')},{attributes.get('scale', 0)})"
    return str(attributes.get("logicalType") or _type(schema))
