"""Columns that pass through the Python workers beside the parsed texts keep their values."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem.connectors.parsing import parsed

pytestmark = pytest.mark.spark

SCHEMA = "id int, headers array<struct<key: string, value: binary>>, properties map<string, string>, nested array<array<int>>, text string"
HEADERS = [
    None,
    [],
    [None],
    [("k", None)],
    [(None, bytearray(b"\xff\x00"))],
    [("k", bytearray()), ("k", bytearray(b"v"))],
]
PROPERTIES = [None, {}, {"k": None}, {"": "", "é": "v"}]
NESTED = [None, [], [None], [[]], [[None, 1], None, []]]


def test_null_and_empty_lists_and_maps_stay_what_they_are(spark: SparkSession) -> None:
    combined = [(headers, properties, nested) for headers in HEADERS for properties in PROPERTIES for nested in NESTED]
    rows = [(n, *values, f'{{"v": {n}}}') for n, values in enumerate(combined)]
    records = parsed.records_of_json(spark, parsed.struct("v int", "test"), {})
    result = records.parsed(spark.createDataFrame(rows, SCHEMA), "text", into="r")
    found = result.frame.selectExpr("id", "headers", "properties", "nested", *result.columns).sort("id").collect()
    assert result.frame.columns == ["r_0", "id", "headers", "properties", "nested", "r_reason"]
    assert [(row.id, row.v) for row in found] == [(n, n) for n in range(len(rows))]
    for row, (headers, properties, nested) in zip(found, combined, strict=True):
        expected = None if headers is None else [None if header is None else tuple(header) for header in headers]
        assert (None if row.headers is None else [h if h is None else tuple(h) for h in row.headers]) == expected
        assert (row.properties, row.nested) == (properties, nested)
