"""
Batches with many columns or many files, compared with a plain read and Parquet write of the same files: ``make bench ARGS=files``.

The provider and the plain copy run in turn in one session. The first round is not counted.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, SparkEngine, run_batch
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.pipeline.spec.binding import bind
from benchmarks import results

ROUNDS = int(os.environ.get("ROUNDS", "3"))
FILES = int(os.environ.get("FILES", "10000"))
TYPES: dict[str, Callable[[int, int], object]] = {
    "string": lambda column, row: f"v{column}_{row}",
    "int": lambda column, row: column * row,
    "decimal(12,2)": lambda column, row: round(column * 1.25 + row, 2),
    "timestamp": lambda column, row: f"2026-01-01T{row % 24:02d}:{column % 60:02d}:00Z",
    "double": lambda column, row: column * 0.5 + row,
}
_NUMBERS = count()


def wide(home: Path, columns: int, rows: int = 200) -> tuple[Path, str]:
    """Write JSON records with many columns of five types. Return the directory and the schema."""
    kinds = [[*TYPES][number % len(TYPES)] for number in range(columns)]
    lines = [json.dumps({f"c{n}": TYPES[kind](n, row) for n, kind in enumerate(kinds)}) for row in range(rows)]
    source = home / f"wide-{columns}"
    source.mkdir()
    (source / "a.json").write_text("\n".join(lines))
    return source, ", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds))


def many(home: Path, files: int) -> tuple[Path, str]:
    """Write JSON files of ten records each. Return the directory and the schema."""
    source = home / f"many-{files}"
    source.mkdir()
    for number in range(files):
        lines = [json.dumps({"id": number * 10 + row, "amount": "1.50"}) for row in range(10)]
        (source / f"{number:06d}.json").write_text("\n".join(lines))
    return source, "id long, amount decimal(12,2)"


def compare(
    spark: SparkSession, engine: SparkEngine, source: Path, schema: str, title: str, *,
    benchmark: str = "files", format: str = "json", bad: int = 0,
) -> None:  # fmt: skip
    """
    Compare the provider with a plain copy, and store the results. Both compress with zstd, as the provider does by default.

    :param bad: the number of records that the provider quarantines
    """
    out = source.parent / "out"

    def plain() -> float:
        began = time.perf_counter()
        spark.read.schema(schema).format(format).load(str(source)).write.option("compression", "zstd").parquet(
            str(out / f"plain-{next(_NUMBERS)}")
        )
        return time.perf_counter() - began

    def provider() -> float:
        location = out / f"provider-{next(_NUMBERS)}"
        files = FilesSource(path=str(source), format=format, schema=schema)
        pipeline = Pipeline(
            name="p", log=str(location / "log"), source=files, sinks={"out": FilesSink(str(location / "out"))},
            limits=Limits(max_quarantined=max(bad, 1)),
        )  # fmt: skip
        bind(pipeline, commit_log_at(str(location / "log")))  # creates the log, as an earlier run does
        began = time.perf_counter()
        result = run_batch(pipeline, run_key="r", engine=engine)
        seconds = time.perf_counter() - began
        assert result.counts["quarantined"] == bad, result.counts
        return seconds

    times: dict[str, list[float]] = {results.PROVIDER: [], "bare read and write": []}
    for number in range(ROUNDS + 1):
        for name, work in zip(times, (provider, plain), strict=True):
            seconds = work()
            if number:
                times[name].append(seconds * 1000)
    results.record(benchmark, title, times)


def main() -> None:
    """Measure many columns first, then many files."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        engine = SparkEngine(master="local[2]")
        spark = engine.session()
        for columns in (10, 100, 1_000):
            compare(spark, engine, *wide(home, columns), f"200 JSON records, {columns:,} columns")
        compare(spark, engine, *many(home, FILES), f"{FILES:,} JSON files")


if __name__ == "__main__":
    main()
