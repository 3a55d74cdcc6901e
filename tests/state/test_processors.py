"""
Stateful processors give the rows of a real Structured Streaming query on the same micro-batches.

Each batch loads the state from the log. One attempt dies after it has written its state, and is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessorHandle

from airflow_provider_streamsem import FilesTable, State, read_committed, read_state, rollback, run_batch, verify
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.spark.stateful import MicroBatch
from tests.state.crashes import crash_at, run_and_crash_after_state_write
from tests.state.idle_pipeline import run
from tests.state.processors import RESULT, Processor, closing, minutes_of, of_rows, result
from tests.state.stateful_pipeline import ORIGIN_MS, arrive, pipeline, rows_of
from tests.state.streaming_query import streamed

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
CUTS = [[(1, "a"), (2, "a"), (7, "b")], [(30, "a"), (3, "b")], [(40, "a"), (2, "a"), (41, "c")]]
"""minute and key of each record of each batch"""


class Variables(Processor):
    """
    Keeps values, lists and maps without a time to live, and with one of a millisecond (until the next batch) or an hour.

    In each batch it emits what it finds. A timer fires in the next batch, emits what it finds and deletes the variables of the hour.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.kept = {
            ttl_ms: (
                handle.getValueState(f"value{ttl_ms}", "n long", ttl_ms),
                handle.getListState(f"list{ttl_ms}", "n long, name string", ttl_ms),
                handle.getMapState(f"map{ttl_ms}", "m int", "n long", ttl_ms),
            )
            for ttl_ms in (None, 1, HOUR_MS)
        }

    def found(self) -> str:
        texts = []
        for value, listed, by_minute in self.kept.values():
            counted = sorted((m, n) for (m,), (n,) in by_minute.iterator())
            texts.append(f"{value.get()} {list(listed.get())} {counted}")
        return "; ".join(texts)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        new, before = minutes_of(rows), self.found()
        for value, listed, by_minute in self.kept.values():
            value.update(((value.get()[0] if value.exists() else 0) + len(new),))
            listed.appendList([(m, f"minute {m}") for m in new])
            for m in new:
                by_minute.updateValue((m,), ((by_minute.getValue((m,))[0] if by_minute.containsKey((m,)) else 0) + 1,))
            if by_minute.containsKey((40,)):
                by_minute.removeKey((1,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield result(f"{key[0]} {before}", len(new))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        found = self.found()
        for variable in self.kept[HOUR_MS]:
            variable.clear()
        yield result(f"{key[0]} timer: {found}", len(list(self.handle.listTimers())))


def variables(events: DataFrame) -> DataFrame:
    return events.groupBy("k").transformWithStateInPandas(Variables(), RESULT, "Update", "ProcessingTime")


@pytest.mark.prove
@pytest.mark.parametrize("transform", [variables, closing, of_rows])
def test_processor_gives_the_rows_of_a_streaming_query_also_after_a_killed_attempt(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transform: Callable[[DataFrame], DataFrame]
) -> None:
    found = []
    spec = pipeline(tmp_path, transform, "update", state=State(output_mode="update", partitions=1))
    for number, events in enumerate(CUTS):
        arrive(tmp_path, number, events)
        if number == 1:
            run_and_crash_after_state_write(monkeypatch, spec, f"run {number}")
        done = run_batch(spec, run_key=f"run {number}")
        frame = read_committed(spark, str(tmp_path / "log"), version=number, since=number - 1)
        found.append((rows_of(frame), done.counts["late"]))
    assert found == streamed(spark, tmp_path, transform, "update")
    assert verify(str(tmp_path / "log")).violations == []


class Silence(Processor):
    """Emits the time of the batch and the number of records, and again when no record of the key has come for ten minutes."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self.count.update((int(initialState["n"].iloc[0]),))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n = (self.count.get()[0] if self.count.exists() else 0) + len(minutes_of(rows))
        self.count.update((n,))
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now_ms + 10 * 60_000)
        yield result(f"{key[0]} at {(now_ms - ORIGIN_MS) / 60_000}", n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        yield result(f"{key[0]} silent at {(now_ms - ORIGIN_MS) / 60_000}", self.count.get()[0])
        self.count.clear()


def silent(events: DataFrame, lookups: Mapping[str, DataFrame]) -> DataFrame:
    return events.groupBy("k").transformWithStateInPandas(
        Silence(), RESULT, "Update", "ProcessingTime", initialState=lookups["opening"].groupBy("k")
    )


@pytest.mark.prove
def test_timer_fires_once_in_a_batch_without_records_and_the_initial_state_is_that_of_the_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt of a batch has the time of its plan. Rows that the lookup gets later are not in the state."""
    opening = tmp_path / "opening"
    opening.mkdir()
    (opening / "0.json").write_text('{"k": "a", "n": 100}\n')
    spec = pipeline(
        tmp_path, silent, "update", state=State(output_mode="update", partitions=1, close_after_s=900),
        lookups={"opening": FilesTable(path=str(opening), format="json", schema="k string, n long")},
    )  # fmt: skip
    arrive(tmp_path, 0, [(1, "a")])
    with monkeypatch.context() as patched:
        crash_at(patched, MicroBatch, "after")
        with pytest.raises(StreamsemError):
            run(tmp_path, 5, "first", spec)
    (opening / "1.json").write_text('{"k": "b", "n": 1000}\n')
    assert run(tmp_path, 6, "first", spec) == "committed"
    assert run(tmp_path, 19, "too early", spec) == "empty"
    with monkeypatch.context() as patched:
        crash_at(patched, MicroBatch, "after")
        with pytest.raises(StreamsemError):
            run(tmp_path, 25, "idle", spec)
    assert run(tmp_path, 30, "idle", spec) == "committed"
    arrive(tmp_path, 1, [(2, "b")])
    assert run(tmp_path, 31, "last", spec) == "committed"
    found = sorted((row["k"], row["n"]) for row in read_committed(spark, str(tmp_path / "log")).collect())
    assert found == [("a at 5.0", 101), ("a silent at 25.0", 101), ("b at 31.0", 1)]


class Changing(Processor):
    """Counts the records of a key, and keeps another value if its type is given."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")
        self.other = handle.getValueState("other", f"v {self.kind}") if self.kind else None

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n = (self.count.get()[0] if self.count.exists() else 0) + sum(map(len, rows))
        self.count.update((n,))
        if self.other is not None:
            self.other.update((n if self.kind == "int" else str(n),))
        yield result(key[0], n)


def changing(kind: str) -> Callable[[DataFrame], DataFrame]:
    def transform(events: DataFrame) -> DataFrame:
        return events.groupBy("k").transformWithStateInPandas(
            statefulProcessor=Changing(kind), outputStructType=RESULT, outputMode="Update", timeMode="None"
        )

    return transform


@pytest.mark.prove
@pytest.mark.parametrize("undone_by", ["crash", "rollback"])
def test_variables_of_a_batch_that_was_not_committed_or_was_rolled_back_do_not_limit_a_later_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undone_by: str
) -> None:
    """Both batches have the same number for Spark, which keeps the schemas of variables by this number."""
    integer, text = (pipeline(tmp_path, changing(kind), "update") for kind in ("int", "string"))
    arrive(tmp_path, 0, [(1, "a"), (2, "b")])
    run_batch(pipeline(tmp_path, changing(""), "update"), run_key="first")
    arrive(tmp_path, 1, [(3, "a")])
    if undone_by == "crash":
        run_and_crash_after_state_write(monkeypatch, integer, "second")
    else:
        run_batch(integer, run_key="undone")
        rollback(integer, 0)
    run_batch(text, run_key="second")
    arrive(tmp_path, 2, [(4, "a"), (5, "c")])
    run_batch(text, run_key="third")
    rows = read_committed(spark, str(tmp_path / "log")).collect()
    assert sorted((row["k"], row["n"]) for row in rows) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1)]
    values = read_state(spark, str(tmp_path / "log"), options={"stateVarName": "other"})
    assert sorted(map(tuple, values.selectExpr("key.k", "value.v").collect())) == [("a", "3"), ("c", "1")]
