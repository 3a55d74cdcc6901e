"""Each stateful operator gives the same rows as a real Structured Streaming query on the same micro-batches, in one process and after restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import read_committed, run_batch
from tests.state.stateful_pipeline import arrive, pipeline, rows_of, start_new_process
from tests.state.streaming_query import streamed
from tests.state.transforms import (
    chained,
    distinct,
    distinct_within_watermark,
    joined,
    keyed,
    sessions,
    total,
    windowed,
)

pytestmark = pytest.mark.spark

CUTS = [
    [(1, "a"), (2, "a"), (7, "b")],
    [(21, "a"), (3, "b"), (2, "a")],
    [(2, "a"), (16, "b"), (40, "a")],
    [(12, "a"), (41, "a"), (40, "a")],
]
"""minute and key of each record of each batch, with late and repeated ones"""


CASES = [
    (keyed, "update"),
    *(pytest.param(transform, "append", marks=pytest.mark.prove) for transform in (joined, sessions, windowed, distinct, distinct_within_watermark, chained)),
    *(pytest.param(transform, "update", marks=pytest.mark.prove) for transform in (windowed, distinct, total)),
]  # fmt: skip


@pytest.mark.parametrize(("transform", "mode"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_each_batch_gives_the_rows_of_a_streaming_micro_batch(
    spark: SparkSession, tmp_path: Path, transform: Callable[[DataFrame], DataFrame], mode: str
) -> None:
    found = []
    for number, events in enumerate(CUTS):
        arrive(tmp_path, number, events)
        if number == 2:
            start_new_process()
        result = run_batch(pipeline(tmp_path, transform, mode), run_key=f"run {number}")
        frame = read_committed(spark, str(tmp_path / "log"), version=number, since=number - 1)
        found.append((rows_of(frame) if frame.columns else [], result.counts["late"]))
    assert found == streamed(spark, tmp_path, transform, mode)
