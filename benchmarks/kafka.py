"""
Kafka to Parquet, ours against what people would otherwise write, on the real broker and S3 server: ``make bench ARGS=kafka``.

Each subject moves the same 20 batches out of one topic in one warm session; rounds are interleaved, so that what else the machine does falls on all alike.
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
from airflow_provider_streamsem.batch.opening import open_pipeline
from airflow_provider_streamsem.commitlog.log import open_commit_log
from airflow_provider_streamsem.engines.spark import SparkEngine
from tests.integration.parts.kafka import Broker
from tests.integration.parts.s3 import S3Server
from tests.integration.parts.server import running
from tests.integration.parts.spark import peers_conf, session_conf

BATCHES = int(os.environ.get("BATCHES", "20"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
FETCH = {"kafka.max.partition.fetch.bytes": os.environ["FETCH_BYTES"]} if "FETCH_BYTES" in os.environ else {}
"""what the peers fetch at a time: Spark's default, or as said"""
PARTITIONS = 2
COLUMNS = ["", "a batch (median)", "ours / this (median of rounds)"]


@dataclass(frozen=True)
class Work:
    """Batches of ``rows`` records each out of a topic, into a place of their own."""

    spark: Any
    bootstrap: str
    topic: str
    rows: int
    place: str

    @property
    def path(self) -> str:
        """The place as Spark takes it."""
        return self.place.replace("s3://", "s3a://")

    def ranges(self, n: int) -> tuple[str, str]:
        """Starting and ending offsets of batch n."""
        share = self.rows // PARTITIONS
        both = [json.dumps({self.topic: {str(p): share * at for p in range(PARTITIONS)}}) for at in (n, n + 1)]
        return both[0], both[1]

    def read(self, n: int) -> Any:
        """Batch n as a DataFrame, as a person would read it."""
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
        """The topic as a stream that is cut into the same batches."""
        reader = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
        )
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(self.rows), **FETCH}
        return reader.options(**options).load().select("key", "value", "partition", "offset")


def pipeline_of(work: Work) -> Pipeline:
    """What ours runs."""
    return Pipeline(
        name="bench", log=f"{work.place}/log", source=KafkaSource(topics=[work.topic], bootstrap_servers=work.bootstrap),
        sinks={"out": FilesSink(f"{work.place}/out")}, limits=Limits(max_rows=work.rows),
        transform=lambda frame: frame.select("key", "value", "partition", "offset"),
    )  # fmt: skip


def ours(work: Work, engine: SparkEngine | None = None) -> None:
    """A drain of this package."""
    result = run_batch(pipeline_of(work), run_key="all", drain=True, engine=engine)
    assert (result.batches, result.counts["read"]) == (BATCHES, BATCHES * work.rows)


def bare(work: Work) -> None:
    """Read and append, with no protection at all."""
    for n in range(BATCHES):
        work.read(n).write.option("compression", "zstd").mode("append").parquet(f"{work.path}/out")


def stream_to_files(work: Work) -> None:
    """Structured Streaming with its file sink."""
    _drained(work, "parquet", {"compression": "zstd"})


def stream_to_delta(work: Work) -> None:
    """Structured Streaming into a Delta table."""
    _drained(work, "delta", {})


def _drained(work: Work, format: str, options: dict[str, str]) -> None:
    writer = (
        work.stream()
        .writeStream.format(format)
        .options(**options)
        .option("checkpointLocation", f"{work.path}/checkpoint")
    )
    query = writer.trigger(availableNow=True).start(f"{work.path}/out")
    query.awaitTermination()
    assert query.lastProgress.batchId == BATCHES - 1, query.lastProgress.batchId


def append_to_delta(work: Work) -> None:
    """Batch appends that carry the writer's transaction number."""
    for n in range(BATCHES):
        writer = work.read(n).write.format("delta").mode("append").option("txnAppId", "bench").option("txnVersion", n)
        writer.save(f"{work.path}/out")


SUBJECTS: dict[str, Callable[[Work], None]] = {
    "ours": ours, "(a) bare read and write": bare, "(b) streaming, file sink": stream_to_files, "(c) streaming, Delta": stream_to_delta,
    "(d) append to Delta, txnAppId": append_to_delta,
}  # fmt: skip


