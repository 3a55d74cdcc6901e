"""A fork continues the state of a version, and its rows are compared with those of the original."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSink, Pipeline, State, diff, fork, read_state, reprocess, run_batch, verify
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.errors import ConflictError, DataError, InvalidError
from airflow_provider_streamsem.pipeline.vacuum import vacuum
from tests.state.test_commits import counts, processed
from tests.state.test_operators import arrive, keyed, pipeline

pytestmark = pytest.mark.spark
BATCHES = [[(1, "a"), (2, "b")], [(3, "a")], [(4, "c"), (5, "a")]]


def forked(root: Path, transform: Any = keyed, **changes: Any) -> Pipeline:
    arguments = {"log": str(root / "fork" / "log"), "sinks": {"out": FilesSink(path=str(root / "fork" / "out"))}}
    return pipeline(root, transform, "update", **{**arguments, **changes})


def tenfold(events: DataFrame) -> DataFrame:
    return keyed(events).withColumn("n", F.col("n") * 10)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, events in enumerate(BATCHES):
        arrive(tmp_path, number, events)
        run_batch(pipeline(tmp_path, keyed, "update"), run_key=f"run {number}")
    return tmp_path


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
    assert verify(forked(root)).findings == []
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


def test_difference_compares_microseconds_and_ignores_map_order_and_older_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    def rows(micros: str, *entries: str) -> Any:
        columns = f"timestamp'2024-01-01 00:00:00.{micros}' AS at", f"map({', '.join(entries)}) AS m"
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


def test_fork_command_starts_at_the_reported_offsets(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "fork.toml").write_text(f"""
name = "stateful"
log = "{root}/fork/log"
transform = "tests.state.test_operators:keyed"
source = {{type = "files", path = "{root}/in", format = "json", schema = "t timestamp, k string"}}
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


def test_state_with_absolute_paths_is_not_forked(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    run_batch(pipeline(tmp_path, processed, "update"), run_key="first")
    with pytest.raises(InvalidError, match="absolute paths"):
        fork(forked(tmp_path, processed), str(tmp_path / "log"))
