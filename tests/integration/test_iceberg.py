"""Iceberg tables in a real REST catalog and on a real S3 server, with files that Spark staged. Independent engines read the tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo, IsNull
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSource, Limits, Pipeline, reprocess, rollback, run_batch, verify
from airflow_provider_streamsem.connectors.iceberg import sink as iceberg
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.errors import DataError, PublishError
from tests.connectors.iceberg.kills import SCENARIOS, Later, kill_at_every_step
from tests.connectors.iceberg.lake import Lake
from tests.integration.parts.iceberg import RestCatalog, read_by_duckdb, read_by_spark
from tests.integration.parts.server import running
from tests.rounds import ROUNDS

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ODD = ["plain", "a/b", "50%", "two words", "ünï", "", None, "x" * 300, "=", "__HIVE_DEFAULT_PARTITION__", "..", " "]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    server = RestCatalog(tmp_path_factory.mktemp("iceberg"))
    with running(server):
        yield server


def wide(frame: DataFrame) -> DataFrame:
    """Select a column of each type, partitioned by unusual text and by a date that may be null."""
    return frame.select(
        "id",
        "p",
        F.when(F.col("id") % 3 != 0, F.date_add(F.lit("1969-12-30").cast("date"), (F.col("id") % 3).cast("int"))).alias("day"),
        F.timestamp_micros(F.col("id") * 1_000_001 - 5_000_000).alias("at"),
        F.timestamp_micros(F.col("id") * 1_000_001).cast("timestamp_ntz").alias("local"),
        (F.col("id") * F.lit("1.25").cast("decimal(5,2)")).cast("decimal(30,2)").alias("big"),
        (F.col("id") / 4).alias("ratio"),
        F.col("id").cast("byte").alias("tiny"),
        (F.col("id") % 2 == 0).alias("even"),
        F.array("p", F.lit("y")).alias("tags"),
        F.struct(F.col("id").alias("a"), F.col("p").alias("b")).alias("inner"),
        F.create_map(F.lit("k"), F.col("id")).alias("map"),
        F.lit(b"\x00\xff").alias("raw"),
    )  # fmt: skip


def double(frame: DataFrame) -> DataFrame:
    return wide(frame).withColumn("even", ~F.col("even")).withColumn("later", F.lit("x"))


def arrive(location: Path, file: int) -> None:
    lines = [json.dumps({"id": file * len(ODD) + at, "p": odd}) for at, odd in enumerate(ODD)]
    (location / f"{file:03d}.json").write_text("\n".join(lines) + "\n")


def pipeline(arrivals: Path, tmp_path: Path, sink: IcebergSink) -> Pipeline:
    return Pipeline(
        name="rows",
        log=str(tmp_path / "log"),
        source=FilesSource(path=str(arrivals), format="json", schema="id long, p string"),
        sinks={"t": sink},
        transform=wide,
        limits=Limits(max_files=1),
    )


def test_rows_through_a_rest_catalog_are_equal_for_pyiceberg_spark_and_duckdb(
    catalog: RestCatalog, spark: SparkSession, arrivals: Path, tmp_path: Path
) -> None:
    location = {"type": "rest", "uri": catalog.url}
    sink = IcebergSink(str(tmp_path / "a b%20ü"), "lake.wide", properties=location, partition_by=["p", "day"])
    spec = pipeline(arrivals, tmp_path, sink)
    for file in range(3):
        arrive(arrivals, file)
    run_batch(spec, run_key="d", drain=True)
    rollback(spec, 0)
    run_batch(spec, run_key="again", drain=True)
    reprocess(spec.replace(transform=double), 4, run_key="r")
    assert verify(spec.log).violations == []
    table = load_catalog("default", **location).load_table("lake.wide")
    read = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert sorted(read) == list(range(36))
    assert [read[n]["p"] for n in range(36)] == ODD * 3
    assert [read[n]["even"] for n in range(36)] == [(n % 2 == 0) != (12 <= n < 24) for n in range(36)]
    for odd in ODD:
        row_filter = IsNull("p") if odd is None else EqualTo("p", odd)
        assert sorted({row["p"] for row in table.scan(row_filter=row_filter).to_arrow().to_pylist()}, key=str) == [odd]
    columns = [
        "id",
        "p",
        "day",
        "cast(big as string)",
        "ratio",
        "tiny",
        "even",
        "tags[{}]",
        "`inner`.b",
        "map['k']",
        "later",
    ]
    expected = sorted(
        [n, row["p"], row["day"] and str(row["day"]), str(row["big"]), row["ratio"], row["tiny"], row["even"], row["tags"][0], row["inner"]["b"],
         dict(row["map"])["k"], row["later"]]
        for n, row in read.items()
    )  # fmt: skip
    clauses = {
        "p IS NULL": [6, 18, 30],
        "p = ''": [5, 17, 29],
        "at = timestamp_micros(-3999999)": [1],
        "big = 1.25": [1],
        "id BETWEEN 30 AND 31": [30, 31],
        "day IS NULL AND id < 5": [0, 3],
        "`inner`.a = 7": [7],
        "day = date'1969-12-31' AND p = 'a/b'": [1, 13, 25],
    }
    all_rows, micros, *filtered = read_by_spark(
        catalog,
        f"SELECT {', '.join(columns).format(0)} FROM lake.lake.wide",
        "SELECT id, unix_micros(at), unix_micros(cast(local as timestamp)) FROM lake.lake.wide",
        *(f"SELECT id FROM lake.lake.wide WHERE {clause}" for clause in clauses),
    )
    assert sorted(all_rows) == expected
    assert sorted(micros) == [[n, n * 1_000_001 - 5_000_000, n * 1_000_001] for n in range(36)]
    for (clause, ids), found in zip(clauses.items(), filtered, strict=True):
        assert sorted(found) == [[n] for n in ids], clause
    by_duckdb = read_by_duckdb(table.metadata_location, ", ".join(columns).format(1).replace("`", '"'))
    assert sorted(by_duckdb, key=lambda row: row[0]) == expected


def test_two_concurrent_publishers_and_a_late_one_over_rest_in_every_round(
    catalog: RestCatalog, tmp_path: Path
) -> None:
    location = {"type": "rest", "uri": catalog.url}
    lake = Lake(tmp_path).with_options(table="lake.race", properties=location)
    receipts: list[Any] = []
    for version in range(ROUNDS):
        batch, gate = lake.batch(version, [version]), threading.Barrier(2)

        def enter(batch: Any = batch, gate: Any = gate) -> None:
            gate.wait()
            receipts.append(lake.publish(batch))

        threads = [threading.Thread(target=enter) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        receipts.append(lake.publish(batch))  # late
    table = load_catalog("default", **location).load_table("lake.race")
    assert [receipt.result for receipt in receipts] == ["applied"] * 3 * ROUNDS
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(ROUNDS))


def test_reprocessing_of_rows_that_spark_deleted_is_refused(catalog: RestCatalog, tmp_path: Path) -> None:
    """With merge-on-read, Spark keeps the data file and adds a delete file."""
    lake = Lake(tmp_path).with_options(table="lake.mor", properties={"type": "rest", "uri": catalog.url})
    first = lake.batch(0, [1, 2, 3])
    lake.publish(first)
    *_, left = read_by_spark(
        catalog,
        "ALTER TABLE lake.lake.mor SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        "DELETE FROM lake.lake.mor WHERE id = 2",
        "SELECT id FROM lake.lake.mor",
    )
    assert sorted(left) == [[1], [3]]
    with pytest.raises(PublishError, match="rewrote or deleted"):
        lake.publish(lake.batch(1, [4], reprocesses=first))


def test_table_on_s3_is_reached_with_the_s3_settings_of_the_process(
    lake: str, spark: SparkSession, arrivals: Path, tmp_path: Path
) -> None:
    from airflow_provider_streamsem.connectors.iceberg import catalog as iceberg_catalog

    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    sink = IcebergSink(f"{lake}/table", "lake.wide", properties=properties, partition_by=["p"])
    spec = pipeline(arrivals, tmp_path, sink)
    for file in range(2):
        arrive(arrivals, file)
    run_batch(spec, run_key="d", drain=True)
    reprocess(spec, 0, run_key="r")
    assert verify(spec.log).violations == []
    with iceberg_catalog.opened("default", properties, None, lake) as catalog:
        table = catalog.load_table("lake.wide")
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(24))
        assert {task.file.file_path.split("/data/")[0] for task in table.scan().plan_files()} == {f"{lake}/table"}


@pytest.mark.prove
@pytest.mark.parametrize("name", SCENARIOS)
def test_crash_at_every_step_on_s3_then_retry_publishes_once(
    lake: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "SYSTEM_CLOCK", Later())
    kill_at_every_step(tmp_path, name, location=lake)


@pytest.mark.parametrize("name", SCENARIOS)
def test_crash_at_every_step_over_rest_then_retry_publishes_once(
    catalog: RestCatalog, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "SYSTEM_CLOCK", Later())
    kill_at_every_step(tmp_path, name, rest=catalog.url)


@pytest.mark.parametrize("engine", ["library", "spark"])
def test_rows_merged_by_key_are_equal_for_pyiceberg_spark_and_duckdb(
    catalog: RestCatalog, spark: SparkSession, arrivals: Path, tmp_path: Path, engine: str
) -> None:
    """A third of the rows is written a second time, in another partition and with another value."""
    location = {"type": "rest", "uri": catalog.url}
    sink = IcebergSink(
        str(tmp_path / "table"),
        f"lake.merged_by_{engine}",
        properties=location,
        partition_by=["p", "day"],
        mode="upsert",
        keys=["id"],
        engine=engine,
    )
    spec = pipeline(arrivals, tmp_path, sink)
    for file in range(2):
        arrive(arrivals, file)
    with pytest.raises(DataError, match="too long for a directory name"):
        run_batch(spec, run_key="too long")
    spec = spec.replace(transform=lambda frame: wide(frame.withColumn("p", F.substring("p", 1, 250))))
    run_batch(spec, run_key="d", drain=True)
    again = [json.dumps({"id": 8 + at, "p": odd}) for at, odd in enumerate(ODD)]
    (arrivals / "again.json").write_text("\n".join(again) + "\n")
    run_batch(spec, run_key="again")
    arrive(arrivals, 7)
    assert run_batch(spec.replace(where="id < 0"), run_key="none").counts["written.t"] == 0
    assert verify(spec.log).violations == []
    short = [odd and odd[:250] for odd in ODD]
    expected = sorted([n, short[n - 8] if 8 <= n < 20 else short[n % len(ODD)], n / 4] for n in range(24))
    table = load_catalog("default", **location).load_table(sink.table)
    read = [[row["id"], row["p"], row["ratio"]] for row in table.scan().to_arrow().to_pylist()]
    assert sorted(read) == expected
    (by_spark,) = read_by_spark(catalog, f"SELECT id, p, ratio FROM lake.{sink.table}")
    assert sorted(by_spark) == expected
    by_duckdb = read_by_duckdb(table.metadata_location, "id, p, ratio")
    assert sorted(by_duckdb) == expected
