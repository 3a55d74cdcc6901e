"""Avro writer schemas whose values a reader's schema would change."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.parsing.avro_schemas import inexact_field


def record_of(kind: Any, name: str = "v") -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]})


def logical(kind: str, unit: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": unit, **more}


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
DECIMAL = logical("bytes", "decimal", precision=9, scale=2)
FIXED = logical("fixed", "decimal", precision=9, scale=2, name="F", size=8)


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (MILLIS, MICROS), (MICROS, MILLIS), (logical("long", "local-timestamp-millis"), MILLIS), (MILLIS, "long"), (DECIMAL, "bytes"),
        (logical("int", "time-millis"), logical("long", "time-micros")), (logical("int", "date"), "long"),
        (decimal(9, 2), decimal(9, 4)), (decimal(9, 4), decimal(9, 2)), (decimal(12, 2), decimal(9, 2)), (decimal(9, 2), decimal(9, 0)),
        ("long", "double"), ("long", "float"), ("int", "float"), (["null", MILLIS], ["null", MICROS]), (MILLIS, ["null", MICROS]),
        (["null", MILLIS], MICROS), ({"type": "array", "items": MILLIS}, {"type": "array", "items": MICROS}), ("long", ["null", "double"]),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "float"}), ({"type": ["null", MILLIS]}, ["null", MICROS]),
        (FIXED, {**FIXED, "scale": 3}), ("string", DECIMAL), (["null", "string"], ["null", DECIMAL]),
    ],
)  # fmt: skip
def test_reader_schema_that_would_change_values_is_reported_with_the_field(writer: Any, reader: Any) -> None:
    field = inexact_field(record_of(writer), record_of(reader))
    assert field is not None
    assert re.match(r"v(\[\])? \(.+ is read as .+\)", field)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (MILLIS, MILLIS), ("long", MILLIS), ("int", logical("int", "date")), ("bytes", DECIMAL), (decimal(9, 2), decimal(12, 2)), ("int", "long"),
        ("int", "double"), ("float", "double"), ("string", "bytes"), ("bytes", "string"), (logical("string", "uuid"), "string"),
        (["null", "long"], ["null", "long", "double"]), ("long", ["double", "long"]), (["null", "string"], ["string", "null"]),
        (logical("long", "of-our-own"), "long"), ("string", "long"), (FIXED, {**FIXED, "precision": 12}),
    ],
)  # fmt: skip
def test_schema_that_keeps_values_or_cannot_be_read_is_left_to_avro(writer: Any, reader: Any) -> None:
    assert inexact_field(record_of(writer), record_of(reader)) is None


def test_field_is_found_by_its_alias_and_through_named_types() -> None:
    inner = {"type": "record", "name": "a.b.Inner", "fields": [{"name": "at", "type": MILLIS}]}
    fields = [{"name": "x", "type": inner}, {"name": "y", "type": ["null", "a.b.Inner"]}]
    writer = json.dumps({"type": "record", "name": "R", "fields": fields})
    other = {**inner, "fields": [{"name": "at", "type": MICROS}]}
    reader = {"type": "record", "name": "R", "fields": [{"name": "z", "aliases": ["y"], "type": ["null", other]}]}
    assert inexact_field(writer, json.dumps(reader)) == "z.at (timestamp-millis is read as timestamp-micros)"
    assert inexact_field(writer, writer) is None


def test_names_are_resolved_in_their_namespaces() -> None:
    def money(namespace: str, kind: Any) -> dict[str, Any]:
        return {"type": "record", "name": "Money", "namespace": namespace, "fields": [{"name": "v", "type": kind}]}

    fields = [
        {"name": "b", "type": money("x.b", MICROS)},
        {"name": "a", "type": money("x.a", MILLIS)},
        {"name": "c", "type": "x.a.Money"},
    ]
    writer = json.dumps({"type": "record", "name": "R", "fields": fields})
    reader = {"type": "record", "name": "R", "fields": [{"name": "c", "type": money("x.a", MICROS)}]}
    assert inexact_field(writer, json.dumps(reader)) == "c.v (timestamp-millis is read as timestamp-micros)"
    reader["fields"][0] = {"name": "b", "type": money("x.b", MICROS)}  # type: ignore[index]
    assert inexact_field(writer, json.dumps(reader)) is None


def test_unqualified_name_is_resolved_in_the_enclosing_namespace() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": MILLIS}]}
    fields = [{"name": "x", "type": inner}, {"name": "y", "type": {"type": "array", "items": "n.s.Inner"}}]
    writer = json.dumps({"type": "record", "name": "R", "namespace": "n.s", "fields": fields})
    read = [{"name": "y", "type": {"type": "array", "items": {**inner, "fields": [{"name": "at", "type": MICROS}]}}}]
    reader = json.dumps({"type": "record", "name": "n.s.R", "fields": read})
    assert inexact_field(writer, reader) == "y[].at (timestamp-millis is read as timestamp-micros)"


def test_field_that_only_one_schema_has_is_ignored() -> None:
    assert inexact_field(record_of("long", "a"), record_of("double", "b")) is None


def test_recursive_record_is_visited_once() -> None:
    def tree(kind: Any) -> str:
        fields = [{"name": "left", "type": ["null", "Tree"]}, {"name": "v", "type": kind}]
        return json.dumps({"type": "record", "name": "Tree", "fields": fields})

    assert inexact_field(tree("long"), tree("long")) is None
    assert inexact_field(tree("long"), tree("double")) == "v (long is read as double)"
