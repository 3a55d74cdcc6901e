"""
The cost of a batch with state, compared with a Structured Streaming query on RocksDB with the same transform and batches: ``make bench ARGS=state``.

The first batch has the number of keys of the case. Batches of ``rows`` records follow, with one Parquet file each; nine tenths of their keys are new. Both
subjects run in one session, in turn, and write Parquet to local disk. The time of the provider is that of the call, including the opening of the log, which
a drain does once. The time of the peer comes from its progress reports.

The table also has the bytes of the state files that a batch of the provider writes: the median, and the largest, which includes a compaction of RocksDB.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, State, run_batch
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from benchmarks import results
from benchmarks.dedup import BATCHES, ROCKS, SCHEMA, make
from benchmarks.kafka import show

KEYS = [int(n) for n in os.environ.get("KEYS", "10000 1000000 10000000").split()]
PARTITIONS = 2


def distinct(events: DataFrame) -> DataFrame:
    """Drop repeated ids."""
    return events.dropDuplicates(["id"])


def sums(events: DataFrame) -> DataFrame:
    """Sum the amounts of each id."""
    return events.groupBy("id").agg(F.sum("amount").alias("amount"))


def windows(events: DataFrame) -> DataFrame:
    """Count the records of each hour and id. The ids are taken as seconds, so that older windows close."""
    timed = events.withColumn("at", F.timestamp_seconds("id")).withWatermark("at", "1 hour")
    return (
        timed.groupBy(F.window("at", "1 hour"), F.expr("id % 1000")).count().selectExpr("window.start AS at", "count")
    )


TRANSFORMS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "dropDuplicates": (distinct, "append"),
    "sum by key": (sums, "update"),
    "windowed count": (windows, "append"),
}


def run_provider(
    location: Path, root: Path, transform: Callable[[DataFrame], DataFrame], mode: str
) -> tuple[list[float], list[int], int]:
    """Return the milliseconds and the bytes of the new state files of each batch after the first, and the number of rows written."""
    pipeline = Pipeline(
        name="bench", log=str(root / "log"), source=FilesSource(path=str(location), format="parquet", schema=SCHEMA), limits=Limits(max_files=1),
        sinks={"out": FilesSink(str(root / "out"))}, transform=transform, state=State(output_mode=mode, partitions=PARTITIONS),
    )  # fmt: skip
    times_ms, state_bytes, rows = [], [], 0
    known: set[Path] = set()
    for n in range(BATCHES + 1):
        began = time.perf_counter()
        result = run_batch(pipeline, run_key=f"run-{n}")
        times_ms.append((time.perf_counter() - began) * 1000)
        assert result.counts["read"] > 0, "each batch must read one file"
        rows += result.counts["written.out"]
        files = {path for path in (root / "log" / "state").rglob("*") if path.suffix in (".sst", ".zip")}
        state_bytes.append(sum(path.stat().st_size for path in files - known))
        known = files
    # A no-data batch closes windows, as the query does at its end.
    rows += run_batch(pipeline, run_key="last").counts.get("written.out", 0)
    return times_ms[1:], state_bytes[1:], rows


def run_streaming(
    spark: Any, location: Path, root: Path, transform: Callable[[DataFrame], DataFrame], mode: str
) -> tuple[list[float], int]:
    """Return the same values for the peer. In update mode it writes with ``foreachBatch``, because Spark's file sink does not support this mode."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(location))
    writer = transform(stream).writeStream.outputMode(mode).option("checkpointLocation", str(root / "checkpoint"))
    out = str(root / "out")
    if mode == "update":
        writer = writer.foreachBatch(lambda rows, number: rows.write.mode("append").parquet(f"{out}/batch={number}"))
    else:
        writer = writer.format("parquet").option("path", out)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p.numInputRows]
    assert len(progress) == BATCHES + 1
    last = max(p.batchId for p in progress)
    written = spark.read.parquet(out)
    rows = written.where(f"batch <= {last}").count() if mode == "update" else written.count()
    return [p.durationMs["triggerExecution"] for p in progress[1:]], rows


def measured(spark: Any, name: str, rows: int, keys: int) -> tuple[dict[str, list[float]], list[int]]:
    """Return subject → milliseconds of each batch, and the bytes of state of each batch. Both subjects must write the same number of rows."""
    transform, mode = TRANSFORMS[name]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        make(spark, root / "in", keys, rows)
        provider_ms, state_bytes, written = run_provider(root / "in", root / "provider", transform, mode)
        streaming_ms, expected = run_streaming(spark, root / "in", root / "streamed", transform, mode)
    assert written == expected > 0, (written, expected)
    return {results.PROVIDER: provider_ms, "streaming query": streaming_ms}, state_bytes


def main() -> None:
    """Measure each transform with large and small batches over each number of keys."""
    conf = {
        "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.stateStore.providerClass": ROCKS, "spark.sql.streaming.numRecentProgressUpdates": str(BATCHES + 5),
    }  # fmt: skip
    spark = SparkEngine(master="local[2]", conf=conf).session()
    spark.sparkContext.setLogLevel("OFF")
    for name in TRANSFORMS:
        measured(spark, name, 50_000, 10_000)  # compiles what both subjects use
        table = []
        for rows in (50_000, 1_000):
            for keys in KEYS:
                times, state_bytes = measured(spark, name, rows, keys)
                results.record("state", f"{name}, {rows:,} rows, {keys:,} keys", times)
                provider_ms, streaming_ms = map(statistics.median, times.values())
                table.append(
                    [
                        f"{rows:,}",
                        f"{keys:,}",
                        f"{provider_ms:.0f} ms",
                        f"{streaming_ms:.0f} ms",
                        f"{provider_ms / streaming_ms:.2f}",
                        f"{statistics.median(state_bytes) / 1e3:.0f} kB",
                        f"{max(state_bytes) / 1e3:.0f} kB",
                    ]
                )
                print(name, table[-1], flush=True)
        show(
            name,
            ["rows", "keys", "provider", "streaming query", "provider / query", "state of a batch", "largest"],
            table,
        )
    spark.stop()


if __name__ == "__main__":
    main()
