"""Compaction on real Spark: every value is the same in the new files, and files that cannot be read stop a rewrite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import compact, open_log
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.spark.rewriting import _contents
from tests.connectors.files.odd_rows import nested_values, odd_values
from tests.spark_location import JSON, Location

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_values_of_each_format_are_unchanged(location: Location, spark: SparkSession, format: str) -> None:
    def pipeline(partition_by: list[str]) -> Any:
        return location.pipeline(
            source={"format": "text"},
            sink={"format": format, "partition_by": partition_by},
            transform=lambda frame: nested_values(frame, format),
        )

    for number, partition_by in enumerate([["s", "i"], ["b"], []]):
        location.put(f"{number}.txt", "x")
        location.run(pipeline(partition_by))
    before, files = location.rows(spark), len(open_log(str(location.root / "log")).files())
    (done,) = compact(pipeline(["b"]))
    found = open_log(str(location.root / "log")).files()
    assert (done.files, done.new_files, len(found)) == (files, 2, 2)
    assert {file.partition["b"] for file in found} == {"true", "false"}
    assert location.rows(spark) == before
    location.check()


def test_columns_that_some_files_lack_are_null_in_the_new_files(location: Location, spark: SparkSession) -> None:
    for number, columns in enumerate([["first"], ["first", "second"]]):
        location.put(f"{number}.json", f'{{"id": {number}, "name": "x"}}\n')
        location.run(
            location.pipeline(
                source=JSON,
                transform=lambda frame, columns=columns: frame.withColumns(dict.fromkeys(columns, F.lit(1))),
            )
        )
    before = location.rows(spark)
    compact(location.pipeline(source=JSON))
    assert location.rows(spark) == before
    paths = [file.path for file in open_log(str(location.root / "log")).files()]
    assert len(paths) == 1
    columns = [row[0] for row in duckdb.sql(f"describe select * from '{paths[0]}'").fetchall()]
    assert columns == ["id", "name", "first", "second"]


@pytest.mark.parametrize("damage", ["truncated", "deleted"])
def test_damaged_file_stops_the_rewrite_and_the_version_is_aborted(location: Location, damage: str) -> None:
    for number in range(2):
        location.put(f"{number}.json", f'{{"id": {number}, "name": "x"}}\n')
        location.run(location.pipeline(source=JSON))
    path = Path(open_log(str(location.root / "log")).files()[0].path)
    path.unlink() if damage == "deleted" else path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot read a file of the dataset"):
        compact(location.pipeline(source=JSON))
    outcome = open_log(str(location.root / "log")).log.outcome(2)
    assert outcome is not None
    assert outcome.result == "abort"
    assert outcome.reason.startswith("the rewrite could not be staged: DataError: Spark cannot read a file")


def test_contents_differ_if_any_value_differs(spark: SparkSession) -> None:
    rows = odd_values(spark).withColumn("m", F.create_map(F.lit("k"), "i", F.lit("l"), "id"))
    found = _contents(rows)
    assert _contents(rows.repartition(7)) == found
    swapped = rows.withColumn("m", F.create_map(F.lit("l"), "id", F.lit("k"), "i"))
    assert _contents(swapped) == found, "the order of the entries of a map is no part of its value"
    others = {
        "value": rows.withColumn("s", F.when(F.col("id") == 7, "other").otherwise(F.col("s"))),
        "null": rows.withColumn("i", F.coalesce("i", F.lit(0))),
        "microsecond": rows.withColumn("t", F.col("t") + F.expr("INTERVAL 1 MICROSECOND")),
        "row twice": rows.union(rows.limit(1)),
        "row in place of another": rows.where("id <> 3").union(rows.where("id = 4")),
    }
    assert [name for name, other in others.items() if _contents(other) == found] == []
