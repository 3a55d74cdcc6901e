"""State is part of the commit: after crashes, concurrent attempts, aborts and reprocessing the result equals that of a run without faults."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    Dedup,
    FilesSink,
    FilesSource,
    JdbcSink,
    State,
    load_pipeline,
    read_committed,
    reprocess,
    run_batch,
    verify,
)
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.errors import DataError, InvalidError, LogDamagedError, StageError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from airflow_provider_streamsem.spark.stateful import MicroBatch
from airflow_provider_streamsem.state.settings import operator_state
from tests.connectors.sql.sqlite_database import database_at
from tests.state.crashes import Crash, crash_at, run_and_crash_after_state_write
from tests.state.processors import processed
from tests.state.stateful_pipeline import arrive, counts, outcome, pipeline, start_new_process
from tests.state.transforms import keyed, windowed

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("step", "before"),
    [("result", True), ("result", False), ("after", True), ("after", False)],
    ids=["before the plan", "before the rows", "before the ids are read", "before the manifest"],
)
def test_crash_at_any_step_of_an_attempt_counts_nothing_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, before: bool
) -> None:
    arrive(tmp_path, 0, [(1, "a"), (2, "b")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    arrive(tmp_path, 1, [(3, "a"), (4, "a")])
    crash_at(monkeypatch, MicroBatch, step, before=before)
    with pytest.raises(StreamsemError):
        run_batch(pipeline(tmp_path, keyed, "update"), run_key="second")
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="second")
    assert counts(spark, tmp_path) == {"a": 3, "b": 1}
    arrive(tmp_path, 2, [(5, "b")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="third")
    assert counts(spark, tmp_path) == {"a": 3, "b": 2}
    assert verify(str(tmp_path / "log")).violations == []


@pytest.mark.parametrize("version", [pytest.param(0, marks=pytest.mark.prove), 1])
def test_concurrent_attempt_of_another_process_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """The first attempt stages its rows. Before its commit, another process stages and commits the same version and the next one."""
    for number in range(version + 1):
        arrive(tmp_path, number, [(1, "a"), (2, "b")])
        if number < version:
            run_batch(pipeline(tmp_path, keyed, "update"), run_key=f"run {number}")
    real, entered = MicroBatch.after, []

    def after(self: MicroBatch) -> Any:
        if not entered:
            entered.append(self)
            run_batch(pipeline(tmp_path, keyed, "update"), run_key="same")
            arrive(tmp_path, 9, [(3, "a")])
            run_batch(pipeline(tmp_path, keyed, "update"), run_key="next")
        return real(self)

    monkeypatch.setattr(MicroBatch, "after", after)
    result = run_batch(pipeline(tmp_path, keyed, "update"), run_key="same")
    assert (result.version, result.status) == (version, "committed")
    assert counts(spark, tmp_path) == {"a": version + 2, "b": version + 1}
    arrive(tmp_path, 10, [(4, "b")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="last")
    assert counts(spark, tmp_path) == {"a": version + 2, "b": version + 2}


def test_aborted_version_does_not_change_the_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    arrive(tmp_path, 1, [(2, "a")])
    crash_at(monkeypatch, MicroBatch, "after")
    with pytest.raises(StreamsemError):
        run_batch(pipeline(tmp_path, keyed, "update"), run_key="second")
    opened = bind(pipeline(tmp_path, keyed, "update"), commit_log_at(str(tmp_path / "log")))
    abort(opened.log, opened.record, 1, reason="poison")
    assert outcome(tmp_path, 1).state == outcome(tmp_path, 0).state
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="third")
    assert counts(spark, tmp_path) == {"a": 2}


def test_reprocessing_replaces_the_rows_of_its_version_and_keeps_the_newest_state(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, events in enumerate([[(1, "a")], [(2, "a"), (2, "b")], [(3, "a")]]):
        arrive(tmp_path, number, events)
        run_batch(pipeline(tmp_path, keyed, "update"), run_key=f"run {number}")
    before = outcome(tmp_path, 2).state
    fixed = pipeline(tmp_path, lambda events: keyed(events).withColumn("n", F.col("n") * 10), "update")
    reprocess(fixed, 1, run_key="fix")
    assert outcome(tmp_path, 3).state == before
    reprocess(fixed, 1, run_key="fix")
    named = [message for message in caplog.messages if "The state after version 1 is unchanged" in message]
    assert len(named) == 2, "also if a retry returns the same result"
    assert named[0] == named[1]
    assert named[0].startswith("only the rows of version 1 were replaced")
    assert "version 2 keeps its rows and state" in named[0]
    rows = sorted((row["k"], row["n"]) for row in read_committed(spark, str(tmp_path / "log")).collect())
    assert rows == [("a", 1), ("a", 3), ("a", 20), ("b", 10)]
    arrive(tmp_path, 3, [(4, "a")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="last")
    assert ("a", 4) in {(row["k"], row["n"]) for row in read_committed(spark, str(tmp_path / "log")).collect()}


def test_command_that_reprocesses_names_the_versions_that_keep_their_rows_and_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text(f"""
name = "stateful"
log = "{tmp_path}/log"
transform = "tests.state.test_operators:keyed"
[source]
type = "files"
path = "{tmp_path}/in"
format = "parquet"
schema = "t timestamp, k string"
[sinks.out]
type = "files"
path = "{tmp_path}/out"
[state]
output_mode = "update"
partitions = 2
""")
    for number in range(3):
        arrive(tmp_path, number, [(number, "a")])
        run_batch(load_pipeline(str(tmp_path / "p.toml")), run_key=f"run {number}")
    assert main(["reprocess", str(tmp_path / "p.toml"), "0"]) == 0
    text = capsys.readouterr().out
    assert "only the rows of version 0 were replaced" in text
    assert "versions 1 to 2 keep their rows and state" in text
    assert "streamsem fork NEW.toml LOG --at -1" in text
    assert main(["reprocess", str(tmp_path / "p.toml"), "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept_versions"] == [2, 4]


def test_dedup_and_state_are_committed_together(spark: SparkSession, tmp_path: Path) -> None:
    source = FilesSource(path=str(tmp_path / "in"), format="parquet", schema="t timestamp, k string, id string")
    spec = pipeline(tmp_path, keyed, "update", dedup=Dedup(keys=["id"], ttl_s=3600), source=source)
    for number, ids in enumerate((["x", "x"], ["x", "y"])):
        arrive_with_ids(tmp_path, number, ids)
        run_batch(spec, run_key=f"run {number}")
    assert counts(spark, tmp_path) == {"a": 2}
    assert set(outcome(tmp_path, 1).state) == {"dedup", "spark"}
    reprocess(spec, 0)
    assert set(outcome(tmp_path, 2).state) == {"dedup", "spark"}


def arrive_with_ids(root: Path, number: int, ids: list[str]) -> None:
    arrive(root, number, [(1, "a")] * len(ids), id=ids)


@pytest.mark.parametrize("first", ["id <> 'x'", pytest.param(None, marks=pytest.mark.prove)])
def test_reprocessing_with_state_changes_no_ids_so_each_record_is_counted_once(
    spark: SparkSession, tmp_path: Path, first: str | None
) -> None:
    """A record is in the operators' state if its id is in the deduplication state. A reprocessing run changes neither."""
    source = FilesSource(path=str(tmp_path / "in"), format="parquet", schema="t timestamp, k string, id string")
    spec = pipeline(tmp_path, keyed, "update", dedup=Dedup(keys=["id"], ttl_s=3600), source=source)
    second = None if first else "id <> 'x'"
    arrive_with_ids(tmp_path, 0, ["x", "y"])
    run_batch(spec.replace(where=first), run_key="first")
    before = outcome(tmp_path, 0).state
    reprocess(spec.replace(where=second), 0)
    assert outcome(tmp_path, 1).state == before
    arrive_with_ids(tmp_path, 1, ["x", "z"])
    run_batch(spec, run_key="second")
    assert counts(spark, tmp_path) == {"a": 3}


