"""
Merges by key into a Delta and an Iceberg table, compared with Spark's own ``MERGE``: ``make bench ARGS=merge``.

The changes have keys of every file of the table. Each round merges other values for the same keys. ``TARGET`` and ``CHANGES`` are the numbers of rows. The
provider reads the changes from staged files, as a publisher does, and selects the last row of each key.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import DeltaSink, IcebergSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.protocol.entries import Marker
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from benchmarks import kafka, results
from tests.connectors.batches import UUID, resolve_schema, schema_of

ROUNDS = int(os.environ.get("ROUNDS", "3"))
TARGET = int(os.environ.get("TARGET", "10000000"))
CHANGES = int(os.environ.get("CHANGES", "1000000"))
FORMATS = os.environ.get("FORMATS", "Delta Iceberg").split()
ENGINES = os.environ.get("ENGINES", "spark library").split()
SCHEMA = schema_of(id="long", user="string", amount="double")
ATTEMPT = "a" * 32
_MERGE = "MERGE INTO {} t USING changes s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


class Publisher:
    """Publishes the versions of one sink."""

    def __init__(self, sink: Any) -> None:
        self.sink, self.version, self.marker = sink, -1, None
        resolve_schema(sink, SCHEMA)

    def staged(self, rows: Any) -> SinkCommit:
        """Stage a DataFrame as the next version."""
        self.version += 1
        rows.write.parquet(self.sink.attempt_location(self.version, ATTEMPT))
        outcome = hashlib.sha256(str(self.version).encode()).hexdigest()
        commit = SinkCommit(
            pipeline_uuid=UUID,
            sink="out",
            version=self.version,
            outcome=outcome,
            committable=self.sink.collect(self.version, ATTEMPT),
            schema=SCHEMA,
            root=self.version,
            expected_marker=self.marker,
            spark=SparkEngine().publishing_session,
        )
        self.marker = Marker(version=self.version, outcome=outcome)
        return commit


def timed(action: Callable[[], object]) -> float:
    """Return the milliseconds that an action takes."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def rows_of(spark: Any, number: int, count: int) -> Any:
    """Return rows whose keys are evenly distributed over those of the table."""
    step = TARGET // count
    return spark.range(0, TARGET, step).selectExpr("id", "concat('user', id % 1000) user", f"id / 4D + {number} amount")


def sink_of(kind: str, root: Path, engine: str) -> Any:
    """Return a sink that merges with an engine."""
    upsert: dict[str, Any] = {"mode": "upsert", "keys": ["id"], "engine": engine}
    if kind == "Delta":
        return DeltaSink(str(root / engine), **upsert)
    catalog = {"type": "sql", "uri": f"sqlite:///{root}/{engine}.db", "warehouse": f"file://{root}/{engine}"}
    return IcebergSink(str(root / engine), "db.t", properties=catalog, **upsert)


def measured(spark: Any, kind: str, root: Path) -> dict[str, list[float]]:
    """Return subject → milliseconds of each round. The first round is not counted."""
    root.mkdir()
    peer = f"delta.`{root / 'peer'}`" if kind == "Delta" else "bench.t"
    for name, value in (("", "org.apache.iceberg.spark.SparkCatalog"), (".type", "hadoop"), (".warehouse", str(root))):
        spark.conf.set(f"spark.sql.catalog.bench{name}", value)
    rows_of(spark, 0, TARGET).createOrReplaceTempView("rows")
    spark.sql(f"CREATE TABLE {peer} USING {kind.lower()} AS SELECT * FROM rows")
    publishers = {engine: Publisher(sink_of(kind, root, engine)) for engine in ENGINES}
    for publisher in publishers.values():
        publisher.sink.publish(publisher.staged(rows_of(spark, 0, TARGET)))
    times: dict[str, list[float]] = {}
    for number in range(ROUNDS + 1):
        changes = root / f"changes-{number}"
        rows_of(spark, number + 1, CHANGES).write.parquet(str(changes))
        spark.read.parquet(str(changes)).createOrReplaceTempView("changes")
        subjects = {"MERGE of Spark": lambda: spark.sql(_MERGE.format(peer)).collect()}
        for engine, publisher in publishers.items():
            commit = publisher.staged(spark.read.parquet(str(changes)))
            subject = results.PROVIDER if engine == ENGINES[0] else f"provider, {engine}"
            subjects[subject] = lambda publisher=publisher, commit=commit: publisher.sink.publish(commit)  # type: ignore[misc]
        for subject, action in subjects.items():
            took = timed(action)
            times.setdefault(subject, [])
            if number:
                times[subject].append(took)
        shutil.rmtree(changes)
    return times


def main() -> None:
    """Measure both formats."""
    spark = kafka.local_session()
    with tempfile.TemporaryDirectory() as directory:
        for kind in FORMATS:
            times = measured(spark, kind, Path(directory) / kind)
            results.record("merge", f"{kind}, {CHANGES:,} changes into {TARGET:,} rows", times)
            print(kind, {subject: [round(ms) for ms in each] for subject, each in times.items()})
    spark.stop()


if __name__ == "__main__":
    main()
