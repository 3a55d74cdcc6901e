"""
Kafka to Parquet, compared with common alternatives, on a real broker and S3 server: ``make bench ARGS=kafka``.

Each subject moves the same 20 batches from one topic in one warm session. Rounds are interleaved, so that other load on the machine affects all equally.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from airflow_provider_streamsem import FilesSink, KafkaSource, Limits, Pipeline, run_batch
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from benchmarks import results
from tests.integration.parts.kafka import Broker
from tests.integration.parts.s3 import S3Server
from tests.integration.parts.server import running
from tests.integration.parts.spark import peers_conf, session_conf

BATCHES = int(os.environ.get("BATCHES", "20"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
FETCH = {"kafka.max.partition.fetch.bytes": os.environ["FETCH_BYTES"]} if "FETCH_BYTES" in os.environ else {}
"""The fetch size of the peers: Spark's default, or the value of ``FETCH_BYTES``."""
PARTITIONS = 2
COLUMNS = ["", "per batch (median)", "provider / this (median of rounds)"]


@dataclass(frozen=True)
class Work:
    """Batches of ``rows`` records each from a topic, written to a separate location."""

    spark: Any
    bootstrap: str
    topic: str
    rows: int
    location: str

    @property
    def path(self) -> str:
        """The location as a path for Spark."""
        return self.location.replace("s3://", "s3a://")

    def ranges(self, n: int) -> tuple[str, str]:
        """Return starting and ending offsets of batch n."""
        share = self.rows // PARTITIONS
        both = [json.dumps({self.topic: {str(p): share * at for p in range(PARTITIONS)}}) for at in (n, n + 1)]
        return both[0], both[1]

    def read(self, n: int) -> Any:
        """Return batch n as a DataFrame."""
        start, end = self.ranges(n)
        reader = (
            self.spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
        )
        return (
            reader.options(startingOffsets=start, endingOffsets=end, **FETCH)
            .load()
            .select("key", "value", "partition", "offset")
        )

    def stream(self) -> Any:
        """Return the topic as a stream with the same batches."""
        reader = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
        )
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(self.rows), **FETCH}
        return reader.options(**options).load().select("key", "value", "partition", "offset")


def pipeline_of(work: Work) -> Pipeline:
    """Return the pipeline of the provider."""
    return Pipeline(
        name="bench", log=f"{work.location}/log", source=KafkaSource(topics=[work.topic], bootstrap_servers=work.bootstrap),
        sinks={"out": FilesSink(f"{work.location}/out")}, limits=Limits(max_rows=work.rows),
        transform=lambda frame: frame.select("key", "value", "partition", "offset"),
    )  # fmt: skip


def run_provider(work: Work, engine: SparkEngine | None = None) -> None:
    """Drain the topic with the provider."""
    result = run_batch(pipeline_of(work), run_key="all", drain=True, engine=engine)
    assert (result.batches, result.counts["read"]) == (BATCHES, BATCHES * work.rows)


def bare(work: Work) -> None:
    """Read and append each batch, without any guarantee."""
    for n in range(BATCHES):
        work.read(n).write.option("compression", "zstd").mode("append").parquet(f"{work.path}/out")


def stream_to_files(work: Work, transform: Callable[[Any], Any] = lambda messages: messages) -> None:
    """Run Structured Streaming with its file sink."""
    _drain_stream(work, "parquet", {"compression": "zstd"}, transform)


def stream_to_delta(work: Work) -> None:
    """Run Structured Streaming into a Delta table."""
    _drain_stream(work, "delta", {})


def _drain_stream(
    work: Work, format: str, options: dict[str, str], transform: Callable[[Any], Any] = lambda messages: messages
) -> None:
    writer = (
        transform(work.stream())
        .writeStream.format(format)
        .options(**options)
        .option("checkpointLocation", f"{work.path}/checkpoint")
    )
    query = writer.trigger(availableNow=True).start(f"{work.path}/out")
    query.awaitTermination()
    assert query.lastProgress.batchId == BATCHES - 1, query.lastProgress.batchId


def append_to_delta(work: Work) -> None:
    """Append each batch with ``txnAppId`` and ``txnVersion``."""
    for n in range(BATCHES):
        writer = work.read(n).write.format("delta").mode("append").option("txnAppId", "bench").option("txnVersion", n)
        writer.save(f"{work.path}/out")


SUBJECTS: dict[str, Callable[[Work], None]] = {
    "provider": run_provider, "(a) bare read and write": bare, "(b) streaming, file sink": stream_to_files, "(c) streaming, Delta": stream_to_delta,
    "(d) append to Delta, txnAppId": append_to_delta,
}  # fmt: skip

TITLES = {
    "provider": "provider",
    "(a) bare read and write": "bare read and write",
    "(b) streaming, file sink": "streaming, file sink",
}
"""Name in the tables → name in the plots, for the subjects of the plots."""


def padded(n: int) -> bytes:
    """Return the value of a message of 98 bytes."""
    return f"value-{n:012d}-{'x' * 80}".encode()


