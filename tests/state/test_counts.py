"""Each record of a batch with state is counted once: while the micro-batch reads it, or in a separate pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import run_batch
from airflow_provider_streamsem.spark.staging import Staging
from airflow_provider_streamsem.spark.stateful import MicroBatch
from tests.state.test_operators import arrive, keyed, pipeline, windowed

pytestmark = pytest.mark.spark

EVENTS: list[tuple[int | None, str]] = [(minute, "ab"[minute % 2]) for minute in range(9)]


def without_records(events: DataFrame) -> DataFrame:
    return keyed(events.where("k = 'a' AND k = 'b' AND false"))


def of_two_branches(events: DataFrame) -> DataFrame:
    return keyed(events.where("k = 'a'").union(events.where("k <> 'a'")))


def of_two_records(events: DataFrame) -> DataFrame:
    return events.limit(2).selectExpr("t AS at", "k", "1L AS n")


def joined_with_no_rows(events: DataFrame) -> DataFrame:
    nothing = events.sparkSession.range(0).selectExpr("string(id) AS k")
    return keyed(events.join(nothing, "k"))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the separate passes that count the records."""
    found: list[str] = []
    count = Staging._count

    def recorded(staging: Staging, marked: DataFrame, aggregates: Any) -> dict[str, int]:
        found.append("pass")
        return count(staging, marked, aggregates)

    monkeypatch.setattr(Staging, "_count", recorded)
    return found


@pytest.mark.parametrize(
    ("transform", "mode", "separate"),
    [
        (keyed, "update", 0),
        (windowed, "append", 0),
        (lambda events: events.where("k = 'a'").selectExpr("t AS at", "k", "1L AS n"), "append", 0),
        (without_records, "update", 0),
        (of_two_branches, "update", 1),
        (of_two_records, "append", 1),
        (joined_with_no_rows, "update", 1),
    ],
    ids=["keyed", "windowed", "no operator", "always false", "read twice", "limit", "join with no rows"],
)
def test_every_record_is_counted_whatever_part_the_transform_reads(
    spark: SparkSession, tmp_path: Path, passes: list[str], transform: Callable[[DataFrame], DataFrame], mode: str, separate: int
) -> None:  # fmt: skip
    arrive(tmp_path, 0, EVENTS[:5])
    arrive(tmp_path, 1, EVENTS[5:])
    done = run_batch(pipeline(tmp_path, transform, mode, where="k <> 'x' AND minute(t) > 1"), run_key="run")
    assert (done.counts["read"], done.counts["filtered"], done.counts["quarantined"]) == (9, 2, 0)
    assert len(passes) == separate


def test_records_of_a_repeated_task_are_counted_once(
    spark: SparkSession, tmp_path: Path, passes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second evaluation of the records has the effect of tasks that Spark repeats after it has lost their output."""
    planned = MicroBatch.result

    def repeated(batch: MicroBatch, streaming: DataFrame) -> DataFrame:
        result = planned(batch, streaming)
        batch._executions[""].toRdd().count()
        return result

    monkeypatch.setattr(MicroBatch, "result", repeated)
    arrive(tmp_path, 0, EVENTS)
    assert run_batch(pipeline(tmp_path, keyed, "update"), run_key="run").counts["read"] == 9
    assert passes == ["pass"]
