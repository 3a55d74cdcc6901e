"""The state of each version is read as a DataFrame, and reading writes nothing to the log."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from airflow_provider_streamsem import State, read_state, run_batch
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.commitlog.move import move_log
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from tests.state.processors import processed
from tests.state.stateful_pipeline import arrive, pipeline
from tests.state.transforms import joined, keyed

pytestmark = pytest.mark.spark


def counts(spark: SparkSession, root: Path, **arguments: Any) -> dict[str, int]:
    rows = read_state(spark, str(root / "log"), **arguments).selectExpr("key.*", "value.*").collect()
    return {row["k"]: row["count"] for row in rows}


def listing(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (root / "log").rglob("*")}


def test_state_of_each_version_is_that_after_its_batch(spark: SparkSession, tmp_path: Path) -> None:
    state = State(output_mode="update", partitions=2, keep_versions=1)
    spec = pipeline(tmp_path, keyed, "update", state=state)
    for number, events in enumerate([[(1, "a"), (2, "b")], [(3, "a")], [(4, "c"), (5, "a")]]):
        arrive(tmp_path, number, events)
        run_batch(spec, run_key=f"run {number}")
    before = listing(tmp_path)
    assert counts(spark, tmp_path) == {"a": 3, "b": 1, "c": 1}
    assert counts(spark, tmp_path, version=1) == {"a": 2, "b": 1}
    assert counts(spark, tmp_path, version=0) == {"a": 1, "b": 1}
    assert listing(tmp_path) == before
    vacuum(spec)
    assert counts(spark, tmp_path, version=1) == {"a": 2, "b": 1}
    with pytest.raises(InvalidError, match="are missing or were changed"):
        read_state(spark, str(tmp_path / "log"), version=0)
    with pytest.raises(InvalidError, match="no such operator"):
        read_state(spark, str(tmp_path / "log"), operator=1)
    with pytest.raises(InvalidError, match="no such closed version"):
        read_state(spark, str(tmp_path / "log"), version=9)


def test_state_of_a_log_whose_path_has_spaces_is_read(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "a log at 100%"
    arrive(root, 0, [(1, "a")])
    run_batch(pipeline(root, keyed, "update"), run_key="first")
    assert counts(spark, root) == {"a": 1}


def test_side_of_a_join_is_read_with_sparks_option(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a"), (2, "b")])
    run_batch(pipeline(tmp_path, joined, "append"), run_key="first")
    left = read_state(spark, str(tmp_path / "log"), options={"joinSide": "left"})
    assert sorted(row["k"] for row in left.selectExpr("value.*").collect()) == ["a", "b"]


class Remembering(StatefulProcessor):
    """Keeps the number of records of a key (a value), their minutes (a list) and the number of records of each minute (a map)."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")
        self.minutes = handle.getListState("minutes", "minute int")
        self.of_minute = handle.getMapState("of_minute", "minute int", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n = self.count.get()[0] if self.count.exists() else 0
        for minute in (time.minute for part in rows for time in part["t"]):
            n += 1
            self.minutes.appendValue((minute,))
            before = self.of_minute.getValue((minute,))[0] if self.of_minute.containsKey((minute,)) else 0
            self.of_minute.updateValue((minute,), (before + 1,))
        self.count.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


def remembered(events: DataFrame) -> DataFrame:
    return events.groupBy("k").transformWithStateInPandas(
        statefulProcessor=Remembering(), outputStructType="k string, n long", outputMode="Update", timeMode="None"
    )


@pytest.mark.prove
def test_value_list_and_map_of_a_stateful_processor_are_read_also_after_the_log_was_moved(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's metadata of the operator has the absolute paths of its schema files, at the location where the batch was run."""
    for number, events in enumerate([[(1, "a"), (2, "b"), (1, "a")], [(3, "a"), (2, "c")]]):
        arrive(tmp_path, number, events)
        run_batch(pipeline(tmp_path, remembered, "update"), run_key=f"run {number}")
    for log in ("log", "moved"):

        def rows(variable: str, *columns: str, log: str = log, **arguments: Any) -> list[tuple[Any, ...]]:
            read = read_state(spark, str(tmp_path / log), options={"stateVarName": variable}, **arguments)
            return sorted(tuple(row) for row in read.selectExpr("key.k", *columns).collect())

        before = listing(tmp_path) if log == "log" else {}
        assert rows("count", "value.n") == [("a", 3), ("b", 1), ("c", 1)]
        assert rows("count", "value.n", version=0) == [("a", 2), ("b", 1)]
        assert rows("minutes", "list_element.minute") == [("a", 1), ("a", 1), ("a", 3), ("b", 2), ("c", 2)]
        of_minute = rows("of_minute", "user_map_key.minute", "user_map_value.n")
        assert of_minute == [("a", 1, 2), ("a", 3, 1), ("b", 2, 1), ("c", 2, 1)]
        if log == "log":
            assert listing(tmp_path) == before
            (tmp_path / "log").rename(tmp_path / "moved")


@pytest.mark.prove
@pytest.mark.parametrize("by_hand", [False, True])
def test_moved_log_continues_the_state_of_a_stateful_processor(
    spark: SparkSession, tmp_path: Path, by_hand: bool
) -> None:
    spec = pipeline(tmp_path, processed, "update")
    arrive(tmp_path, 0, [(1, "a"), (2, "b"), (3, "a")])
    run_batch(spec, run_key="first")
    if by_hand:
        (tmp_path / "log").rename(tmp_path / "other")
    move_log(*(commit_log_at(str(tmp_path / name)) for name in ("log", "other")), already_moved=by_hand)
    shutil.rmtree(tmp_path / "log", ignore_errors=True)
    arrive(tmp_path, 1, [(4, "a")])
    moved = spec.replace(log=str(tmp_path / "other"))
    assert run_batch(moved, run_key="second").status == "committed"
    states = read_state(spark, moved.log, options={"stateVarName": "count"}).selectExpr("key.k", "value.n").collect()
    assert sorted(map(tuple, states)) == [("a", 3), ("b", 1)]


def test_moved_log_continues_its_state(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    spec = pipeline(tmp_path, keyed, "update")
    run_batch(spec, run_key="first")
    move_log(commit_log_at(spec.log), commit_log_at(str(tmp_path / "other")))
    (tmp_path / "log").rename(tmp_path / "deleted")
    arrive(tmp_path, 1, [(2, "a")])
    run_batch(spec.replace(log=str(tmp_path / "other")), run_key="second")
    rows = read_state(spark, str(tmp_path / "other")).selectExpr("key.*", "value.*").collect()
    assert [(row["k"], row["count"]) for row in rows] == [("a", 2)]


READ = """
import sys
from pyspark.sql import SparkSession
from airflow_provider_streamsem import read_state
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print([tuple(row) for row in read_state(spark, sys.argv[1]).selectExpr("key.k", "value.count").collect()])
"""


@pytest.mark.prove
def test_process_that_has_run_no_batch_reads_the_state(tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a"), (2, "a")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    reader = subprocess.run([sys.executable, "-c", READ, str(tmp_path / "log")], capture_output=True, text=True)
    assert reader.stdout.strip().endswith("[('a', 2)]"), reader.stderr


def test_pipeline_without_state_has_none_to_read(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    run_batch(pipeline(tmp_path, lambda events: events, "append", state=None), run_key="first")
    with pytest.raises(InvalidError, match="keeps no state"):
        read_state(spark, str(tmp_path / "log"))
