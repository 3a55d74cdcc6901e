"""
The rule by which a column's type may change, from batch to batch and from a batch to its table. Types are those of Spark's schema JSON.

A value is never changed: a type becomes another one only where that holds every value of the first exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.sinks.column_names import more_than_once

VOID = "void"
"""Spark's type of a column of which every value is null, and whose type nothing tells"""

_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_EXACT_IN = {"float": ("byte", "short"), "double": ("byte", "short", "integer", "float")}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MOST_DIGITS = 38
_NULL_MARKS = ("nullable", "containsNull", "valueContainsNull")

Grows = Callable[[str, str, str], bool]
"""whether the primitive type of a column may become a wider one: ``(column, recorded, wider)``"""


def widened(
    recorded: Any, given: Any, column: str = "", *, grows: Grows = lambda column, recorded, wider: True, lacks: bool = False
) -> Any:  # fmt: skip
    """
    The type that holds the values of two exactly.

    * The given type is equal, narrower (``integer`` into ``long``, ``double`` or ``decimal(12,2)``), or ``void``: the recorded one.
    * It is wider and of the same kind: the wider one. Kinds are integers, ``float`` and ``double``, and decimals: of two decimals the result has the larger
      number of digits on each side of the point, 38 together at most.
    * Arrays, maps and structs: the rule for each part. A part may be null where either may. A struct keeps its fields in order, and new ones follow.

    :param column: path of the column, for errors: ``order.lines.element.price``; ``""`` for the whole row
    :param grows: refuses growth that the sink's format does not have
    :param lacks: whether a given struct may lack recorded fields, which are then part of the result
    :raises DataError: there is no such type; names the column and both types
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
    """Whether a primitive type has every value of another."""
    if wide == narrow:
        return True
    if not (isinstance(wide, str) and isinstance(narrow, str)):
        return False
    decimal, other = _DECIMAL.fullmatch(wide), _DECIMAL.fullmatch(narrow)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        digits, places = (int(other[1]), int(other[2])) if other else (_DIGITS.get(narrow, _MOST_DIGITS + 1), 0)
        return scale >= places and precision - scale >= digits - places
    if wide in _DIGITS and narrow in _DIGITS:
        return _DIGITS[wide] >= _DIGITS[narrow]
    return narrow in _EXACT_IN.get(wide, ())


def _grown(recorded: Any, given: Any) -> str | None:
    """The wider type that a recorded primitive type becomes, or ``None``."""
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
    """A type, field or schema without what may be null and without metadata: what rows of it look like."""
    if isinstance(kind, list):
        return [bare(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    return {name: bare(part) for name, part in kind.items() if name not in (*_NULL_MARKS, "metadata")}


def typed(schema: str) -> tuple[str, list[str]]:
    """
    A schema without the columns and struct fields that have no type (``void``), and their names.

    Nothing is lost without them: a column that a file lacks is read as null.

    :param schema: schema JSON in Spark's form
    :raises DataError: nothing else is left of the row or of a struct, or the elements of an array or map have no type: an empty array is not null
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
            what = (
                "the elements of an array or map have no type (void): cast it in the transform; nothing became visible"
            )
            raise DataError(what, column=column)
        return {**kind, **{name: _typed(part, f"{column}.{_PART[name]}", left_out) for name, part in parts.items()}}
    inside = f"{column}." if column else ""
    fields = [
        {**field, "type": _typed(field["type"], f"{inside}{field['name']}", left_out)}
        for field in kind["fields"]
        if field["type"] != VOID
    ]
    left_out += [f"{inside}{field['name']}" for field in kind["fields"] if field["type"] == VOID]
    if kind["fields"] and not fields:
        what = "every column is null and has no type (void): cast one in the transform; nothing became visible"
        raise DataError(what, columns=left_out)
    return {**kind, "fields": fields}


_PART = {"elementType": "element", "keyType": "key", "valueType": "value"}
