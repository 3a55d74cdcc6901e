"""Sinks that keep the last row of each key keep that of the newest record, whatever the sizes of the files and the steps of the transform."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.orc
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    Dedup,
    DeltaSink,
    DeltaSource,
    FilesSink,
    FilesSource,
    HttpSink,
    IcebergSink,
    IcebergSource,
    JdbcSink,
    JdbcSource,
    KafkaSink,
    Limits,
    Pipeline,
    PipelineSource,
    run_batch,
)
from airflow_provider_streamsem.connectors.data_files import groups
from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.connectors.delta.compact import compact as compact_delta
from airflow_provider_streamsem.connectors.staged_parquet import keyed_rows
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.pipeline.maintenance.compact import compact
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.spark import gateway, remote
from tests.connectors import batches
from tests.connectors.iceberg.lake import Lake

pytestmark = pytest.mark.spark

SIZES = [40, 300, 3, 120, 2, 700, 90, 1]
"""Rows of the items of a source, in the order of the source. Spark reads the largest first."""
KEYS = 7
ONE_FILE = Limits(max_files=1)


def items() -> list[list[dict[str, int]]]:
    """Return the rows of each item. ``v`` increases in the order of the source, and each item has some of the keys."""
    numbers = iter(range(sum(SIZES)))
    return [[{"k": (v := next(numbers)) % KEYS, "v": v, "other": -v} for _ in range(size)] for size in SIZES]


def newest(rows: Sequence[dict[str, int]]) -> dict[int, int]:
    return {row["k"]: row["v"] for row in rows}


EXPECTED = newest([row for item in items() for row in item])


def put_files(root: Path, format: str, *, directories: bool = False) -> FilesSource:
    for at, item in enumerate(items()):
        path = root / (f"d={at % 3}" if directories else "") / f"{99 - at:02} +%20ü.{format}"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pyarrow.Table.from_pylist(item)
        if format == "parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=50)
        elif format == "orc":
            pyarrow.orc.write_table(table, path)
        elif format == "csv":
            path.write_text("".join(f"{row['k']},{row['v']},{row['other']}\n" for row in item))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in item))
        os.utime(path, (1_000_000 + at, 1_000_000 + at))
    schema = "k long, v long, other long" if format in ("json", "csv") else None
    return FilesSource(path=str(root), format=format, schema=schema)


def json_files(root: Path) -> FilesSource:
    return put_files(root / "in", "json")


def csv_files(root: Path) -> FilesSource:
    return put_files(root / "in", "csv")


def text_files(root: Path) -> FilesSource:
    return put_files(root / "in", "text")


def parquet_files(root: Path) -> FilesSource:
    return put_files(root / "in", "parquet")


def orc_files(root: Path) -> FilesSource:
    return put_files(root / "in", "orc")


def json_files_in_directories(root: Path) -> FilesSource:
    return put_files(root / "in", "json", directories=True)


def parquet_files_in_directories(root: Path) -> FilesSource:
    return put_files(root / "in", "parquet", directories=True)


def one_large_file(root: Path) -> FilesSource:
    (root / "in").mkdir()
    (root / "in" / "all.json").write_text("".join(json.dumps(row) + "\n" for item in items() for row in item))
    return FilesSource(path=str(root / "in"), format="json", schema="k long, v long, other long")


def versions() -> list[list[dict[str, Any]]]:
    """Return the rows of each version of a table or an upstream pipeline: one for each key of an item. The sizes are as different as those of the items."""
    return [
        [
            {**row, "padding": random.Random(size).randbytes(20 * size).hex()}
            for row in {row["k"]: row for row in item}.values()
        ]
        for item, size in zip(items(), SIZES, strict=True)
    ]


def upstream(root: Path, *, format: str = "parquet", limits: Limits = ONE_FILE) -> Pipeline:
    """Return a pipeline that has written each of :func:`versions` to a file or, with limits, several of them to one version."""
    (root / "in").mkdir()
    for at, rows in enumerate(versions()):
        path = root / "in" / f"{at}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_000_000 + at, 1_000_000 + at))
    source = FilesSource(path=str(root / "in"), format="json", schema="k long, v long, other long, padding string")
    upstream = Pipeline(
        name="upstream", log=str(root / "upstream"), source=source, sinks={"out": FilesSink(str(root / "rows"), format=format)}, limits=limits
    )  # fmt: skip
    run_batch(upstream, run_key="all", drain=True)
    return upstream


def pipeline_versions(root: Path, format: str = "parquet") -> PipelineSource:
    return PipelineSource(log=upstream(root, format=format).log)


def pipeline_versions_in_csv(root: Path) -> PipelineSource:
    return pipeline_versions(root, "csv")


def delta_versions(root: Path, **settings: Any) -> DeltaSource:
    table = str(root / "source")
    for rows in versions():
        write_deltalake(table, pyarrow.Table.from_pylist(rows), mode="append", **settings)
    return DeltaSource(path=table, starting=0)


def partitioned_delta_versions(root: Path) -> DeltaSource:
    return delta_versions(root, partition_by=["k"])


def delta_changes(root: Path) -> DeltaSource:
    table = delta_versions(root, configuration={"delta.enableChangeDataFeed": "true"}).path
    return DeltaSource(path=table, starting=0, changes="read")


def iceberg_snapshots(root: Path) -> IcebergSource:
    lake = Lake(root)
    catalog = lake.catalog()
    catalog.create_namespace_if_not_exists("source")
    location = str(root / "source")
    table = catalog.create_table("source.rows", pyarrow.Table.from_pylist(versions()[0]).schema, location=location)
    for rows in [versions()[0], *versions()]:
        table.append(pyarrow.Table.from_pylist(rows))
    first = table.snapshots()[0].snapshot_id
    return IcebergSource(path=table.location(), table="source.rows", properties=lake.properties, starting=first)


SOURCES = [
    json_files, csv_files, text_files, parquet_files, orc_files, json_files_in_directories, parquet_files_in_directories, one_large_file, pipeline_versions,
    pipeline_versions_in_csv, delta_versions, partitioned_delta_versions, delta_changes, iceberg_snapshots,
]  # fmt: skip


def narrow(frame: DataFrame) -> DataFrame:
    """Select and filter rows, also through Python."""
    if frame.columns[0] == "value":  # lines of text
        frame = frame.select(F.from_json("value", "k long, v long").alias("row")).select("row.*")
    selected = frame.select("k", "v").where("v >= 0").withColumn("w", F.expr("v + 1"))
    return selected.mapInPandas(lambda frames: frames, selected.schema)


@pytest.fixture(autouse=True)
def many_small_tasks(spark: SparkSession) -> Any:
    """Let Spark divide even the small files of these tests, and distribute them over several tasks."""
    settings = {"spark.sql.files.maxPartitionBytes": "4096", "spark.sql.files.openCostInBytes": "512"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


def pipeline(root: Path, source: Any, transform: Callable[[DataFrame], DataFrame] = narrow, **sink: Any) -> Pipeline:
    table = DeltaSink(str(root / "table"), mode="upsert", keys=["k"], **sink)
    return Pipeline(name="order", log=str(root / "log"), source=source, sinks={"table": table}, transform=transform)


def rows_of(root: Path) -> dict[int, int]:
    table = DeltaTable(str(root / "table")).to_pyarrow_table().to_pylist()
    assert len(table) == KEYS
    return newest(table)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_table_keeps_the_newest_row_of_each_key_though_spark_reads_the_largest_file_first(
    tmp_path: Path, source: Callable[[Path], Any]
) -> None:
    run_batch(pipeline(tmp_path, source(tmp_path)), run_key="all")
    assert rows_of(tmp_path) == EXPECTED


def joined(frame: DataFrame) -> DataFrame:
    """Shuffle the rows, in which their order is lost."""
    names = frame.sparkSession.range(KEYS).withColumnRenamed("id", "k").hint("shuffle_hash")
    return frame.join(names, "k")


def spread(frame: DataFrame) -> DataFrame:
    return frame.repartition(5)


def test_table_keeps_the_row_with_the_highest_cursor_though_the_database_stores_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db.sqlite"
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (v INTEGER NOT NULL, k INTEGER)")
        rows = [(row["v"], row["k"]) for item in items() for row in item]
        database.executemany("INSERT INTO t VALUES (?, ?)", sorted(rows, reverse=True))
        database.commit()
    source = JdbcSource(conn_id="db", table="t", cursor="v", lag=0)
    run_batch(pipeline(tmp_path, source), run_key="all")
    assert rows_of(tmp_path) == EXPECTED


@pytest.mark.parametrize("transform", [joined, spread])
def test_rows_with_equal_keys_are_refused_if_the_transform_loses_their_order(
    tmp_path: Path, transform: Callable[[DataFrame], DataFrame]
) -> None:
    with pytest.raises(DataError, match="their order is unknown") as refused:
        run_batch(pipeline(tmp_path, json_files(tmp_path), transform), run_key="all")
    assert refused.value.fields["repeated_keys"] == KEYS
    # `sequence_by` defines the order. The same version is then committed.
    run_batch(pipeline(tmp_path, json_files(tmp_path), transform, sequence_by=["v"]), run_key="all")
    assert rows_of(tmp_path) == EXPECTED


@pytest.mark.parametrize("source", [json_files, parquet_files_in_directories], ids=lambda source: source.__name__)
def test_file_order_restores_the_order_after_a_shuffle(tmp_path: Path, source: Callable[[Path], FilesSource]) -> None:
    def shuffled(frame: DataFrame) -> DataFrame:
        return spread(frame).select("k", "v", "file_path", "file_order")

    with_positions = dataclasses.replace(source(tmp_path), positions=True)
    run_batch(pipeline(tmp_path, with_positions, shuffled, sequence_by=["file_order"]), run_key="all")
    assert rows_of(tmp_path) == EXPECTED
    newest_rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert all(Path(row["file_path"]).is_file() for row in newest_rows)


def test_file_order_increases_from_version_to_version(tmp_path: Path) -> None:
    source = dataclasses.replace(json_files(tmp_path), positions=True)
    bronze = Pipeline(
        name="bronze", log=str(tmp_path / "bronze"), source=source, sinks={"out": FilesSink(str(tmp_path / "rows"))}, limits=Limits(max_files=3)
    )  # fmt: skip
    run_batch(bronze, run_key="all", drain=True)
    silver = pipeline(tmp_path, PipelineSource(log=bronze.log), spread, sequence_by=["file_order"])
    run_batch(silver, run_key="all")
    assert rows_of(tmp_path) == EXPECTED


def test_file_order_of_a_plan_without_ordinals_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = json_files(tmp_path)
    pins = [FilePin(path.name, path.stat().st_size, "") for path in Path(source.path).iterdir()]
    with pytest.raises(DataError, match="the plan has no ordinals of files"):
        dataclasses.replace(source, positions=True).load(spark, pins)


def test_files_with_a_column_of_the_name_of_a_position_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"k": [1], "FILE_PATH": ["theirs"]}), tmp_path / "in" / "a.parquet")
    source = FilesSource(path=str(tmp_path / "in"), format="parquet", positions=True)
    with pytest.raises(DataError, match="have the names of columns that the source adds") as refused:
        run_batch(pipeline(tmp_path, source, lambda frame: frame), run_key="all")
    assert refused.value.fields["fields"] == ["FILE_PATH"]


def test_one_row_for_each_key_is_accepted_from_a_transform_that_shuffles(tmp_path: Path) -> None:
    def newest_of_each(frame: DataFrame) -> DataFrame:
        return frame.groupBy("k").agg(F.max("v").alias("v"))

    run_batch(pipeline(tmp_path, json_files(tmp_path), newest_of_each), run_key="all")
    assert rows_of(tmp_path) == EXPECTED


def test_equal_rows_are_accepted_from_a_transform_that_shuffles(tmp_path: Path) -> None:
    def equal_twice(frame: DataFrame) -> DataFrame:
        newest_of_each = frame.groupBy("k").agg(F.max("v").alias("v"), F.lit(float("nan")).alias("n"))
        return newest_of_each.union(newest_of_each)

    run_batch(pipeline(tmp_path, json_files(tmp_path), equal_twice), run_key="all")
    assert rows_of(tmp_path) == EXPECTED


def test_sequence_by_wins_over_the_order_of_the_source(tmp_path: Path) -> None:
    def oldest_last(frame: DataFrame) -> DataFrame:
        return frame.select("k", "v", "other")

    run_batch(pipeline(tmp_path, json_files(tmp_path), oldest_last, sequence_by=["other"]), run_key="all")
    oldest = {k: k for k in range(KEYS)}
    assert rows_of(tmp_path) == oldest


def test_ties_of_sequence_by_are_refused_unless_the_source_decides_them(tmp_path: Path) -> None:
    def with_tie(frame: DataFrame) -> DataFrame:
        return frame.select("k", "v", F.lit(None).cast("timestamp").alias("at"))

    def with_shuffled_tie(frame: DataFrame) -> DataFrame:
        return with_tie(spread(frame))

    source = json_files(tmp_path)
    with pytest.raises(DataError, match="equal keys and equal sequence_by columns"):
        run_batch(pipeline(tmp_path, source, with_shuffled_tie, sequence_by=["at"]), run_key="all")
    run_batch(pipeline(tmp_path, source, with_tie, sequence_by=["at"]), run_key="all")
    assert rows_of(tmp_path) == EXPECTED


@pytest.mark.parametrize(
    ("sequence_by", "problem"), [("missing", "lack columns of sequence_by"), ("m", "columns of sequence_by must be")]
)
def test_sequence_by_of_a_missing_or_unordered_column_is_refused(
    tmp_path: Path, sequence_by: str, problem: str
) -> None:
    def with_map(frame: DataFrame) -> DataFrame:
        return frame.withColumn("m", F.create_map("k", "v"))

    with pytest.raises(DataError, match=problem):
        run_batch(pipeline(tmp_path, json_files(tmp_path), with_map, sequence_by=[sequence_by]), run_key="all")


def one_version(root: Path) -> PipelineSource:
    """Return a version of a pipeline that has read several files. Its transform kept their order, but its sink appends rows in any order."""
    return PipelineSource(log=upstream(root, limits=Limits()).log)


def delta_snapshot(root: Path) -> DeltaSource:
    return dataclasses.replace(delta_versions(root), starting="earliest")


def compacted_delta_table(root: Path) -> DeltaSource:
    source = delta_snapshot(root)
    compact_delta(source.path, target_file_bytes=10_000, dry_run=False, before_commit=lambda: None)
    return source


def delta_snapshot_with_changes(root: Path) -> DeltaSource:
    return dataclasses.replace(delta_changes(root), starting="earliest")


def iceberg_snapshot(root: Path) -> IcebergSource:
    return dataclasses.replace(iceberg_snapshots(root), starting="earliest")


def compacted_versions(root: Path) -> PipelineSource:
    """Return versions of a pipeline of which the small ones were compacted, and have expired."""
    compacted = upstream(root)
    assert compact(compacted, target_file_bytes=1 << 16)
    vacuum(compacted, keep_versions=1, keep_days=0)
    return PipelineSource(log=compacted.log)


WITHOUT_ORDER = [
    one_version, delta_snapshot, compacted_delta_table, delta_snapshot_with_changes, iceberg_snapshot, compacted_versions,
]  # fmt: skip


@pytest.mark.parametrize("source", WITHOUT_ORDER, ids=lambda source: source.__name__)
def test_rows_whose_order_the_source_does_not_have_are_refused(tmp_path: Path, source: Callable[[Path], Any]) -> None:
    unordered = source(tmp_path)
    with pytest.raises(DataError, match="their order is unknown"):
        run_batch(pipeline(tmp_path, unordered), run_key="all")
    run_batch(pipeline(tmp_path, unordered, sequence_by=["v"]), run_key="all")
    assert rows_of(tmp_path) == EXPECTED


@pytest.mark.parametrize("source", [json_files, pipeline_versions, one_large_file], ids=lambda source: source.__name__)
def test_deduplicated_records_keep_the_order_of_the_source(tmp_path: Path, source: Callable[[Path], Any]) -> None:
    deduplicated = dataclasses.replace(pipeline(tmp_path, source(tmp_path)), dedup=Dedup(keys=["v"], scope="batch"))
    run_batch(deduplicated, run_key="all")
    assert rows_of(tmp_path) == EXPECTED


def test_database_and_delta_table_of_one_pipeline_keep_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db.sqlite"
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (k integer PRIMARY KEY, v integer, w integer)")
        jdbc = JdbcSink(conn_id="db", table="t", staging=str(tmp_path / "staged"), mode="upsert", keys=["k"])
        both = pipeline(tmp_path, json_files(tmp_path))
        run_batch(dataclasses.replace(both, sinks={**both.sinks, "db": jdbc}), run_key="all")
        assert dict(database.execute("SELECT k, v FROM t")) == EXPECTED
    assert rows_of(tmp_path) == EXPECTED


def test_versions_keep_their_order_for_several_sinks(tmp_path: Path) -> None:
    both = pipeline(tmp_path, pipeline_versions(tmp_path))
    other = DeltaSink(str(tmp_path / "other"), mode="upsert", keys=["k"])
    run_batch(dataclasses.replace(both, sinks={**both.sinks, "other": other}), run_key="all")
    assert rows_of(tmp_path) == EXPECTED
    assert newest(DeltaTable(str(tmp_path / "other")).to_pyarrow_table().to_pylist()) == EXPECTED


def test_large_versions_are_distributed_over_several_tasks_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "PARTITION_BYTES", 2_000)
    run_batch(pipeline(tmp_path, pipeline_versions(tmp_path)), run_key="all")
    assert rows_of(tmp_path) == EXPECTED


@pytest.mark.parametrize("partitions", [1, 2, 7, 300])
def test_each_row_is_in_its_numbered_partition(spark: SparkSession, partitions: int) -> None:
    rows = spark.range(2 * partitions).selectExpr(f"CAST(id % {partitions} AS INT) AS n")
    found = groups.in_partitions(rows, F.col("n"), partitions).select("n", F.spark_partition_id().alias("at"))
    assert sorted((row.n, row.at) for row in found.collect()) == sorted((n, n) for n in [*range(partitions)] * 2)


def test_row_in_another_partition_than_planned_fails(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "spark_hash", lambda number: number + 1)
    rows = spark.range(20).selectExpr("CAST(id AS INT) AS n")
    with pytest.raises(Exception, match="distributed a row to another partition than planned"):
        groups.in_partitions(rows, F.col("n"), 20).collect()


@pytest.mark.parametrize(
    ("transform", "keeps"),
    [
        (narrow, True),
        (lambda frame: frame, True),
        (lambda frame: frame.hint("broadcast").selectExpr("k", "explode(array(v, v)) AS v"), True),
        (lambda frame: frame.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("v"))), False),
        (lambda frame: frame.selectExpr("k", "sum(v) OVER (PARTITION BY k) AS v"), False),
        (lambda frame: frame.hint("repartition", 4), False),
        (lambda frame: frame.orderBy("v"), False),
        (lambda frame: frame.union(frame), False),
        (lambda frame: frame.distinct(), False),
        (joined, False),
    ],
)
def test_classic_spark_and_spark_connect_know_which_transforms_keep_the_order(
    spark: SparkSession, tmp_path: Path, transform: Callable[[DataFrame], DataFrame], keeps: bool
) -> None:
    source = json_files(tmp_path)
    records = spark.read.schema(str(source.schema)).json(source.path).where("k >= 0")
    result = transform(records)
    assert gateway.keeps_order(result, records) is keeps
    texts = [str(frame._jdf.queryExecution().toString()) for frame in (result, records)]  # type: ignore[operator]
    assert remote.is_chain_above(*texts) is keeps


def test_negative_zero_and_zero_are_one_position(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path), mode="upsert", keys=["k"], sequence_by=["s"])
    rows = pyarrow.table({"k": [1, 1], "s": [0.0, -0.0], "v": [1, 2]})
    staged = batches.staged(sink, rows, schema=batches.schema_of(k="long", s="double", v="long"))
    with pytest.raises(DataError, match="equal sequence_by columns"):
        keyed_rows.refuse_ambiguous(sink.location, staged.committable, ["k"], ["s"])


def test_file_that_a_change_feed_names_twice_is_read_twice_in_order(tmp_path: Path) -> None:
    table = str(tmp_path / "source")
    write_deltalake(table, pyarrow.table({"k": [0], "v": [0]}), configuration={"delta.enableChangeDataFeed": "true"})
    write_deltalake(table, pyarrow.table({"k": [1, 2], "v": [1, 2]}), mode="append")
    DeltaTable(table).delete()
    source = DeltaSource(path=table, starting=0, changes="read")

    def changes(frame: DataFrame) -> DataFrame:
        return frame.select("k", F.col("_change_type").alias("change"))

    run_batch(pipeline(tmp_path, source, changes), run_key="all")
    kept = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert {row["k"]: row["change"] for row in kept} == {0: "delete", 1: "delete", 2: "delete"}


def test_order_matters_for_the_sinks_that_merge_or_send_rows() -> None:
    sequenced: list[Any] = [
        HttpSink("/staged", url="http://h", sequence_by=["v"]),
        KafkaSink("/staged", topic="t", bootstrap_servers="h:1"),
        IcebergSink(
            "/t",
            table="n.t",
            properties={"type": "sql", "uri": "sqlite://"},
            mode="upsert",
            keys=["k"],
            sequence_by=["v"],
        ),
        JdbcSink(conn_id="db", table="t", staging="/staged", mode="upsert", keys=["k"], sequence_by=["v"]),
        DeltaSink("/t", mode="upsert", keys=["k"], sequence_by=["v"]),
    ]
    assert all(sink.is_sequenced for sink in sequenced)
    appending: list[Any] = [DeltaSink("/t"), JdbcSink(conn_id="db", table="t", staging="/staged")]
    assert not any(sink.is_sequenced for sink in appending)
    assert not FilesSink("/t").is_sequenced


@pytest.mark.parametrize(
    "sink",
    [
        lambda: DeltaSink("/t", sequence_by=["v"]),
        lambda: IcebergSink("/t", table="n.t", properties={"type": "sql", "uri": "sqlite://"}, sequence_by=["v"]),
        lambda: JdbcSink(conn_id="db", table="t", staging="/s", sequence_by=["v"]),
    ],
)
def test_sequence_by_is_refused_for_a_sink_that_appends(sink: Callable[[], Any]) -> None:
    with pytest.raises(InvalidError, match="sequence_by needs mode upsert"):
        sink()
