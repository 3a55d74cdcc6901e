"""A real Structured Streaming query on the input of a stateful pipeline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.state.stateful_pipeline import SCHEMA, rows_of


def streamed(
    spark: SparkSession, root: Path, transform: Callable[[DataFrame], DataFrame], mode: str
) -> list[tuple[list[tuple[Any, ...]], int]]:
    """Return the rows and late rows of each micro-batch of a real query over the files that have arrived."""
    source, found = root / "source", {}
    batches = range(len(list((root / "in").iterdir())))
    source.mkdir(parents=True)
    session = spark.newSession()
    settings = {
        "spark.sql.shuffle.partitions": "2", "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    }  # fmt: skip
    for name, value in settings.items():
        session.conf.set(name, value)

    def collect(frame: DataFrame, number: int) -> None:
        found[number] = rows_of(frame)

    query = (
        transform(session.readStream.schema(SCHEMA).parquet(str(source)))
        .writeStream.outputMode(mode)
        .foreachBatch(collect)
    )
    running = query.option("checkpointLocation", str(root / "checkpoint")).start()
    try:
        for number in batches:
            shutil.copy(root / "in" / f"{number}.parquet", source / f".{number}")
            os.rename(source / f".{number}", source / f"{number}.parquet")
            running.processAllAvailable()
        late = {
            p["batchId"]: sum(op["numRowsDroppedByWatermark"] for op in p["stateOperators"])
            for p in running.recentProgress
            if p["numInputRows"]
        }
    finally:
        running.stop()
    return [(found[number], late[number]) for number in batches]
