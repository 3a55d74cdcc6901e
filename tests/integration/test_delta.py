"""Delta tables on a real S3 server, with files that Spark staged. Spark's Delta, delta-rs and DuckDB read the tables."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSource, Limits, Pipeline, reprocess, rollback, run_batch, verify
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.testing.steps import Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.batches import before, outcome_of, schema_of
from tests.connectors.delta.delta_fixture import WRITES
from tests.integration.parts.s3 import S3Server
from tests.rounds import ROUNDS
from tests.step_by_step import step_by_step

pytestmark = pytest.mark.integration

PARTS = ["plain", "a b/c:d%é", None, "=", "__HIVE_DEFAULT_PARTITION__", "x" * 100]
SCHEMA = (
    "id long, p string, day date, at timestamp, local timestamp_ntz, price decimal(20,4), score double, ok boolean, "
    "n struct<a: int, b: string>, tags array<string>, raw binary"
)


def record(n: int) -> dict[str, Any]:
    return {
        "id": n, "p": PARTS[n % len(PARTS)], "day": f"2024-02-{n % 28 + 1:02d}", "at": f"2024-02-29T20:00:{n % 60:02d}.{n:06d}Z",
        "local": f"2024-02-29T20:00:{n % 60:02d}.{n:06d}", "price": f"{n}.2501", "score": n / 3, "ok": None if n % 5 == 0 else n % 2 == 0,
        "n": {"a": n, "b": None if n % 3 == 0 else f"b{n}"}, "tags": [f"t{n}", ""], "raw": None,
    }  # fmt: skip


def arrive(arrivals: Path, numbers: range) -> None:
    (arrivals / f"{numbers[0]:06d}.json").write_text("".join(json.dumps(record(n)) + "\n" for n in numbers))


def pipeline_to(table: str, log: str, arrivals: Path, **changes: Any) -> Pipeline:
    spec = Pipeline(
        name="delta", log=log, source=FilesSource(path=str(arrivals), format="json", schema=SCHEMA), limits=Limits(max_files=1),
        sinks={"table": DeltaSink(table, partition_by=["p", "day"])},
    )  # fmt: skip
    return spec.replace(**changes) if changes else spec


@pytest.fixture(params=["s3", "disk"])
def table(request: pytest.FixtureRequest, lake: str, tmp_path: Path) -> str:
    return f"{lake}/table" if request.param == "s3" else str(tmp_path / "table")


def spark_rows(spark: SparkSession, table: str) -> list[Any]:
    return spark.read.format("delta").load(table.replace("s3://", "s3a://")).orderBy("id").collect()


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Replace the timestamp by its seconds, since engines return different time zones."""
    return {**row, "at": row["at"].timestamp()}


@pytest.mark.parametrize("lake", ["disk", pytest.param("s3", marks=pytest.mark.prove)], indirect=True)
def test_rows_of_every_type_and_unusual_partition_are_equal_in_spark_delta_rs_and_duckdb(
    spark: SparkSession, s3_server: S3Server, lake: str, table: str, arrivals: Path
) -> None:
    for first in range(0, 36, 12):
        arrive(arrivals, range(first, first + 12))
    pipeline = pipeline_to(table, f"{lake}/log", arrivals)
    assert run_batch(pipeline, run_key="all", drain=True).batches == 3
    expected = spark.read.schema(SCHEMA).json(str(arrivals)).orderBy("id").collect()
    assert spark_rows(spark, table) == expected
    rows = [row.asDict(recursive=True) for row in expected]
    read = DeltaTable(table, storage_options=s3_server.deltalake_options()).to_pyarrow_table().sort_by("id").to_pylist()
    assert [comparable(row) for row in read] == [comparable(row) for row in rows]
    if not table.startswith("s3://"):
        from duckdb_extensions import import_extension

        import_extension("delta")
        duckdb.sql("SET TimeZone = 'UTC'")
        duckdb_rows = duckdb.sql(f"SELECT * FROM delta_scan('{table}') ORDER BY id").to_arrow_table().to_pylist()
        assert [comparable(row) for row in duckdb_rows] == [comparable(row) for row in rows]
    assert verify(f"{lake}/log").clean


