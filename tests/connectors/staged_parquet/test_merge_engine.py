"""Which engine merges the rows of a batch, and what happens if Spark fails. The tests need no Spark: the session is a stand-in that only fails."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable

from airflow_provider_streamsem import KafkaSource
from airflow_provider_streamsem.connectors.delta import mergeable
from airflow_provider_streamsem.connectors.delta.private_copy import PrivateCopy
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.delta.snapshot import snapshot
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet import table_sink
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    PublishError,
    StageError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.spark import packages
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from tests.connectors import batches

ROWS = pyarrow.table({"id": pyarrow.array([1, 2], pyarrow.int64())})


class Sessions:
    """Opens no session, because of an error. ``opened``: how often a sink asked for one."""

    def __init__(self, error: Exception) -> None:
        self.error, self.opened = error, 0

    @contextmanager
    def __call__(self, sink: Any) -> Iterator[Any]:
        self.opened += 1
        raise self.error
        yield


def sink_of(root: Path, engine: str) -> DeltaSink:
    return DeltaSink(str(root / "table"), mode="upsert", keys=["id"], engine=engine)


def batch_of(sink: DeltaSink, **changes: Any) -> SinkCommit:
    return batches.staged(sink, ROWS, schema=batches.schema_of(id="long"), **changes)


def ids(sink: DeltaSink) -> list[int]:
    return sorted(DeltaTable(sink.path).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.parametrize(
    ("engine", "rows", "error", "opened", "reason"),
    [
        ("library", 0, UnavailableError("lost"), 0, "engine='library'"),
        ("auto", 2, UnavailableError("lost"), 0, "at most 2 rows"),
        ("auto", 1, InvalidError("Spark lacks packages; nothing was published"), 1, "Spark lacks packages"),
        ("auto", 1, UnavailableError("Spark failed"), 1, "Spark failed"),
        ("auto", 1, PublishError("Spark cannot merge the rows"), 1, "Spark cannot merge the rows"),
        ("auto", 1, None, 0, "no Spark session"),
    ],
)
def test_library_merges_and_the_log_of_the_task_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    engine: str,
    rows: int,
    error: StreamsemError | None,
    opened: int,
    reason: str,
) -> None:
    monkeypatch.setattr(table_sink, "_LIBRARY_ROWS", rows)
    sessions = Sessions(error or AssertionError())
    sink = sink_of(tmp_path, engine)
    batch = batch_of(sink, spark=sessions if error else None)
    with caplog.at_level(logging.INFO, logger="airflow_provider_streamsem"):
        receipt = sink.publish(batch)
    assert receipt is not None
    assert (receipt.result, receipt.rows, ids(sink), sessions.opened) == ("applied", 2, [1, 2], opened)
    assert any("merged by the library" in text and reason in text for text in caplog.messages)


@pytest.mark.parametrize(
    ("engine", "error"),
    [
        ("auto", StageError("cancelled")),
        ("spark", StageError("cancelled")),
        ("spark", UnavailableError("lost")),
        ("spark", PublishError("refused")),
    ],
)
def test_merge_that_fails_is_not_repeated_and_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, error: StreamsemError
) -> None:
    monkeypatch.setattr(table_sink, "_LIBRARY_ROWS", 1)
    sink, sessions = sink_of(tmp_path, engine), Sessions(error)
    batch = batch_of(sink, spark=sessions)
    with pytest.raises(type(error)) as raised:
        sink.publish(batch)
    assert raised.value is error
    assert sessions.opened == 1
    assert ids(sink) == []
    assert sink.marker(batches.UUID, "t") is None


@pytest.mark.parametrize("has_spark", [True, False])
def test_sink_that_requires_spark_never_merges_with_the_library(tmp_path: Path, has_spark: bool) -> None:
    sink, sessions = sink_of(tmp_path, "spark"), Sessions(InvalidError("Spark lacks packages; nothing was published"))
    with pytest.raises(InvalidError, match=r"Spark lacks packages|no Spark session.*run the pipeline"):
        sink.publish(batch_of(sink, spark=sessions if has_spark else None))
    assert ids(sink) == []


def test_skip_and_a_batch_without_rows_need_no_session(tmp_path: Path) -> None:
    sink, sessions = sink_of(tmp_path, "spark"), Sessions(AssertionError())
    skipped = sink.skip(batch_of(sink, spark=sessions))
    empty = sink.publish(batches.staged(sink, ROWS.slice(0, 0), 1, schema=batches.schema_of(id="long"), spark=sessions))
    assert skipped is not None
    assert empty is not None
    assert (skipped.result, empty.result, empty.rows, sessions.opened) == ("skipped", "applied", 0, 0)
    marker = sink.marker(batches.UUID, "t")
    assert marker is not None
    assert marker.is_of(1, batches.outcome_of(1))


@pytest.mark.parametrize("engine", ["auto", "library"])
def test_batch_needs_the_spark_package_only_if_the_engine_is_spark(engine: str) -> None:
    for kind, arguments in ((DeltaSink, ["/t"]), (IcebergSink, ["/t", "lake.t"])):
        upsert: dict[str, Any] = {"mode": "upsert", "keys": ["id"]}
        sink = kind(*arguments, **upsert, engine=engine)  # type: ignore[operator]
        assert packages.needed((), {"t": sink}, None, "/log") == []
        [package] = packages.needed((), {"t": kind(*arguments, **upsert, engine="spark")}, None, "/log")  # type: ignore[operator]
        assert [package] == packages.named(sink.publishing_packages)


def test_session_that_is_started_to_publish_has_the_packages_of_the_batches_that_follow(tmp_path: Path) -> None:
    class Engine(SparkEngine):
        def session(self, needed: Any = ()) -> Any:
            started.extend(needed)
            raise StageError("no Spark")

    started: list[Any] = []
    source = KafkaSource(topics=["orders"], bootstrap_servers="broker:9092")
    later = packages.needed([source], {}, None, "s3://lake/log")
    with pytest.raises(StageError), Engine().publishing_session(sink_of(tmp_path, "spark"), later=later):
        pass
    assert started == [packages.DELTA, packages.KAFKA]


@pytest.mark.parametrize("kind", ["long", {"type": "struct", "fields": [{"name": "a b", "type": "long", "nullable": True, "metadata": {}}]}])  # fmt: skip
def test_name_that_spark_cannot_write_is_refused_before_the_commit_unless_the_table_maps_columns(
    tmp_path: Path, kind: Any
) -> None:
    schema = batches.schema_of(**{"id": "long", "v" if isinstance(kind, dict) else "a=b": kind})
    with pytest.raises(DataError, match=r"column mapping.*a[ =]b"):
        sink_of(tmp_path, "spark").resolve_schema(schema)
    assert sink_of(tmp_path, "auto").resolve_schema(schema) == schema
    mergeable.check_names(json.loads(schema)["fields"], {"delta.columnMapping.mode": "name"})


def test_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidError, match="engine"):
        DeltaSink("/t", mode="upsert", keys=["id"], engine="flink")


def test_log_of_an_append_does_not_change_to_or_from_spark() -> None:
    """Vacuum deletes staged files that Spark has written again. Those of other engines are files of the table."""
    by_spark, by_library, default = (DeltaSink("/t", engine=engine) for engine in ("spark", "library", "auto"))
    assert by_spark.immutable_config() == {**default.immutable_config(), "engine": "spark"}
    assert by_library.immutable_config() == default.immutable_config()
    assert [sink.keeps_staged for sink in (by_spark, by_library, default)] == [False, True, True]
    assert [sink.can_remove_rows for sink in (by_spark, by_library, default)] == [False, True, True]


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (lambda: DeltaSink("/t", cluster_by=["k"]), "cluster_by needs engine spark"),
        (lambda: DeltaSink("/t", cluster_by=["k"], partition_by=["p"], engine="spark"), "excludes partition_by"),
        (lambda: DeltaSink("/t", cluster_by=[*"abcde"], engine="spark"), "more than 4 columns"),
        (lambda: IcebergSink("/t", "a.b", partition_by=["day(at)"]), "partition_by with transforms needs engine spark"),
        (
            lambda: IcebergSink("/t", "a.b", partition_by=["week(at)"], engine="spark"),
            r"a transform that does not exist",
        ),
        (
            lambda: IcebergSink("/t", "a.b", partition_by=["bucket(k)"], engine="spark"),
            r"a transform that does not exist",
        ),
        (
            lambda: IcebergSink("/t", "a.b", partition_by=["bucket(0, k)"], engine="spark"),
            r"a transform that does not exist",
        ),
    ],
)
def test_layout_that_the_engine_cannot_write_is_refused(sink: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        sink()


@pytest.mark.parametrize(
    ("kinds", "partition_by", "message"),
    [
        ({"s": "string"}, ["day(s)"], r"do not accept the transforms.*\['day\(s\)'\]"),
        ({"b": "boolean"}, ["bucket(4, b)"], "do not accept the transforms"),
        ({"at": "timestamp", "at_day": "long"}, ["day(at)"], "have the name of a column"),
        ({"k": "long"}, ["bucket(4, k)", "bucket(8, k)"], "have the name of a column or of another field"),
    ],
)
def test_partition_fields_that_a_new_table_cannot_have_are_refused_before_the_commit(
    tmp_path: Path, kinds: dict[str, str], partition_by: list[str], message: str
) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)}
    sink = IcebergSink(str(tmp_path / "t"), "a.b", properties=catalog, partition_by=partition_by, engine="spark")
    with pytest.raises(DataError, match=message):
        sink.resolve_schema(batches.schema_of(**kinds))


@pytest.mark.parametrize(("kind", "name"), [("double", "k"), ("boolean", "k"), ("binary", "k"), ("long", "a.b")])
def test_clustering_column_without_statistics_is_refused_before_the_commit(
    tmp_path: Path, kind: str, name: str
) -> None:
    sink = DeltaSink(str(tmp_path / "t"), engine="spark", cluster_by=[name])
    with pytest.raises(DataError, match="cannot cluster a Delta table"):
        sink.resolve_schema(batches.schema_of(**{name: kind}))


def test_partition_transforms_have_one_spelling() -> None:
    sink = IcebergSink(
        "/t", "a.b", partition_by=["days( at )", "bucket(016,id)", "truncate(4, p)", "q"], engine="spark"
    )
    assert sink.partition_by == ("day(at)", "bucket(16, id)", "truncate(4, p)", "q")


def test_columns_that_a_merge_by_spark_would_refuse_or_change_are_refused_before_the_commit(tmp_path: Path) -> None:
    for name in ("_Metadata", "__streamsem_at"):
        schema = batches.schema_of(**{"id": "long", name: "long"})
        with pytest.raises(DataError, match="a write by Spark uses itself"):
            sink_of(tmp_path, "spark").resolve_schema(schema)
        assert sink_of(tmp_path, "auto").resolve_schema(schema) == schema
    own = json.loads(batches.schema_of(id="long", n="long"))["fields"]
    own[1]["metadata"] = {"delta.identity.start": 1}
    mergeable.check_for_spark(own[:1], own, [])
    with pytest.raises(DataError, match="identity columns"):
        mergeable.check_for_spark(own, own, [])
    for kind in ("binary", "timestamp"):
        fields = json.loads(batches.schema_of(id="long", p=kind))["fields"]
        mergeable.check_for_spark(fields, [], [])
        with pytest.raises(DataError, match="cannot partition"):
            mergeable.check_for_spark(fields, [], ["p"])


def test_spark_without_a_release_of_a_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        packages, "_versions", lambda: {"spark": "4.2.0", "minor": "4.2", "scala": "2.13", "hadoop": "3"}
    )
    with pytest.raises(InvalidError, match=r"no release of a Spark package.*delta-spark"):
        packages.coordinates([packages.S3A, packages.DELTA])
    assert packages.coordinates([packages.S3A]) == "org.apache.hadoop:hadoop-aws:3"


def test_engine_auto_never_merges_with_spark_connect(tmp_path: Path) -> None:
    session = SparkEngine(remote="sc://localhost").publishing_session(sink_of(tmp_path, "auto"))
    with pytest.raises(InvalidError, match="Spark Connect server are not known"), session:
        pass


def test_settings_of_a_package_are_added_to_those_of_the_user() -> None:
    delta = packages.named(["delta"])
    conf = packages.added({"spark.sql.extensions": "mine, yours", "spark.jars.packages": "a:b:1"}, delta)
    assert conf["spark.sql.extensions"] == f"mine, yours,{packages.DELTA.settings['spark.sql.extensions']}"
    assert conf["spark.jars.packages"].startswith("a:b:1,io.delta:delta-spark_")
    assert packages.missing_settings(delta, lambda name: conf.get(name, "").replace(",", " , ")) == {}
    own_catalog = {"spark.sql.catalog.spark_catalog": "mine"}
    assert packages.missing_settings(delta, packages.added(own_catalog, delta).get) == {  # type: ignore[arg-type]
        "spark.sql.catalog.spark_catalog": packages.DELTA.settings["spark.sql.catalog.spark_catalog"]
    }


@pytest.mark.parametrize(
    ("actions", "problem"),
    [
        (None, "committed nothing"),
        ([{"commitInfo": {}}, {"metaData": {"id": "another"}}], r"metaData\.configuration"),
        ([{"commitInfo": {}}, {"protocol": {}}], "protocol"),
        ([{"commitInfo": {}}, {"domainMetadata": {"domain": "delta.clustering"}}], r"delta\.clustering"),
        ([{"commitInfo": {}}, {"remove": {"path": "file:/elsewhere/x.parquet"}}], "does not have"),
    ],
)
def test_merge_by_spark_that_changes_more_than_rows_of_the_table_is_refused(
    tmp_path: Path, actions: list[Any] | None, problem: str
) -> None:
    sink = sink_of(tmp_path, "library")
    sink.publish(batch_of(sink))
    copy = PrivateCopy(sink.location, 1, "merged/copy", snapshot(sink.location, 1))
    log = tmp_path / "table" / "merged" / "copy" / "_delta_log"
    log.mkdir(parents=True)
    if actions is not None:
        (log / f"{1:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    with pytest.raises(PublishError, match=problem):
        copy.written()
