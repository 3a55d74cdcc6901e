"""Rows that Spark merges into tables that Spark created, with the features that deltalake and pyiceberg cannot write."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import Changes, FilesSource, Pipeline, run_batch
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.errors import DataError, PublishError
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from tests.connectors.batches import UUID, schema_of, staged
from tests.connectors.staged_parquet.changed_table import (
    CHANGES,
    HISTORY,
    JOINED_HISTORY,
    KEEP,
    PARTIAL,
    PARTIAL_HISTORY,
    Delta,
    Iceberg,
    apply_randomly,
    apply_randomly_to_history,
    apply_without_effect,
    contents,
    truncate_rows_of_another_writer,
    with_theirs,
)
from tests.integration.parts.iceberg import RestCatalog
from tests.integration.parts.server import running

pytestmark = [pytest.mark.integration, pytest.mark.spark]

DELTA_TABLES = {
    "deletion vectors, column mapping by name, change feed, CHECK, in-commit timestamps": (
        "PARTITIONED BY (p)",
        "'delta.enableDeletionVectors'='true', 'delta.columnMapping.mode'='name', 'delta.enableChangeDataFeed'='true', "
        "'delta.constraints.small'='v < 1000', 'delta.enableInCommitTimestamps'='true'",
    ),
    "row tracking, clustering, column mapping by id, type widening, v2 checkpoints, column default": (
        "CLUSTER BY (k)",
        "'delta.enableRowTracking'='true', "
        "'delta.feature.allowColumnDefaults'='supported', 'delta.columnMapping.mode'='id', 'delta.enableTypeWidening'='true', 'delta.checkpointPolicy'='v2', 'delta.checkpointInterval'='2'",
    ),
}
Rows = dict[int, tuple[int, str | None]]


def merge(sink: Any, version: int, rows: Rows, **more: Any) -> Any:
    """Publish one batch with these rows: key → value and partition."""
    table = pyarrow.table(
        {
            "k": pyarrow.array(rows, pyarrow.int64()),
            "v": pyarrow.array([value for value, _ in rows.values()], pyarrow.int64()),
            "p": pyarrow.array([part for _, part in rows.values()], pyarrow.string()),
        }
    )
    batch = staged(
        sink,
        table,
        version,
        schema=schema_of(k="long", v="long", p="string"),
        spark=SparkEngine().publishing_session,
        **more,
    )
    return sink.publish(batch)


FIRST, SECOND = DELTA_TABLES


def row_ids(spark: SparkSession, path: str) -> dict[int, tuple[int, int]]:
    """Return key → the row's id, and the version of the table that changed the row."""
    rows = spark.read.format("delta").load(path).select("k", "_metadata.row_id", "_metadata.row_commit_version")
    return {row["k"]: (row["row_id"], row["row_commit_version"]) for row in rows.collect()}


