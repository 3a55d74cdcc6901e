"""
``make bench ARGS=delta``: Kafka to a Delta table, ours against Spark's own ways, on the real broker and S3 server; what publishing takes as the table grows.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from pathlib import Path

import pyarrow
import pyarrow.parquet

from airflow_provider_streamsem import DeltaSink, Pipeline, run_batch
from airflow_provider_streamsem.protocol.entries import Marker
from airflow_provider_streamsem.sinks.contract import Batch
from benchmarks import kafka

ROWS = 50_000
SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'


def to_delta(work: kafka.Work) -> Pipeline:
    """What ours runs."""
    return kafka.pipeline_of(work).replace(sinks={"out": DeltaSink(f"{work.place}/out")})


def ours(work: kafka.Work) -> None:
    """A drain into a Delta table, which Spark's own reader then finds whole."""
    result = run_batch(to_delta(work), run_key="all", drain=True)
    assert (result.batches, result.counts["read"]) == (kafka.BATCHES, kafka.BATCHES * work.rows)


def published(root: Path, counts: tuple[int, ...]) -> list[list[str]]:
    """Milliseconds from a decided batch to its receipt when the table has so many versions; those that write a checkpoint apart."""
    sink = DeltaSink(str(root / "table"))
    took: list[float] = []
    rows = []
    for version in range(max(counts) + 1):
        place = Path(sink.attempt_place(version, "a"))
        place.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"id": [version]}), place / "part-0.parquet")
        files = sink.collect(version, "a")
        before = Marker(version=version - 1, outcome="0" * 64) if version else None
        batch = Batch(
            pipeline_uuid="bench", sink="t", version=version, outcome="0" * 64, committable=files, schema=SCHEMA, root=version, expected_marker=before
        )  # fmt: skip
        began = time.perf_counter()
        sink.publish(batch, None)  # type: ignore[arg-type]
        took.append((time.perf_counter() - began) * 1000)
        if version in counts:
            last = took[-10:]
            slowest = max(took[-min(110, len(took)) :])
            rows.append([str(version), f"{statistics.median(last):.0f} ms", f"{slowest:.0f} ms"])
    return rows


def main() -> None:
    """Both tables."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        columns = ["versions", "publish (median of ten)", "slowest of the last hundred (a checkpoint)"]
        kafka.show("Publishing one file into a Delta table on disk", columns, published(home, (10, 100, 1000)))
        with kafka.servers(home) as (broker, _):
            spark = kafka.local_session()
            subjects = {
                "ours": ours,
                "Structured Streaming to Delta": kafka.stream_to_delta,
                "append with txnAppId": kafka.append_to_delta,
            }
            places: list[str] = []

            def place() -> str:
                places.append(f"s3://lake/{uuid.uuid4().hex}")
                return places[-1]

            title = f"{kafka.BATCHES} batches of {ROWS:,} records into a Delta table on s3a"
            measured = kafka.measure(spark, broker.bootstrap, place, ROWS, subjects=subjects, pipeline=to_delta)
            kafka.show(title, kafka.COLUMNS, measured)
            for each in places[-3:]:
                table = f"{each}/out".replace("s3://", "s3a://")
                assert spark.read.format("delta").load(table).count() == kafka.BATCHES * ROWS
            spark.stop()


if __name__ == "__main__":
    main()
