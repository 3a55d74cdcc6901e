"""
Rules for type changes of a column, between batches and between a batch and the sink's table. Types are those of Spark's schema JSON.

A type changes only to a type that holds every value of the old type exactly. Values never change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_streamsem.connectors.columns.identifiers import more_than_once
from airflow_provider_streamsem.errors import DataError

VOID = "void"
"""Spark's type for a column in which every value is null and whose type is unknown"""

_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_EXACT_IN = {"float": ("byte", "short"), "double": ("byte", "short", "integer", "float")}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MOST_DIGITS = 38
_NULL_MARKS = ("nullable", "containsNull", "valueContainsNull")

Grows = Callable[[str, str, str], bool]
"""A function ``(column, recorded, wider)`` that returns whether the primitive type of a column may change to a wider type."""


def widened(
    recorded: Any, new: Any, column: str = "", *, grows: Grows = lambda column, recorded, wider: True, lacks: bool = False
) -> Any:  # fmt: skip
    """
    Return the type that holds the values of both types exactly.

    * If the new type is equal, narrower (``integer`` into ``long``, ``double`` or ``decimal(12,2)``) or ``void``, the result is the recorded type.
    * If the recorded type is ``void``, the result is the new type.
    * If the new type is wider and of the same kind, the result is the wider type. The kinds are integers, floats (``float``, ``double``) and decimals. Of
      two decimals, the result has the larger number of digits on each side of the decimal point, at most 38 in total.
    * For arrays, maps and structs, the rule applies to each nested type. A nested value is nullable if it is nullable in either type. A struct keeps its
      fields in order and appends new fields.

    :param recorded: the type of earlier batches, as the log records it
    :param new: the type of the new batch
    :param column: path of the column for error messages, such as ``order.lines.element.price``; ``""`` for the whole row
    :param grows: returns whether the sink's format supports the change to a wider type
    :param lacks: whether a new struct may lack recorded fields; the result then contains them
    :raises DataError: there is no such type, or ``grows`` refuses it; the error names the column and both types. Nothing became visible
    """
    if new == VOID or recorded == VOID:
        return recorded if new == VOID else new
    options: dict[str, Any] = {"grows": grows, "lacks": lacks}
    kinds = {kind["type"] if isinstance(kind, dict) else kind for kind in (recorded, new)}
    if kinds == {"struct"}:
        return _struct(recorded, new, column, options)
    if kinds == {"array"}:
        element = widened(recorded["elementType"], new["elementType"], f"{column}.element", **options)
        return {**recorded, "elementType": element, "containsNull": recorded["containsNull"] or new["containsNull"]}
    if kinds == {"map"}:
        key = widened(recorded["keyType"], new["keyType"], f"{column}.key", **options)
        value = widened(recorded["valueType"], new["valueType"], f"{column}.value", **options)
        may_be_null = recorded["valueContainsNull"] or new["valueContainsNull"]
        return {**recorded, "keyType": key, "valueType": value, "valueContainsNull": may_be_null}
    wider = recorded if _holds(recorded, new) else _grown(recorded, new)
    if wider is None or (wider != recorded and not grows(column, recorded, wider)):
        raise DataError("a column changed its type", column=column, recorded=recorded, found=new)
    return wider


def _struct(recorded: Any, new: Any, column: str, options: Mapping[str, Any]) -> Any:
    old_fields = {field["name"]: field for field in recorded["fields"]}
    new_fields = {field["name"]: field for field in new["fields"]}
    inside = f"{column}." if column else ""
    missing = [f"{inside}{name}" for name in old_fields if name not in new_fields]
    if missing and not options["lacks"]:
        raise DataError("columns of earlier batches are missing", columns=missing).advising(
            "return the columns from the transform, null if there are no values. If they were renamed or dropped in a Delta or Iceberg table, the "
            "transform may leave them out: check the names in the table. Then run again."
        )
    fields = []
    for name, field in old_fields.items():
        new_field = new_fields.get(name, {**field, "nullable": True})
        kind = widened(field["type"], new_field["type"], f"{inside}{name}", **options)
        fields.append({**field, "type": kind, "nullable": field["nullable"] or new_field["nullable"]})
    fields += [{**field, "nullable": True} for name, field in new_fields.items() if name not in old_fields]
    duplicates = more_than_once(field["name"] for field in fields) if column else []
    if duplicates:
        summary = "fields of a struct differ only in upper and lower case"
        raise DataError(summary, column=column, fields=duplicates)
    return {**recorded, "fields": fields}


