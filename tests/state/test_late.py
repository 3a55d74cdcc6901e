"""Late rows are dropped, fail the batch, or are quarantined, as the pipeline specifies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import Limits, State, run_batch, verify
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.pipeline.versions.result import RunResult
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.spark.late_rows import MERGES_SESSIONS
from tests.state.stateful_pipeline import SCHEMA, arrive, pipeline
from tests.state.transforms import chained, distinct_within_watermark, joined, sessions, windowed

pytestmark = pytest.mark.spark

CUTS = [[(30, "a")], [(50, "a")], [(1, "a"), (2, "a"), (51, "a"), (3, "b")]]
"""minute and key of each record: the last batch has three late ones"""


def sliding(events: DataFrame) -> DataFrame:
    counted = events.withWatermark("t", "5 minutes").groupBy(F.window("t", "10 minutes", "5 minutes"), "k").count()
    return counted.selectExpr("window.start AS at", "k", "count AS n")


def random_before(events: DataFrame) -> DataFrame:
    return windowed(events.where(F.rand() < 0.5))


def run(root: Path, transform: Callable[[DataFrame], DataFrame], **changes: Any) -> list[RunResult]:
    arguments = {"state": State(output_mode="append", partitions=2, late="quarantine"), **changes}
    results = []
    for number, events in enumerate(CUTS):
        arrive(root, number, events)
        results.append(run_batch(pipeline(root, transform, "append", **arguments), run_key=f"run {number}"))
    return results


def quarantined(root: Path) -> list[dict[str, Any]]:
    return list(open_log(str(root / "log")).quarantined())


@pytest.mark.parametrize(
    ("transform", "late"),
    [
        (windowed, ["01 a", "02 a", "03 b"]),
        pytest.param(sliding, ["01 a", "01 a", "02 a", "02 a", "03 b", "03 b"], marks=pytest.mark.prove),
        (distinct_within_watermark, ["01 a", "02 a", "03 b"]),
        (sessions, ["01 a", "02 a", "03 b"]),
    ],
)
def test_late_rows_are_quarantined_with_their_columns(
    tmp_path: Path, transform: Callable[[DataFrame], DataFrame], late: list[str]
) -> None:
    results = run(tmp_path, transform)
    records = quarantined(tmp_path)
    rows = [json.loads(record["raw"]) for record in records]
    assert sorted(f"{row['t'][14:16]} {row['k']}" for row in rows) == late
    assert {record["version"] for record in records} == {2}
    assert [result.counts["late"] > 0 for result in results] == [False, False, True]
    assert results[2].counts["quarantined"] == 0
    assert verify(str(tmp_path / "log")).clean


@pytest.mark.prove
def test_late_rows_of_both_sides_of_a_join_are_quarantined(tmp_path: Path) -> None:
    results = run(tmp_path, joined)
    rows = [json.loads(record["raw"]) for record in quarantined(tmp_path)]
    assert results[2].counts["late"] == len(rows) == 6
    assert sorted(next(iter(row)) for row in rows) == ["t", "t", "t", "t2", "t2", "t2"]


def test_more_late_rows_than_the_limit_fail_the_batch_and_lose_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"exceeds limits.max_quarantined.*late=.*allowed=2"):
        run(tmp_path, distinct_within_watermark, limits=Limits(max_quarantined=2))
    assert run_batch(pipeline(tmp_path, distinct_within_watermark, "append"), run_key="run 2").counts["late"] == 3


def test_late_row_that_a_later_one_of_its_batch_would_join_in_a_session_is_quarantined(tmp_path: Path) -> None:
    """Spark drops late rows before it merges the sessions of a batch. The row of minute 38 is late, and that of minute 43 is not."""
    late = State(output_mode="append", partitions=2, late="quarantine")
    for number, events in enumerate([[(50, "a")], [(60, "b")], [(38, "a"), (43, "a")]]):
        arrive(tmp_path, number, events)
        result = run_batch(pipeline(tmp_path, sessions, "append", state=late), run_key=f"run {number}")
    assert result.counts["late"] == 1
    assert [json.loads(record["raw"])["t"][14:16] for record in quarantined(tmp_path)] == ["38"]


@pytest.mark.parametrize(
    ("transform", "reason"),
    [(sessions, "session windows"), (chained, "reads the result of another one"), (random_before, "random values")],
)
def test_transform_whose_late_rows_cannot_be_found_is_refused_at_the_first_batch(
    spark: SparkSession, tmp_path: Path, transform: Callable[[DataFrame], DataFrame], reason: str
) -> None:
    spark.conf.set(MERGES_SESSIONS, "true")
    try:
        with pytest.raises(InvalidError, match=reason):
            run(tmp_path, transform)
    finally:
        spark.conf.unset(MERGES_SESSIONS)


def test_quarantine_command_shows_late_rows_and_reprocess_ignores_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, windowed)
    assert main(["quarantine", str(tmp_path / "log")]) == 0
    assert "late: the event time" in capsys.readouterr().out
    path = tmp_path / "stateful.toml"
    path.write_text(f"""
name = "stateful"
log = "{tmp_path}/log"
transform = "tests.state.test_operators:windowed"
source = {{ type = "files", path = "{tmp_path}/in", format = "parquet", schema = "{SCHEMA}" }}
sinks.out = {{ type = "files", path = "{tmp_path}/out" }}
state = {{ output_mode = "append", partitions = 2, late = "quarantine" }}
""")
    assert main(["reprocess", str(path), "--quarantined"]) == 0
    assert "there are no quarantined records" in capsys.readouterr().out


@pytest.mark.prove
def test_late_rows_outside_of_utc_and_with_repeated_column_names_are_quarantined(tmp_path: Path) -> None:
    def repeated(events: DataFrame) -> DataFrame:
        twice = events.withWatermark("t", "10 minutes").select("t", "k", F.lit(None).cast("int").alias("k"))
        return twice.dropDuplicatesWithinWatermark(["t"]).toDF("at", "k", "n").where("n is null")

    run(tmp_path, repeated)
    rows = [json.loads(record["raw"]) for record in quarantined(tmp_path)]
    assert sorted(tuple(row.items()) for row in rows)[0] == (
        ("t", "2024-01-01T00:01:00.000Z"), ("k", "a"), ("k_2", None),
    )  # fmt: skip


@pytest.mark.parametrize("late", ["quarantined", "", None])
def test_invalid_value_of_late_is_refused(late: Any) -> None:
    with pytest.raises(InvalidError, match=r"state\.late"):
        State(output_mode="append", late=late)
