"""
Kafka to a Delta table, compared with Spark's own writers, and the time of publishing as the table grows: ``make bench ARGS=delta``.
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
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.protocol.entries import Marker
from benchmarks import kafka, results

ROWS = 50_000
SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'


def to_delta(work: kafka.Work) -> Pipeline:
    """Return the pipeline of the provider."""
    return kafka.pipeline_of(work).replace(sinks={"out": DeltaSink(f"{work.location}/out")})


def run_provider(work: kafka.Work) -> None:
    """Drain the topic into a Delta table with the provider."""
    result = run_batch(to_delta(work), run_key="all", drain=True)
    assert (result.batches, result.counts["read"]) == (kafka.BATCHES, kafka.BATCHES * work.rows)


def publish_times(root: Path, counts: tuple[int, ...]) -> list[list[str]]:
    """Return the milliseconds from a committed batch to its receipt at each number of versions. The slowest publish writes a checkpoint."""
    sink = DeltaSink(str(root / "table"))
    times_ms: list[float] = []
    rows = []
    for version in range(max(counts) + 1):
        location = Path(sink.attempt_location(version, "a"))
        location.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"id": [version]}), location / "part-0.parquet")
        files = sink.collect(version, "a")
        before = Marker(version=version - 1, outcome="0" * 64) if version else None
        batch = SinkCommit(
            pipeline_uuid="bench", sink="t", version=version, outcome="0" * 64, committable=files, schema=SCHEMA, root=version, expected_marker=before
        )  # fmt: skip
        began = time.perf_counter()
        sink.publish(batch)
        times_ms.append((time.perf_counter() - began) * 1000)
        if version in counts:
            last = times_ms[-10:]
            slowest = max(times_ms[-min(110, len(times_ms)) :])
            rows.append([str(version), f"{statistics.median(last):.0f} ms", f"{slowest:.0f} ms"])
    return rows


def main() -> None:
    """Measure both tables."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        columns = ["versions", "publish (median of ten)", "slowest of the last hundred (a checkpoint)"]
        kafka.show("Publishing one file into a Delta table on disk", columns, publish_times(home, (10, 100, 1000)))
        with kafka.servers(home) as (broker, _):
            spark = kafka.local_session()
            subjects = {
                "provider": run_provider,
                "Structured Streaming to Delta": kafka.stream_to_delta,
                "append with txnAppId": kafka.append_to_delta,
            }
            locations: list[str] = []

            def location() -> str:
                locations.append(f"s3://lake/{uuid.uuid4().hex}")
                return locations[-1]

            title = f"{kafka.BATCHES} batches of {ROWS:,} records into a Delta table on s3a"
            measured = kafka.measure(spark, broker.bootstrap, location, ROWS, subjects=subjects, pipeline=to_delta)
            kafka.show(title, kafka.COLUMNS, kafka.ratios(measured))
            results.record("delta", f"s3a, {ROWS:,} rows", measured)
            for each in locations[-3:]:
                table = f"{each}/out".replace("s3://", "s3a://")
                assert spark.read.format("delta").load(table).count() == kafka.BATCHES * ROWS
            spark.stop()


if __name__ == "__main__":
    main()
