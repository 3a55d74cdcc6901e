"""
The cost of a batch with dedup by the number of known ids: ``make bench ARGS=dedup``. The peer is Structured Streaming's ``dropDuplicates`` on RocksDB.

The first batch has ``known`` ids. Batches of new ids follow, with one file each, from Parquet to Parquet on local disk. Both subjects read the same files
in one session. The time of the provider is that of the call, including the opening of the log. The time of the peer comes from its progress reports.
The column *state written* is the size of the provider's state files at the end. The slowest batch may have merged older state files.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import Dedup, FilesSink, FilesSource, Limits, Pipeline, run_batch
from airflow_provider_streamsem.spark.engine import SparkEngine
from benchmarks import results
from benchmarks.kafka import show

BATCHES = int(os.environ.get("BATCHES", "10"))
KNOWN_IDS = [int(n) for n in os.environ.get("KNOWN_IDS", "10000 1000000 10000000").split()]
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "id long, amount double"


def make(spark: Any, location: Path, known: int, rows: int) -> None:
    """Create the files in the order of their names and times: the known ids first, then the batches. A tenth of a batch's ids are from the first file."""
    location.mkdir()
    sizes = [known] + [rows] * BATCHES
    first = 0
    for n, size in enumerate(sizes):
        ids = f"CASE WHEN {n} > 0 AND id % 10 = 0 THEN pmod(hash(id), {known}) ELSE id END AS id"
        frame = spark.range(first, first + size, 1, 1).selectExpr(ids, "id / 4.0D AS amount")
        frame.write.parquet(str(location.parent / f"made-{n}"))
        (part,) = (location.parent / f"made-{n}").glob("part-*.parquet")
        path = location / f"{n:03d}.parquet"
        part.rename(path)
        os.utime(path, (1_700_000_000 + n, 1_700_000_000 + n))
        first += size


def run_provider(location: Path, root: Path, *, dedup: bool) -> tuple[list[float], int]:
    """Return the milliseconds of each batch after the first, and the number of duplicates that were dropped."""
    pipeline = Pipeline(
        name="bench", log=str(root / "log"), source=FilesSource(path=str(location), format="parquet", schema=SCHEMA), limits=Limits(max_files=1),
        sinks={"out": FilesSink(str(root / "out"))}, dedup=Dedup(keys=["id"], rows=10**9) if dedup else None,
    )  # fmt: skip
    times_ms, duplicates = [], 0
    for n in range(BATCHES + 1):
        began = time.perf_counter()
        result = run_batch(pipeline, run_key=f"run-{n}")
        times_ms.append((time.perf_counter() - began) * 1000)
        assert result.status == "committed"
        duplicates += result.counts.get("duplicates", 0)
    return times_ms[1:], duplicates


def run_streaming(spark: Any, location: Path, root: Path) -> tuple[list[float], int]:
    """Return the same values for the peer."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(location))
    writer = (
        stream.dropDuplicates(["id"])
        .writeStream.format("parquet")
        .option("checkpointLocation", str(root / "checkpoint"))
    )
    query = writer.trigger(availableNow=True).start(str(root / "out"))
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p.numInputRows]
    assert len(progress) == BATCHES + 1
    read = sum(p.numInputRows for p in progress)
    passed = spark.read.parquet(str(root / "out")).count()
    return [p.durationMs["triggerExecution"] for p in progress[1:]], read - passed


def main() -> None:
    """Measure each number of known ids, with large and small batches."""
    conf = {
        "spark.driver.memory": "4g",
        "spark.sql.streaming.stateStore.providerClass": ROCKS,
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkEngine(master="local[2]", conf=conf).session()
    spark.sparkContext.setLogLevel("OFF")
    rows_of_table = []
    with tempfile.TemporaryDirectory() as directory:
        for rows in (1_000, 50_000):
            for known in KNOWN_IDS:
                home = Path(directory) / f"{rows}-{known}"
                home.mkdir()
                make(spark, home / "in", known, rows)
                provider_ms, duplicates = run_provider(home / "in", home / "provider", dedup=True)
                without_ms, _ = run_provider(home / "in", home / "without", dedup=False)
                streaming_ms, expected = run_streaming(spark, home / "in", home / "streamed")
                assert duplicates == expected > 0, (duplicates, expected)
                size = sum(f.stat().st_size for f in (home / "provider" / "log" / "state").rglob("*.parquet"))
                medians = [statistics.median(each) for each in (provider_ms, without_ms, streaming_ms)]
                subjects = ("provider", "provider without dedup", "streaming dropDuplicates")
                case = f"{rows:,} rows, {known:,} ids"
                results.record("dedup", case, dict(zip(subjects, (provider_ms, without_ms, streaming_ms), strict=True)))
                slowest = [f"{max(provider_ms):.0f} ms", f"{max(streaming_ms):.0f} ms"]
                ratio = f"{medians[0] / medians[2]:.2f}"
                cells = [*(f"{m:.0f} ms" for m in medians), *slowest, ratio, f"{size / 1e6:.0f} MB"]
                rows_of_table.append([f"{rows:,}", f"{known:,}", *cells])
                print(rows_of_table[-1], flush=True)
    columns = [
        "rows",
        "known ids",
        "provider",
        "without dedup",
        "streaming",
        "provider, slowest",
        "streaming, slowest",
        "provider / streaming",
        "state written",
    ]
    show(f"A batch with dedup, median of {BATCHES}", columns, rows_of_table)
    spark.stop()


if __name__ == "__main__":
    main()