@pytest.mark.parametrize("engine", ["library", "spark"])
@pytest.mark.parametrize("lake", ["disk", pytest.param("s3", marks=pytest.mark.prove)], indirect=True)
def test_rows_merged_by_key_are_equal_in_spark_and_delta_rs(
    spark: SparkSession, s3_server: S3Server, lake: str, table: str, arrivals: Path, engine: str
) -> None:
    """The rows have every type and unusual partition values. A third of them is written twice, with another partition and price."""
    partitions = [part for part in PARTS if part != "__HIVE_DEFAULT_PARTITION__"]
    first = [{**record(n), "p": partitions[n % len(partitions)]} for n in range(24)]
    (arrivals / "first.json").write_text("".join(json.dumps(row) + "\n" for row in first))
    again = [{**record(n), "p": partitions[(n + 1) % len(partitions)], "price": "1.0000"} for n in range(16, 32)]
    (arrivals / "again.json").write_text("".join(json.dumps(row) + "\n" for row in again))
    sink = DeltaSink(table, partition_by=["p", "day"], mode="upsert", keys=["id"], engine=engine)
    pipeline = pipeline_to(table, f"{lake}/log", arrivals, sinks={"table": sink})
    assert run_batch(pipeline, run_key="all", drain=True).batches == 2
    arrive(arrivals, range(32, 35))
    assert run_batch(pipeline.replace(where="id < 0"), run_key="none").counts["written.table"] == 0
    unchanged = spark.read.schema(SCHEMA).json(str(arrivals / "first.json")).where("id < 16")
    expected = unchanged.union(spark.read.schema(SCHEMA).json(str(arrivals / "again.json"))).orderBy("id").collect()
    assert spark_rows(spark, table) == expected
    read = DeltaTable(table, storage_options=s3_server.deltalake_options()).to_pyarrow_table().sort_by("id").to_pylist()
    assert [comparable(row) for row in read] == [comparable(row.asDict(recursive=True)) for row in expected]
    assert verify(f"{lake}/log").clean


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("''", "would become null in the table"),
        ("'__HIVE_DEFAULT_PARTITION__'", "would become null"),
        ("repeat('é', 50)", "too long for"),
    ],
)
def test_partition_value_that_merged_rows_cannot_have_is_refused_before_the_commit(
    spark: SparkSession, lake: str, arrivals: Path, value: str, message: str
) -> None:
    arrive(arrivals, range(3))
    sink = DeltaSink(f"{lake}/table", partition_by=["p"], mode="upsert", keys=["id"])
    pipeline = pipeline_to(f"{lake}/table", f"{lake}/log", arrivals, sinks={"table": sink})
    with pytest.raises(DataError, match=message):
        run_batch(pipeline.replace(transform=lambda frame: frame.selectExpr("id", f"{value} as p")), run_key="a")
    assert run_batch(pipeline, run_key="a").version == 0


CLAUSES = ["id < 31", "id >= 89", "price > 60.25", "at >= timestamp'2024-02-29 20:00:59.000059Z'", "day = date'2024-02-03'", "n.a between 29 and 30",
           "p = 'plain'", "p is null", "score > 29.6", "local < timestamp_ntz'2024-02-29 20:00:01'", "ok is null", "n.b is null"]  # fmt: skip


@pytest.mark.prove
def test_data_skipping_by_statistics_skips_no_matching_row(spark: SparkSession, lake: str, arrivals: Path) -> None:
    for first in range(0, 90, 30):
        arrive(arrivals, range(first, first + 30))
    table = f"{lake}/table"
    run_batch(pipeline_to(table, f"{lake}/log", arrivals), run_key="all", drain=True)
    plain = spark.read.schema(SCHEMA).json(str(arrivals))
    found = spark.read.format("delta").load(table.replace("s3://", "s3a://"))
    for clause in CLAUSES:
        assert sorted(r["id"] for r in found.where(clause).collect()) == sorted(
            r["id"] for r in plain.where(clause).collect()
        ), clause
    aggregates = ["count(*)", "min(id)", "max(id)", "min(at)", "max(at)", "min(day)", "max(price)"]
    assert found.selectExpr(*aggregates).collect() == plain.selectExpr(*aggregates).collect()
    files = found.where("id < 10").inputFiles(), found.inputFiles()
    assert 0 < len(files[0]) < len(files[1])


