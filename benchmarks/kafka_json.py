"""
JSON messages from Kafka to Parquet, compared with Structured Streaming and ``from_json``: ``make bench ARGS=kafka_json``.

The provider parses each message exactly, or quarantines it. ``from_json`` rounds decimals, and returns null for a message that it cannot parse.
"""

from __future__ import annotations

import json
import random
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from airflow_provider_streamsem import Json, KafkaSource, Pipeline, run_batch
from benchmarks import kafka, results
from benchmarks.parsing import MIXED, mixed

ROWS = 50_000
NAMES = [column.split()[0] for column in MIXED.split(", ")]


def pipeline_of(work: kafka.Work) -> Pipeline:
    """Return the pipeline of the provider."""
    source = KafkaSource(topics=[work.topic], bootstrap_servers=work.bootstrap, value=Json(MIXED))
    return kafka.pipeline_of(work).replace(source=source, transform=lambda records: records.select(*NAMES))


def run_provider(work: kafka.Work) -> None:
    """Drain the topic with the provider."""
    result = run_batch(pipeline_of(work), run_key="all", drain=True)
    records = kafka.BATCHES * work.rows
    assert (result.batches, result.counts["read"], result.counts["quarantined"]) == (kafka.BATCHES, records, 0)


def parsed(messages: Any) -> Any:
    """Return the columns of the messages."""
    return messages.select(F.from_json(F.col("value").cast("string"), MIXED).alias("value")).select("value.*")


def main() -> None:
    """Measure batches on local disk."""
    with tempfile.TemporaryDirectory() as directory, kafka.servers(home := Path(directory)) as (broker, _):
        spark = kafka.local_session()
        subjects = {
            "provider": run_provider,
            "streaming with from_json": partial(kafka.stream_to_files, transform=parsed),
        }
        times = kafka.measure(
            spark, broker.bootstrap, lambda: str(home / "disk" / uuid.uuid4().hex), ROWS,
            subjects=subjects, pipeline=pipeline_of, value=lambda n: json.dumps(mixed(random.Random(n), n)).encode(),
        )  # fmt: skip
        title = f"{kafka.BATCHES} batches of {ROWS:,} JSON messages, Parquet on disk"
        kafka.show(title, kafka.COLUMNS, kafka.ratios(times))
        results.record("kafka_json", f"disk, {ROWS:,} rows", times)
        spark.stop()


if __name__ == "__main__":
    main()
