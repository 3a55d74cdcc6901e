"""A stateful pipeline on Spark: its input files, its outcomes and its output."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, State, read_committed
from airflow_provider_streamsem.protocol.entries import Outcome
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.spark import loaded_state

SCHEMA = "t timestamp, k string"
START = datetime.datetime(2024, 1, 1)
ORIGIN_MS = int(START.timestamp() * 1000)


def pipeline(root: Path, transform: Callable[[DataFrame], DataFrame], mode: str, **changes: Any) -> Pipeline:
    arguments = {
        "name": "stateful", "log": str(root / "log"), "source": FilesSource(path=str(root / "in"), format="parquet", schema=SCHEMA),
        "sinks": {"out": FilesSink(path=str(root / "out"))}, "transform": transform, "state": State(output_mode=mode, partitions=2),
    }  # fmt: skip
    return Pipeline(**{**arguments, **changes})


def arrive(root: Path, number: int, events: Sequence[tuple[int | None, str]], **others: list[str]) -> None:
    """
    Write the events of a batch as a Parquet file, which costs Spark less than JSON lines.

    :param events: minute after ``START`` and key of each event; ``None``: the event has no time
    :param others: values of further text columns
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / "in").mkdir(parents=True, exist_ok=True)
    times = [None if minute is None else START + datetime.timedelta(minutes=minute) for minute, _ in events]
    columns = {"t": pa.array(times, pa.timestamp("us", "UTC")), "k": pa.array([key for _, key in events], pa.string())}
    pq.write_table(pa.table({**columns, **others}), root / "in" / f"{number}.parquet")


def start_new_process() -> None:
    """Make the next attempt load its state, as the first attempt of a process does."""
    loaded_state._loaded = None


def outcome(root: Path, version: int) -> Outcome:
    stored = open_log(str(root / "log")).log.outcome(version)
    assert stored is not None
    return stored


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select("at", "k", "n").collect())


def counts(spark: SparkSession, root: Path) -> dict[str, int]:
    """key → the newest count in the output."""
    newest: dict[str, int] = {}
    for row in read_committed(spark, str(root / "log")).collect():
        newest[row["k"]] = max(row["n"], newest.get(row["k"], 0))
    return newest