def test_several_sinks_get_the_rows_of_one_execution(spark: SparkSession, tmp_path: Path) -> None:
    sinks = {name: FilesSink(path=str(tmp_path / name)) for name in ("one", "two")}
    for number, events in enumerate([[(1, "a")], [(2, "a"), (2, "b")]]):
        arrive(tmp_path, number, events)
        run_batch(pipeline(tmp_path, keyed, "update", sinks=sinks), run_key=f"run {number}")
    for name in sinks:
        rows = read_committed(spark, str(tmp_path / "log"), sink=name).collect()
        assert Counter((row["k"], row["n"]) for row in rows) == Counter([("a", 1), ("a", 2), ("b", 1)])


@pytest.mark.parametrize("lost", [False, True])
def test_staged_attempt_is_adopted_only_with_its_state_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    arrive(tmp_path, 0, [(1, "a"), (1, "b")])
    with monkeypatch.context() as patched:
        crash_at(patched, CommitLog, "decide", before=True)
        with pytest.raises(Crash):
            run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    (attempt,) = open_log(str(tmp_path / "log")).log.list_keys("attempts/")
    if lost:
        next((tmp_path / "log" / "state").rglob("1_*.zip")).unlink()
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    assert (outcome(tmp_path, 0).attempt_id == Path(attempt).stem) is not lost
    arrive(tmp_path, 1, [(2, "a"), (2, "b")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="second")
    assert counts(spark, tmp_path) == {"a": 2, "b": 2}


@pytest.mark.parametrize("value", ["../x", "", "a/b"])
def test_forged_state_cannot_name_other_files(value: str) -> None:
    operator = {"name": "n", "rows": 0, "bytes": 0, "ids": [["x"]]}
    forged = {"root": value, "batches": 1, "partitions": 1, "columns": {}, "operators": [operator]}
    with pytest.raises(LogDamagedError, match="other characters than letters"):
        operator_state({"spark": forged})
    forged = {**forged, "root": "r", "operators": [{**operator, "ids": [[value]]}]}
    with pytest.raises(LogDamagedError, match="other characters than letters"):
        operator_state({"spark": forged})


def test_first_state_that_is_not_in_the_log_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the case if the executors have another disk than the driver."""
    arrive(tmp_path, 0, [(1, "a")])
    real = MicroBatch.after

    def lost(self: MicroBatch) -> Any:
        found = real(self)
        for file in (tmp_path / "log" / "state").rglob("*.zip"):
            file.unlink()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(MicroBatch, "after", lost)
        with pytest.raises(StageError, match="not in the log"):
            run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    assert run_batch(pipeline(tmp_path, keyed, "update"), run_key="first").status == "committed"


def test_watermark_and_late_rows_are_recorded(tmp_path: Path) -> None:
    for number, events in enumerate([[(30, "a")], [(50, "a")], [(1, "a"), (51, "a")]]):
        arrive(tmp_path, number, events)
        run_batch(pipeline(tmp_path, windowed, "append"), run_key=f"run {number}")
    minutes = [(outcome(tmp_path, version).watermark_ms or 0) // 60_000 % 1440 for version in range(3)]
    assert minutes == [25, 45, 46]
    assert [outcome(tmp_path, version).counts["late"] for version in range(3)] == [0, 0, 1]


@pytest.mark.prove
def test_stateful_processor_keeps_its_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pipeline(tmp_path, processed, "update")
    for number, events in enumerate([[(1, "a"), (2, "b")], [(3, "a")], [(4, "a"), (5, "b")]]):
        arrive(tmp_path, number, events)
        if number == 1:
            run_and_crash_after_state_write(monkeypatch, spec, f"run {number}")
        run_batch(spec, run_key=f"run {number}")
    assert counts(spark, tmp_path) == {"a": 3, "b": 2}


def test_state_files_on_disk_are_synced_before_the_outcome(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure, an outcome must not name files that were only in the page cache."""
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.readlink(f"/proc/self/fd/{descriptor}")))
    arrive(tmp_path, 0, [(1, "a"), (2, "b")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    root = tmp_path / "log" / "state" / "operators"
    written = {str(file) for file in root.rglob("*") if file.is_file() and file.suffix != ".crc"}
    assert len([file for file in written if file.endswith((".sst", ".zip"))]) >= 4
    assert written <= synced
    assert {str(file.parent) for file in root.rglob("*.zip")} | {str(root), str(tmp_path / "log")} <= synced


# --- state that cannot be continued


def test_late_records_fail_the_batch_if_they_must_not_be_dropped(tmp_path: Path) -> None:
    strict = State(output_mode="append", partitions=2, late="fail")
    for number, events in enumerate([[(30, "a")], [(50, "a")], [(1, "a"), (51, "a")]]):
        arrive(tmp_path, number, events)
        if number < 2:
            run_batch(pipeline(tmp_path, windowed, "append", state=strict), run_key=f"run {number}")
    with pytest.raises(DataError, match=r"dropped rows as late.*late=1"):
        run_batch(pipeline(tmp_path, windowed, "append", state=strict), run_key="run 2")
    assert run_batch(pipeline(tmp_path, windowed, "append"), run_key="run 2").counts["late"] == 1


def test_records_read_twice_are_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of the result writes the state again, as a repeated task does."""
    arrive(tmp_path, 0, [(1, "a")])
    real = MicroBatch.result

    def twice(self: MicroBatch, streaming: DataFrame) -> DataFrame:
        rows = real(self, streaming)
        rows.count()
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(MicroBatch, "result", twice)
        with pytest.raises(StageError, match="exactly one state for each partition"):
            run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    assert counts(spark, tmp_path) == {"a": 1}


def test_other_mode_or_number_of_partitions_is_refused(tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    arrive(tmp_path, 1, [(2, "a")])
    with pytest.raises(StreamsemError, match="output_mode"):
        run_batch(pipeline(tmp_path, windowed, "append"), run_key="second")
    with pytest.raises(InvalidError, match="partitions cannot be changed"):
        run_batch(
            pipeline(tmp_path, keyed, "update", state=State(output_mode="update", partitions=3)), run_key="second"
        )
    run_batch(pipeline(tmp_path, keyed, "update", state=State(output_mode="update")), run_key="second")


def test_transform_that_streaming_does_not_support_is_refused_with_sparks_reason(tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    with pytest.raises(DataError, match=r"output_mode='append', reason=.*UNSUPPORTED_OPERATION"):
        run_batch(pipeline(tmp_path, keyed, "append"), run_key="first")
    static = "SELECT now() at, 'a' k, 1L n"
    with pytest.raises(InvalidError, match="streaming DataFrame"):
        run_batch(pipeline(tmp_path, lambda events: events.sparkSession.sql(static), "append"), run_key="first")


@pytest.mark.parametrize("damage", ["deleted", "truncated", "without its SST files"])
def test_lost_state_file_stops_the_next_batch(tmp_path: Path, damage: str) -> None:
    arrive(tmp_path, 0, [(1, "a"), (1, "b"), (1, "c")])
    run_batch(pipeline(tmp_path, keyed, "update"), run_key="first")
    start_new_process()
    for file in (tmp_path / "log" / "state").rglob("*.sst" if "SST" in damage else "*.zip"):
        if damage != "truncated":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:40])
    arrive(tmp_path, 1, [(2, "a")])
    with pytest.raises(DataError, match="state of the previous batch"):
        run_batch(pipeline(tmp_path, keyed, "update"), run_key="second")
    assert [finding.what for finding in verify(str(tmp_path / "log")).violations] == [
        "a file of the operators' state is missing, truncated or swapped"
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": "filter"}, "rows"),
        ({"state": State(output_mode="complete")}, "append it again"),
        ({"state": "update"}, "must be a State"),
    ],
)
def test_pipeline_that_cannot_keep_state_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidError, match=reason):
        pipeline(tmp_path, keyed, "update").replace(**changes)


def test_idle_source_closes_no_window_of_a_complete_result() -> None:
    with pytest.raises(InvalidError, match="no window is ever closed"):
        State(output_mode="complete", close_after_s=60)


def test_spark_connect_is_refused(tmp_path: Path) -> None:
    arrive(tmp_path, 0, [(1, "a")])
    with pytest.raises(InvalidError, match="Spark Connect"):
        run_batch(pipeline(tmp_path, keyed, "update"), run_key="first", engine=SparkEngine(remote="sc://localhost:1"))


# --- any division of the input into batches


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.prove) for seed in (1, 2))])
def test_any_division_into_batches_gives_the_result_of_one_pass(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Batches of random sizes, with a crash in some of them. The events of each key are counted by an independent loop."""
    chance = random.Random(seed)
    events = [(chance.randrange(120), chance.choice("abc")) for _ in range(60)]
    left, number = [*events], 0
    while left:
        size = chance.randrange(1, 40)
        arrive(tmp_path, number, left[:size])
        if chance.random() < 0.4:
            with monkeypatch.context() as patched:
                crash_at(patched, MicroBatch, chance.choice(["result", "after"]), before=chance.random() < 0.5)
                with pytest.raises(StreamsemError):
                    run_batch(pipeline(tmp_path, keyed, "update"), run_key=f"run {number}")
        run_batch(pipeline(tmp_path, keyed, "update"), run_key=f"run {number}")
        left, number = left[size:], number + 1
    assert counts(spark, tmp_path) == Counter(key for _, key in events)
    assert verify(str(tmp_path / "log")).violations == []


@pytest.mark.parametrize("mode", ["update", pytest.param("complete", marks=pytest.mark.prove)])
def test_upserting_sink_holds_the_newest_row_of_each_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    db = database_at(tmp_path / "db.sqlite", monkeypatch)
    db.run('CREATE TABLE "t" (k VARCHAR(9) PRIMARY KEY, n BIGINT)')
    sinks = {"t": JdbcSink(conn_id="db", table="t", staging=str(tmp_path / "staging"), mode="upsert", keys=["k"])}
    spec = pipeline(tmp_path, lambda events: events.groupBy("k").agg(F.count("*").alias("n")), mode, sinks=sinks)
    written = []
    for number, events in enumerate([[(1, "a"), (1, "b")], [(2, "a")], [(3, "c")]]):
        arrive(tmp_path, number, events)
        written.append(run_batch(spec, run_key=f"run {number}").counts["written.t"])
    assert sorted(db.run('SELECT k, n FROM "t"')) == [("a", 2), ("b", 1), ("c", 1)]
    assert written == ([2, 1, 1] if mode == "update" else [2, 2, 3])
