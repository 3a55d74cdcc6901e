"""Batches with different types in one dataset: every reader gets the values unchanged."""

from __future__ import annotations

import json
import logging
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import open_log
from airflow_provider_streamsem.errors import DataError, LogDamagedError
from airflow_provider_streamsem.spark.schema import fields
from tests.spark_location import Location

pytestmark = pytest.mark.spark

FLAT = [
    "select 0 as id, cast(7 as int) as n, cast(1.5 as float) as f, 1.25BD as d, null as late",
    "select 1L as id, 5000000000L as n, 1.1D as f, 12345.6789BD as d, 'now' as late",
    "select cast(2 as short) as id, null as n, cast(2.5 as float) as f, 1.5BD as d, null as late",
    "select null as late, 3 as id, cast(3 as byte) as n, 4 as f, null as d",
]
FLAT_ROWS = [
    {"id": 0, "n": 7, "f": 1.5, "d": Decimal("1.2500"), "late": None},
    {"id": 1, "n": 5000000000, "f": 1.1, "d": Decimal("12345.6789"), "late": "now"},
    {"id": 2, "n": None, "f": 2.5, "d": Decimal("1.5000"), "late": None},
    {"id": 3, "n": 3, "f": 4.0, "d": None, "late": None},
]
NESTED = [
    "select 0 as id, named_struct('a', 1, 'gap', null) as s, array(1, 2) as l, map('k', named_struct('x', 1)) as m",
    "select 1 as id, named_struct('b', 'new', 'a', 5000000000L) as s, array(5000000000L, null) as l, map('k', named_struct('x', 2, 'y', 'z'), 'n', null) as m",
    "select 2 as id, null as s, array() as l, map() as m",
    "select 3 as id, named_struct('a', null, 'b', null) as s, null as l, map('k', null) as m",
]
NESTED_ROWS: list[dict[str, Any]] = [
    {"id": 0, "s": {"a": 1, "b": None}, "l": [1, 2], "m": {"k": {"x": 1, "y": None}}},
    {"id": 1, "s": {"a": 5000000000, "b": "new"}, "l": [5000000000, None], "m": {"k": {"x": 2, "y": "z"}, "n": None}},
    {"id": 2, "s": None, "l": [], "m": {}},
    {"id": 3, "s": {"a": None, "b": None}, "l": None, "m": {"k": None}},
]


def run_each(location: Location, format: str, queries: list[str]) -> None:
    for query in queries:
        location.put(f"{location.runs}.txt", "x")

        def transform(frame: DataFrame, query: str = query) -> DataFrame:
            return frame.sparkSession.sql(query)

        pipeline = location.pipeline(source={"format": "text"}, sink={"format": format}, transform=transform)
        location.run(pipeline)


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_rows_of_narrower_wider_and_untyped_batches_are_read_back_unchanged(
    location: Location, spark: SparkSession, format: str, caplog: pytest.LogCaptureFixture
) -> None:
    # A float has no text form that reads back as the same double. So the text formats use doubles from the start.
    queries = [query.replace("as float)", "as double)") for query in FLAT] if format in ("csv", "json") else FLAT
    with caplog.at_level(logging.INFO):
        run_each(location, format, queries)
    assert "leaves out columns that contain only nulls and have no type: late" in caplog.text
    assert location.rows(spark) == FLAT_ROWS
    if format == "parquet":
        files = [file.path for file in open_log(str(location.root / "log")).files()]
        types = {str(pyarrow.parquet.read_schema(path).field("n").type) for path in files[1:]}
        assert types == {"int64"}, "a narrower batch was not cast to the recorded type"
        by_duckdb = duckdb.sql(f"SELECT id, n, f, d, late FROM read_parquet({files}, union_by_name=true) ORDER BY id")
        assert by_duckdb.to_arrow_table().to_pylist() == FLAT_ROWS
    location.check()


@pytest.mark.parametrize("format", ["parquet", "orc", "json"])
def test_nested_types_that_grow_are_read_back_unchanged(location: Location, spark: SparkSession, format: str) -> None:
    run_each(location, format, NESTED)
    rows = [row.asDict(recursive=True) for row in sorted(_frame(location, spark).collect(), key=lambda row: row["id"])]
    assert rows == NESTED_ROWS
    location.check()


def test_column_metadata_changes_no_row_that_is_read(location: Location, spark: SparkSession) -> None:
    """Spark fills a missing column with the expression in ``EXISTS_DEFAULT``, and pads text to the length of a ``char(n)``."""
    texts = [
        ("select 1 as id, 'EU' as code", {"code": {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}}),
        ("select 2 as id, 'US' as code, 'r' as region, named_struct('x', 'y') as s", {"region": {"EXISTS_DEFAULT": "'EU'", "CURRENT_DEFAULT": "'EU'"}}),
    ]  # fmt: skip
    for text, metadata in texts:
        location.put(f"{location.runs}.txt", "x")

        def transform(frame: DataFrame, text: str = text, metadata: dict[str, Any] = metadata) -> DataFrame:
            result = frame.sparkSession.sql(text)
            for name, facts in metadata.items():
                result = result.withMetadata(name, facts)
            return result

        location.run(location.pipeline(source={"format": "text"}, transform=transform))
    stored = open_log(str(location.root / "log")).schema("out")
    assert stored is not None
    assert "EXISTS_DEFAULT" not in stored
    assert "VARCHAR" not in stored
    rows = {row["id"]: row for row in location.rows(spark)}
    assert rows[1] == {"id": 1, "code": "EU", "region": None, "s": None}
    assert rows[2]["region"] == "r"


def test_metadata_of_a_forged_schema_is_not_used() -> None:
    field = {"name": "s", "type": "string", "nullable": True, "metadata": {"EXISTS_DEFAULT": "version()"}}
    nested = {**field, "name": "n", "type": {"type": "struct", "fields": [field]}}
    columns = fields(json.dumps({"type": "struct", "fields": [field, nested]}))
    assert "EXISTS_DEFAULT" not in json.dumps(columns)
    assert [name["name"] for name in columns] == ["s", "n"]
    deep: Any = "string"
    for _ in range(250):
        deep = {"type": "struct", "fields": [{**field, "type": deep}]}
    with pytest.raises(LogDamagedError):
        fields(json.dumps(deep))


def _frame(location: Location, spark: SparkSession) -> DataFrame:
    from airflow_provider_streamsem import read_committed

    return read_committed(spark, str(location.root / "log"))


def test_values_that_the_recorded_type_cannot_hold_are_refused_before_staging(
    location: Location, spark: SparkSession
) -> None:
    run_each(location, "parquet", ["select 1 as id, 1 as n"])
    for query, message in [
        ("select 2 as id, 1.5D as n", "changed its type"),
        ("select 2 as id, 'one' as n", "changed its type"),
        ("select 2 as id", "columns of earlier batches are missing"),
        ("select 2 as id, 2 as n, array() as a", "elements of an array or map have no type"),
    ]:
        with pytest.raises(DataError, match=message):
            run_each(location, "parquet", [query])
        assert not (location.root / "out" / "data" / "1").exists()
    assert location.rows(spark) == [{"id": 1, "n": 1}]
