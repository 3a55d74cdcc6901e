"""Dataset and log on a real S3 server. Spark writes and reads through S3A."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    Pipeline,
    PipelineSource,
    State,
    compact,
    erase,
    fork,
    open_log,
    read_committed,
    read_state,
    reprocess,
    run_batch,
    verify,
)
from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.errors import ConflictError, SourceChangedError, StageError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.spark.stateful import MicroBatch
from airflow_provider_streamsem.stores.dataset import open_dataset
from tests.integration.parts.s3 import S3Server, downloaded
from tests.state.processors import Counting

pytestmark = pytest.mark.integration

ODD = [
    "plain",
    "a/b",
    "50%",
    "two words",
    "ünï",
    "",
    None,
    "x" * 300,
    "=",
    "n",
    "v00",
    "__HIVE_DEFAULT_PARTITION__",
    "..",
    " ",
]


def keys(location: str) -> list[str]:
    """List the keys below a location with boto3 alone."""
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix + "/")
    return [item["Key"] for page in pages for item in page.get("Contents", [])]


def uploads(location: str) -> list[dict[str, Any]]:
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    found: list[dict[str, Any]] = (
        boto3.client("s3").list_multipart_uploads(Bucket=bucket, Prefix=prefix + "/").get("Uploads", [])
    )
    return found


def pipeline(lake: str, arrivals: Path, **changes: Any) -> Pipeline:
    sink = changes.pop("sink", {})
    spec = Pipeline(
        name="p", log=f"{lake}/log", source=FilesSource(path=str(arrivals), format="json", schema="id long, s string"),
        sinks={"out": FilesSink(path=f"{lake}/out", **sink)},
    )  # fmt: skip
    return spec.replace(**changes)


def test_state_on_s3_survives_a_crash_and_restarts(
    spark: SparkSession, lake: str, arrivals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count_by_s(events: DataFrame) -> DataFrame:
        return events.groupBy("s").count()

    spec = pipeline(lake, arrivals, transform=count_by_s, state=State(output_mode="update", partitions=2))
    for number in range(4):
        put(arrivals, f"{number}.json", [{"id": number, "s": "ab"[n % 2]} for n in range(number + 2)])
        if number == 2:
            with monkeypatch.context() as patched:
                patched.setattr(MicroBatch, "after", lambda self: 1 / 0)
                with pytest.raises(StageError):
                    run_batch(spec, run_key="run 2")
        run_batch(spec, run_key=f"run {number}")
    newest: dict[str, int] = {}
    for row in read_committed(spark, spec.log).collect():
        newest[row["s"]] = max(row["count"], newest.get(row["s"], 0))
    assert newest == {"a": 8, "b": 6}
    vacuum(spec.replace(state=State(output_mode="update", partitions=2, keep_versions=1)))
    for version, expected in ((3, {"a": 8, "b": 6}), (2, {"a": 5, "b": 4})):
        state = read_state(spark, spec.log, version=version).selectExpr("key.*", "value.*").collect()
        assert {row["s"]: row["count"] for row in state} == expected
    assert any("/state/operators/" in key for key in keys(f"{lake}/log"))
    assert verify(spec.log).violations == []


@pytest.mark.prove
def test_fork_on_s3_continues_the_state_of_a_stateful_processor(spark: SparkSession, lake: str, arrivals: Path) -> None:
    def count_by_s(events: DataFrame) -> DataFrame:
        return events.groupBy("s").transformWithStateInPandas(
            statefulProcessor=Counting(), outputStructType="k string, n long", outputMode="Update", timeMode="None"
        )

    spec = pipeline(lake, arrivals, transform=count_by_s, state=State(output_mode="update", partitions=2))
    put(arrivals, "0.json", [{"id": 0, "s": "a"}, {"id": 1, "s": "b"}])
    run_batch(spec, run_key="first")
    new = spec.replace(log=f"{lake}/fork/log", sinks={"out": FilesSink(path=f"{lake}/fork/out")})
    fork(new, spec.log)
    original = open_dataset(spec.log)
    for stat in [*original.list("state/")]:
        original.delete(stat.key)
    put(arrivals, "1.json", [{"id": 2, "s": "a"}])
    run_batch(new, run_key="second")
    state = read_state(spark, new.log, options={"stateVarName": "count"}).selectExpr("key.s", "value.n").collect()
    assert sorted(map(tuple, state)) == [("a", 2), ("b", 1)]


def put(arrivals: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (arrivals / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_server_supports_create_if_absent(lake: str) -> None:
    report = doctor.examine(commit_log_at(f"{lake}/log"))
    assert report.passed, report


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_unusual_partition_values_are_read_back_equal(
    lake: str, arrivals: Path, spark: SparkSession, format: str
) -> None:
    put(arrivals, "a.json", [{"id": n, "s": value} for n, value in enumerate(ODD)])
    run_batch(pipeline(lake, arrivals, sink={"format": format, "partition_by": ["s"]}), run_key="a")
    rows = {row["id"]: row["s"] for row in read_committed(spark, f"{lake}/log").collect()}
    assert rows == dict(enumerate(ODD))
    files = open_log(f"{lake}/log").files()
    assert sorted((file.partition["s"] is None, file.partition["s"] or "") for file in files) == sorted(
        (v is None, v or "") for v in ODD
    )
    assert verify(f"{lake}/log").violations == []


def test_another_engine_reads_the_files_that_the_log_names(
    lake: str, arrivals: Path, spark: SparkSession, tmp_path: Path
) -> None:
    put(arrivals, "a.json", [{"id": n, "s": str(n)} for n in range(1_000)])
    run_batch(pipeline(lake, arrivals), run_key="a")
    copies = [downloaded(file.path, tmp_path) for file in open_log(f"{lake}/log").files()]
    assert duckdb.sql(f"select count(*), sum(id) from read_parquet({copies})").fetchall() == [(1_000, 499_500)]


def test_manifest_names_exactly_the_files_of_the_committed_attempt(
    lake: str, arrivals: Path, spark: SparkSession
) -> None:
    """A manifest names no file of a task attempt that failed after it had written rows."""
    put(arrivals, "a.json", [{"id": n, "s": "x"} for n in range(100)])
    marker = arrivals.parent / "failed-once"

    def fails_once(frame: DataFrame) -> DataFrame:
        location = str(marker)

        def check(rows: Any) -> Any:
            import os

            for number, row in enumerate(rows):
                if number == 60 and not os.path.exists(location):
                    open(location, "w").close()
                    raise RuntimeError("this task attempt fails")
                yield row

        return frame.rdd.mapPartitions(check).toDF(frame.schema)

    with pytest.raises(Exception, match="nothing became visible"):  # local mode does not retry a task
        run_batch(pipeline(lake, arrivals, transform=fails_once), run_key="a")
    assert run_batch(pipeline(lake, arrivals, transform=fails_once), run_key="a").counts["written.out"] == 100
    named = {file.path for file in open_log(f"{lake}/log").files()}
    winner = f"/{open_log(f'{lake}/log').log.outcome(0).attempt_id}/"  # type: ignore[union-attr]
    assert named == {f"s3://lake/{key}" for key in keys(f"{lake}/out/data") if winner in key and not key.endswith("/")}
    assert verify(f"{lake}/log").violations == []


def test_file_of_a_failed_task_attempt_in_the_location_of_the_committed_attempt_is_not_in_the_manifest(
    lake: str, arrivals: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the file is like any other. The manifest has only the files that Spark's driver committed."""
    put(arrivals, "a.json", [{"id": n, "s": "x"} for n in range(100)])
    stage, leftovers = FilesSink.stage, []

    def stage_and_leave_a_file(self: FilesSink, frame: DataFrame, version: int, attempt_id: str) -> Any:
        accepted = stage(self, frame, version, attempt_id)
        location = self.attempt_location(version, attempt_id).removeprefix("s3a://lake/").rstrip("/")
        first = next(key for key in keys(f"s3://lake/{location}") if key.endswith(".parquet"))
        leftovers.append(f"{location}/part-00007-{first.rpartition('/')[2].partition('-')[2]}")
        boto3.client("s3").copy_object(Bucket="lake", Key=leftovers[0], CopySource=f"lake/{first}")
        return accepted

    monkeypatch.setattr(FilesSink, "stage", stage_and_leave_a_file)
    assert run_batch(pipeline(lake, arrivals), run_key="a").counts["written.out"] == 100
    assert leftovers[0] in keys(f"{lake}/out/data")
    assert f"s3://lake/{leftovers[0]}" not in {file.path for file in open_log(f"{lake}/log").files()}
    assert sorted(row["id"] for row in read_committed(spark, f"{lake}/log").collect()) == [*range(100)]
    assert verify(f"{lake}/log").violations == []