@pytest.mark.prove
def test_reprocessing_on_spark_replaces_the_rows_of_its_version(spark: SparkSession, lake: str, arrivals: Path) -> None:
    for first in (0, 10):
        arrive(arrivals, range(first, first + 10))
    table = f"{lake}/table"
    pipeline = pipeline_to(table, f"{lake}/log", arrivals)
    run_batch(pipeline, run_key="all", drain=True)
    reprocess(pipeline.replace(transform=lambda frame: frame.withColumn("id", F.col("id") + 100)), 0)
    assert Counter(row["id"] for row in spark_rows(spark, table)) == Counter([*range(100, 110), *range(10, 20)])
    assert verify(f"{lake}/log").clean


def test_rolled_back_rows_are_in_no_reader_of_the_table(spark: SparkSession, lake: str, arrivals: Path) -> None:
    for first in (0, 10, 20):
        arrive(arrivals, range(first, first + 10))
    table = f"{lake}/table"
    pipeline = pipeline_to(table, f"{lake}/log", arrivals)
    run_batch(pipeline, run_key="all", drain=True)
    rollback(pipeline, 0)
    assert sorted(row["id"] for row in spark_rows(spark, table)) == [*range(10)]
    run_batch(pipeline, run_key="again", drain=True)
    assert sorted(row["id"] for row in spark_rows(spark, table)) == [*range(30)]
    assert verify(f"{lake}/log").clean


def test_type_that_delta_lacks_is_refused_before_the_commit(spark: SparkSession, lake: str, arrivals: Path) -> None:
    arrive(arrivals, range(3))
    pipeline = pipeline_to(f"{lake}/table", f"{lake}/log", arrivals)
    with pytest.raises(DataError, match="nothing became visible"):
        run_batch(pipeline.replace(transform=lambda frame: frame.selectExpr("*", "interval 1 day as gap")), run_key="a")
    assert run_batch(pipeline, run_key="a").version == 0


@pytest.mark.prove
def test_types_that_differ_between_batches_are_read_unchanged_in_spark_and_delta_rs(
    spark: SparkSession, lake: str, arrivals: Path, tmp_path: Path
) -> None:
    """Each batch must fit the types of a new table. Struct fields are added. An untyped column is omitted until a batch has its type."""
    table = str(tmp_path / "table")
    pipeline = pipeline_to(table, f"{lake}/log", arrivals, sinks={"table": DeltaSink(table)})
    selects = [
        "0L id, 5000000000L n, 1.5D f, 1.25BD d, null late, named_struct('a', 1L, 'gap', null) s, array(named_struct('x', 1L)) l, map('k', 1L) m",
        "1 id, 7 n, cast(1.5 as float) f, 2.5BD d, 'now' late, named_struct('b', 'new', 'a', 2) s, array(named_struct('y', 'new', 'x', 2), null) l, map('k', null) m",
        "cast(2 as short) id, null n, 3 f, null d, null late, null s, array() l, map() m",
    ]
    for number, select in enumerate(selects):
        arrive(arrivals, range(number, number + 1))
        run_batch(pipeline.replace(transform=lambda frame, s=select: frame.selectExpr(*_split(s))), run_key=str(number))
    late = pipeline.replace(transform=lambda frame: frame.selectExpr("3L id", "1.5D n", *_split(selects[0])[2:]))
    arrive(arrivals, range(3, 4))
    with pytest.raises(DataError, match="changed its type"):
        run_batch(late, run_key="3")
    expected: list[dict[str, Any]] = [
        {"id": 0, "n": 5_000_000_000, "f": 1.5, "d": Decimal("1.25"), "late": None, "s": {"a": 1, "b": None}, "l": [{"x": 1, "y": None}], "m": {"k": 1}},
        {"id": 1, "n": 7, "f": 1.5, "d": Decimal("2.50"), "late": "now", "s": {"a": 2, "b": "new"}, "l": [{"x": 2, "y": "new"}, None], "m": {"k": None}},
        {"id": 2, "n": None, "f": 3.0, "d": None, "late": None, "s": None, "l": [], "m": {}},
    ]  # fmt: skip
    read = [row.asDict(recursive=True) for row in spark_rows(spark, table)]
    assert [{name: row[name] for name in expected[0]} for row in read] == expected
    by_delta_rs = DeltaTable(table).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["s"] for row in by_delta_rs] == [row["s"] for row in expected]
    assert [row["n"] for row in by_delta_rs] == [row["n"] for row in expected]
    assert verify(f"{lake}/log").clean