def _holds(wide: Any, narrow: Any) -> bool:
    if wide == narrow:
        return True
    if not (isinstance(wide, str) and isinstance(narrow, str)):
        return False
    decimal, other = _DECIMAL.fullmatch(wide), _DECIMAL.fullmatch(narrow)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        digits, other_scale = (int(other[1]), int(other[2])) if other else (_DIGITS.get(narrow, _MOST_DIGITS + 1), 0)
        return scale >= other_scale and precision - scale >= digits - other_scale
    if wide in _DIGITS and narrow in _DIGITS:
        return _DIGITS[wide] >= _DIGITS[narrow]
    return narrow in _EXACT_IN.get(wide, ())


def _grown(recorded: Any, new: Any) -> str | None:
    """Return the wider type that replaces a recorded primitive type, or ``None`` if there is none."""
    if not (isinstance(recorded, str) and isinstance(new, str)):
        return None
    if (recorded in _DIGITS and new in _DIGITS) or (recorded, new) == ("float", "double"):
        return new
    decimals = _DECIMAL.fullmatch(recorded), _DECIMAL.fullmatch(new)
    if decimals[0] and decimals[1]:
        scale = max(int(decimals[0][2]), int(decimals[1][2]))
        precision = scale + max(int(decimal[1]) - int(decimal[2]) for decimal in decimals if decimal)
        return f"decimal({precision},{scale})" if precision <= _MOST_DIGITS else None
    return None


def without_dropped(recorded: Any, new: Any, existing: Any, dropped: list[str], column: str = "") -> Any:
    """
    Return a recorded type without the columns and fields of structs that neither the type of the new batch nor that of the table has.

    :param existing: the type in the table. A name that differs only in upper and lower case counts as existing
    :param dropped: receives the paths of the columns and fields that were left out
    :param column: path of the column; ``""`` for the whole row
    """
    if not all(isinstance(kind, dict) and kind["type"] == recorded["type"] for kind in (recorded, new, existing)):
        return recorded
    if recorded["type"] != "struct":
        parts = {
            name: without_dropped(recorded[name], new[name], existing[name], dropped, f"{column}.{path}")
            for name, path in _PART.items()
            if name in recorded
        }
        return {**recorded, **parts}
    in_batch, in_table = ({field["name"].lower(): field for field in kind["fields"]} for kind in (new, existing))
    fields = []
    for field in recorded["fields"]:
        name, path = field["name"].lower(), f"{column}.{field['name']}" if column else field["name"]
        if name in in_batch and name in in_table:
            kind = without_dropped(field["type"], in_batch[name]["type"], in_table[name]["type"], dropped, path)
            fields.append({**field, "type": kind})
        elif name in in_batch or name in in_table:
            fields.append(field)
        else:
            dropped.append(path)
    return {**recorded, "fields": fields}


def bare(kind: Any) -> Any:
    """Remove nullability and metadata from a type, field or schema. Only names and types remain."""
    if isinstance(kind, list):
        return [bare(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    return {name: bare(part) for name, part in kind.items() if name not in (*_NULL_MARKS, "metadata")}


def typed(schema: str) -> tuple[str, list[str]]:
    """
    Remove columns and struct fields of type ``void`` from a schema, and return their names too. Readers return null for a column that a file lacks.

    :raises DataError: the row or a struct would have no fields left; or elements are ``void``, because an array or map without elements is not null
    """
    left_out: list[str] = []
    kind = json.loads(schema)
    typed_schema = _typed(kind, "", left_out)
    return (json.dumps(typed_schema, separators=(",", ":")) if left_out else schema), left_out


def _typed(kind: Any, column: str, left_out: list[str]) -> Any:
    if not isinstance(kind, dict) or kind["type"] not in ("struct", "array", "map"):
        return kind
    if kind["type"] != "struct":
        parts = {name: kind[name] for name in ("elementType", "keyType", "valueType") if name in kind}
        if VOID in parts.values():
            summary = "the elements of an array or map have no type (void)"
            raise DataError(summary, column=column).advising("cast the column in the transform, and run again.")
        return {**kind, **{name: _typed(part, f"{column}.{_PART[name]}", left_out) for name, part in parts.items()}}
    inside = f"{column}." if column else ""
    fields = [
        {**field, "type": _typed(field["type"], f"{inside}{field['name']}", left_out)}
        for field in kind["fields"]
        if field["type"] != VOID
    ]
    left_out += [f"{inside}{field['name']}" for field in kind["fields"] if field["type"] == VOID]
    if kind["fields"] and not fields:
        summary = "every column of the row, or every field of a struct, has no type (void)"
        raise DataError(summary, columns=left_out).advising("cast one of the columns in the transform, and run again.")
    return {**kind, "fields": fields}


_PART = {"elementType": "element", "keyType": "key", "valueType": "value"}