@pytest.mark.parametrize("features", [FIRST, pytest.param(SECOND, marks=pytest.mark.prove)])
def test_rows_merged_into_a_delta_table_with_features_are_those_of_a_dictionary(
    spark: SparkSession, tmp_path: Path, features: str
) -> None:
    path = str(tmp_path / "table 1")
    layout, properties = DELTA_TABLES[features]
    table = f"delta.`{path}`"
    has_default = "column default" in features
    default = "DEFAULT 'new'" if has_default else ""
    spark.sql(
        f"CREATE TABLE {table} (k BIGINT NOT NULL, v BIGINT, p STRING, note STRING {default}) "
        f"USING delta {layout} TBLPROPERTIES ({properties})"
    )
    spark.sql(f"INSERT INTO {table} (k, v, p, note) SELECT id, id, 'a b=%', 'kept' FROM range(8)")
    sink = DeltaSink(
        path, partition_by=["p"] if "PARTITIONED" in layout else [], mode="upsert", keys=["k"], engine="spark"
    )
    expected: dict[int, tuple[Any, ...]] = {k: (k, "a b=%", "kept") for k in range(8)}
    tracks = "row tracking" in features
    ids = row_ids(spark, path) if tracks else {}
    for version, first in enumerate((5, 9, 2)):
        rows: Rows = {k: (100 + 10 * version + k, None if k % 3 else "c:é") for k in range(first, first + 5)}
        assert merge(sink, version, rows).rows == 5
        if tracks:
            now = row_ids(spark, path)
            newest = spark.sql(f"DESCRIBE HISTORY {table}").first()["version"]  # type: ignore[index]
            assert {k: now[k][0] for k in ids} == {k: id for k, (id, _) in ids.items()}
            assert len({id for id, _ in now.values()}) == len(now)
            assert {k: changed for k, (_, changed) in now.items()} == {
                k: newest if k in rows else ids[k][1] for k in now
            }
        new = "new" if has_default else None
        expected |= {k: (v, p, expected[k][2] if k in expected else new) for k, (v, p) in rows.items()}
        spark.sql(f"DELETE FROM {table} WHERE k = {first}")
        del expected[first]
        ids = row_ids(spark, path) if tracks else {}
        found = spark.read.format("delta").load(path).select("k", "v", "p", "note").collect()
        assert Counter(tuple(row) for row in found) == Counter((k, *rest) for k, rest in expected.items())
    if "change feed" in features:
        feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2).load(path)
        kinds = Counter(row["_change_type"] for row in feed.select("_change_type").collect())
        assert kinds == {"insert": 7, "update_preimage": 8, "update_postimage": 8, "delete": 3}
    if "CHECK" in features:
        value = 10**9 + 7
        with pytest.raises(PublishError, match="Spark cannot merge the rows") as refused:
            merge(sink, 3, {50: (value, "x")})
        assert str(value) not in "".join(traceback.format_exception(refused.value))
        assert sink.marker(UUID, "t") is not None
        assert spark.read.format("delta").load(path).count() == len(expected)


def test_rows_that_violate_a_check_constraint_are_refused_before_the_commit(
    spark: SparkSession, tmp_path: Path, arrivals: Path
) -> None:
    path = str(tmp_path / "table")
    properties = "'delta.constraints.small'='v < 1000 AND `odd-name` IS NOT NULL'"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (k BIGINT, v BIGINT, `odd-name` STRING) USING delta TBLPROPERTIES ({properties})"
    )
    pipeline = Pipeline(
        name="checked",
        log=str(tmp_path / "log"),
        source=FilesSource(path=str(arrivals), format="json", schema="k long"),
        sinks={"t": DeltaSink(path, mode="upsert", keys=["k"], engine="spark")},
    )
    (arrivals / "first.json").write_text('{"k": 1}')
    long, text = "cast(null as long)", "cast(null as string)"
    for value, name in (("5000L", "'x'"), (long, "'x'"), ("1L", text)):
        refused = pipeline.replace(transform=selecting(value, name))
        with pytest.raises(DataError, match=r"violates a CHECK or NOT NULL constraint.*small"):
            run_batch(refused, run_key="a")
    assert spark.read.format("delta").load(path).count() == 0
    assert run_batch(pipeline.replace(transform=selecting("1L", "'x'")), run_key="a").version == 0
    assert [tuple(row) for row in spark.read.format("delta").load(path).collect()] == [(1, 1, "x")]


def selecting(value: str, name: str) -> Callable[[DataFrame], DataFrame]:
    """Return a transform that sets the columns of a row to SQL expressions."""
    return lambda frame: frame.selectExpr("k", f"{value} AS v", f"{name} AS `odd-name`")


