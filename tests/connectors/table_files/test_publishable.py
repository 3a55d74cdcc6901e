"""Whatever a table sink accepts before the commit, it can publish after the commit. A refusal comes before the commit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.errors import DataError
from tests.connectors import batches
from tests.connectors.iceberg.lake import Lake

DIGITS = "9" * 38
VALUES: dict[Any, tuple[pa.DataType, Any]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "integer": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.sampled_from([-(2**63), 2**63 - 1, 0])),
    "double": (pa.float64(), st.floats()),
    "string": (pa.string(), st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(["x" * 15 + "\ud7ff", "x" * 15 + "\ud7ffy", "\U0010ffff" * 16 + "z", "é" * 300, "", "__HIVE_DEFAULT_PARTITION__", "\0", "../x", "a/b"])),
    "binary": (pa.binary(), st.binary(max_size=20) | st.just(b"\xff" * 70)),
    "date": (pa.date32(), st.sampled_from([-(2**31), -719_163, -719_162, 0, 2_932_896, 2_932_897, 2**31 - 1])),
    "timestamp": (pa.timestamp("us", "UTC"), st.sampled_from([-(2**63), -62_135_596_800_000_001, -62_135_596_800_000_000, -1, 253_402_300_799_999_999, 253_402_300_800_000_000, 2**63 - 1])),
    "timestamp_ntz": (pa.timestamp("us"), st.sampled_from([-(2**63), -62_135_596_800_000_000, 1, 253_402_300_799_999_001, 2**63 - 1])),
    "decimal(38,0)": (pa.decimal128(38, 0), st.sampled_from([Decimal(DIGITS), Decimal(f"-{DIGITS}"), Decimal(0)])),
    "decimal(38,38)": (pa.decimal128(38, 38), st.sampled_from([Decimal(f"0.{DIGITS}"), Decimal(f"-0.{DIGITS}")])),
    "decimal(5,2)": (pa.decimal128(5, 2), st.sampled_from([Decimal("-0.05"), Decimal("0.00"), Decimal("-999.99")])),
}  # fmt: skip


@st.composite
def batch_of_one_column(draw: st.DrawFn) -> tuple[str, list[Any]]:
    kind = draw(st.sampled_from(sorted(VALUES)))
    return kind, draw(st.lists(st.none() | VALUES[kind][1], min_size=1, max_size=3))


def rows_of(kind: str, values: list[Any], *, nested: bool) -> pa.Table:
    arrow = VALUES[kind][0]
    array = pa.array(values, arrow)
    columns = {"id": pa.array(range(len(values)), pa.int64()), "v": array}
    if nested:
        columns["n"] = pa.array([[value] for value in array], pa.list_(arrow))
    return pa.table(columns)


def schema(kind: str, *, nested: bool) -> dict[str, Any]:
    of = {"type": "array", "elementType": kind, "containsNull": True}
    return {"id": "long", "v": kind, **({"n": of} if nested else {})}


WAYS = st.sampled_from(["append", "upsert", "upsert partitions", "key"])


def arguments(way: str) -> dict[str, Any]:
    made: dict[str, Any] = {"partition_by": ["v"]} if "partitions" in way else {}
    if way != "append":
        made |= {"mode": "upsert", "keys": ["v"] if way == "key" else ["id"]}
    return made


SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(batch_of_one_column(), WAYS, st.booleans())
@example(("string", ["x" * 15 + "\ud7ff" + "y"]), "upsert", False)
def test_rows_that_an_iceberg_sink_accepts_are_published(
    tmp_path_factory: Any, drawn: tuple[str, list[Any]], way: str, nested: bool
) -> None:
    kind, values = drawn
    lake = Lake(tmp_path_factory.mktemp("lake"), arguments(way))
    columns = list(schema(kind, nested=nested).items())
    rows = rows_of(kind, values, nested=nested)
    for version in range(2):
        try:
            lake.sink.resolve_schema(batches.schema_of(**dict(columns)))
            batch = lake.batch(version, [("", rows)], columns=columns)
        except DataError:
            return
        assert lake.publish(batch) is not None
    assert lake.table().scan().count() == len({*values} if way == "key" else values) * (1 if lake.sink.merges else 2)


@SETTINGS
@given(batch_of_one_column(), WAYS, st.booleans())
def test_rows_that_a_delta_sink_accepts_are_published(
    tmp_path_factory: Any, drawn: tuple[str, list[Any]], way: str, nested: bool
) -> None:
    kind, values = drawn
    sink = DeltaSink(str(tmp_path_factory.mktemp("delta") / "table"), **arguments(way))
    rows = rows_of(kind, values, nested=nested)
    for version in range(2):
        try:
            batch = batches.staged(sink, rows, version, schema=batches.schema_of(**schema(kind, nested=nested)))
        except DataError:
            return
        assert sink.publish(batch) is not None
    expected = len({*values} if way == "key" else values) * (1 if sink.merges else 2)
    assert DeltaTable(sink.path).to_pyarrow_dataset().count_rows() == expected
    DeltaTable(sink.path).get_add_actions(flatten=True)
