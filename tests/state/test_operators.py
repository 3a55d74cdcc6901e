"""Each stateful operator gives the same rows as a real Structured Streaming query on the same micro-batches, in one process and after restarts."""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, State, read_committed, run_batch
from airflow_provider_streamsem.protocol.entries import Outcome
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.spark import loaded_state

pytestmark = pytest.mark.spark

SCHEMA = "t timestamp, k string"
START = datetime.datetime(2024, 1, 1)
CUTS = [
    [(1, "a"), (2, "a"), (7, "b")],
    [(21, "a"), (3, "b"), (2, "a")],
    [(2, "a"), (16, "b"), (40, "a")],
    [(12, "a"), (41, "a"), (40, "a")],
]
"""minute and key of each record of each batch, with late and repeated ones"""


def windowed(events: DataFrame) -> DataFrame:
    counted = events.withWatermark("t", "5 minutes").groupBy(F.window("t", "5 minutes"), "k").count()
    return counted.selectExpr("window.start AS at", "k", "count AS n")


def sessions(events: DataFrame) -> DataFrame:
    counted = events.withWatermark("t", "5 minutes").groupBy(F.session_window("t", "6 minutes"), "k").count()
    return counted.selectExpr("session_window.start AS at", "k", "count AS n")


def distinct(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["k"]).selectExpr("t AS at", "k", "1L AS n")


def distinct_within_watermark(events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("t", "10 minutes")
        .dropDuplicatesWithinWatermark(["k"])
        .selectExpr("t AS at", "k", "1L AS n")
    )


def joined(events: DataFrame) -> DataFrame:
    left = events.withWatermark("t", "10 minutes").alias("l")
    right = events.selectExpr("t AS t2", "k AS k2").withWatermark("t2", "12 minutes")
    both = left.join(right, F.expr("k = k2 AND t2 >= t AND t2 <= t + INTERVAL 20 MINUTES"), "leftOuter")
    return both.selectExpr("t AS at", "concat(k, coalesce(string(t2), '')) AS k", "1L AS n")


def chained(events: DataFrame) -> DataFrame:
    first = events.withWatermark("t", "5 minutes").groupBy(F.window("t", "5 minutes"), "k").count()
    second = first.groupBy(F.window(F.col("window"), "10 minutes")).agg(F.sum("count").alias("n"))
    return second.selectExpr("window.start AS at", "'' AS k", "n")


def keyed(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.max("t").alias("at"), F.count("*").alias("n")).select("at", "k", "n")


def total(events: DataFrame) -> DataFrame:
    return events.agg(F.max("t").alias("at"), F.count("*").alias("n")).selectExpr("at", "'' AS k", "n")


CASES = [
    (keyed, "update"),
    *(pytest.param(transform, "append", marks=pytest.mark.prove) for transform in (joined, sessions, windowed, distinct, distinct_within_watermark, chained)),
    *(pytest.param(transform, "update", marks=pytest.mark.prove) for transform in (windowed, distinct, total)),
]  # fmt: skip


def pipeline(root: Path, transform: Callable[[DataFrame], DataFrame], mode: str, **changes: Any) -> Pipeline:
    arguments = {
        "name": "stateful", "log": str(root / "log"), "source": FilesSource(path=str(root / "in"), format="parquet", schema=SCHEMA),
        "sinks": {"out": FilesSink(path=str(root / "out"))}, "transform": transform, "state": State(output_mode=mode, partitions=2),
    }  # fmt: skip
    return Pipeline(**{**arguments, **changes})


def arrive(root: Path, number: int, events: Sequence[tuple[int | None, str]], **others: list[str]) -> None:
    """
    Write the events of a batch as a Parquet file, which costs Spark less than JSON lines.

    :param events: minute after ``START`` and key of each event; ``None``: the event has no time
    :param others: values of further text columns
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / "in").mkdir(parents=True, exist_ok=True)
    times = [None if minute is None else START + datetime.timedelta(minutes=minute) for minute, _ in events]
    columns = {"t": pa.array(times, pa.timestamp("us", "UTC")), "k": pa.array([key for _, key in events], pa.string())}
    pq.write_table(pa.table({**columns, **others}), root / "in" / f"{number}.parquet")


def start_new_process() -> None:
    """Make the next attempt load its state, as the first attempt of a process does."""
    loaded_state._loaded = None


def outcome(root: Path, version: int) -> Outcome:
    stored = open_log(str(root / "log")).log.outcome(version)
    assert stored is not None
    return stored


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select("at", "k", "n").collect())


def streamed(
    spark: SparkSession, root: Path, transform: Callable[[DataFrame], DataFrame], mode: str
) -> list[tuple[list[tuple[Any, ...]], int]]:
    """Return the rows and late rows of each micro-batch of a real query over the files that have arrived."""
    source, found = root / "source", {}
    batches = range(len(list((root / "in").iterdir())))
    source.mkdir(parents=True)
    session = spark.newSession()
    settings = {
        "spark.sql.shuffle.partitions": "2", "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    }  # fmt: skip
    for name, value in settings.items():
        session.conf.set(name, value)

    def collect(frame: DataFrame, number: int) -> None:
        found[number] = rows_of(frame)

    query = (
        transform(session.readStream.schema(SCHEMA).parquet(str(source)))
        .writeStream.outputMode(mode)
        .foreachBatch(collect)
    )
    running = query.option("checkpointLocation", str(root / "checkpoint")).start()
    try:
        for number in batches:
            shutil.copy(root / "in" / f"{number}.parquet", source / f".{number}")
            os.rename(source / f".{number}", source / f"{number}.parquet")
            running.processAllAvailable()
        late = {
            p["batchId"]: sum(op["numRowsDroppedByWatermark"] for op in p["stateOperators"])
            for p in running.recentProgress
            if p["numInputRows"]
        }
    finally:
        running.stop()
    return [(found[number], late[number]) for number in batches]


@pytest.mark.parametrize(("transform", "mode"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_each_batch_gives_the_rows_of_a_streaming_micro_batch(
    spark: SparkSession, tmp_path: Path, transform: Callable[[DataFrame], DataFrame], mode: str
) -> None:
    found = []
    for number, events in enumerate(CUTS):
        arrive(tmp_path, number, events)
        if number == 2:
            start_new_process()
        result = run_batch(pipeline(tmp_path, transform, mode), run_key=f"run {number}")
        frame = read_committed(spark, str(tmp_path / "log"), version=number, since=number - 1)
        found.append((rows_of(frame) if frame.columns else [], result.counts["late"]))
    assert found == streamed(spark, tmp_path, transform, mode)
