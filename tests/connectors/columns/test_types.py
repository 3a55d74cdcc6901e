"""Changed column types: the new type holds every value of both batches exactly, or the batch is refused with the column's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.columns.types import bare, typed, widened
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.spark import schema
from tests.connectors.batches import schema_of


def array(element: Any, *, null: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": null}


def mapping(value: Any, *, key: Any = "string", null: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": null}


def struct(**kinds: Any) -> dict[str, Any]:
    return json.loads(schema_of(**kinds))  # type: ignore[no-any-return]


WIDENED = [
    ("integer", "long", "long"), ("long", "integer", "long"), ("byte", "short", "short"),
    ("float", "double", "double"), ("double", "float", "double"), ("double", "integer", "double"), ("float", "short", "float"),
    ("decimal(5,2)", "decimal(12,2)", "decimal(12,2)"), ("decimal(12,2)", "decimal(5,2)", "decimal(12,2)"),
    ("decimal(5,2)", "decimal(5,4)", "decimal(7,4)"), ("decimal(36,0)", "decimal(3,2)", "decimal(38,2)"),
    ("decimal(12,2)", "integer", "decimal(12,2)"), ("decimal(21,2)", "long", "decimal(21,2)"),
    ("string", "void", "string"), ("void", "long", "long"), ("long", "long", "long"),
    (array("integer"), array("long"), array("long")), (array("string"), array("void"), array("string")),
    (mapping("float"), mapping("double"), mapping("double")), (mapping("long", key="integer"), mapping("byte", key="long"), mapping("long", key="long")),
    (struct(a="integer"), struct(b="string", a="long"), struct(a="long", b="string")),
    (array(struct(a="long")), array(struct(a="void", b=array("date"))), array(struct(a="long", b=array("date")))),
]  # fmt: skip


@pytest.mark.parametrize(("recorded", "given", "result"), WIDENED)
def test_widened_type_holds_the_values_of_both_batches(recorded: Any, given: Any, result: Any) -> None:
    assert bare(widened(recorded, given, "c")) == bare(result)


REFUSED = [
    ("integer", "double"), ("integer", "decimal(12,2)"), ("long", "float"), ("double", "long"), ("float", "integer"),
    ("decimal(20,2)", "long"), ("decimal(38,0)", "decimal(3,2)"), ("double", "decimal(5,2)"), ("decimal(5,2)", "double"),
    ("date", "timestamp_ntz"), ("timestamp_ntz", "date"), ("timestamp", "timestamp_ntz"), ("string", "long"), ("long", "string"),
    ("boolean", "integer"), ("binary", "string"), ("string", struct(a="string")), (array("long"), "long"), (array("long"), mapping("long")),
    (array("long"), array("string")), (struct(a="long"), struct(a="date")), (struct(a="long", b="long"), struct(a="long")),
    (struct(a="long"), struct(a="long", A="long")), ("interval day to second", "long"),
]  # fmt: skip


@pytest.mark.parametrize(("recorded", "given"), REFUSED)
def test_type_change_that_would_alter_or_lose_a_value_is_refused(recorded: Any, given: Any) -> None:
    with pytest.raises(DataError, match="nothing became visible"):
        widened(recorded, given, "c")


def test_changed_nested_type_is_reported_by_its_path() -> None:
    with pytest.raises(DataError) as raised:
        widened(struct(lines=array(struct(price="long"))), struct(lines=array(struct(price="date"))))
    assert raised.value.fields == {"column": "lines.element.price", "recorded": "long", "found": "date"}


def test_nested_field_is_nullable_if_it_is_nullable_in_either_batch() -> None:
    assert widened(array("long", null=False), array("long"), "c")["containsNull"] is True
    assert widened(mapping("long"), mapping("long", null=False), "c")["valueContainsNull"] is True
    never = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": False, "metadata": {}}]}
    assert [widened(*both)["fields"][0]["nullable"] for both in ((never, never), (never, struct(a="long")))] == [False, True]  # fmt: skip


def test_unchanged_schema_is_recorded_byte_for_byte() -> None:
    recorded = schema_of(a="long", b="string")
    assert schema.folded("out", recorded, schema_of(b="string", a="integer")) is recorded


def test_columns_and_fields_that_neither_rows_nor_table_have_are_left_out() -> None:
    inner = {"x": "long", "y": "long"}
    recorded = schema_of(
        a="long", B="long", c="long", s=struct(**inner), l=array(struct(**inner)), m=mapping(struct(**inner))
    )
    given = schema_of(a="long", s=struct(x="long"), l=array(struct(x="long")), m=mapping(struct(x="long")))
    table = schema_of(
        a="long", b="long", s=struct(x="long", z="long"), l=array(struct(x="long")), m=mapping(struct(**inner))
    )
    kept, dropped = schema.remaining(recorded, given, table)
    assert dropped == ["c", "s.y", "l.element.y"]
    expected = schema_of(a="long", B="long", s=struct(x="long"), l=array(struct(x="long")), m=mapping(struct(**inner)))
    assert bare(json.loads(kept)) == bare(json.loads(expected))
    assert schema.remaining(recorded, recorded, table) == (recorded, [])
    assert schema.remaining(recorded, schema_of(a="long", s="string"), recorded) == (recorded, [])


def test_untyped_columns_are_dropped_if_no_value_is_lost() -> None:
    kept, left_out = typed(schema_of(id="long", x="void", s=struct(a="long", b="void"), l=array(struct(a="long", b="void"))))  # fmt: skip
    assert left_out == ["s.b", "l.element.b", "x"]
    assert bare(json.loads(kept)) == bare(struct(id="long", s=struct(a="long"), l=array(struct(a="long"))))


@pytest.mark.parametrize("kind", [array("void"), mapping("void"), struct(a="void"), array(array("void"))])
def test_empty_untyped_array_is_not_treated_as_null(kind: Any) -> None:
    with pytest.raises(DataError, match="void"):
        typed(schema_of(id="long", c=kind))
