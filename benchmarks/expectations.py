"""A batch with ten expectations, compared with the same batch without them: ``make bench ARGS=expectations``."""

from __future__ import annotations

import os
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import Expect, FilesSink, FilesSource, Partitions, Pipeline, run_batch
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from benchmarks import results

ROUNDS = int(os.environ.get("ROUNDS", "5"))
ROWS = int(os.environ.get("ROWS", "2000000"))
SCHEMA = "id long, user string, amount double, at timestamp"
PREDICATES = [
    "id IS NOT NULL", "id >= 0", "user IS NOT NULL", "user LIKE 'user%'", "length(user) < 20", "amount >= 0", "amount < 1e9",
    "amount IS NOT NULL AND NOT isnan(amount)", "at > TIMESTAMP'2020-01-01'", "year(at) < 2100",
]  # fmt: skip
RULES = {predicate: Expect(predicate, on_failure="drop") for predicate in PREDICATES}
_NUMBERS = count()


SUBJECTS: dict[str, dict[str, Any]] = {
    results.PROVIDER: {"expect": RULES},
    "rules of the sink": {"of_sink": RULES},
    "without rules": {},
    "partitions, without rules": {"partitions": Partitions(by="at", grain="hour", after=0)},
}
"""Subject → arguments of its pipeline."""


def seconds(engine: SparkEngine, source: Path, format: str, arguments: dict[str, Any]) -> float:
    """Run one batch, and return its seconds."""
    location = source.parent / f"run-{next(_NUMBERS)}"
    sink = FilesSink(str(location / "out"), expect=arguments.get("of_sink", {}))
    named = {name: value for name, value in arguments.items() if name != "of_sink"}
    files = FilesSource(path=str(source), format=format, schema=SCHEMA)
    pipeline = Pipeline(name="p", log=str(location / "log"), source=files, sinks={"out": sink}, **named)
    bind(pipeline, commit_log_at(pipeline.log))  # creates the log, as an earlier run does
    began = time.perf_counter()
    result = run_batch(pipeline, run_key="r", engine=engine)
    took = time.perf_counter() - began
    assert result.counts["written.out"] == ROWS, result.counts
    return took


def main() -> None:
    """Measure JSON and Parquet files."""
    engine = SparkEngine(master="local[2]")
    spark = engine.session()
    with tempfile.TemporaryDirectory() as directory:
        for format in ("json", "parquet"):
            source = Path(directory) / format / "in"
            made = "id", "concat('user', id % 1000) user", "id / 4D amount", "timestamp_seconds(1700000000 + id) at"
            spark.range(ROWS).selectExpr(*made).write.format(format).save(str(source))
            times: dict[str, list[float]] = {subject: [] for subject in SUBJECTS}
            for number in range(ROUNDS + 1):
                for subject, arguments in SUBJECTS.items():
                    took = seconds(engine, source, format, arguments) * 1000
                    if number:
                        times[subject].append(took)
            results.record("expectations", f"{format}, {ROWS:,} rows, ten rules", times)


if __name__ == "__main__":
    main()
