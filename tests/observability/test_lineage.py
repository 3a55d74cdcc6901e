"""Lineage, through the OpenLineage provider's extractor."""

from __future__ import annotations

import contextvars
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    KafkaSource,
    Limits,
    MicroBatchOperator,
    Pipeline,
    observability,
)
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.observability import account
from airflow_provider_streamsem.observability.account import Account
from airflow_provider_streamsem.observability.lineage import of_account, of_spec
from airflow_provider_streamsem.stores.contract import lineage_name
from airflow_provider_streamsem.telemetry import Output, Planned, VersionClosed, emit, listening, phase
from tests.observability.openlineage_schema import as_sent, check_event, conforms
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture

pytestmark = pytest.mark.airflow


def extracted(operator: Any, when: str) -> Any:
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    extractor = DefaultExtractor(operator)
    return {
        "start": extractor.extract,
        "complete": lambda: extractor.extract_on_complete(None),
        "failure": lambda: extractor.extract_on_failure(None),
    }[when]()


def test_finished_run_names_its_datasets_with_statistics_and_batches(
    disk_fixture: PipelineFixture, execute: Callable[..., Any]
) -> None:
    executed, _ = execute()
    sent = check_event(extracted(executed, "complete"))
    assert [(d["namespace"], d["name"]) for d in sent["inputs"]] == [("file", str(disk_fixture.root / "in"))]
    (output,) = sent["outputs"]
    files = disk_fixture.opened().files()
    assert (output["namespace"], output["name"]) == ("file", str(disk_fixture.root / "out"))
    statistics = output["outputFacets"]["outputStatistics"]
    assert {name: statistics[name] for name in ("rowCount", "size", "fileCount")} == {
        "rowCount": 9, "size": sum(Path(file.path).stat().st_size for file in files), "fileCount": len(files),
    }  # fmt: skip
    facet = sent["run"]["facets"]["streamsem_batches"]
    assert (facet["pipeline"], facet["status"]) == ("world", "committed")
    stored = [disk_fixture.log().outcome(version) for version in (0, 1)]  # type: ignore[union-attr]
    assert [(b["version"], b["ranges"], b["result"], b["attemptId"], b["counts"]) for b in facet["batches"]] == [
        (o.version, ranges, "commit", o.attempt_id, dict(o.counts))
        for o, ranges in zip(stored, ({"files": [0, 2]}, {"files": [2, 3]}), strict=True)
    ]


def test_cleared_task_that_returns_its_stored_result_counts_no_rows(execute: Callable[..., Any]) -> None:
    execute()
    cleared, _ = execute()
    sent = check_event(extracted(cleared, "complete"))
    assert sent["outputs"][0].get("outputFacets", {}) == {}
    assert (
        sent["run"]["facets"]["streamsem_batches"]["status"],
        sent["run"]["facets"]["streamsem_batches"]["batches"],
    ) == ("committed", [])


def test_rows_of_a_version_that_another_process_committed_are_not_counted(disk_fixture: PipelineFixture) -> None:
    def other() -> None:
        contextvars.Context().run(disk_fixture.run, "a")  # a separate process does not share these listeners

    task_account = Account(disk_fixture.pipeline())
    with listening(task_account):
        task_account.result = disk_fixture.run("a", store=BeforeOutcome(disk_fixture.store, other))
    sent = check_event(of_account(task_account))
    (batch,) = sent["run"]["facets"]["streamsem_batches"]["batches"]
    assert (batch["version"], batch["result"], batch["lost"]) == (0, "commit", False)
    assert sent["outputs"][0].get("outputFacets", {}) == {}


def test_abort_after_a_commit_keeps_the_outputs_of_the_commit(disk_fixture: PipelineFixture) -> None:
    task_account = Account(disk_fixture.pipeline())
    facts: dict[str, Any] = {
        "failed_gates": (),
        "kind": "batch",
        "attempt_id": "a",
        "mine": True,
        "lost": False,
        "ranges": {},
        "next": {},
        "counts": {},
        "schemas": {},
        "duration_ms": 1,
    }
    written = Output(rows=3, bytes=9, files=1)
    task_account(VersionClosed(version=0, result="commit", outputs={"out": written}, **facts))
    task_account(VersionClosed(version=1, result="abort", outputs={}, **facts))
    compacted = {**facts, "kind": "rewrite"}
    task_account(VersionClosed(version=2, result="commit", outputs={"out": written}, **compacted))
    assert task_account.outputs == {"out": written}


