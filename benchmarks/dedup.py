"""
The cost of a batch with dedup by the number of known ids: ``make bench ARGS=dedup``. The peer is Structured Streaming's ``dropDuplicates`` on RocksDB.

The first batch has ``known`` ids. Batches of new ids follow, with one file each, from Parquet to Parquet. Both subjects read the same files of the local disk
in one session. Output, log and state are on local disk, or on an S3 server. The time of the provider is that of the call, including the opening of the log.
The time of the peer comes from its progress reports. The slowest batch may have merged older state files.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import Dedup, FilesSink, FilesSource, Limits, Pipeline, run_batch
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from benchmarks import results
from benchmarks.kafka import show
from tests.integration.parts.s3 import S3Server
from tests.integration.parts.server import running
from tests.integration.parts.spark import session_conf

BATCHES = int(os.environ.get("BATCHES", "10"))
KNOWN_IDS = [int(n) for n in os.environ.get("KNOWN_IDS", "10000 1000000 10000000").split()]
STORAGES = os.environ.get("STORAGES", "disk s3a").split()
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


def run_provider(location: Path, root: str, *, dedup: bool) -> tuple[list[float], int]:
    """Return the milliseconds of each batch after the first, and the number of duplicates that were dropped."""
    pipeline = Pipeline(
        name="bench", log=f"{root}/log", source=FilesSource(path=str(location), format="parquet", schema=SCHEMA), limits=Limits(max_files=1),
        sinks={"out": FilesSink(f"{root}/out")}, dedup=Dedup(keys=["id"], rows=10**9) if dedup else None,
    )  # fmt: skip
    times_ms, duplicates = [], 0
    for n in range(BATCHES + 1):
        began = time.perf_counter()
        result = run_batch(pipeline, run_key=f"run-{n}")
        times_ms.append((time.perf_counter() - began) * 1000)
        assert result.status == "committed"
        duplicates += result.counts.get("duplicates", 0)
    return times_ms[1:], duplicates


def run_streaming(spark: Any, location: Path, root: str) -> tuple[list[float], int]:
    """Return the same values for the peer."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(location))
    writer = (
        stream.dropDuplicates(["id"]).writeStream.format("parquet").option("checkpointLocation", f"{root}/checkpoint")
    )
    query = writer.trigger(availableNow=True).start(f"{root}/out")
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p.numInputRows]
    assert len(progress) == BATCHES + 1
    read = sum(p.numInputRows for p in progress)
    passed = spark.read.parquet(f"{root}/out").count()
    return [p.durationMs["triggerExecution"] for p in progress[1:]], read - passed


def measured(spark: Any, home: Path, root: str, known: int, rows: int) -> dict[str, list[float]]:
    """Return subject → milliseconds of each batch. Both subjects must drop the same number of duplicates."""
    home.mkdir()
    make(spark, home / "in", known, rows)
    provider_ms, duplicates = run_provider(home / "in", f"{root}/provider", dedup=True)
    without_ms, _ = run_provider(home / "in", f"{root}/without", dedup=False)
    streaming_ms, expected = run_streaming(spark, home / "in", f"{root}/streamed".replace("s3://", "s3a://"))
    assert duplicates == expected > 0, (duplicates, expected)
    return {
        results.PROVIDER: provider_ms,
        "provider without dedup": without_ms,
        "streaming dropDuplicates": streaming_ms,
    }


def main() -> None:
    """Measure each number of known ids, with large and small batches, on local disk; and the largest number on an S3 server."""
    conf = {
        **session_conf(),
        "spark.driver.memory": "4g",
        "spark.sql.streaming.stateStore.providerClass": ROCKS,
        "spark.sql.shuffle.partitions": "2",
    }
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        with running(s3 := S3Server(home / "s3")):
            os.environ.update(s3.environment())
            import boto3

            boto3.client("s3").create_bucket(Bucket="lake")
            measure_cases(conf, home)


def measure_cases(conf: dict[str, str], home: Path) -> None:
    """Measure the cases of each storage, store the results, and print them."""
    spark = SparkEngine(master="local[2]", conf=conf).session()
    spark.sparkContext.setLogLevel("OFF")
    table = []
    measured(spark, home / "first", str(home / "first" / "on-disk"), 10_000, 50_000)  # compiles what the subjects use
    for storage in STORAGES:
        for rows in (1_000, 50_000):
            for known in KNOWN_IDS if storage == "disk" else KNOWN_IDS[-1:]:
                name = f"{storage}-{rows}-{known}"
                root = str(home / name / "on-disk") if storage == "disk" else f"s3://lake/{uuid.uuid4().hex}"
                times = measured(spark, home / name, root, known, rows)
                case = f"{rows:,} rows, {known:,} ids{', s3a' * (storage == 's3a')}"
                results.record("dedup", case, times)
                medians = [f"{statistics.median(each):.0f} ms" for each in times.values()]
                table.append([storage, f"{rows:,}", f"{known:,}", *medians, f"{max(times[results.PROVIDER]):.0f} ms"])
    show(
        f"A batch with dedup, median of {BATCHES}",
        ["storage", "rows", "known ids", *times, "provider, slowest"],
        table,
    )
    spark.stop()


if __name__ == "__main__":
    main()