def test_vacuum_removes_only_files_and_unfinished_uploads_of_dead_attempts(
    s3_server: S3Server, lake: str, arrivals: Path, spark: SparkSession
) -> None:
    """MinIO lists uploads only by their complete key, so vacuum cannot find them by prefix. MinIO itself aborts them after a day."""
    lists_uploads = s3_server.name != "minio"
    put(arrivals, "a.json", [{"id": 1, "s": "x"}])
    spec = pipeline(lake, arrivals)
    run_batch(spec, run_key="a")
    attempt, upload_only, running = ("d" * 31 + digit for digit in "012")
    dead = open_dataset(f"{lake}/out")
    bucket, _, prefix = f"{lake}/out".removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    client.put_object(Bucket=bucket, Key=f"{prefix}/data/0/{attempt}/part-0.parquet", Body=b"half")
    upload = client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/data/0/{upload_only}/part-1.parquet")
    client.upload_part(
        Bucket=bucket,
        Key=f"{prefix}/data/0/{upload_only}/part-1.parquet",
        UploadId=upload["UploadId"],
        PartNumber=1,
        Body=b"x",
    )
    open_version = client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/data/1/{running}/part-0.parquet")
    found = {attempt, upload_only} if lists_uploads else {attempt}
    assert found < set(dead.directories("data/0/"))
    done = vacuum(spec)
    assert {attempt_id for _, _, attempt_id in done.attempts} == found
    assert [u["UploadId"] for u in uploads(f"{lake}/out")] == ([open_version["UploadId"]] if lists_uploads else [])
    assert not [key for key in keys(f"{lake}/out") if any(attempt_id in key for attempt_id in found)]
    assert verify(f"{lake}/log").violations == []