@pytest.mark.parametrize("changes", [CHANGES, PARTIAL], ids=["all columns", "unchanged columns"])
@pytest.mark.parametrize("make", [Delta, Iceberg])
def test_changes_merged_by_spark_give_the_newest_state_of_each_key_in_any_order_of_arrival(
    spark: SparkSession, tmp_path: Path, make: Any, changes: Changes
) -> None:
    apply_randomly(make(tmp_path, changes=changes, engine="spark", spark=SparkEngine().publishing_session), count=5)


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        pytest.param(Delta, HISTORY, id="Delta, every change", marks=pytest.mark.prove),
        pytest.param(Delta, PARTIAL_HISTORY, id="Delta, unchanged columns", marks=pytest.mark.prove),
        pytest.param(Delta, JOINED_HISTORY, id="Delta, joined versions"),
        pytest.param(Iceberg, HISTORY, id="Iceberg, every change"),
        pytest.param(Iceberg, PARTIAL_HISTORY, id="Iceberg, unchanged columns"),
        pytest.param(Iceberg, JOINED_HISTORY, id="Iceberg, joined versions", marks=pytest.mark.prove),
    ],
)
def test_history_merged_by_spark_equals_that_merged_by_the_library(
    spark: SparkSession, tmp_path: Path, make: Any, changes: Changes
) -> None:
    merged = make(tmp_path / "spark", changes=changes, engine="spark", spark=SparkEngine().publishing_session)
    apply_randomly_to_history(merged, make(tmp_path / "library", changes=changes), count=5)


@pytest.mark.parametrize(
    "changes", [pytest.param(HISTORY, marks=pytest.mark.prove), JOINED_HISTORY], ids=["every change", "joined versions"]
)
def test_history_of_rows_of_another_writer_is_the_same_by_spark_and_by_the_library(
    spark: SparkSession, tmp_path: Path, changes: Changes
) -> None:
    by_spark = with_theirs(Delta(tmp_path / "spark", changes, engine="spark", spark=SparkEngine().publishing_session))
    by_library = with_theirs(Delta(tmp_path / "library", changes))
    for events in (
        [(1, 5, 0, "x"), (2, 5, 0, "x"), (2, 2, 0, "late"), (3, 4, 0, "x"), (4, 6, 0, "x")],
        [(1, 7, 0, "x"), (2, 4, 0, None), (5, 2, 0, "a"), (3, 1, 0, "a")],
    ):
        by_spark.apply(events)
        by_library.apply(events)
        assert contents(by_spark) == contents(by_library)
    twice = {"k": [1, 1], "at": [1, 2], "v": ["a", "b"], "__START_AT": [None, None], "__END_AT": [None, None]}
    ambiguous = with_theirs(Delta(tmp_path / "twice", changes, engine="spark", spark=SparkEngine().publishing_session), twice)  # fmt: skip
    with pytest.raises(PublishError, match="several rows with equal keys and equal __START_AT"):
        ambiguous.apply([(1, 3, 0, "x")])


@pytest.mark.parametrize("make", [Delta, Iceberg])
def test_update_merged_by_spark_of_an_unknown_row_is_published_only_if_its_null_is_accepted(
    spark: SparkSession, tmp_path: Path, make: Any
) -> None:
    changes = replace(PARTIAL, unknown_values="fail")
    table = make(tmp_path, changes=changes, engine="spark", spark=SparkEngine().publishing_session)
    table.apply([(1, 1, 0, "a")])
    with pytest.raises(PublishError, match="no values for columns of rows that are not in the table") as raised:
        table.apply([(2, 3, 0, KEEP), (1, 3, 0, KEEP)])
    assert raised.value.fields["columns"] == ["v"]
    assert table.rows() == {1: (1, 0, "a")}
    table.changes = replace(CHANGES, unknown_values="null")
    table.publish(table.batches[-1])
    assert table.rows() == {1: (3, 0, "a"), 2: (3, 0, None)}
    apply_without_effect(make(tmp_path / "none", engine="spark", spark=SparkEngine().publishing_session))


def test_truncate_by_spark_deletes_rows_of_another_writer(spark: SparkSession, tmp_path: Path) -> None:
    truncate_rows_of_another_writer(Delta(tmp_path, engine="spark", spark=SparkEngine().publishing_session))


