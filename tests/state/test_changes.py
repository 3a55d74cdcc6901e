"""A transform, Spark or log that does not fit the stored state is refused by name. Nothing is committed, and the former transform continues."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import read_committed, run_batch, verify
from airflow_provider_streamsem.errors import DataError, InvalidError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.spark import stateful
from airflow_provider_streamsem.state.settings import OperatorState, operator_state
from tests.state.stateful_pipeline import START, arrive, counts, outcome, pipeline, rows_of
from tests.state.streaming_query import streamed
from tests.state.transforms import distinct_within_watermark, keyed, windowed

pytestmark = pytest.mark.spark
Transform = Callable[[DataFrame], DataFrame]


def stateless(events: DataFrame) -> DataFrame:
    return events.selectExpr("t AS at", "k", "1L AS n")


def distinct_keyed(events: DataFrame) -> DataFrame:
    return keyed(events.dropDuplicates(["t", "k"]))


def distinct(events: DataFrame) -> DataFrame:
    return stateless(events.dropDuplicates(["k"]))


def with_a_watermark(events: DataFrame) -> DataFrame:
    return keyed(events.withWatermark("t", "5 minutes"))


def with_a_double(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.max("t").alias("at"), F.sum(F.lit(1.0)).cast("long").alias("n"))


def by_length(events: DataFrame) -> DataFrame:
    grouped = events.groupBy(F.length("k").alias("k")).agg(F.max("t").alias("at"), F.count("*").alias("n"))
    return grouped.withColumn("k", F.lit("a"))


def arrive_after_a_batch(root: Path, former: Transform) -> None:
    """Run a batch. Records for the next one arrive."""
    arrive(root, 0, [(1, "a"), (2, "b")])
    run_batch(pipeline(root, former, "update"), run_key="first")
    arrive(root, 1, [(3, "a")])


def continue_after(refused: StreamsemError, root: Path, former: Transform) -> None:
    """Check that the changed transform committed nothing, and that the former one continues."""
    assert not refused.retryable
    assert "streamsem fork --at -1" in str(refused)
    assert open_log(str(root / "log")).log.outcome(1) is None
    run_batch(pipeline(root, former, "update"), run_key="second")
    arrive(root, 2, [(4, "a"), (5, "b")])
    run_batch(pipeline(root, former, "update"), run_key="third")
    assert verify(str(root / "log")).violations == []


@pytest.mark.parametrize(
    ("former", "changed", "names"),
    [
        (keyed, distinct_keyed, r"before=\['stateStoreSave'\], now=\[.*dedupe.*\]"),
        (keyed, stateless, r"before=\['stateStoreSave'\], now=\[\]"),
        pytest.param(keyed, with_a_watermark, "watermarks_before=0, watermarks_now=1", marks=pytest.mark.prove),
        pytest.param(
            distinct_keyed, keyed, r"before=\[.*dedupe.*\], now=\['stateStoreSave'\]", marks=pytest.mark.prove
        ),
        pytest.param(keyed, distinct, r"before=\['stateStoreSave'\], now=\['dedupe'\]", marks=pytest.mark.prove),
    ],
    ids=["added", "all removed", "watermark added", "removed", "replaced"],
)
def test_other_operators_are_refused_by_name(
    spark: SparkSession, tmp_path: Path, former: Transform, changed: Transform, names: str
) -> None:
    arrive_after_a_batch(tmp_path, former)
    with pytest.raises(InvalidError, match=names) as refused:
        run_batch(pipeline(tmp_path, changed, "update"), run_key="second")
    continue_after(refused.value, tmp_path, former)
    assert counts(spark, tmp_path) == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("changed", "types"),
    [(with_a_double, r"VALUE_SCHEMA.*before='.*LongType.*now='.*DoubleType"), (by_length, r"KEY_SCHEMA.*before='.*StringType.*now='.*IntegerType")],
)  # fmt: skip
def test_changed_type_of_a_key_or_value_is_refused(
    spark: SparkSession, tmp_path: Path, changed: Transform, types: str
) -> None:
    arrive_after_a_batch(tmp_path, keyed)
    with pytest.raises(DataError, match=types) as refused:
        run_batch(pipeline(tmp_path, changed, "update"), run_key="second")
    continue_after(refused.value, tmp_path, keyed)
    assert counts(spark, tmp_path) == {"a": 3, "b": 2}


def test_transform_without_operators_may_get_one(spark: SparkSession, tmp_path: Path) -> None:
    """The operator starts without state. Its first attempt dies, and the transform without operators continues. Vacuum keeps the new state."""
    arrive(tmp_path, 0, [(1, "a")])
    run_batch(pipeline(tmp_path, stateless, "update"), run_key="first")
    arrive(tmp_path, 1, [(2, "a")])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stateful.MicroBatch, "after", lambda self: 1 / 0)
        with pytest.raises(StreamsemError):
            run_batch(pipeline(tmp_path, keyed, "update"), run_key="second")
    run_batch(pipeline(tmp_path, stateless, "update"), run_key="second")
    for number, key in ((2, "a"), (3, "b"), (4, "a")):
        arrive(tmp_path, number, [(number, key)])
        run_batch(pipeline(tmp_path, keyed, "update"), run_key=f"run {number}")
        vacuum(pipeline(tmp_path, keyed, "update"))
    assert counts(spark, tmp_path) == {"a": 2, "b": 1}
    assert verify(str(tmp_path / "log")).violations == []


# --- state that another pipeline or another Spark wrote


def test_state_directory_of_another_pipeline_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """The files of a state are found by their unique ids. Files of another pipeline, also in place of the own ones, have other ids."""
    roots = {}
    for name, key in (("one", "a"), ("other", "b")):
        arrive(tmp_path / name, 0, [(1, key), (2, key)])
        run_batch(pipeline(tmp_path / name, keyed, "update"), run_key="first")
        state = operator_state(outcome(tmp_path / name, 0).state)
        assert state is not None
        roots[name] = tmp_path / name / "log" / "state" / "operators" / state.root
    shutil.copytree(roots["other"], roots["one"].parent / roots["other"].name)
    shutil.copytree(roots["other"], roots["one"], dirs_exist_ok=True)
    arrive(tmp_path / "one", 1, [(3, "a"), (4, "b")])
    run_batch(pipeline(tmp_path / "one", keyed, "update"), run_key="second")
    assert counts(spark, tmp_path / "one") == {"a": 3, "b": 1}
    shutil.rmtree(roots["one"])
    shutil.copytree(roots["other"], roots["one"])
    arrive(tmp_path / "one", 2, [(5, "b")])
    with pytest.raises(DataError, match="state of the previous batch"):
        run_batch(pipeline(tmp_path / "one", keyed, "update"), run_key="third")


def test_state_of_a_newer_spark_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    real = OperatorState
    with monkeypatch.context() as patched:
        patched.setattr(stateful, "OperatorState", lambda **fields: real(**{**fields, "spark_version": "4.10.0"}))
        run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    arrive(tmp_path, 1, [(2, "a")])
    with pytest.raises(InvalidError, match=r"newer Spark.*written_by='4.10.0', running='4.\d.*fork") as refused:
        run_batch(pipeline(tmp_path, keyed, "update"), run_key="second")
    assert not refused.value.retryable
    assert open_log(str(tmp_path / "log")).log.outcome(1) is None


# --- event times


@pytest.mark.parametrize("kind", ["string", pytest.param("int", marks=pytest.mark.prove)])
def test_watermark_on_a_column_that_is_no_timestamp_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    arrive(tmp_path, 0, [(1, "a")])

    def marked(events: DataFrame) -> DataFrame:
        return keyed(events.withColumn("arrived", F.lit("1").cast(kind)).withWatermark("arrived", "5 minutes"))

    with pytest.raises(DataError, match=r"EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE', name='`arrived`'") as refused:
        run_batch(pipeline(tmp_path, marked, "update"), run_key="first")
    assert not refused.value.retryable


NULLS = [[(1, "a"), (None, "a"), (None, "b")], [(None, "a")], [(61, "a"), (None, "c")], [(121, "d"), (None, "a")]]


def by_time(events: DataFrame) -> DataFrame:
    counted = events.withWatermark("t", "5 minutes").groupBy("t", "k").count()
    return counted.selectExpr("t AS at", "k", "count AS n")


def distinct_within(events: DataFrame) -> DataFrame:
    return distinct_within_watermark(events).withColumn("at", F.coalesce("at", F.lit(START)))


@pytest.mark.prove
@pytest.mark.parametrize("transform", [windowed, by_time, distinct_within])
def test_null_event_times_are_those_of_a_streaming_query(
    spark: SparkSession, tmp_path: Path, transform: Transform
) -> None:
    """Windows drop them. ``where`` counts them as filtered."""
    found = []
    for number, records in enumerate(NULLS):
        arrive(tmp_path, number, records)
        done = run_batch(pipeline(tmp_path, transform, "append"), run_key=f"run {number}")
        frame = read_committed(spark, str(tmp_path / "log"), version=number, since=number - 1)
        found.append((rows_of(frame) if frame.columns else [], done.counts["late"]))
    assert found == streamed(spark, tmp_path, transform, "append")


def test_records_without_an_event_time_can_be_counted(tmp_path: Path) -> None:
    arrive(tmp_path, 0, NULLS[0])
    done = run_batch(pipeline(tmp_path, windowed, "append", where="t IS NOT NULL"), run_key="first")
    assert (done.counts["read"], done.counts["filtered"]) == (3, 2)