def _split(select: str) -> list[str]:
    """Split a list of expressions at its commas outside of parentheses."""
    parts, depth = [""], 0
    for sign in select:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


@pytest.mark.prove
def test_table_that_spark_created_with_requirements_is_correct_for_spark_after_each_publish(
    spark: SparkSession, lake: str, arrivals: Path, tmp_path: Path
) -> None:
    """The table has NOT NULL and VARCHAR columns, a change data feed and v2 checkpoints. Spark counts, compacts and lists the changes."""
    table = str(tmp_path / "table")
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id long NOT NULL, v varchar(3), s struct<a: int NOT NULL, b: int>) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.checkpointPolicy = 'v2')"
    )
    pipeline = pipeline_to(table, f"{lake}/log", arrivals, sinks={"table": DeltaSink(table)})
    good = ["id", "substring(p, 1, 3) v", "named_struct('a', cast(id as int), 'b', null) s"]
    arrive(arrivals, range(10))
    for select, message in [
        (["if(id = 3, null, id) id", *good[1:]], "NOT NULL"),
        ([*good[:2], "if(id = 3, null, named_struct('a', 1, 'b', 1)) s"], "NOT NULL"),
        (["id", "repeat('é', 4) v", good[2]], "VARCHAR"),
        (["id", "array(id) v", good[2]], "another type"),
    ]:
        with pytest.raises(DataError, match=message):
            run_batch(pipeline.replace(transform=lambda frame, s=select: frame.selectExpr(*s)), run_key="a")
    spec = pipeline.replace(transform=lambda frame: frame.selectExpr(*good))
    run_batch(spec, run_key="a")
    spark.sql(f"OPTIMIZE delta.`{table}`")
    arrive(arrivals, range(10, 20))
    run_batch(spec, run_key="b")
    reprocess(spec.replace(transform=lambda frame: frame.selectExpr("id + 100 id", *good[1:])), 1)
    found = spark.sql(f"SELECT count(*), count(id), sum(id), max(length(v)), count(s.a) FROM delta.`{table}`").first()
    assert tuple(found or ()) == (20, 20, sum(range(10)) + sum(range(110, 120)), 3, 20)
    changes = spark.sql(
        f"SELECT _change_type, count(DISTINCT id) n FROM table_changes_by_path('{table}', 0) GROUP BY 1"
    )
    assert {row["_change_type"]: row["n"] for row in changes.collect()} == {"insert": 30, "delete": 10}
    assert verify(f"{lake}/log").clean


def test_empty_text_as_a_partition_value_is_refused_before_the_commit(
    spark: SparkSession, lake: str, arrivals: Path
) -> None:
    arrive(arrivals, range(3))
    pipeline = pipeline_to(f"{lake}/table", f"{lake}/log", arrivals)
    with pytest.raises(DataError, match="an empty string cannot be a partition value"):
        run_batch(pipeline.replace(transform=lambda frame: frame.selectExpr("id", "'' as p", "day")), run_key="a")
    assert run_batch(pipeline, run_key="a").version == 0


