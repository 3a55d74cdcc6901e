"""
Rules for type changes of a column, between batches and between a batch and the sink's table. Types are those of Spark's schema JSON.

A type changes only to a type that holds every value of the old type exactly. Values never change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_streamsem.connectors.columns.names import more_than_once
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
    recorded: Any, given: Any, column: str = "", *, grows: Grows = lambda column, recorded, wider: True, lacks: bool = False
) -> Any:  # fmt: skip
    """
    Return the type that holds the values of both types exactly.

    * If the given type is equal, narrower (``integer`` into ``long``, ``double`` or ``decimal(12,2)``) or ``void``, the result is the recorded type.
    * If the recorded type is ``void``, the result is the given type.
    * If the given type is wider and of the same kind, the result is the wider type. The kinds are integers, floats (``float``, ``double``) and decimals. Of
      two decimals, the result has the larger number of digits on each side of the decimal point, at most 38 in total.
    * For arrays, maps and structs, the rule applies to each nested type. A nested value is nullable if it is nullable in either type. A struct keeps its
      fields in order and appends new fields.

    :param column: path of the column for error messages, such as ``order.lines.element.price``; ``""`` for the whole row
    :param grows: returns whether the sink's format supports the change to a wider type
    :param lacks: whether a given struct may lack recorded fields; the result then contains them
    :raises DataError: there is no such type, or ``grows`` refuses it; the error names the column and both types. Nothing became visible
    """
    if given == VOID or recorded == VOID:
        return recorded if given == VOID else given
    rule: dict[str, Any] = {"grows": grows, "lacks": lacks}
    kinds = {kind["type"] if isinstance(kind, dict) else kind for kind in (recorded, given)}
    if kinds == {"struct"}:
        return _struct(recorded, given, column, rule)
    if kinds == {"array"}:
        element = widened(recorded["elementType"], given["elementType"], f"{column}.element", **rule)
        return {**recorded, "elementType": element, "containsNull": recorded["containsNull"] or given["containsNull"]}
    if kinds == {"map"}:
        key = widened(recorded["keyType"], given["keyType"], f"{column}.key", **rule)
        value = widened(recorded["valueType"], given["valueType"], f"{column}.value", **rule)
        may_be_null = recorded["valueContainsNull"] or given["valueContainsNull"]
        return {**recorded, "keyType": key, "valueType": value, "valueContainsNull": may_be_null}
    wider = recorded if _holds(recorded, given) else _grown(recorded, given)
    if wider is None or (wider != recorded and not grows(column, recorded, wider)):
        raise DataError(
            "a column changed its type; nothing became visible", column=column, recorded=recorded, found=given
        )
    return wider


def _struct(recorded: Any, given: Any, column: str, rule: Mapping[str, Any]) -> Any:
    old = {field["name"]: field for field in recorded["fields"]}
    new = {field["name"]: field for field in given["fields"]}
    inside = f"{column}." if column else ""
    missing = [f"{inside}{name}" for name in old if name not in new]
    if missing and not rule["lacks"]:
        raise DataError("columns of earlier batches are missing; nothing became visible", columns=missing)
    fields = []
    for name, field in old.items():
        found = new.get(name, {**field, "nullable": True})
        kind = widened(field["type"], found["type"], f"{inside}{name}", **rule)
        fields.append({**field, "type": kind, "nullable": field["nullable"] or found["nullable"]})
    fields += [{**field, "nullable": True} for name, field in new.items() if name not in old]
    twice = more_than_once(field["name"] for field in fields) if column else []
    if twice:
        what = "fields of a struct differ only in upper and lower case; nothing became visible"
        raise DataError(what, column=column, fields=twice)
    return {**recorded, "fields": fields}


def _holds(wide: Any, narrow: Any) -> bool:
    """Return whether a primitive type holds every value of another primitive type exactly."""
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


def _grown(recorded: Any, given: Any) -> str | None:
    """Return the wider type that replaces a recorded primitive type, or ``None`` if there is none."""
    if not (isinstance(recorded, str) and isinstance(given, str)):
        return None
    if (recorded in _DIGITS and given in _DIGITS) or (recorded, given) == ("float", "double"):
        return given
    both = _DECIMAL.fullmatch(recorded), _DECIMAL.fullmatch(given)
    if both[0] and both[1]:
        scale = max(int(both[0][2]), int(both[1][2]))
        precision = scale + max(int(found[1]) - int(found[2]) for found in both if found)
        return f"decimal({precision},{scale})" if precision <= _MOST_DIGITS else None
    return None


def bare(kind: Any) -> Any:
    """Remove nullability and metadata from a type, field or schema. Only names and types remain."""
    if isinstance(kind, list):
        return [bare(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    return {name: bare(part) for name, part in kind.items() if name not in (*_NULL_MARKS, "metadata")}


def typed(schema: str) -> tuple[str, list[str]]:
    """
    Remove columns and struct fields of type ``void`` from a schema.

    All their values are null. No value is lost, because readers return null for a column that a file lacks.

    :param schema: schema JSON in Spark's form
    :returns: the schema without them, and their names
    :raises DataError: the row or a struct would have no fields left; or the elements of an array or map are ``void``, because an empty array is not null, so
        its column cannot be removed. Nothing became visible
    """
    left_out: list[str] = []
    kind = json.loads(schema)
    kept = _typed(kind, "", left_out)
    return (json.dumps(kept, separators=(",", ":")) if left_out else schema), left_out


def _typed(kind: Any, column: str, left_out: list[str]) -> Any:
    if not isinstance(kind, dict) or kind["type"] not in ("struct", "array", "map"):
        return kind
    if kind["type"] != "struct":
        parts = {name: kind[name] for name in ("elementType", "keyType", "valueType") if name in kind}
        if VOID in parts.values():
            what = "the elements of an array or map have no type (void); nothing became visible"
            raise DataError(what, column=column).advising("cast the column in the transform, and run again.")
        return {**kind, **{name: _typed(part, f"{column}.{_PART[name]}", left_out) for name, part in parts.items()}}
    inside = f"{column}." if column else ""
    fields = [
        {**field, "type": _typed(field["type"], f"{inside}{field['name']}", left_out)}
        for field in kind["fields"]
        if field["type"] != VOID
    ]
    left_out += [f"{inside}{field['name']}" for field in kind["fields"] if field["type"] == VOID]
    if kind["fields"] and not fields:
        what = "every column of the row, or every field of a struct, has no type (void); nothing became visible"
        raise DataError(what, columns=left_out).advising("cast one of the columns in the transform, and run again.")
    return {**kind, "fields": fields}


_PART = {"elementType": "element", "keyType": "key", "valueType": "value"}
