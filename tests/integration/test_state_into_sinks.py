"""Results of transforms with state in tables and topics on real servers, after a killed attempt and a lost publish."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import (
    DeltaSink,
    FilesSource,
    IcebergSink,
    JdbcSink,
    KafkaSink,
    Pipeline,
    State,
    run_batch,
    verify,
)
from airflow_provider_streamsem.connectors.iceberg import catalog as iceberg_catalog
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.spark.stateful import MicroBatch
from tests.integration.parts.kafka import Broker
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.s3 import S3Server
from tests.integration.parts.server import home_for_others, running
from tests.integration.topics import Topics
from tests.state.crashes import Crash, crash_at

pytestmark = pytest.mark.integration

BATCHES = ["aab", "bca", "", "ccc"]
"""The keys of the records of each batch."""


def counts(records: DataFrame) -> DataFrame:
    return records.groupBy("k").count().withColumnRenamed("count", "n")


def count_messages(records: DataFrame) -> DataFrame:
    return counts(records).selectExpr("k AS key", "string(n) AS value")


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    with home_for_others() as home:
        server = Postgres(home / "server")
        with running(server):
            monkeypatch.setenv("AIRFLOW_CONN_DB", f"postgres://postgres:hunter2@127.0.0.1:{server.port}/postgres")
            yield server


def run_all(spec: Pipeline, arrivals: Path, monkeypatch: pytest.MonkeyPatch, publisher: type) -> None:
    """Run the batches. One attempt dies after it has written its state, and one process dies after its commit, before ``publisher`` publishes."""
    for number, keys in enumerate(BATCHES):
        (arrivals / f"{number}.json").write_text("".join(json.dumps({"k": key}) + "\n" for key in keys))
        with monkeypatch.context() as patched:
            if number == 1:
                crash_at(patched, MicroBatch, "after")
            if number == 3:
                crash_at(patched, publisher, "publish", before=True)
            with nullcontext() if number % 2 == 0 else pytest.raises((StreamsemError, Crash)):
                run_batch(spec, run_key=f"run {number}")
        run_batch(spec, run_key=f"run {number}")
    assert verify(spec).violations == []


def pipeline(lake: str, arrivals: Path, sinks: dict[str, Any], mode: str, transform: Any) -> Pipeline:
    return Pipeline(
        name="counts", log=f"{lake}/log", source=FilesSource(path=str(arrivals), format="json", schema="k string"),
        sinks=sinks, transform=transform, state=State(output_mode=mode, partitions=2),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_tables_hold_the_newest_count_of_each_key(
    spark: SparkSession, lake: str, arrivals: Path, s3_server: S3Server, database: Postgres, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, mode: str,
) -> None:  # fmt: skip
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (k text PRIMARY KEY, n bigint)")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    sinks = {
        "delta": DeltaSink(f"{lake}/delta", mode="upsert", keys=["k"]),
        "iceberg": IcebergSink(f"{lake}/iceberg", "lake.counts", properties=properties, mode="upsert", keys=["k"]),
        "postgres": JdbcSink("db", "counts", f"{lake}/staged", mode="upsert", keys=["k"]),
    }
    run_all(pipeline(lake, arrivals, sinks, mode, counts), arrivals, monkeypatch, JdbcSink)
    delta = DeltaTable(f"{lake}/delta", storage_options=s3_server.deltalake_options()).to_pyarrow_table().to_pylist()
    with load_catalog("default", **properties, **iceberg_catalog._s3_properties(lake)) as catalog:
        iceberg = catalog.load_table("lake.counts").scan().to_arrow().to_pylist()
    with psycopg.connect(database.dsn) as connection:
        stored = [{"k": k, "n": n} for k, n in connection.execute("SELECT k, n FROM counts")]
    expected = [{"k": k, "n": n} for k, n in sorted(Counter("".join(BATCHES)).items())]
    for rows in (delta, iceberg, stored):
        assert sorted(rows, key=lambda row: row["k"]) == expected


def test_topic_gets_each_change_of_a_count_once(
    spark: SparkSession, lake: str, arrivals: Path, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Topics(broker, tmp_path)
    topics.create("counts", 1)
    sink = KafkaSink(
        f"{lake}/staged", topic=topics.name("counts"), bootstrap_servers=broker.bootstrap,
        control_topic=topics.name("markers"), transaction_timeout_s=20,
    )  # fmt: skip
    spec = pipeline(lake, arrivals, {"topic": sink}, "update", count_messages)
    run_all(spec, arrivals, monkeypatch, KafkaSink)
    so_far, changes = Counter[str](), Counter[str]()
    for keys in BATCHES:
        so_far.update(keys)
        changes.update(str(so_far[key]) for key in {*keys})
    assert topics.read("counts") == changes
