"""Arrow's reader and the exact parser, alone and together, return the same records and refuse the same texts."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.parsing.exact.arrow_json import ArrowJson
from airflow_provider_streamsem.connectors.parsing.exact.blocks import Block
from airflow_provider_streamsem.connectors.parsing.exact.json_records import ExactJson
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings
from tests.connectors.parsing.json_texts import KINDS, NESTED, record

ALL = {**KINDS, **NESTED}


def parsers(names: list[str], zone: str = "UTC") -> tuple[ArrowJson, ExactJson]:
    schema = pa.schema([pa.field(name, ALL[name]) for name in names])
    return ArrowJson(schema, Settings(zone)), ExactJson(schema, Settings(zone))


def good(block: Block) -> list[list[object]]:
    """Return the records of a block, each as text: NaN is not equal to itself, and 0.0 is equal to -0.0."""
    is_good = block.reasons.is_null()
    columns = [
        pc.cast(column, pa.int64()) if pa.types.is_timestamp(column.type) or pa.types.is_date64(column.type) else column
        for column in block.columns
    ]
    return [
        [repr(value) for value in column.filter(is_good).cast(_plain(column.type)).to_pylist()] for column in columns
    ]


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type whose values Python can represent: dates and times become numbers."""
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    return kind


def check(texts: list[str], names: list[str], zone: str = "UTC") -> None:
    arrow, exact = parsers(names, zone)
    expected = exact.parse(texts)
    for _ in range(2):  # the parser remembers whether the block before had unusual values
        found = arrow.parse(pa.array(texts, pa.string()))
        assert found.reasons.to_pylist() == expected.reasons.to_pylist(), _first_difference(
            texts, found.reasons.to_pylist(), expected.reasons.to_pylist()
        )
        assert good(found) == good(expected)


def _first_difference(texts: list[str], found: list[str | None], expected: list[str | None]) -> object:
    return next(parts for parts in zip(texts, found, expected, strict=True) if parts[1] != parts[2])


def block_of(seed: int, names: list[str], *, records: int, odd: float) -> list[str]:
    chance = random.Random(seed)
    return [record(chance, names, odd=odd if chance.random() < 0.2 else 0.0) for _ in range(records)]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1 << 32),
    names=st.lists(st.sampled_from([*ALL]), min_size=1, max_size=6, unique=True),
    odd=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    records=st.sampled_from([1, 5, 40, 300]),
    zone=st.sampled_from(["UTC", "Europe/Paris"]),
)
def test_a_block_has_the_records_and_the_bad_texts_of_the_exact_parser(
    seed: int, names: list[str], odd: float, records: int, zone: str
) -> None:
    check(block_of(seed, names, records=records, odd=odd), names, zone)


@pytest.mark.parametrize(
    "texts",
    [
        ['{"l": 1}{"l": 2}', "", '{"l": 3}'],
        ['{"l": 1}\n{"l": 2}', " ", '{"l": 3}'],
        ['{"l": {"a": 1}', '{"l": 2}}', '{"l": 1} {"l": 2}'],
        ["null", '{"l": 1}'],
        ["\ufeff{}", '{"l": 1}'],
        ['{"l": 1}\x00', '{"l": 2}', '{"l": 3}{"l": 4}'],
        ['{"l": 1}} ', '{"l": 2}'],
        ['{"s": "}', '{", "l": 1}'],
        ["[", "]", "5", "{}"],
    ],
)
def test_parts_of_several_texts_never_become_a_record(texts: list[str]) -> None:
    check(texts, ["l", "s"])
    check([*texts, *(['{"l": 5}'] * 200), *texts], ["l", "s"])


def test_bytes_that_are_not_utf8_are_bad_and_a_null_text_is_not() -> None:
    data = [b'{"s": "\xe9"}', b'{"s": "a"}', None, b'{"s": "\xed\xa0\x80"}']
    block = parsers(["s"])[0].parse(pa.array(data, pa.binary()).view(pa.string()))
    assert block.reasons.to_pylist() == ["not UTF-8", None, None, "not UTF-8"]
    assert block.columns[0].to_pylist()[1:3] == ["a", None]


def test_required_column_and_required_nested_field_are_checked() -> None:
    item = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("a", pa.list_(item))])
    texts = ['{"id": 1, "a": [{"x": 1}, null]}', '{"id": 2, "a": [{}]}', '{"a": []}', '{"id": 3, "a": null}']
    for _ in range(2):
        block = ArrowJson(schema, Settings()).parse(pa.array(texts))
        reasons = [None, "values that do not fit: a", "required values that are missing: id", None]
        assert block.reasons.to_pylist() == reasons


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_value_of_a_text_is_kept_and_a_deeper_one_is_bad(opening: str) -> None:
    """The value is the text of a column, of an element and of a map's value. The record itself is one more level."""
    closing = {"[": "]"}.get(opening, "}")
    of_record = {
        pa.string(): ("", "", lambda value: value),
        pa.list_(pa.string()): ("[", "]", lambda value: value[0]),
        pa.map_(pa.string(), pa.string()): ('{"k":', "}", lambda value: value[0][1]),
    }
    for kind, (before, after, text_of) in of_record.items():
        room = 999 - bool(before)
        deep, deeper = (opening * n + "1" + closing * n for n in (room, room + 1))
        texts = pa.array([f'{{"x":{before}{value}{after}}}' for value in (deep, deeper, '"1"')])
        block = ArrowJson(pa.schema([pa.field("x", kind)]), Settings()).parse(texts)
        assert block.reasons.to_pylist() == [None, "more than 1000 nested objects and arrays", None]
        assert text_of(block.columns[0][0].as_py()) == deep