def test_files_on_s3_are_read_once(lake: str, spark: SparkSession) -> None:
    client = boto3.client("s3")
    bucket, _, prefix = lake.removeprefix("s3://").partition("/")
    for n, name in enumerate(("a.json", "odd name ü%20+.json", "day=1/b.json")):
        client.put_object(
            Bucket=bucket, Key=f"{prefix}/in/{name}", Body=json.dumps({"id": n, "s": name}).encode() + b"\n"
        )
    spec = Pipeline(
        name="p", log=f"{lake}/log", source=FilesSource(path=f"{lake}/in", format="json", schema="id long, s string"),
        sinks={"out": FilesSink(path=f"{lake}/out")},
    )  # fmt: skip
    assert run_batch(spec, run_key="a", drain=True).counts["read"] == 3
    client.put_object(Bucket=bucket, Key=f"{prefix}/in/c.json", Body=b'{"id": 3, "s": "c"}\n{broken\n')
    assert run_batch(spec, run_key="b", drain=True).counts["quarantined"] == 1
    assert sorted(row["id"] for row in read_committed(spark, f"{lake}/log").collect()) == [0, 1, 2, 3]
    assert verify(f"{lake}/log").violations == []


def test_reprocessing_on_s3_switches_readers(lake: str, arrivals: Path, spark: SparkSession) -> None:
    put(arrivals, "a.json", [{"id": 1, "s": "wrong"}])
    run_batch(pipeline(lake, arrivals), run_key="a")
    reprocess(pipeline(lake, arrivals, transform=lambda frame: frame.selectExpr("id", "'right' s")), 0)
    assert [tuple(row) for row in read_committed(spark, f"{lake}/log").collect()] == [(1, "right")]
    assert [tuple(row) for row in read_committed(spark, f"{lake}/log", version=0).collect()] == [(1, "wrong")]


def test_compaction_on_s3_keeps_the_rows(lake: str, arrivals: Path, spark: SparkSession) -> None:
    for number in range(2):
        put(arrivals, f"{number}.json", [{"id": number, "s": "x"}])
        run_batch(pipeline(lake, arrivals), run_key=str(number))
    (done,) = compact(pipeline(lake, arrivals))
    assert (done.files, done.new_files) == (2, 1)
    assert sorted(tuple(row) for row in read_committed(spark, f"{lake}/log").collect()) == [(0, "x"), (1, "x")]
    assert verify(pipeline(lake, arrivals)).violations == []


def test_erasure_on_s3_leaves_no_object_with_the_value(lake: str, arrivals: Path, spark: SparkSession) -> None:
    for number in range(2):
        rows = [{"id": 2 * number + at, "s": s} for at, s in enumerate(("x", "u-7f3a9c51"))]
        put(arrivals, f"{number}.json", rows)
        run_batch(pipeline(lake, arrivals), run_key=str(number))
    compact(pipeline(lake, arrivals))
    done = erase(pipeline(lake, arrivals), where="s = 'u-7f3a9c51'")
    assert [(each.rows, each.files) for each in done.sinks] == [(2, 1)]
    assert sorted(tuple(row) for row in read_committed(spark, f"{lake}/log").collect()) == [(0, "x"), (2, "x")]
    assert verify(pipeline(lake, arrivals)).violations == []
    dataset = open_dataset(f"{lake}/out")
    (data,) = [stat for stat in dataset.list("data/") if stat.key.endswith(".parquet")]
    with dataset.open(data) as opened:
        assert pyarrow.parquet.read_table(opened)["s"].to_pylist() == ["x", "x"]


