"""Sources in directories named ``column=value``: their columns are those that plain Spark reads from the same directory."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import Limits, open_log, read_committed, reprocess
from airflow_provider_streamsem.errors import DataError
from tests.spark_location import JSON, Location

pytestmark = pytest.mark.spark

NOTES = ["a b", "a:b/c", "100%", "ü", None, "x=y", "'\"\\"]


def orders(spark: SparkSession) -> DataFrame:
    rows = [(n, f"n{n}", datetime.date(2026, 1, 1 + n % 2), n % 3, note) for n, note in enumerate(NOTES)]
    return spark.createDataFrame(rows, "id long, name string, day date, hour int, note string")


def as_rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=str)


def types(frame: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


@pytest.mark.parametrize(
    ("format", "declared"),
    [(format, declared) for format in ("parquet", "orc", "json", "csv") for declared in (False, True)]
    + [("text", False)],
)
def test_partition_columns_match_those_that_spark_reads(
    location: Location, spark: SparkSession, format: str, declared: bool
) -> None:
    frame = orders(spark) if format != "text" else orders(spark).drop("id")
    frame.repartition(1).write.partitionBy("day", "hour", "note").format(format).save(str(location.root / "written"))
    (location.root / "in").rmdir()
    (location.root / "written").rename(location.root / "in")
    schema = {"text": "value string", "csv": "id long, name string", "json": "id long, name string"}.get(format)
    if declared:
        schema = "id long, hour string, name string, day timestamp"
    reader = spark.read if schema is None else spark.read.schema(schema)
    expected = reader.format(format).load(str(location.root / "in"))
    source = {"format": format} if format == "text" or schema is None else {"format": format, "schema": schema}
    location.run(location.pipeline(source=source))
    committed = read_committed(spark, str(location.root / "log"))
    assert (committed.columns, types(committed)) == (expected.columns, types(expected))
    assert location.rows(spark) == as_rows(expected)
    location.check()


def test_partition_column_keeps_its_type_from_batch_to_batch(location: Location, spark: SparkSession) -> None:
    location.put("h=1/ratio=1.5/a.json", '{"id": 1}\n')
    location.run(location.pipeline(source=JSON))
    location.put("h=2/ratio=2/b.json", '{"id": 2}\n')
    assert location.run(location.pipeline(source=JSON)).counts["read"] == 1
    location.put("h=abc/ratio=3/c.json", '{"id": 3}\n')
    with pytest.raises(DataError, match="schema") as caught:
        location.run(location.pipeline(source=JSON))
    assert (caught.value.fields["file"], caught.value.fields["column"]) == ("h=abc/ratio=3/c.json", "h")
    assert [(row["id"], row["h"], row["ratio"]) for row in location.rows(spark)] == [(1, 1, 1.5), (2, 2, 2.0)]
    declared = {"format": "json", "schema": "id long, name string, h string"}
    as_number = location.pipeline(
        source=declared, transform=lambda frame: frame.withColumn("h", F.expr("try_cast(h as int)"))
    )
    location.run(as_number)
    assert [(row["id"], row["h"]) for row in location.rows(spark)] == [(1, 1), (2, 2), (3, None)]


def test_reprocessing_reads_partition_columns_with_the_types_of_its_version(
    location: Location, spark: SparkSession
) -> None:
    location.put("h=x/a.json", '{"id": 1}\n')
    location.run(location.pipeline(source=JSON))
    location.put("h=1/b.json", '{"id": 2}\n')
    location.run(location.pipeline(source=JSON))
    reprocess(location.pipeline(source=JSON), 1, run_key="again")
    assert [(row["id"], row["h"]) for row in location.rows(spark)] == [(1, "x"), (2, "1")]
    location.check()


def test_aborted_version_does_not_fix_the_types_of_partition_columns(location: Location, spark: SparkSession) -> None:
    location.put("h=1/a.json", '{"id": 1}\n')
    location.put("other.json", '{"id": 5}\n')

    def delete_file(frame: DataFrame) -> DataFrame:
        (location.root / "in" / "h=1" / "a.json").unlink(missing_ok=True)
        return frame

    location.run(location.pipeline(source=JSON, on_data_loss="record_gap", transform=delete_file))
    location.put("h=x/b.json", '{"id": 2}\n')
    location.run(location.pipeline(source=JSON))
    assert [(row["id"], row["h"]) for row in location.rows(spark)] == [(2, "x"), (5, None)]


@pytest.mark.parametrize(
    ("schema", "path", "column"),
    [
        ("id long, n tinyint", "n=300/a.json", "n"),
        ("id long, n decimal(5,2)", "n=1.999/a.json", "n"),
        ("id long, n date", "n=abc/a.json", "n"),
        ("id long, n binary", "n=abc/a.json", "n"),
    ],
)
def test_partition_value_that_does_not_fit_the_schema_is_refused_by_file(
    location: Location, schema: str, path: str, column: str
) -> None:
    location.put(path, '{"id": 1}\n')
    with pytest.raises(DataError, match="partition column") as caught:
        location.run(location.pipeline(source={"format": "json", "schema": schema}))
    assert (caught.value.fields["file"], caught.value.fields["column"]) == (path, column)
    assert open_log(str(location.root / "log")).head == -1


def test_files_of_every_depth_are_read_although_plain_spark_drops_those_without_partitions(
    location: Location, spark: SparkSession
) -> None:
    paths = ["a.json", "Day=1/b.json", "day=2/H=3/c.json", "x/day=4/d.json", "y/day=5/e.json", "day=6/sub/f.json"]
    for number, path in enumerate(paths):
        location.put(path, f'{{"id": {number}}}\n')
    result = location.run(location.pipeline(source={"format": "json", "schema": "id long"}))
    assert result.counts["read"] == 6
    rows = {row["id"]: (row["Day"], row["H"]) for row in location.rows(spark)}
    assert rows == {0: (None, None), 1: (1, None), 2: (2, 3), 3: (4, None), 4: (5, None), 5: (6, None)}
    location.put("g.json", '{"id": 7}\n')
    location.run(location.pipeline(source={"format": "json", "schema": "id long"}))
    assert {row["id"]: row["Day"] for row in location.rows(spark)}[7] is None


@pytest.mark.parametrize("schema", [None, "id long, day int, name string"])
def test_partition_value_overrides_the_column_in_the_file_as_in_spark(
    location: Location, spark: SparkSession, schema: str | None
) -> None:
    frame = spark.createDataFrame([(1, 7, "x"), (2, 8, "y")], "id long, day int, name string").repartition(1)
    frame.write.parquet(str(location.root / "in" / "DAY=2026"))
    reader = spark.read if schema is None else spark.read.schema(schema)
    expected = reader.parquet(str(location.root / "in"))
    location.run(location.pipeline(source={"format": "parquet", "schema": schema}))
    assert location.rows(spark) == as_rows(expected)
    assert {row["day" if schema else "DAY"] for row in location.rows(spark)} == {2026}


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_decimal_partition_values_keep_their_scale(location: Location, spark: SparkSession, format: str) -> None:
    for number, value in enumerate(("1.5", "20", "1e1", "-0.25")):
        spark.range(number, number + 1).coalesce(1).write.format(format).save(
            str(location.root / "in" / f"price={value}")
        )
    location.run(location.pipeline(source={"format": format, "schema": "id long, price decimal(9,2)"}))
    rows = {row["id"]: row["price"] for row in location.rows(spark)}
    assert rows == {0: Decimal("1.50"), 1: Decimal("20.00"), 2: Decimal("10.00"), 3: Decimal("-0.25")}


def test_partition_column_that_collides_with_the_text_column_is_refused_unless_partitions_are_off(
    location: Location, spark: SparkSession
) -> None:
    location.put("value=1/a.txt", "one\n")
    with pytest.raises(DataError, match="hive_partitions=False") as caught:
        location.run(location.pipeline(source={"format": "text"}))
    assert caught.value.fields["file"] == "value=1/a.txt"
    location.run(location.pipeline(source={"format": "text", "hive_partitions": False}))
    assert location.rows(spark) == [{"value": "one"}]


def test_bad_records_in_partitions_name_their_file_and_start_after_selects_directories(
    location: Location, spark: SparkSession
) -> None:
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        location.put(f"day={day}/a.json", '{"id": 1}\n{broken\n')
    window = {**JSON, "start_after": "day=2026-01-02"}
    result = location.run(location.pipeline(source=window, limits=Limits(max_files=5)))
    assert (result.counts["read"], result.counts["quarantined"]) == (4, 2)
    assert sorted(row["path"] for row in location.quarantined()) == [
        str(location.root / "in" / f"day=2026-01-0{n}" / "a.json") for n in (2, 3)
    ]
    assert sorted(str(row["day"]) for row in location.rows(spark)) == ["2026-01-02", "2026-01-03"]