@pytest.mark.prove
def test_two_concurrent_publishing_processes_add_each_version_once(
    spark: SparkSession, s3_server: S3Server, lake: str, arrivals: Path
) -> None:
    """Two processes that start together publish each version. A third process publishes them again, late."""
    arrive(arrivals, range(5))
    table = f"{lake}/table"
    pipeline = pipeline_to(table, f"{lake}/log", arrivals)
    run_batch(pipeline, run_key="all", drain=True)
    spec = json.dumps(pipeline.without_transform())
    code = textwrap.dedent(f"""
        import sys
        from dataclasses import replace
        import json
        from airflow_provider_streamsem.pipeline.spec.binding import bind
        from airflow_provider_streamsem.pipeline.versions.publish import batch_of
        from airflow_provider_streamsem.pipeline.spec.pipeline import from_json
        from airflow_provider_streamsem.commitlog.log import commit_log_at
        from airflow_provider_streamsem.protocol.entries import Marker
        from airflow_provider_streamsem.stores.dataset import open_dataset
        pipeline = from_json(json.loads({spec!r}))
        opened = bind(pipeline, commit_log_at(pipeline.log))
        batch = batch_of(opened, opened.head.outcome, opened.head.outcome_sha, "table")
        data = open_dataset({table!r})
        sink = pipeline.sinks["table"]
        for line in sys.stdin:
            version = int(line)
            files = []
            for n, file in enumerate(batch.committable.files):
                key = f"data/{{version}}/copy/{{n}}.parquet"
                data.create(key, data.read(file.key))
                files.append(replace(file, key=key))
            last = Marker(version=version - 1, outcome=batch.outcome)
            copy = replace(batch, expected_marker=last, version=version, root=version, committable=replace(batch.committable, files=tuple(files)))
            receipt = sink.publish(copy)
            print("newer" if receipt is None else receipt.result, flush=True)
    """)
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    *first, late = processes

    def send(process: Any, version: int) -> None:
        process.stdin.write(f"{version}\n")
        process.stdin.flush()

    for version in range(1, ROUNDS + 1):
        for process in first:
            send(process, version)
        assert {process.stdout.readline().strip() for process in first} <= {"applied"}
    for version in range(1, ROUNDS + 1):
        send(late, version)
        assert late.stdout.readline().strip() == ("newer" if version < ROUNDS else "applied")
    for process in processes:
        process.stdin.close()
        assert process.wait(30) == 0
    ids = Counter(row["id"] for row in spark_rows(spark, table))
    assert ids == Counter({n: ROUNDS + 1 for n in range(5)})


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_publisher_crash_around_any_table_write_on_s3_then_retry_publishes_once(
    s3_server: S3Server, lake: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """
    Publish two versions, then reprocess the first (append) or merge over both (upsert).

    Each write to the table's log on the real server is a step.
    """
    merges = mode == "upsert"
    steps = Steps()
    for owner, name in WRITES:
        monkeypatch.setattr(owner, name, step_by_step(name, getattr(owner, name), lambda step: steps(step)))

    def batches(sink: DeltaSink) -> list[SinkCommit]:
        batches: list[SinkCommit] = []
        for version, ids in enumerate(([1, 2], [3], [1, 3, 20] if merges else [10, 20])):
            sink_file = io.BytesIO()
            pyarrow.parquet.write_table(pyarrow.table({"id": ids, "v": [version] * len(ids)}), sink_file)
            assert sink.dataset().create(f"data/{version}/a/part-0.parquet", sink_file.getvalue())
            replaced = {0: batches[0].committable} if version == 2 and not merges else {}
            batches.append(
                SinkCommit(pipeline_uuid="u", sink="t", version=version, outcome=outcome_of(version), expected_marker=before(version),
                      committable=sink.collect(version, "a"), root=0 if replaced else version,
                      schema=schema_of(id="long", v="long"), replaced=replaced)
            )  # fmt: skip
        return batches

    def run_with_crash(number: int, at: int | None) -> list[str]:
        nonlocal steps
        names: list[str] = []
        sink = DeltaSink(f"{lake}/table-{number}", mode=mode, keys=["id"] if merges else [])
        steps = Steps(at)
        for batch in batches(sink):
            with suppress(Crash):
                sink.publish(batch)
            watched, steps = steps, Steps()
            receipt = sink.publish(batch)
            assert receipt is not None
            assert receipt.result == "applied"
            steps = Steps() if watched.died else watched
            names += watched.taken if watched.died or batch.version == 2 else []
        read = DeltaTable(f"{lake}/table-{number}", storage_options=s3_server.deltalake_options()).to_pyarrow_table()
        rows = sorted((row["id"], row["v"]) for row in read.to_pylist())
        assert rows == ([(1, 2), (2, 0), (3, 2), (20, 2)] if merges else [(3, 1), (10, 2), (20, 2)])
        return names

    all_steps = run_with_crash(0, None)
    assert len(all_steps) == 8
    for at in range(len(all_steps)):
        assert run_with_crash(at + 1, at)[: at + 1] == all_steps[: at + 1]
