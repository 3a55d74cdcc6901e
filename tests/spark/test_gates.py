"""Gates on Spark: conditions on the staged rows of every format, and a held batch that a user commits."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_provider_streamsem import (
    Changes,
    DeltaSink,
    Expect,
    FilesSink,
    FilesSource,
    Gate,
    Pipeline,
    commit_held,
    open_log,
    read_committed,
    run_batch,
)
from airflow_provider_streamsem.errors import DataError, HeldByGateError, InvalidError

pytestmark = pytest.mark.spark

NOW = datetime.now(UTC)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "user": "a", "at": (NOW - timedelta(hours=2)).isoformat()},
    {"id": 2, "user": "a", "at": None},
    {"id": 2, "user": None, "at": (NOW - timedelta(hours=30)).isoformat()},
    {"id": 3, "user": None, "at": None},
]


def orders(root: Path, gates: Any, rows: list[dict[str, Any]] = ROWS, *, run: int = 1, **arguments: Any) -> Pipeline:
    (root / "in").mkdir(parents=True, exist_ok=True)
    (root / "in" / f"{run}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = FilesSource(path=str(root / "in"), format="json", schema="id long, user string, at timestamp")
    sinks = {"out": FilesSink(path=str(root / "out")), "lake": DeltaSink(str(root / "lake"))}
    return Pipeline(name="orders", log=str(root / "log"), source=source, gates=gates, **{"sinks": sinks, **arguments})


FAILS: dict[str, tuple[Gate, str]] = {
    "min_rows": (Gate(sink="out", min_rows=5), "out has 4 rows, and min_rows is 5"),
    "max_rows": (Gate(sink="lake", max_rows=3), "lake has 4 rows, and max_rows is 3"),
    "max_null": (Gate(sink="out", max_null={"user": 0.49}), "2 of 4 values of user in out are null, and max_null is 0.49"),
    "unique": (Gate(sink="out", unique=[["user", "id"], ["id"]]), "1 values of id in out are not unique"),
    "freshness_s": (Gate(sink="out", freshness_s={"at": 3600}), r"the newest value of at in out is \d+ s old, and freshness_s is 3600"),
    "sql": (Gate(sink="out", sql="SELECT count(*) > 4 FROM rows"), "the query returns false for out"),
    "null": (Gate(sink="out", sql="SELECT max(user) > 'z' AND null FROM rows"), "the query returns"),
    "check": (Gate(sink="out", check="tests.spark.routes:no_problem_but_one"), "out: the batch has 4 rows"),
    "generator": (Gate(sink="out", check="tests.spark.routes:yields_one"), "out: the batch has 4 rows"),
}  # fmt: skip
PASSES = [
    Gate(min_rows=4, max_rows=4, max_quarantined=0),
    Gate(max_null={"user": 0.5, "id": 0}, unique=[["user", "id"], ["id", "at"]], freshness_s={"at": 86_400}),
    Gate(sql="SELECT count(*) = 4 AND sum(id) = 8 AND (SELECT count(*) FROM versions) = 0 FROM rows"),
    Gate(check="tests.spark.routes:no_problem"),
]


@pytest.mark.parametrize("condition", FAILS)
def test_batch_that_fails_a_condition_is_not_visible(tmp_path: Path, condition: str) -> None:
    gate, message = FAILS[condition]
    with pytest.raises(DataError, match=message):
        run_batch(orders(tmp_path, [*PASSES, gate]), run_key="a")
    assert open_log(str(tmp_path / "log")).head == -1
    assert not (tmp_path / "lake" / "_delta_log").exists()


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_batch_that_passes_every_gate_is_committed(spark: SparkSession, tmp_path: Path, format: str) -> None:
    sinks = {"out": FilesSink(path=str(tmp_path / "out"), format=format, partition_by=["user"])}
    pipeline = orders(tmp_path, PASSES, sinks=sinks)
    run_batch(pipeline, run_key="a")
    assert read_committed(spark, pipeline.log).count() == 4
    outcome = open_log(pipeline.log).log.closed_outcome(0)
    assert outcome.failed_gates == ()


def test_empty_batch_passes_conditions_on_values(tmp_path: Path) -> None:
    gates = [Gate(max_null={"user": 0}, unique=[["id"]], freshness_s={"at": 1}, max_quarantined=0)]
    result = run_batch(orders(tmp_path, gates, where="id > 100"), run_key="a")
    assert result.counts["written.out"] == 0


def test_query_compares_a_batch_with_earlier_ones(tmp_path: Path) -> None:
    query = "SELECT count(*) >= 0.5 * coalesce((SELECT avg(rows) FROM versions), 0) FROM rows"
    gates = [Gate(sink="out", sql=query, versions=2)]
    for run, size in enumerate((4, 2, 3)):
        run_batch(orders(tmp_path, gates, ROWS[:size], run=run), run_key=f"r{run}")
    known = "SELECT count(*) = 3 AND sum(read) = 9 AND min(version) = 0 AND max(committed_at) > current_date - 2 AND min(bytes) > 0 FROM versions"
    all_known = Gate(sink="lake", sql=known)
    with pytest.raises(DataError, match="the query returns false for out"):
        run_batch(pipeline := orders(tmp_path, [*gates, all_known], ROWS[:1], run=4), run_key="r4")
    run_batch(pipeline.replace(gates=[all_known]), run_key="r4")


def test_held_batch_is_committed_without_staging_again(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = orders(tmp_path, [Gate(sink="out", unique=[["id"]], on_failure="hold")])
    with pytest.raises(HeldByGateError, match="1 values of id in out are not unique"):
        run_batch(pipeline, run_key="a")
    assert not (tmp_path / "lake" / "_delta_log").exists()
    commit_held(pipeline, 0)
    assert sorted(row.id for row in read_committed(spark, pipeline.log, sink="out").collect()) == [1, 2, 2, 3]
    assert sorted(DeltaTable(str(tmp_path / "lake")).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 2, 3]
    assert run_batch(pipeline, run_key="a").version == 0


def test_gate_on_the_quarantined_rows_of_a_sink(tmp_path: Path) -> None:
    expect = {"has a user": Expect("user IS NOT NULL", on_failure="quarantine")}
    sinks = {"out": FilesSink(path=str(tmp_path / "out"), expect=expect)}
    gates = [Gate(max_quarantined=0), Gate(sink="out", max_quarantined=0.4)]
    with pytest.raises(DataError, match=r"2 of 4 rows of out are quarantined, and max_quarantined is 0\.4"):
        run_batch(orders(tmp_path, gates, sinks=sinks), run_key="a")


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (Gate(max_null={"name": 0}), "cannot evaluate a gate.*name"),
        (Gate(sql="SELECT name FROM rows"), "cannot evaluate a gate.*name"),
        (Gate(sql="SELECT id FROM rows"), "does not return one row with one boolean column"),
        (Gate(sql="SELECT true, true"), "does not return one row with one boolean column"),
        (Gate(check="tests.spark.routes:one_text"), "something else than sentences"),
        (Gate(check="tests.spark.routes:nothing"), "something else than sentences"),
        (Gate(check="tests.spark.routes:raises"), "the function of a gate raised an exception.*ValueError"),
        (
            Gate(sql="SELECT cast(concat(user, 'x') AS int) > 0 FROM rows WHERE id = 1"),
            "could not evaluate a gate on the staged rows",
        ),
    ],
)
def test_gate_that_spark_cannot_evaluate_is_named(tmp_path: Path, gate: Gate, message: str) -> None:
    with pytest.raises(DataError, match=message):
        run_batch(orders(tmp_path, [gate]), run_key="a")


def test_function_of_a_gate_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="the function of a gate cannot be imported"):
        run_batch(orders(tmp_path, [Gate(check="tests.spark.routes:missing")]), run_key="a")


def test_suite_of_great_expectations_names_expectations_and_no_values(tmp_path: Path) -> None:
    gate = Gate(sink="out", check="tests.spark.routes:ORDERS_SUITE", on_failure="warn")
    run_batch(orders(tmp_path, [gate]), run_key="a")
    failed = open_log(str(tmp_path / "log")).log.closed_outcome(0).failed_gates
    assert sorted(each.found for each in failed) == [
        "out: expect_column_values_to_be_in_set of user is not satisfied",
        "out: expect_column_values_to_not_be_null of name cannot be evaluated",
    ]


def test_gates_on_values_of_a_sink_with_changes_judge_upserts_alone(tmp_path: Path) -> None:
    changes = Changes(keys=["id"], sequence_by="at", apply_as_deletes="user = 'gone'")
    sinks = {"lake": DeltaSink(str(tmp_path / "lake"), changes=changes)}
    row = {"id": 1, "user": "a", "at": NOW.isoformat()}
    rows = [row, {**row, "user": "b"}, {"id": 2, "user": "gone", "at": NOW.isoformat()}]
    query = "SELECT count(*) = 2 FROM rows"
    run_batch(orders(tmp_path, [Gate(max_null={"user": 0}, sql=query)], rows, sinks=sinks), run_key="a")
    with pytest.raises(InvalidError, match="does not apply to a sink with `changes`"):
        orders(tmp_path, [Gate(unique=[["id"]])], sinks=sinks)
