"""The Delta source on tables that Spark's own Delta writes, compared with Spark's own Delta reader."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import DeltaSink, DeltaSource, FilesSink, Limits, Pipeline, run_batch
from airflow_provider_streamsem.connectors.delta.pins import TablePin
from airflow_provider_streamsem.readers.files import open_log
from tests.connectors.table_files.progress import Progress

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ODD = ["plain", "a/b c:d%é", "50%", "two words", None, "=", "+", "[x]*", "a%20b"]
DAY = "CASE WHEN id % 3 != 0 THEN date_add(date'1969-12-30', CAST(id % 3 AS int)) END"
AT = "CASE WHEN id % 2 = 0 THEN timestamp'2024-02-29T20:00:01.5Z' END"


def append(spark: SparkSession, table: str, start: int, end: int) -> None:
    partition = F.element_at(F.array(*[F.lit(value) for value in ODD]), (F.col("id") % len(ODD) + 1).cast("int"))
    rows = spark.range(start, end, numPartitions=1).select(
        "id",
        partition.alias("p"),
        F.expr(DAY).alias("day"),
        F.expr(AT).alias("at"),
        F.struct("id", partition.alias("b")).alias("n"),
    )
    rows.write.format("delta").mode("append").partitionBy("p", "day", "at").save(table.replace("s3://", "s3a://"))


def counted(frame: DataFrame) -> Counter[Any]:
    return Counter(map(repr, frame.collect()))


@pytest.mark.parametrize("store", ["disk", pytest.param("s3", marks=pytest.mark.prove)])
def test_rows_are_those_of_sparks_own_reader(spark: SparkSession, lake: str, tmp_path: Path, store: str) -> None:
    table = f"{lake}/a b+c" if store == "s3" else str(tmp_path / "a b+c:d")
    append(spark, table, 0, 12)
    pipeline = Pipeline(
        name="source", log=str(tmp_path / "log"), source=DeltaSource(path=table), limits=Limits(max_files=8),
        sinks={"out": FilesSink(path=str(tmp_path / "out"), format="parquet")}, require="exactly_once",
    )  # fmt: skip
    first = run_batch(pipeline, run_key="first", drain=True)
    append(spark, table, 12, 15)
    run_batch(pipeline, run_key="second", drain=True)
    assert first.counts["read"] == 12
    read = spark.read.parquet(*[file.path for file in open_log(pipeline.log).files()])
    own = spark.read.format("delta").load(table.replace("s3://", "s3a://"))
    assert counted(read.select(own.columns)) == counted(own)


@pytest.mark.prove
def test_changes_are_those_of_sparks_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    properties = (
        "'delta.enableChangeDataFeed'='true', 'delta.enableDeletionVectors'='true', 'delta.columnMapping.mode'='name'"
    )
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id long, p string) USING delta PARTITIONED BY (p) TBLPROPERTIES ({properties})"
    )
    spark.sql(f"INSERT INTO delta.`{table}` SELECT id, 'a b/c' FROM range(10)")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    spark.sql(f"UPDATE delta.`{table}` SET id = 40 WHERE id = 4")
    spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN p TO q")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (50, null)")
    source = DeltaSource(path=table, starting=0, changes="read")
    slices = Progress(source).all()
    assert [planned.pins[0].reader for planned in slices if isinstance(planned.pins[0], TablePin)] == [
        "delta",
        "parquet",
    ]
    before, after = (source.load(spark, source.read_pins(_json(planned.pins))).frame for planned in slices)
    assert before.columns == ["id", "p", "_change_type", "_commit_version", "_commit_timestamp"]
    own = spark.read.format("delta").option("readChangeFeed", "true")
    assert counted(before) == counted(own.option("startingVersion", "0").option("endingVersion", "3").load(table))
    assert counted(after) == counted(own.option("startingVersion", "5").option("endingVersion", "5").load(table))
    snapshot = Progress(DeltaSource(path=table))
    (whole,) = snapshot.all()
    rows = snapshot.rows(spark, whole)
    assert Counter(map(str, rows)) == Counter(
        str(row.asDict()) for row in spark.read.format("delta").load(table).collect()
    )


def _json(pins: Any) -> Any:
    import json

    from airflow_provider_streamsem.protocol.codec import canonical, plain

    return json.loads(canonical(plain([*pins])))


def test_table_keeps_the_last_change_of_each_row_in_a_feed_that_sparks_package_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, kept = str(tmp_path / "t"), str(tmp_path / "kept")
    properties = "'delta.enableChangeDataFeed'='true', 'delta.enableDeletionVectors'='true'"
    spark.sql(f"CREATE TABLE delta.`{table}` (k long, v long) USING delta TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT id, 0 FROM range(0, 9, 1, 1)")
    for _ in range(3):
        spark.sql(f"UPDATE delta.`{table}` SET v = v + 1 WHERE k % 2 = 0")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE k = 4")
    pipeline = Pipeline(
        name="last", log=str(tmp_path / "log"), source=DeltaSource(path=table, starting=0, changes="read"),
        sinks={"kept": DeltaSink(kept, mode="upsert", keys=["k"])},
    )  # fmt: skip
    run_batch(pipeline, run_key="first")
    plan = open_log(pipeline.log).log.plan(0)
    assert plan is not None
    assert '"reader":"delta"' in json.dumps(plan.pins, separators=(",", ":"))
    rows = {row.k: (row["_change_type"], row.v) for row in spark.read.format("delta").load(kept).collect()}
    expected = {k: ("update_postimage", 3) if k % 2 == 0 else ("insert", 0) for k in range(9)}
    assert rows == {**expected, 4: ("delete", 3)}