def test_delete_lacks_the_values_that_the_delta_table_requires_of_other_rows(
    spark: SparkSession, tmp_path: Path, arrivals: Path
) -> None:
    path = str(tmp_path / "table")
    properties = "'delta.constraints.small'='v < 1000', 'delta.enableDeletionVectors'='true'"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (k BIGINT NOT NULL, s BIGINT, v BIGINT NOT NULL, note STRING) USING delta TBLPROPERTIES ({properties})"
    )
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, null, 1, 'theirs'), (2, null, 2, 'theirs')")
    changes = Changes(keys=["k"], sequence_by="s", apply_as_deletes="op = 'd'", except_column_list=["op"])
    pipeline = Pipeline(
        name="shop",
        log=str(tmp_path / "log"),
        source=FilesSource(path=str(arrivals), format="json", schema="op string, k long, s long, v long"),
        sinks={"t": DeltaSink(path, changes=changes, engine="spark")},
    )
    (arrivals / "first.json").write_text('{"op": "d", "k": 1, "s": 1}\n{"op": "u", "k": 2, "s": 1, "v": 20}\n')
    run_batch(pipeline, run_key="first")
    assert [tuple(row) for row in spark.read.format("delta").load(path).collect()] == [(2, 1, 20, "theirs")]
    (arrivals / "second.json").write_text('{"op": "u", "k": 3, "s": 1, "v": 3}')
    for value, message in (("null", "v IS NOT NULL"), ("1000", "small")):
        wrong = pipeline.replace(transform=partial(with_value, value))
        with pytest.raises(DataError, match=rf"violates a CHECK or NOT NULL constraint.*{message}"):
            run_batch(wrong, run_key="second")


def with_value(value: str, frame: DataFrame) -> DataFrame:
    return frame.withColumn("v", F.expr(f"cast({value} as long)"))


def test_delta_table_with_a_feature_that_was_not_tried_is_refused_before_the_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    feature = "icebergCompatV1"
    path = str(tmp_path / "table")
    properties = f"'delta.feature.{feature}'='supported', 'delta.columnMapping.mode'='name'"
    spark.sql(f"CREATE TABLE delta.`{path}` (k BIGINT, v BIGINT, p STRING) USING delta TBLPROPERTIES ({properties})")
    sink = DeltaSink(path, mode="upsert", keys=["k"], engine="spark")
    with pytest.raises(DataError, match=feature):
        merge(sink, 0, {1: (1, "x")})


