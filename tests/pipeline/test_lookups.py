"""Lookup tables: every attempt of a batch reads the rows that its plan pins."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    Aggregate,
    FilesSink,
    FilesSource,
    FilesTable,
    Pipeline,
    State,
    guarantee,
    read_committed,
    reprocess,
    run_batch,
)
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.connectors import lookup
from airflow_provider_streamsem.errors import DataError, InvalidError, LogDamagedError, LookupChangedError
from airflow_provider_streamsem.observability.lineage import of_spec
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json, load_pipeline
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from airflow_provider_streamsem.transforms import monoids

pytestmark = pytest.mark.spark


def with_customers(orders: DataFrame, lookups: Mapping[str, DataFrame]) -> DataFrame:
    return orders.join(lookups["customers"], "customer", "left").select("id", "name")


@pytest.fixture
def customers(tmp_path: Path) -> FilesTable:
    (tmp_path / "customers").mkdir()
    write(tmp_path, "customers/1.json", {"customer": 1, "name": "Ada"})
    return FilesTable(path=str(tmp_path / "customers"), format="json", schema="customer long, name string")


def write(root: Path, name: str, *rows: Mapping[str, Any]) -> None:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def pipeline(root: Path, customers: FilesTable, **changes: Any) -> Pipeline:
    arguments = {
        "name": "orders", "log": str(root / "log"), "sinks": {"out": FilesSink(path=str(root / "out"))}, "lookups": {"customers": customers},
        "source": FilesSource(path=str(root / "in"), format="json", schema="id long, customer long"), "transform": with_customers,
    }  # fmt: skip
    return Pipeline(**{**arguments, **changes})


def names(spark: SparkSession, root: Path) -> dict[int, str | None]:
    return {row["id"]: row["name"] for row in read_committed(spark, str(root / "log")).collect()}


class DiesAtOnce(RowsEngine):
    def stage(self, job: Any, log: Any) -> Any:
        raise Crash


def test_retry_reads_the_rows_of_the_plan_although_the_table_has_grown(
    spark: SparkSession, tmp_path: Path, customers: FilesTable
) -> None:
    write(tmp_path, "in/1.json", {"id": 1, "customer": 1}, {"id": 2, "customer": 2})
    with pytest.raises(Crash):
        run_batch(pipeline(tmp_path, customers), run_key="first", engine=DiesAtOnce())
    write(tmp_path, "customers/2.json", {"customer": 2, "name": "Bo"})
    run_batch(pipeline(tmp_path, customers), run_key="first")
    assert names(spark, tmp_path) == {1: "Ada", 2: None}


def test_next_batch_reads_the_rows_that_the_table_has_then(
    spark: SparkSession, tmp_path: Path, customers: FilesTable
) -> None:
    write(tmp_path, "in/1.json", {"id": 1, "customer": 2})
    run_batch(pipeline(tmp_path, customers), run_key="first")
    write(tmp_path, "customers/2.json", {"customer": 2, "name": "Bo"})
    write(tmp_path, "in/2.json", {"id": 2, "customer": 2})
    run_batch(pipeline(tmp_path, customers), run_key="second")
    assert names(spark, tmp_path) == {1: None, 2: "Bo"}


@pytest.mark.parametrize(("current", "expected"), [(False, None), (True, "Bo")])
def test_reprocessing_reads_the_planned_rows_or_on_request_the_current_ones(
    spark: SparkSession, tmp_path: Path, customers: FilesTable, current: bool, expected: str | None
) -> None:
    write(tmp_path, "in/1.json", {"id": 1, "customer": 2})
    run_batch(pipeline(tmp_path, customers), run_key="first")
    write(tmp_path, "customers/2.json", {"customer": 2, "name": "Bo"})
    reprocess(pipeline(tmp_path, customers), 0, current_lookups=current)
    assert names(spark, tmp_path) == {1: expected}


def test_version_without_lookups_is_reprocessed_with_the_current_rows(
    spark: SparkSession, tmp_path: Path, customers: FilesTable
) -> None:
    write(tmp_path, "in/1.json", {"id": 1, "customer": 1})
    run_batch(
        pipeline(tmp_path, customers, lookups={}, transform=lambda orders: orders.selectExpr("id", "'' AS name")),
        run_key="first",
    )
    reprocess(pipeline(tmp_path, customers), 0)
    assert names(spark, tmp_path) == {1: "Ada"}


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_text("{}\n")], ids=["deleted", "overwritten"])
def test_batch_whose_planned_rows_were_changed_is_planned_again_with_the_current_rows(
    spark: SparkSession, tmp_path: Path, customers: FilesTable, harm: Callable[[Path], Any]
) -> None:
    """Its records are not recorded as a gap."""
    write(tmp_path, "in/1.json", {"id": 1, "customer": 2})
    spec = pipeline(tmp_path, customers, on_data_loss="record_gap")
    with pytest.raises(Crash):
        run_batch(spec, run_key="first", engine=DiesAtOnce())
    write(tmp_path, "customers/2.json", {"customer": 2, "name": "Bo"})
    harm(tmp_path / "customers" / "1.json")
    assert run_batch(spec, run_key="first").version == 1
    aborted, committed = commit_log_at(spec.log).outcome(0), commit_log_at(spec.log).outcome(1)
    assert aborted is not None
    assert committed is not None
    assert (aborted.committed, "planned file" in aborted.reason) == (False, True)
    assert (names(spark, tmp_path), committed.gaps) == ({1: "Bo"}, {})


def test_rows_that_change_while_each_attempt_reads_them_fail_the_run(tmp_path: Path, customers: FilesTable) -> None:
    def changes_them(orders: DataFrame, lookups: Mapping[str, DataFrame]) -> DataFrame:
        joined = with_customers(orders, lookups)
        write(tmp_path, "customers/1.json", {"customer": 1, "name": "Grace"}, {"customer": 2, "name": "Bo"})
        return joined

    write(tmp_path, "in/1.json", {"id": 1, "customer": 1})
    with pytest.raises(LookupChangedError, match="changed after it was planned"):
        run_batch(pipeline(tmp_path, customers, transform=changes_them), run_key="first")
    aborted = commit_log_at(str(tmp_path / "log")).outcome(0)
    assert aborted is not None
    assert not aborted.committed
    assert commit_log_at(str(tmp_path / "log")).outcome(1) is None


def test_open_version_with_other_lookups_is_not_staged(tmp_path: Path, customers: FilesTable) -> None:
    write(tmp_path, "in/1.json", {"id": 1, "customer": 1})
    with pytest.raises(Crash):
        run_batch(pipeline(tmp_path, customers), run_key="first", engine=DiesAtOnce())
    with pytest.raises(InvalidError, match="other lookups"):
        run_batch(pipeline(tmp_path, customers, lookups={"clients": customers}), run_key="first")


def test_record_of_a_lookup_that_cannot_be_parsed_fails_the_batch(tmp_path: Path, customers: FilesTable) -> None:
    write(tmp_path, "in/1.json", {"id": 1, "customer": 1})
    (tmp_path / "customers" / "2.json").write_text("{broken\n")
    with pytest.raises(DataError, match="USER_RAISED_EXCEPTION") as raised:
        run_batch(pipeline(tmp_path, customers), run_key="first")
    assert "a record of the lookup table at" in str(raised.value.__cause__)


def test_stateful_transform_joins_a_lookup(spark: SparkSession, tmp_path: Path, customers: FilesTable) -> None:
    def counts(orders: DataFrame, lookups: Mapping[str, DataFrame]) -> DataFrame:
        named = orders.join(lookups["customers"], "customer", "left")
        return named.groupBy("name").agg(F.count("*").alias("id"))

    spec = pipeline(tmp_path, customers, transform=counts, state=State(output_mode="update", partitions=1))
    write(tmp_path, "in/1.json", {"id": 1, "customer": 1}, {"id": 2, "customer": 2})
    run_batch(spec, run_key="first")
    write(tmp_path, "customers/2.json", {"customer": 2, "name": "Ada"})
    write(tmp_path, "in/2.json", {"id": 3, "customer": 2})
    run_batch(spec, run_key="second")
    found = read_committed(spark, spec.log, since=0).collect()
    assert [(row["name"], row["id"]) for row in found] == [("Ada", 2)]


def test_forged_pin_names_no_file_outside_the_table(tmp_path: Path, customers: FilesTable) -> None:
    with pytest.raises(LogDamagedError):
        customers.check_pin([{"path": "../secret.json", "bytes": 1, "identity": "mtime:1"}])


def test_table_with_too_many_files_is_refused_before_the_plan(
    tmp_path: Path, customers: FilesTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "MOST_FILES", 0)
    write(tmp_path, "in/1.json", {"id": 1, "customer": 1})
    with pytest.raises(InvalidError, match="more files than a plan can pin"):
        run_batch(pipeline(tmp_path, customers), run_key="first")
    assert commit_log_at(str(tmp_path / "log")).plan(0) is None


def test_lookups_in_toml_are_those_of_the_class(tmp_path: Path, customers: FilesTable) -> None:
    spec = pipeline(tmp_path, customers, transform="tests.pipeline.test_lookups:with_customers")
    path = tmp_path / "orders.toml"
    path.write_text(f"""
