"""A batch without records closes due windows exactly once, also after retries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    Dedup,
    FilesSink,
    FilesSource,
    Pipeline,
    State,
    read_committed,
    reprocess,
    run_batch,
    verify,
)
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.readers.conditions import Freshness
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.readers.waiting import waiting
from airflow_provider_streamsem.spark.stateful import MicroBatch
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.state.crashes import crash_at
from tests.state.idle_pipeline import HOUR, IDLE, at, run
from tests.state.stateful_pipeline import ORIGIN_MS, START, arrive, outcome, pipeline
from tests.state.transforms import keyed, windowed

pytestmark = pytest.mark.spark

EVENTS = [(1, "a"), (2, "a"), (7, "b"), (8, "b")]


def minutes(ms: int | None) -> float:
    """A time as minutes after the hour of the first event."""
    assert ms is not None
    return (ms - ORIGIN_MS) / 60_000


def rows(spark: SparkSession, root: Path) -> list[tuple[float, str, int]]:
    committed = read_committed(spark, str(root / "log")).collect()
    return sorted(((row["at"] - START).total_seconds() / 60, row["k"], row["n"]) for row in committed)


def test_no_data_batch_closes_the_windows_that_the_watermark_has_passed(spark: SparkSession, tmp_path: Path) -> None:
    """As in Structured Streaming, the batch that advances the watermark is followed by one that applies it."""
    state = State(output_mode="append", partitions=2)
    spec = pipeline(tmp_path, windowed, "append", state=state)
    arrive(tmp_path, 0, [*EVENTS, (14, "c")])
    assert run(tmp_path, 0, "first", spec) == "committed"
    assert rows(spark, tmp_path) == []
    watermark_ms = lag(spec).watermark_ms
    assert watermark_ms is not None
    assert Freshness(pipeline=spec, watermark_ms=watermark_ms).check().met
    assert not Freshness(pipeline=spec, watermark_ms=watermark_ms + 1).check().met
    assert run(tmp_path, 0, "second", spec) == "committed"
    assert rows(spark, tmp_path) == [(0.0, "a", 2)]
    assert run(tmp_path, 10 * HOUR, "third", spec) == "empty"
    assert outcome(tmp_path, 1).counts["read"] == 0
    assert outcome(tmp_path, 1).next == outcome(tmp_path, 0).next
    assert verify(str(tmp_path / "log")).violations == []


@pytest.mark.parametrize(
    ("idle_after_s", "watermarks"), [pytest.param(None, [5, 5, 5, 61], marks=pytest.mark.prove), (600, [5, 5, 65, 65])]
)
def test_idle_source_of_two_holds_back_the_watermark_until_idle_after_s(
    tmp_path: Path, idle_after_s: int | None, watermarks: list[int]
) -> None:
    def united(streams: dict[str, DataFrame]) -> DataFrame:
        one, two = (streams[name].withWatermark("t", "5 minutes") for name in ("one", "two"))
        counted = one.union(two).groupBy(F.window("t", "5 minutes"), "k").count()
        return counted.selectExpr("window.start AS at", "k", "count AS n")

    sources = {
        name: FilesSource(path=str(tmp_path / name / "in"), format="parquet", schema="t timestamp, k string", hive_partitions=False)
        for name in ("one", "two")
    }  # fmt: skip
    spec = Pipeline(
        name="idle", log=str(tmp_path / "log"), sources=sources, sinks={"out": FilesSink(path=str(tmp_path / "out"))}, transform=united,
        state=State(output_mode="append", partitions=1, idle_after_s=idle_after_s),
    )  # fmt: skip
    arrive(tmp_path / "two", 0, [(10, "b")])
    for number, (minute, name, time) in enumerate([(10, "one", 10), (12, "one", 60), (21, "one", 70), (22, "two", 66)]):
        arrive(tmp_path / name, number, [(time, "a")])
        assert run(tmp_path, minute, f"run {number}", spec) == "committed"
        assert minutes(outcome(tmp_path, number).watermark_ms) == watermarks[number]


def test_idle_source_closes_windows_by_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, EVENTS)
    run(tmp_path, 10, "first")
    run(tmp_path, 10, "the watermark of the records")
    assert [minutes(outcome(tmp_path, n).watermark_ms) for n in (0, 1)] == [3, 3]
    assert run(tmp_path, 69, "too early") == "empty"
    assert run(tmp_path, 71, "idle") == "committed"
    assert minutes(outcome(tmp_path, 2).watermark_ms) == 11
    assert rows(spark, tmp_path) == [(0.0, "a", 2), (5.0, "b", 2)]
    assert run(tmp_path, 10_000, "nothing is left to close") == "empty"

    arrive(tmp_path, 1, [(9, "late"), (10, "late"), (11, "d")])
    run(tmp_path, 10_000, "later")
    assert outcome(tmp_path, 3).counts["late"] == 1, "the window of minute 9 was closed, and that of minute 10 was not"
    run(tmp_path, 20_000, "idle again")
    assert rows(spark, tmp_path) == [(0.0, "a", 2), (5.0, "b", 2), (10.0, "d", 1), (10.0, "late", 1)]
    assert verify(str(tmp_path / "log")).violations == []


@pytest.mark.parametrize("step", [pytest.param("result", marks=pytest.mark.prove), "after"])
def test_retry_of_a_no_data_batch_applies_the_watermark_of_its_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    arrive(tmp_path, 0, EVENTS)
    run(tmp_path, 10, "first")
    crash_at(monkeypatch, MicroBatch, step)
    with pytest.raises(StreamsemError):
        run(tmp_path, 71, "idle")
    arrive(tmp_path, 1, [(30, "c")])
    assert run(tmp_path, 10_000, "idle") == "committed"
    assert minutes(outcome(tmp_path, 1).watermark_ms) == 11
    assert outcome(tmp_path, 1).counts["read"] == 0, "the records that have arrived belong to the next version"
    assert rows(spark, tmp_path) == [(0.0, "a", 2), (5.0, "b", 2)]
    run(tmp_path, 10_000, "next")
    assert outcome(tmp_path, 2).counts["read"] == 1


def test_reprocessed_no_data_batch_closes_the_same_windows(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, EVENTS)
    run(tmp_path, 10, "first")
    run(tmp_path, 71, "idle")
    spec = pipeline(tmp_path, lambda events: windowed(events).withColumn("n", F.col("n") * 10), "append", state=IDLE)
    reprocess(spec, 1, log=at(tmp_path, 10_000))
    assert rows(spark, tmp_path) == [(0.0, "a", 20), (5.0, "b", 20)]
    assert minutes(outcome(tmp_path, 2).watermark_ms) == 11, "a reprocessing run changes no state"
    assert verify(str(tmp_path / "log")).violations == []


@pytest.mark.prove
def test_no_data_batch_uses_columns_that_the_files_define(spark: SparkSession, tmp_path: Path) -> None:
    """A source without a schema gets its columns from its files, and this batch reads none. Dedup and `where` have no effect."""
    spark.sql("SELECT timestamp'2024-01-01 00:01:00Z' AS t, 'a' AS k, 1L AS id").write.parquet(str(tmp_path / "in"))
    spec = pipeline(
        tmp_path, windowed, "append", state=IDLE, where="id > 0", dedup=Dedup(keys=["id"], rows=10),
        source=FilesSource(path=str(tmp_path / "in"), format="parquet"),
    )  # fmt: skip
    run(tmp_path, 10, "first", spec)
    run(tmp_path, 71, "idle", spec)
    assert rows(spark, tmp_path) == [(0.0, "a", 1)]


@pytest.mark.prove
def test_reprocessed_no_data_batch_keeps_the_ids_of_later_versions(tmp_path: Path) -> None:
    source = FilesSource(path=str(tmp_path / "in"), format="parquet", schema="t timestamp, k string")
    spec = pipeline(tmp_path, windowed, "append", state=IDLE, source=source, dedup=Dedup(keys=["k"], rows=10))
    arrive(tmp_path, 0, [(1, "a")])
    run(tmp_path, 10, "first", spec)
    run(tmp_path, 71, "idle", spec)
    arrive(tmp_path, 1, [(100, "b")])
    run(tmp_path, 110, "later", spec)
    reprocess(spec, 1, log=at(tmp_path, 120))
    arrive(tmp_path, 2, [(101, "b"), (102, "c")])
    run(tmp_path, 130, "last", spec)
    assert (outcome(tmp_path, 4).counts["duplicates"], outcome(tmp_path, 4).counts["parsed"]) == (1, 2)


def test_no_data_batch_has_the_columns_that_the_source_got_since_the_last_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    arrive(tmp_path, 0, EVENTS)
    run(tmp_path, 10, "first")
    source = FilesSource(path=str(tmp_path / "in"), format="parquet", schema="t timestamp, origin string, k string")
    spec = pipeline(
        tmp_path, lambda events: windowed(events.where("origin IS NULL")), "append", state=IDLE, source=source,
        where="origin IS NULL",
    )  # fmt: skip
    assert run(tmp_path, 71, "idle", spec) == "committed"
    assert rows(spark, tmp_path) == [(0.0, "a", 2), (5.0, "b", 2)]


def test_state_that_no_watermark_can_close_gets_no_no_data_batches(tmp_path: Path) -> None:
    """A keyed count has no watermark, and a watermark in the future passes no window when the clock advances."""
    spec = pipeline(tmp_path, keyed, "update", state=State(output_mode="update", partitions=2, close_after_s=60))
    arrive(tmp_path, 0, EVENTS)
    run(tmp_path, 10, "first", spec)
    assert [run(tmp_path, minute, f"idle {minute}", spec) for minute in (20, 30)] == ["empty"] * 2
    ahead = tmp_path / "ahead"
    arrive(ahead, 0, [(1_000, "a"), (1_010, "b")])
    run(ahead, 10, "first")
    assert run(ahead, 20, "the watermark of the records") == "committed"
    assert [run(ahead, minute, f"idle {minute}") for minute in (100, 200, 300)] == ["empty"] * 3
    assert run(ahead, 1_100, "the clock has passed the watermark") == "committed"


def test_sensor_finds_a_no_data_batch_due(tmp_path: Path) -> None:
    spec = pipeline(tmp_path, windowed, "append", state=IDLE)
    arrive(tmp_path, 0, EVENTS)
    run(tmp_path, 10, "first")
    run(tmp_path, 10, "the watermark of the records")

    def is_due(minute: float) -> bool:
        return waiting(spec, clock=ManualClock(ORIGIN_MS + int(minute * 60_000))).is_due

    assert [is_due(69), is_due(71)] == [False, True]
    run(tmp_path, 71, "idle")
    assert not is_due(10_000)


def test_drain_ends_after_one_no_data_batch(spark: SparkSession, tmp_path: Path) -> None:
    spec = pipeline(tmp_path, windowed, "append", state=IDLE)
    arrive(tmp_path, 0, EVENTS)
    run_batch(spec, run_key="first", drain=True, log=at(tmp_path, 10))
    result = run_batch(spec, run_key="idle", drain=True, log=at(tmp_path, 71))
    assert (result.batches, result.counts["written.out"]) == (1, 2)
    assert run_batch(spec, run_key="idle", drain=True, log=at(tmp_path, 200)).version == result.version


def test_pipeline_without_rows_in_its_state_plans_no_no_data_batch(tmp_path: Path) -> None:
    def stateless(events: DataFrame) -> DataFrame:
        return events.selectExpr("t AS at", "k", "1L AS n")

    spec = pipeline(tmp_path, stateless, "append", state=IDLE)
    arrive(tmp_path, 0, EVENTS)
    run(tmp_path, 10, "first", spec)
    assert run(tmp_path, 10_000, "idle", spec) == "empty"


def test_state_command_shows_operators_rows_and_watermark_of_each_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrive(tmp_path, 0, EVENTS)
    run(tmp_path, 10, "first")
    run(tmp_path, 71, "idle")
    assert main(["state", str(tmp_path / "log"), "--json"]) == 0
    newest, first = json.loads(capsys.readouterr().out)["versions"]
    assert (first["version"], first["watermark_ms"]) == (0, ORIGIN_MS + 3 * 60_000)
    assert [(one["name"], one["rows"]) for one in first["operators"]] == [("stateStoreSave", 2)]
    assert first["operators"][0]["bytes"] > 0
    assert [(one["name"], one["rows"]) for one in newest["operators"]] == [("stateStoreSave", 0)]
    assert main(["state", str(tmp_path / "log"), "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "2024-01-01 00:11:00" in out
    assert "stateStoreSave" in out