def test_long_drain_keeps_its_newest_batches_and_the_sum_of_all(
    disk_fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "KEPT", 2)
    task_account = Account(disk_fixture.pipeline(limits=Limits(max_files=1)))
    with listening(task_account):
        task_account.result = disk_fixture.run("a", drain=True, pipeline=task_account.pipeline)
    sent = check_event(of_account(task_account))
    versions = [batch["version"] for batch in sent["run"]["facets"]["streamsem_batches"]["batches"]]
    assert versions == [1, 2]
    assert sent["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 9


def test_failed_run_names_the_version_that_it_left_open(execute: Callable[..., Any]) -> None:
    def fail(rows: list[Any]) -> list[Any]:
        raise DataError("the rows do not fit; nothing became visible")

    executed, _ = execute(transform=fail, fails=True)
    facet = check_event(extracted(executed, "failure"))["run"]["facets"]["streamsem_batches"]
    assert facet["status"] == "failed"
    assert facet["batches"] == [{"version": 0, "ranges": {"files": [0, 2]}, "result": "open"}]


def test_lineage_before_the_run_is_derived_from_the_spec(disk_fixture: PipelineFixture) -> None:
    def before(**changes: Any) -> list[tuple[str, str]]:
        executed = MicroBatchOperator(task_id="t", pipeline=disk_fixture.pipeline(**changes))
        sent = check_event(extracted(executed, "start"))
        assert [d["name"] for d in sent["outputs"]] == [str(disk_fixture.root / "out")]
        return [(d["namespace"], d["name"]) for d in sent["inputs"]]

    topics = {"topics": ["b", "a"], "bootstrap_servers": "SASL_SSL://k1:9093,k2:9093"}
    assert before() == [("file", str(disk_fixture.root / "in"))]
    assert before(source=KafkaSource(**topics), limits=Limits()) == [("kafka://k1:9093", "a"), ("kafka://k1:9093", "b")]
    assert before(source=KafkaSource(topics=["a"], conn_id="unknown"), limits=Limits()) == []
    templated = FilesSource(path=str(disk_fixture.root / "{{ ds }}"), format="json", schema="id long")
    assert before(source=templated) == []


def test_pipeline_with_several_sources_has_the_inputs_of_each_before_and_after_the_run(tmp_path: Path) -> None:
    files = FilesSource(path=str(tmp_path / "in"), format="json", schema="id long", hive_partitions=False)
    topics = KafkaSource(topic_pattern="orders.*", bootstrap_servers="k1")
    spec = Pipeline(
        name="several",
        log=str(tmp_path / "log"),
        sources={"new": topics, "old": files},
        sinks={"out": FilesSink(path=str(tmp_path / "out"))},
        transform=lambda frames: frames["old"],
    )
    before = check_event(of_spec(spec))
    assert [(d["namespace"], d["name"]) for d in before["inputs"]] == [("file", str(tmp_path / "in"))]
    account_of_run = Account(spec)
    ranges = {"new/orders-eu-0@id1": (0, 5), "new/orders-eu-1@id1": (0, 5), "old/files": (0, 2)}
    with listening(account_of_run), phase("run", pipeline="several", run_key="a"):
        emit(Planned, version=0, ranges=ranges)
    sent = check_event(of_account(account_of_run))
    assert [(d["namespace"], d["name"]) for d in sent["inputs"]] == [
        ("kafka://k1:9092", "orders-eu"),
        ("file", str(tmp_path / "in")),
    ]
    assert [(d["namespace"], d["name"]) for d in sent["outputs"]] == [("file", str(tmp_path / "out"))]
    (batch,) = sent["run"]["facets"]["streamsem_batches"]["batches"]
    assert batch["ranges"] == {partition: list(pair) for partition, pair in ranges.items()}


def test_lineage_of_a_topic_pattern_has_the_topics_that_were_read() -> None:
    source = KafkaSource(topic_pattern="orders.*", bootstrap_servers="k1")
    ranges = {"orders-eu-0@id1": (0, 5), "orders-eu-1@id1": (0, 5), "orders-us-0": (2, 3)}
    assert source.lineage(ranges) == [("kafka://k1:9092", "orders-eu"), ("kafka://k1:9092", "orders-us")]


def test_locations_on_s3_are_named_by_bucket_and_prefix() -> None:
    assert lineage_name("s3://lake/a/b/") == ("s3://lake", "a/b")
    assert lineage_name("s3://lake") == ("s3://lake", "/")


def test_schema_facet_has_spark_columns() -> None:
    from airflow_provider_streamsem.observability.lineage import _fields

    columns = [
        ("id", "long"), ("day", "date"), ("amount", "decimal(12,2)"),
        ("s", {"type": "struct", "fields": [{"name": "a", "type": "integer"}, {"name": "b", "type": {"type": "array", "elementType": "string"}}]}),
        ("m", {"type": "map", "keyType": "string", "valueType": "short"}),
    ]  # fmt: skip
    schema = json.dumps({"type": "struct", "fields": [{"name": name, "type": type_} for name, type_ in columns]})
    assert [(f.name, f.type) for f in _fields(schema)] == [
        ("id", "bigint"), ("day", "date"), ("amount", "decimal(12,2)"), ("s", "struct<a:int,b:array<string>>"), ("m", "map<string,smallint>"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda sent: sent["outputs"][0]["outputFacets"]["outputStatistics"].update(rowCount="9"), "rowCount"),
        (lambda sent: sent["outputs"][0]["outputFacets"]["outputStatistics"].update(rows=9), "outputStatistics"),
        (lambda sent: sent["outputs"][0].pop("namespace"), "outputs"),
        (lambda sent: sent["run"]["facets"]["streamsem_batches"]["batches"][0].update(version=-1), "minimum"),
        (lambda sent: sent["run"]["facets"]["streamsem_batches"].pop("_producer"), "_producer"),
    ],
)
def test_event_check_detects_errors(execute: Callable[..., Any], break_it: Any, message: str) -> None:
    from openlineage.client.event_v2 import RunEvent

    executed, _ = execute()
    sent = as_sent(extracted(executed, "complete"))
    break_it(sent)
    with pytest.raises((AssertionError, jsonschema.ValidationError), match=message):
        conforms(sent, RunEvent)


def test_run_without_the_openlineage_provider_has_no_lineage_and_is_otherwise_the_same(
    disk_fixture: PipelineFixture, execute: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors", None)
    monkeypatch.delitem(sys.modules, "airflow_provider_streamsem.observability.lineage", raising=False)
    monkeypatch.delattr(observability, "lineage", raising=False)
    monkeypatch.setattr(account, "find_spec", lambda name: None)
    executed, _ = execute()
    assert executed.get_openlineage_facets_on_start() is None
    assert executed.get_openlineage_facets_on_complete(None) is None
    assert executed.account.result.status == "committed"
    disk_fixture.check()