def test_settings_of_the_users_session_do_not_change_a_merge(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would skip a merge with the transaction of an earlier one, and write deletion vectors into a table without them."""
    settings = {
        "spark.databricks.delta.write.txnAppId": "mine",
        "spark.databricks.delta.write.txnVersion": "1",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
        "spark.databricks.delta.properties.defaults.columnMapping.mode": "name",
        "spark.databricks.delta.properties.defaults.appendOnly": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        sink = DeltaSink(str(tmp_path / "table"), mode="upsert", keys=["k"], engine="spark")
        for version in range(3):
            merge(sink, version, {0: (version, "x"), version: (version, "y")})
        assert {name: spark.conf.get(name) for name in settings} == settings
    finally:
        for name in settings:
            spark.conf.unset(name)
    rows = DeltaTable(sink.path).to_pyarrow_table().sort_by("k").to_pylist()
    assert rows == [{"k": 0, "v": 2, "p": "x"}, {"k": 1, "v": 1, "p": "y"}, {"k": 2, "v": 2, "p": "y"}]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    server = RestCatalog(tmp_path_factory.mktemp("iceberg"))
    with running(server):
        yield server


@pytest.fixture
def lake(spark: SparkSession, catalog: RestCatalog) -> Iterator[Callable[[str], Any]]:
    """Run SQL statements of Spark, in which ``rest`` stands for the catalog."""
    for name, value in catalog.spark_conf(catalog.in_spark).items():
        spark.conf.set(name, value)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog.in_spark}.db")
    return lambda statement: spark.sql(statement.replace(" rest.", f" {catalog.in_spark}.")).collect()


ICEBERG_TABLES = {
    "day and bucket": "PARTITIONED BY (days(at), bucket(4, k)) TBLPROPERTIES ('format-version'='2')",
    "merge on read": "PARTITIONED BY (truncate(1, p)) TBLPROPERTIES ('format-version'='2', 'write.merge.mode'='merge-on-read')",
    "format 3": "TBLPROPERTIES ('format-version'='3', 'write.merge.mode'='merge-on-read')",
}


@pytest.mark.parametrize("form", [pytest.param("day and bucket", marks=pytest.mark.prove), "merge on read", "format 3"])
def test_rows_merged_into_an_iceberg_table_of_any_form_are_those_of_a_dictionary(
    lake: Callable[[str], Any], catalog: RestCatalog, tmp_path: Path, form: str
) -> None:
    name = f"db.{form.replace(' ', '_')}"
    lake(f"CREATE TABLE rest.{name} (k BIGINT, v BIGINT, p STRING, at TIMESTAMP) USING iceberg {ICEBERG_TABLES[form]}")
    lake(f"INSERT INTO rest.{name} SELECT id, id, 'a b=%', timestamp'2024-01-01 00:00:00Z' FROM range(8)")
    location = {"type": "rest", "uri": catalog.url}
    sink = IcebergSink(str(tmp_path / "staged"), name, properties=location, mode="upsert", keys=["k"], engine="spark")
    table = load_catalog("default", **location).load_table(name)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "before").commit()
    at = datetime(2024, 1, 1, tzinfo=timezone.utc)
    expected: dict[int, tuple[Any, ...]] = {k: (k, "a b=%", at) for k in range(8)}
    for version, first in enumerate((5, 9, 2)):
        rows: Rows = {k: (100 + 10 * version + k, None if k % 3 else "c:é") for k in range(first, first + 5)}
        assert merge(sink, version, rows).rows == 5
        expected |= {k: (v, p, expected[k][2] if k in expected else None) for k, (v, p) in rows.items()}
        lake(f"DELETE FROM rest.{name} WHERE k = {first}")
        del expected[first]
        found = lake(f"SELECT k, v, p, date_format(at, 'y-M-d') AS day FROM rest.{name}")
        days = {None: None, at: "2024-1-1"}
        assert Counter(tuple(row) for row in found) == Counter(
            (k, v, p, days[when]) for k, (v, p, when) in expected.items()
        )
    assert len(lake(f"SELECT * FROM rest.{name} VERSION AS OF 'before'")) == 8
    if form != "format 3":
        check_read_by_pyiceberg(load_catalog("default", **location).load_table(name), expected)


def check_read_by_pyiceberg(table: Table, expected: dict[int, tuple[Any, ...]]) -> None:
    rows = table.scan().to_arrow().to_pylist()
    assert Counter((row["k"], row["v"], row["p"], row["at"]) for row in rows) == Counter(
        (k, *rest) for k, rest in expected.items()
    )


def test_merge_keeps_the_retention_of_main_and_another_writers_commit_is_kept(
    spark: SparkSession,
    lake: Callable[[str], Any],
    catalog: RestCatalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake(
        "CREATE TABLE rest.db.kept (k BIGINT, v BIGINT, p STRING) USING iceberg TBLPROPERTIES ('write.wap.enabled'='true')"
    )
    lake("INSERT INTO rest.db.kept VALUES (1, 1, 'a')")
    location = {"type": "rest", "uri": catalog.url}
    table = load_catalog("default", **location).load_table("db.kept")
    snapshot = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_branch(
        snapshot, "main", min_snapshots_to_keep=7, max_snapshot_age_ms=10**9
    ).commit()
    sink = IcebergSink(
        str(tmp_path / "staged"), "db.kept", properties=location, mode="upsert", keys=["k"], engine="spark"
    )
    merged = IcebergSink._written
    others: list[str] = []

    def after_another_writer(self: Any, *arguments: Any) -> Any:
        result = merged(self, *arguments)
        if not others:
            others.append("INSERT INTO rest.db.kept VALUES (2, 2, 'theirs')")
            spark.conf.unset("spark.wap.id")
            lake(others[0])
        return result

    monkeypatch.setattr(IcebergSink, "_written", after_another_writer)
    spark.conf.set("spark.wap.id", "mine")
    try:
        merge(sink, 0, {1: (10, "b"), 3: (30, "c")})
    finally:
        spark.conf.unset("spark.wap.id")
    assert others
    assert sorted(map(tuple, lake("SELECT k, v FROM rest.db.kept"))) == [(1, 10), (2, 2), (3, 30)]
    main = load_catalog("default", **location).load_table("db.kept").refs()["main"]
    assert (main.min_snapshots_to_keep, main.max_snapshot_age_ms) == (7, 10**9)