name = "orders"
log = "{spec.log}"
transform = "tests.pipeline.test_lookups:with_customers"
[source]
type = "files"
path = "{tmp_path}/in"
format = "json"
schema = "id long, customer long"
[lookups.customers]
type = "files"
path = "{tmp_path}/customers"
format = "json"
schema = "customer long, name string"
[sinks.out]
type = "files"
path = "{tmp_path}/out"
""")
    assert load_pipeline(str(path)).spec_bytes() == spec.spec_bytes()
    assert from_json(spec.to_json()).lookups == {"customers": customers}


def test_guarantee_and_lineage_name_the_lookups(tmp_path: Path, customers: FilesTable) -> None:
    spec = pipeline(tmp_path, customers)
    assert any(reason.startswith("lookup customers: the plan pins") for reason in guarantee(spec).reasons)
    assert guarantee(spec).label == "exactly_once"
    assert str(tmp_path / "customers") in {dataset.name for dataset in of_spec(spec).inputs}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"transform": None}, "requires a transform"),
        ({"lookups": ["customers"]}, "must map names"),
        ({"lookups": {"a b": None}}, "lookup name"),
        ({"lookups": {"customers": FilesSink(path="/x")}}, "not registered for lookups"),
        (
            {"transform": Aggregate(by=["k"], values={"n": monoids.count()}), "state": State(output_mode="update")},
            "the pipeline has lookups",
        ),
    ],
    ids=["no transform", "no mapping", "name", "no lookup", "ready-made transform"],
)
def test_pipeline_whose_lookups_cannot_be_used_is_refused(
    tmp_path: Path, customers: FilesTable, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidError, match=reason):
        pipeline(tmp_path, customers, **changes)


def test_lookup_may_be_at_the_location_of_the_source_but_not_of_a_dataset(
    tmp_path: Path, customers: FilesTable
) -> None:
    source = FilesSource(path=customers.path, format="json", schema="customer long")
    assert pipeline(tmp_path, customers, source=source).lookups
    with pytest.raises(InvalidError, match="locations of the pipeline overlap"):
        pipeline(tmp_path, customers, sinks={"out": FilesSink(path=f"{customers.path}/out")})