def produce(bootstrap: str, topic: str, rows: int, value: Callable[[int], bytes] = padded) -> None:
    """Fill the topic's partitions with equal shares. ``value`` returns the value of the n-th message."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000})
    for n in range(rows):
        while True:
            try:
                producer.produce(topic, value(n), key=str(n).encode(), partition=n % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def measure(
    spark: Any, bootstrap: str, location: Callable[[], str], rows: int, *,
    subjects: Mapping[str, Callable[[Work], None]] = SUBJECTS, pipeline: Callable[[Work], Pipeline] = pipeline_of,
    value: Callable[[int], bytes] = padded,
) -> dict[str, list[float]]:  # fmt: skip
    """Return subject → milliseconds per batch in each round but the first. ``pipeline`` returns the pipeline of the provider."""
    topic = f"bench-{rows}-{uuid.uuid4().hex[:6]}"
    produce(bootstrap, topic, rows * BATCHES, value)
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(ROUNDS + 1):
        names = list(subjects)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            work = Work(spark, bootstrap, topic, rows, location())
            if name == "provider":  # create the log and probe its store before the measurement, as an earlier run does
                bind(pipeline(work), commit_log_at(f"{work.location}/log"))
            began = time.perf_counter()
            subjects[name](work)
            if turn:
                times[name].append((time.perf_counter() - began) * 1000 / BATCHES)
    return times


def ratios(times: Mapping[str, list[float]]) -> list[list[str]]:
    """Return a row of the table for each subject: its median, and the median ratio of the provider to it."""
    return [
        [
            name,
            f"{statistics.median(times_ms):.0f} ms",
            f"{statistics.median(o / t for o, t in zip(times['provider'], times_ms, strict=True)):.2f}",
        ]
        for name, times_ms in times.items()
    ]


def memory(spark: Any, bootstrap: str, location: str, batches: int = 200) -> list[list[str]]:
    """Measure the memory of the driver during a drain: the JVM's heap after a garbage collection, and the Python process."""
    topic = f"memory-{uuid.uuid4().hex[:6]}"
    produce(bootstrap, topic, 100 * batches)
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    rows: list[list[str]] = []
    done = 0

    def measure_memory(frame: Any) -> Any:
        nonlocal done
        done += 1
        if done % 50 == 0 or done == 10:
            runtime.gc()
            heap = (runtime.totalMemory() - runtime.freeMemory()) >> 20
            rows.append([str(done), f"{heap} MB", f"{psutil.Process().memory_info().rss >> 20} MB"])
        return frame.select("key", "value", "partition", "offset")

    pipeline = Pipeline(
        name="memory", log=f"{location}/log", source=KafkaSource(topics=[topic], bootstrap_servers=bootstrap), sinks={"out": FilesSink(f"{location}/out")},
        limits=Limits(max_rows=100), transform=measure_memory,
    )  # fmt: skip
    assert run_batch(pipeline, run_key="all", drain=True).batches == batches
    return rows


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)
    sys.stdout.flush()


@contextmanager
def servers(home: Path) -> Iterator[tuple[Broker, S3Server]]:
    """Start a broker and an S3 server with the bucket ``lake``, and set the environment variables that name the server."""
    broker, s3 = Broker(home / "kafka"), S3Server(home / "s3")
    with running(broker, s3):
        os.environ.update(s3.environment())
        import boto3

        boto3.client("s3").create_bucket(Bucket="lake")
        yield broker, s3


def local_session() -> Any:
    """Start a warm session for all subjects, with the jars of the peers."""
    conf = {**session_conf(), **peers_conf(), "spark.driver.memory": "2g"}
    spark = SparkEngine(master="local[2]", conf=conf).session()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def measure_locations(
    spark: Any, bootstrap: str, home: Path, suffix: str = "", *,
    subjects: Mapping[str, Callable[[Work], None]] = SUBJECTS, benchmark: str = "kafka",
) -> None:  # fmt: skip
    """Measure both locations and both sizes, and store the times under the name of the benchmark."""
    locations: dict[str, Callable[[], str]] = {
        "disk": lambda: str(home / "disk" / uuid.uuid4().hex),
        "s3a": lambda: f"s3://lake/{uuid.uuid4().hex}",
    }
    for storage, location in locations.items():
        for rows in (50_000, 1_000):
            title = f"{BATCHES} batches of {rows:,} records, Parquet on {storage}{suffix}"
            times = measure(spark, bootstrap, location, rows, subjects=subjects)
            show(title, COLUMNS, ratios(times))
            stored = {TITLES[name]: times_ms for name, times_ms in times.items() if name in TITLES}
            results.record(benchmark, f"{storage}, {rows:,} rows", stored)


def main() -> None:
    """Measure both locations and both sizes, then the driver's memory."""
    with tempfile.TemporaryDirectory() as directory, servers(home := Path(directory)) as (broker, _):
        spark = local_session()
        measure_locations(spark, broker.bootstrap, home)
        columns = ["batches", "JVM heap in use", "resident memory of the Python process"]
        show("A drain of 200 batches to s3a", columns, memory(spark, broker.bootstrap, "s3://lake/memory"))
        spark.stop()


if __name__ == "__main__":
    main()
