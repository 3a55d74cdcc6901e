"""
Compaction of many small files, compared with Spark: ``make bench ARGS=compact``.

A pipeline writes one file for each batch. The peer of a files sink reads the same files with Spark and writes one file. The peer of a Delta table is
``OPTIMIZE`` of Spark's Delta package on a copy of the table. Each round has new files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import DeltaSink, FilesSink, FilesSource, Limits, Pipeline, compact, run_batch
from benchmarks import kafka, results

ROUNDS = int(os.environ.get("ROUNDS", "3"))
FILES = int(os.environ.get("FILES", "100"))
ROWS = 5_000
SCHEMA = "id long, user string, amount double"


def written(spark: Any, root: Path, sink: FilesSink | DeltaSink) -> Pipeline:
    """Return a pipeline that has written one small file in each of many batches."""
    root.mkdir()
    (root / "in").mkdir()
    frame = spark.range(0, FILES * ROWS, 1, FILES).selectExpr("id", "concat('user', id % 1000) user", "id / 4D amount")
    frame.write.parquet(str(root / "made"))
    for number, part in enumerate(sorted((root / "made").glob("part-*"))):
        part.rename(root / "in" / f"{number:05d}.parquet")
    pipeline = Pipeline(
        name="compact", log=str(root / "log"), source=FilesSource(path=str(root / "in"), format="parquet", schema=SCHEMA),
        limits=Limits(max_files=1), sinks={"out": sink},
    )  # fmt: skip
    assert run_batch(pipeline, run_key="all", drain=True).batches == FILES
    return pipeline


def timed(action: Callable[[], object]) -> float:
    """Return the milliseconds that an action takes."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def of_files(spark: Any, root: Path) -> dict[str, float]:
    """Compact the files of a files sink. Return subject → milliseconds."""
    pipeline = written(spark, root, FilesSink(str(root / "out")))
    files = [str(path) for path in (root / "out").rglob("*.parquet")]
    plain = timed(
        lambda: (
            spark.read.schema(SCHEMA)
            .parquet(*files)
            .coalesce(1)
            .write.option("compression", "zstd")
            .parquet(str(root / "plain"))
        )
    )
    provider = timed(lambda: compact(pipeline))
    return {results.PROVIDER: provider, "Spark, read and write": plain}


def of_delta(spark: Any, root: Path) -> dict[str, float]:
    """Compact the files of a Delta table. Return subject → milliseconds."""
    pipeline = written(spark, root, DeltaSink(str(root / "table")))
    shutil.copytree(root / "table", root / "copy")
    optimize = timed(lambda: spark.sql(f"OPTIMIZE delta.`{root / 'copy'}`").collect())
    provider = timed(lambda: compact(pipeline, sink="out"))
    return {results.PROVIDER: provider, "OPTIMIZE": optimize}


def main() -> None:
    """Measure both sinks. The first round is not counted."""
    spark = kafka.local_session()
    with tempfile.TemporaryDirectory() as directory:
        for name, measured in (("files", of_files), ("Delta", of_delta)):
            rounds = [measured(spark, Path(directory) / f"{name}-{number}") for number in range(ROUNDS + 1)][1:]
            times = {subject: [each[subject] for each in rounds] for subject in rounds[0]}
            results.record("compact", f"{name}, {FILES} files of {ROWS:,} rows", times)
    spark.stop()


if __name__ == "__main__":
    main()