def produce(bootstrap: str, topic: str, rows: int) -> None:
    """Fill the topic's partitions with equal shares."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000})
    for n in range(rows):
        while True:
            try:
                producer.produce(
                    topic, f"value-{n:012d}-{'x' * 80}".encode(), key=str(n).encode(), partition=n % PARTITIONS
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def measure(
    spark: Any, bootstrap: str, place: Callable[[], str], rows: int, *,
    subjects: Mapping[str, Callable[[Work], None]] = SUBJECTS, pipeline: Callable[[Work], Pipeline] = pipeline_of,
) -> list[list[str]]:  # fmt: skip
    """Milliseconds a batch of each subject, the first round not counted; ``pipeline`` is what the subject *ours* runs."""
    topic = f"bench-{rows}-{uuid.uuid4().hex[:6]}"
    produce(bootstrap, topic, rows * BATCHES)
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(ROUNDS + 1):
        names = list(subjects)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            work = Work(spark, bootstrap, topic, rows, place())
            if (
                name == "ours"
            ):  # the log exists, its store was examined: so it is for every run of a pipeline but its first
                open_pipeline(pipeline(work), open_commit_log(f"{work.place}/log"))
            began = time.perf_counter()
            subjects[name](work)
            if turn:
                times[name].append((time.perf_counter() - began) * 1000 / BATCHES)
    return [
        [
            name,
            f"{statistics.median(spent):.0f} ms",
            f"{statistics.median(o / t for o, t in zip(times['ours'], spent, strict=True)):.2f}",
        ]
        for name, spent in times.items()
    ]


def memory(spark: Any, bootstrap: str, place: str, batches: int = 200) -> list[list[str]]:
    """What the driver holds as a drain goes on: the JVM's heap after a collection, and this process."""
    topic = f"memory-{uuid.uuid4().hex[:6]}"
    produce(bootstrap, topic, 100 * batches)
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    seen: list[list[str]] = []
    done = 0

    def looks(frame: Any) -> Any:
        nonlocal done
        done += 1
        if done % 50 == 0 or done == 10:
            runtime.gc()
            heap = (runtime.totalMemory() - runtime.freeMemory()) >> 20
            seen.append([str(done), f"{heap} MB", f"{psutil.Process().memory_info().rss >> 20} MB"])
        return frame.select("key", "value", "partition", "offset")

    pipeline = Pipeline(
        name="memory", log=f"{place}/log", source=KafkaSource(topics=[topic], bootstrap_servers=bootstrap), sinks={"out": FilesSink(f"{place}/out")},
        limits=Limits(max_rows=100), transform=looks,
    )  # fmt: skip
    assert run_batch(pipeline, run_key="all", drain=True).batches == batches
    return seen


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table at once."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)
    sys.stdout.flush()


@contextmanager
def servers(home: Path) -> Iterator[tuple[Broker, S3Server]]:
    """A broker and an S3 server with the bucket ``lake``, which this process reaches by its variables."""
    broker, s3 = Broker(home / "kafka"), S3Server(home / "s3")
    with running(broker, s3):
        os.environ.update(s3.environment())
        import boto3

        boto3.client("s3").create_bucket(Bucket="lake")
        yield broker, s3


def local_session() -> Any:
    """A warm session for all subjects, with the jars of the peers."""
    conf = {**session_conf(), **peers_conf(), "spark.driver.memory": "2g"}
    spark = SparkEngine(master="local[2]", conf=conf).session()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def measure_places(
    spark: Any, bootstrap: str, home: Path, suffix: str = "", subjects: Mapping[str, Callable[[Work], None]] = SUBJECTS
) -> None:
    """Both places, both sizes."""
    places: dict[str, Callable[[], str]] = {
        "disk": lambda: str(home / "disk" / uuid.uuid4().hex),
        "s3a": lambda: f"s3://lake/{uuid.uuid4().hex}",
    }
    for where, place in places.items():
        for rows in (50_000, 1_000):
            title = f"{BATCHES} batches of {rows:,} records, Parquet on {where}{suffix}"
            show(title, COLUMNS, measure(spark, bootstrap, place, rows, subjects=subjects))


def main() -> None:
    """Both places, both sizes; then the driver's memory."""
    with tempfile.TemporaryDirectory() as directory, servers(home := Path(directory)) as (broker, _):
        spark = local_session()
        measure_places(spark, broker.bootstrap, home)
        columns = ["batches", "JVM heap in use", "resident memory of the Python process"]
        show("A drain of 200 batches to s3a", columns, memory(spark, broker.bootstrap, "s3://lake/memory"))
        spark.stop()


if __name__ == "__main__":
    main()
