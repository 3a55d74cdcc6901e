"""Spark settings that differ between runs do not change which state a batch continues."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import State, read_committed, run_batch
from airflow_provider_streamsem.state.settings import operator_state
from tests.state.idle_pipeline import at
from tests.state.processors import processed
from tests.state.stateful_pipeline import ORIGIN_MS, arrive, counts, outcome, pipeline
from tests.state.transforms import joined, keyed, windowed

pytestmark = pytest.mark.spark
STREAMING = "spark.sql.streaming"


def per_minute(events: DataFrame) -> DataFrame:
    """Without strict distribution, Spark accepts the user's own partitioning as that of the state."""
    keyed = events.repartition("k").groupBy("k", F.minute("t").alias("m"))
    return keyed.agg(F.count("*").alias("n"), F.max("t").alias("at")).selectExpr("at", "concat(k, m) AS k", "n")


@pytest.mark.parametrize(
    ("transform", "setting", "values"),
    [
        pytest.param(
            processed, f"{STREAMING}.stateStore.encodingFormat", ("unsaferow", "avro"), marks=pytest.mark.prove
        ),
        pytest.param(
            processed, f"{STREAMING}.stateStore.encodingFormat", ("avro", "unsaferow"), marks=pytest.mark.prove
        ),
        pytest.param(
            per_minute,
            f"{STREAMING}.statefulOperator.useStrictDistribution",
            ("true", "false"),
            marks=pytest.mark.prove,
        ),
        (keyed, f"{STREAMING}.aggregation.stateFormatVersion", ("1", "2")),
    ],
)
def test_later_batches_use_the_format_of_the_first(
    spark: SparkSession, tmp_path: Path, transform: object, setting: str, values: tuple[str, str]
) -> None:
    events = [(minute, key) for key in "abcdef" for minute in (1, 2, 3)]
    for number, value in enumerate((*values, values[1])):
        arrive(tmp_path, number, events)
        spark.conf.set(setting, value)
        try:
            run_batch(pipeline(tmp_path, transform, "update"), run_key=f"run {number}")  # type: ignore[arg-type]
        finally:
            spark.conf.unset(setting)
    found = counts(spark, tmp_path)
    assert found
    each = 3 if transform is per_minute else 9
    assert set(found.values()) == {each}
    state = operator_state(outcome(tmp_path, 2).state)
    assert state is not None
    assert state.settings[setting] == values[0]


def test_idle_windows_are_closed_if_spark_does_not_count_the_rows_of_the_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    setting = f"{STREAMING}.stateStore.rocksdb.trackTotalNumberOfRows"
    spec = pipeline(tmp_path, windowed, "append", state=State(output_mode="append", partitions=2, close_after_s=60))
    arrive(tmp_path, 0, [(1, "a"), (7, "b")])
    spark.conf.set(setting, "false")
    try:
        found = [run_batch(spec, run_key=str(n), log=at(tmp_path, n)).status for n in (10, 100)]
    finally:
        spark.conf.unset(setting)
    assert found == ["committed", "committed"]
    assert read_committed(spark, str(tmp_path / "log")).count() == 2


@pytest.mark.prove
def test_newest_format_of_join_state_does_not_stop_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    setting = f"{STREAMING}.join.stateFormatVersion"
    arrive(tmp_path, 0, [(1, "a"), (2, "a")])
    spark.conf.set(setting, "3")
    try:
        assert run_batch(pipeline(tmp_path, joined, "append"), run_key="first").status == "committed"
    finally:
        spark.conf.unset(setting)


@pytest.mark.parametrize("policy", [pytest.param("min", marks=pytest.mark.prove), "max"])
def test_policy_for_several_watermarks_is_that_of_the_session(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    def two(events: DataFrame) -> DataFrame:
        early = events.withWatermark("t", "5 minutes")
        late = events.withColumn("t", F.expr("t + INTERVAL 1 HOUR")).withWatermark("t", "5 minutes")
        return windowed_again(early.union(late))

    setting = f"{STREAMING}.multipleWatermarkPolicy"
    arrive(tmp_path, 0, [(10, "a")])
    spark.conf.set(setting, policy)
    try:
        run_batch(pipeline(tmp_path, two, "append"), run_key="first")
    finally:
        spark.conf.unset(setting)
    minute = 5 if policy == "min" else 65
    assert outcome(tmp_path, 0).watermark_ms == ORIGIN_MS + minute * 60_000


def windowed_again(events: DataFrame) -> DataFrame:
    """Windows over events that already have a watermark."""
    counted = events.groupBy(F.window("t", "5 minutes"), "k").count()
    return counted.selectExpr("window.start AS at", "k", "count AS n")