@pytest.mark.parametrize("fault", ["deleted", "truncated", "swapped"])
def test_verify_finds_planted_faults(lake: str, arrivals: Path, spark: SparkSession, fault: str) -> None:
    put(arrivals, "a.json", [{"id": n, "s": "x"} for n in range(10)])
    run_batch(pipeline(lake, arrivals), run_key="a")
    file = open_log(f"{lake}/log").files()[0]
    client = boto3.client("s3")
    bucket, _, key = file.path.removeprefix("s3://").partition("/")
    data = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    if fault == "deleted":
        client.delete_object(Bucket=bucket, Key=key)
    else:
        client.put_object(
            Bucket=bucket, Key=key, Body=data[:-1] if fault == "truncated" else data[:-5] + b"x" + data[-4:]
        )
    assert [(f.invariant, f.key) for f in verify(f"{lake}/log").violations] == [("I6", key.split("/out/")[1])]


def test_two_logs_over_one_dataset_are_refused(lake: str, arrivals: Path, spark: SparkSession) -> None:
    put(arrivals, "a.json", [{"id": 1, "s": "x"}])
    run_batch(pipeline(lake, arrivals), run_key="a")
    with pytest.raises(ConflictError):
        run_batch(pipeline(lake, arrivals, log=f"{lake}/other"), run_key="a")


def test_s3_server_restarted_during_a_run_loses_nothing(
    lake: str, arrivals: Path, spark: SparkSession, s3_server: S3Server
) -> None:
    put(arrivals, "a.json", [{"id": n, "s": "x"} for n in range(10)])
    killed: list[int] = []

    def restart_server(frame: DataFrame) -> DataFrame:
        if not killed:
            killed.append(s3_server.pid)
            s3_server.kill()
            s3_server.start()
        return frame

    for _ in range(3):
        try:
            run_batch(pipeline(lake, arrivals, transform=restart_server), run_key="a")
            break
        except Exception as error:
            assert getattr(error, "retryable", False), error  # noqa: PT017
    assert killed
    assert read_committed(spark, f"{lake}/log").count() == 10
    assert verify(f"{lake}/log").violations == []


def test_unusual_keys_and_partitions_are_read_from_s3(lake: str, spark: SparkSession) -> None:
    names = ["a:b", "a[1]:2", "[x]{y}", "a*b?", "a b", "a%3Ab", "ü", "a#b", "a\\b", "day=10:00 h/x", "day=a%2Fb/x"]
    bucket, _, prefix = lake.removeprefix("s3://").partition("/")
    table = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2]}), table)
    for name in names:
        boto3.client("s3").put_object(
            Bucket=bucket, Key=f"{prefix}/in/{name}.parquet", Body=table.getvalue().to_pybytes()
        )
    source = FilesSource(path=f"{lake}/in", format="parquet", schema="id long, day string")
    spec = Pipeline(name="p", log=f"{lake}/log", source=source, sinks={"out": FilesSink(path=f"{lake}/out")})
    assert run_batch(spec, run_key="a").counts["read"] == 2 * len(names)
    days = {row["day"] for row in read_committed(spark, f"{lake}/log").collect()}
    assert days == {None, "10:00 h", "a/b"}


def test_rows_of_a_pipeline_on_s3_are_read_by_the_next_and_its_corrections_too(
    lake: str, arrivals: Path, spark: SparkSession
) -> None:
    bronze = pipeline(lake, arrivals, name="bronze", sink={"partition_by": ["s"]})
    silver = Pipeline(
        name="silver", log=f"{lake}/silver-log", source=PipelineSource(log=bronze.log, on_reprocess="reprocess"),
        sinks={"out": FilesSink(path=f"{lake}/silver")}, transform=lambda rows: rows,
    )  # fmt: skip
    put(arrivals, "a.json", [{"id": n, "s": value} for n, value in enumerate(ODD)])
    run_batch(bronze, run_key="1")
    run_batch(silver, run_key="1", drain=True)
    put(arrivals, "b.json", [{"id": 100, "s": "a/b"}])
    run_batch(bronze, run_key="2")
    reprocess(bronze.replace(transform=lambda rows: rows.selectExpr("id + 1000 AS id", "s")), 0)
    run_batch(silver, run_key="2", drain=True)
    rows = {row["id"]: row["s"] for row in read_committed(spark, silver.log).collect()}
    assert rows == {100: "a/b", **{1000 + n: value for n, value in enumerate(ODD)}}
    put(arrivals, "c.json", [{"id": 101, "s": "plain"}])
    run_batch(bronze, run_key="3")
    file = open_log(bronze.log).files(since=2)[0]
    boto3.client("s3").delete_object(
        Bucket=file.path.split("/")[2], Key=file.path.removeprefix("s3://").partition("/")[2]
    )
    with pytest.raises(SourceChangedError, match="missing or was changed"):
        run_batch(silver, run_key="3", drain=True)
