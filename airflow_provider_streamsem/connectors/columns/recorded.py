"""Reads the columns of a sink that an outcome records, as Spark schema JSON."""

from __future__ import annotations

import json

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.entries import Json


def fields(schema: str) -> list[Json]:
    """
    Return the columns of a recorded schema (Spark schema JSON) without metadata.

    User-defined types are refused, because Spark would load a class or unpickle an object that the schema names (R6).
    """
    try:
        parsed = json.loads(schema)
        is_valid = isinstance(parsed, dict) and parsed.get("type") == "struct" and is_plain(parsed)
        parsed = without_metadata(parsed)
    except (ValueError, RecursionError):
        is_valid = False
    if not is_valid:
        raise LogDamagedError(
            "a recorded schema is not a struct of plain types; nothing was read with it", invariant="R6"
        )
    columns: list[Json] = parsed["fields"]
    return columns


def without_metadata(kind: Json) -> Json:
    """Spark acts on metadata: it evaluates SQL expressions in it for files without the column, and pads strings to a length in it."""
    if isinstance(kind, list):
        return [without_metadata(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    return {name: {} if name == "metadata" else without_metadata(part) for name, part in kind.items()}


def is_plain(kind: Json) -> bool:
    """Return whether a type consists only of Spark's named types, structs, arrays and maps."""
    if not isinstance(kind, dict):
        return isinstance(kind, str)
    if kind.get("type") == "struct":
        fields = kind.get("fields")
        return isinstance(fields, list) and all(
            isinstance(field, dict) and isinstance(field.get("name"), str) and is_plain(field.get("type"))
            for field in fields
        )
    part_names = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(str(kind.get("type")))
    return part_names is not None and all(is_plain(kind.get(name)) for name in part_names)
