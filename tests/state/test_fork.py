"""A fork continues the state of a version, and its rows are compared with those of the original."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    FilesSink,
    Limits,
    Pipeline,
    State,
    diff,
    diff_state,
    fork,
    read_state,
    reprocess,
    run_batch,
    verify,
)
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.errors import ConflictError, DataError, InvalidError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from tests.prepared_directory import PreparedDirectory
from tests.state.processors import processed
from tests.state.stateful_pipeline import arrive, counts, pipeline
from tests.state.transforms import joined, keyed

pytestmark = pytest.mark.spark
BATCHES = [[(1, "a"), (2, "b")], [(3, "a")], [(4, "c"), (5, "a")]]


def forked(root: Path, transform: Any = keyed, **changes: Any) -> Pipeline:
    arguments = {"log": str(root / "fork" / "log"), "sinks": {"out": FilesSink(path=str(root / "fork" / "out"))}}
    return pipeline(root, transform, "update", **{**arguments, **changes})


def tenfold(events: DataFrame) -> DataFrame:
    return keyed(events).withColumn("n", F.col("n") * 10)


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PreparedDirectory:
    root = tmp_path_factory.mktemp("fork") / "root"
    for number, events in enumerate(BATCHES):
        arrive(root, number, events)
        run_batch(pipeline(root, keyed, "update"), run_key=f"run {number}")
    return PreparedDirectory(root)


@pytest.fixture
def root(prepared: PreparedDirectory) -> Path:
    """The directory after BATCHES."""
    return prepared.restore()


def test_fork_continues_the_state_of_its_version_and_leaves_that_of_the_original(
    spark: SparkSession, root: Path
) -> None:
    state = State(output_mode="update", partitions=2, keep_versions=1)
    assert fork(forked(root), str(root / "log"), version=0).offsets == {"files": 1}
    run_batch(forked(root, state=state), run_key="run", drain=True)
    assert counts(spark, root / "fork") == {"a": 3, "c": 1}  # b has no record after version 0
    rows = read_state(spark, str(root / "fork" / "log")).selectExpr("key.*", "value.*").collect()
    assert {row["k"]: row["count"] for row in rows} == {"a": 3, "b": 1, "c": 1}
    reprocess(forked(root, tenfold), 0)  # continues the state of the original's version
    assert verify(forked(root)).violations == []
    for log in (root / "fork", root):
        arrive(root, 9, [(9, "b")])
        spec = forked(root, state=state) if log != root else pipeline(root, keyed, "update")
        vacuum(spec)
        run_batch(spec, run_key="later")
        assert counts(spark, log)["b"] == 2


def test_difference_lists_the_rows_and_columns_of_each_side(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fork(forked(root), str(root / "log"), version=1)
    with pytest.raises(InvalidError, match="no closed version"):
        diff(spark, str(root / "fork" / "log"), str(root / "log"))
    run_batch(forked(root), run_key="run")
    difference = diff(spark, str(root / "fork" / "log"), str(root / "log"))
    assert (difference.rows.count(), difference.is_comparable, difference.original.rows, difference.fork.rows) == (
        0,
        True,
        2,
        2,
    )
    assert main(["diff", str(root / "fork" / "log"), str(root / "log")]) == 0
    reprocess(forked(root, lambda events: tenfold(events).withColumn("extra", F.lit(1))), 0)
    capsys.readouterr()
    assert main(["diff", str(root / "fork" / "log"), str(root / "log"), "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["original"]["different_rows"], shown["fork"]["different_rows"], shown["fork"]["columns"]) == (
        2,
        2,
        ["extra"],
    )
    rows = {(row["only_in"], json.loads(row["row"])["k"], json.loads(row["row"])["n"]) for row in shown["rows"]}
    assert rows == {("original", "a", 3), ("fork", "a", 30), ("original", "c", 1), ("fork", "c", 10)}
    arrive(root, 3, [(6, "a")])
    run_batch(pipeline(root, keyed, "update"), run_key="later")
    assert main(["diff", str(root / "fork" / "log"), str(root / "log")]) == 1
    assert "offsets or watermarks differ" in capsys.readouterr().out
    with pytest.raises(InvalidError, match="not the log of a fork"):
        diff(spark, str(root / "log"), str(root / "log"))
    with pytest.raises(InvalidError, match="made from another log"):
        diff(spark, str(root / "fork" / "log"), str(root / "fork" / "log"))


@pytest.mark.prove
def test_difference_compares_microseconds_and_ignores_map_order_and_older_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    def rows(micros: str, *entries: str) -> Any:
        inner = f"map({', '.join(entries)})"
        nested = (
            f"array(named_struct('a', {inner}, 'b', map('x', {inner}), 'c', CAST(null AS struct<m: map<int,int>>)))"
        )
        columns = f"timestamp'2024-01-01 00:00:00.{micros}' AS at", f"{inner} AS m", f"{nested} AS n"
        return lambda events: events.selectExpr("k", *columns)

    for number, events in enumerate(BATCHES[:2]):
        arrive(tmp_path, number, events)
        before = pipeline(tmp_path, rows("123456", "1", "2", "3", "4"), "update", state=None)
        run_batch(before, run_key=f"run {number}")
    reprocess(before, 0)  # the rows of version 0 belong to the original only
    logs = str(tmp_path / "fork" / "log"), str(tmp_path / "log")
    fork(forked(tmp_path, rows("123456", "3", "4", "1", "2"), state=None), logs[1], version=0)
    run_batch(forked(tmp_path, rows("123456", "3", "4", "1", "2"), state=None), run_key="run")
    same = diff(spark, *logs)
    assert (same.rows.count(), same.original.rows, same.is_comparable) == (0, 1, True)
    reprocess(forked(tmp_path, rows("123999", "3", "4", "1", "2"), state=None), 0)
    assert diff(spark, *logs).rows.count() == 2


def compared_states(spark: SparkSession, root: Path) -> list[tuple[str, int, int, set[tuple[str, str]], str]]:
    """Name, rows of both sides, side and row text of each difference, and why the state was not compared."""
    return [
        (
            each.name,
            each.original,
            each.fork,
            {(row["only_in"], row["row"]) for row in (each.rows.collect() if each.rows is not None else [])},
            each.reason,
        )
        for each in diff_state(spark, str(root / "fork" / "log"), str(root / "log"))
    ]


def test_difference_of_the_state_lists_the_keys_whose_values_differ(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_b(events: DataFrame) -> DataFrame:
        return keyed(events.where("k <> 'b'"))

    fork(forked(root, without_b, state=State(output_mode="update", partitions=3)), str(root / "log"), version=-1)
    run_batch(forked(root, without_b, state=State(output_mode="update", partitions=3)), run_key="run", drain=True)
    [(name, original, copy, rows, reason)] = compared_states(spark, root)
    assert (name, original, copy, reason) == ("stateStoreSave", 3, 2, "")
    assert [(side, json.loads(text)["key"]) for side, text in rows] == [("original", {"k": "b"})]
    arrive(root, 9, [(9, "a"), (9, "b")])
    run_batch(pipeline(root, keyed, "update"), run_key="later")
    logs = [str(root / "fork" / "log"), str(root / "log")]
    assert main(["diff", *logs, "--json", "--limit", "2"]) == 1
    [state] = json.loads(capsys.readouterr().out)["state"]
    assert (state["original"], state["fork"]) == ({"rows": 3, "different_rows": 2}, {"rows": 2, "different_rows": 1})
    assert (len(state["rows"]), state["not_compared"]) == (2, "")
    assert main(["diff", *logs]) == 1
    assert "state of operator 0 stateStoreSave: original 3 rows, 2 of them only there" in capsys.readouterr().out


@pytest.mark.prove
def test_state_is_equal_whatever_the_batches_are_and_both_sides_of_a_join_are_compared(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, events in enumerate([[(1, "a"), (2, "b")], [(3, "a"), (4, "b")]]):
        arrive(tmp_path, number, events)
    original = pipeline(tmp_path, joined, "append", limits=Limits(max_files=1))
    copy = forked(tmp_path, joined, state=State(output_mode="append", partitions=2))
    run_batch(original, run_key="run", drain=True)
    fork(copy, original.log, version=-1)
    run_batch(copy, run_key="run")
    for name, original_rows, fork_rows, rows, reason in compared_states(spark, tmp_path):
        assert (original_rows, fork_rows, rows, reason) == (4, 4, set(), ""), name
    arrive(tmp_path, 2, [(5, "c")])
    run_batch(original, run_key="later")
    [left, right] = compared_states(spark, tmp_path)
    assert [(side[0], side[1], side[2], len(side[3])) for side in (left, right)] == [
        ("symmetricHashJoin left", 5, 4, 1),
        ("symmetricHashJoin right", 5, 4, 1),
    ]


@pytest.mark.prove
def test_state_that_cannot_be_compared_is_named_with_the_reason(spark: SparkSession, root: Path) -> None:
    def of_two(events: DataFrame) -> DataFrame:
        return events.groupBy("k", "t").count().selectExpr("t AS at", "k", "count AS n")

    def twice(events: DataFrame) -> DataFrame:
        return keyed(events.dropDuplicates(["k"]))

    for name, transform in (("columns", of_two), ("operators", twice), ("processor", processed)):
        sinks = {"out": FilesSink(path=str(root / name / "fork" / "out"))}
        copy = forked(root, transform, log=str(root / name / "fork" / "log"), sinks=sinks)
        fork(copy, str(root / "log"), version=-1)
        run_batch(copy, run_key="run", drain=True)
    found = {
        name: [(each.name, each.rows, each.reason) for each in diff_state(spark, str(root / name / "fork" / "log"), str(root / "log"))]
        for name in ("columns", "operators", "processor")
    }  # fmt: skip
    [(name, rows, reason)] = found["columns"]
    assert (name, rows) == ("stateStoreSave", None)
    assert reason.startswith("the columns differ: the original has struct<key:struct<k:string>")
    [counted, (dropped, rows, reason)] = found["operators"]
    assert (counted[0], counted[2]) == ("stateStoreSave", "")
    assert (rows, reason) == (None, f"the operators differ: the fork has {dropped}, and the other pipeline has no such operator")  # fmt: skip
    [(name, rows, reason)] = found["processor"]
    assert "transformWithState" in name
    assert (rows, reason) == (None, f"the operators differ: the original has stateStoreSave, the fork has {name.split(' and ')[1]}")  # fmt: skip


@pytest.mark.prove
def test_state_of_a_processor_is_not_compared(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    run_batch(pipeline(tmp_path, processed, "update"), run_key="first")
    fork(forked(tmp_path, processed), str(tmp_path / "log"), version=-1)
    run_batch(forked(tmp_path, processed), run_key="run")
    [(name, _, _, _, reason)] = compared_states(spark, tmp_path)
    assert name.startswith("transformWithState")
    assert reason.startswith("the variables of a stateful processor are not compared")


def test_fork_command_starts_at_the_reported_offsets(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "fork.toml").write_text(f"""
name = "stateful"
log = "{root}/fork/log"
transform = "tests.state.test_operators:keyed"
source = {{type = "files", path = "{root}/in", format = "parquet", schema = "t timestamp, k string"}}
sinks.out = {{type = "files", path = "{root}/fork/out"}}
state = {{output_mode = "update"}}
""")
    assert main(["fork", str(root / "fork.toml"), str(root / "log"), "--at", "1"]) == 0
    assert "after version 1" in capsys.readouterr().out
    assert main(["fork", str(root / "fork.toml"), str(root / "log"), "--until", "yesterday"]) == 2


def test_state_that_cannot_be_continued_is_refused(spark: SparkSession, root: Path) -> None:
    with pytest.raises(ConflictError, match="number of state partitions"):
        fork(forked(root, state=State(output_mode="update", partitions=3)), str(root / "log"))
    with pytest.raises(ConflictError, match="state differs"):
        fork(forked(root, state=State(output_mode="append", partitions=2)), str(root / "log"))
    for file in (root / "log" / "state").rglob("1_*.zip"):
        file.unlink()
    with pytest.raises(DataError, match="files of the state after this version are missing"):
        fork(forked(root), str(root / "log"), version=0)
    assert fork(forked(root), str(root / "log"), version=-1).version == -1
    run_batch(forked(root), run_key="run", drain=True)
    assert counts(spark, root / "fork") == {"a": 3, "b": 1, "c": 1}


def test_fork_continues_the_state_of_a_stateful_processor_without_files_of_the_original(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's metadata of the operator has the absolute paths of its schema files, at the location where the batch was run."""
    for number, events in enumerate(BATCHES[:2]):
        arrive(tmp_path, number, events)
        run_batch(pipeline(tmp_path, processed, "update"), run_key=f"run {number}")
    odd = tmp_path / "a b%20ü"
    new = forked(tmp_path, processed, log=str(odd / "log"), sinks={"out": FilesSink(path=str(odd / "out"))})
    fork(new, str(tmp_path / "log"), version=0)
    shutil.rmtree(tmp_path / "log")
    arrive(tmp_path, 2, BATCHES[2])
    run_batch(new, run_key="run", drain=True)
    assert counts(spark, odd) == {"a": 3, "c": 1}, "b was counted by the original only"
    states = read_state(spark, new.log, options={"stateVarName": "count"}).selectExpr("key.k", "value.n").collect()
    assert sorted(map(tuple, states)) == [("a", 3), ("b", 1), ("c", 1)]
    assert not any(str(tmp_path / "log") in path.read_text() for path in Path(new.log).rglob("_metadata/v2/[0-9]*"))
