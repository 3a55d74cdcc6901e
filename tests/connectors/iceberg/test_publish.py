"""Publishing to Iceberg: each batch is applied once, for any number of publishers, repeats, delays and catalog replies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ForbiddenError, ServiceUnavailableError
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from sqlalchemy.exc import OperationalError

from airflow_provider_streamsem import FilesSink, rollback
from airflow_provider_streamsem.connectors.iceberg import sink as iceberg
from airflow_provider_streamsem.errors import DataError, InvalidError, MarkerLostError, PublishError, UnavailableError
from airflow_provider_streamsem.pipeline.versions.publish import skip
from tests.connectors import batches
from tests.connectors.iceberg.kills import SCENARIOS, Later, kill_at_every_step
from tests.connectors.iceberg.lake import ID, Lake, Steps, spark_schema
from tests.pipeline_fixture import PipelineFixture


@pytest.fixture(autouse=True)
def _quick(short_waits: None) -> Iterator[None]:
    yield
    Steps.hook = None


def at_step(step: str, act: Any, *, nth: int = 1) -> None:
    """Call ``act`` when a step is reached for the nth time. Steps that ``act`` itself reaches do not count."""
    state = {"count": 0, "busy": False}

    def hook(name: str) -> None:
        if name != step or state["busy"]:
            return
        state["count"] += 1
        if state["count"] == nth:
            state["busy"] = True
            try:
                act()
            finally:
                state["busy"] = False

    Steps.hook = hook


def raising(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


def test_batches_of_a_pipeline_are_published_once_and_the_log_is_clean(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(5)
    pipeline = fixture.pipeline(sinks={"t": lake.sink, "out": FilesSink(path=str(tmp_path / "out"), format="json")})
    fixture.run("a", pipeline=pipeline)
    fixture.run("d", drain=True, pipeline=pipeline)
    assert lake.rows() == sorted(fixture.expected.elements())
    assert fixture.verdict().violations == []
    receipts = fixture.opened().log.receipts(0)
    assert receipts is not None
    assert (receipts.sinks["t"].result, receipts.sinks["t"].rows) == ("applied", 6)


def test_deleted_staged_files_are_not_added_to_the_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [1]))
    batch = lake.batch(1, [2])
    (path,) = (Path(lake.sink.path) / file.key for file in batch.committable.files)
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(PublishError, match="restore the files"):
        lake.publish(batch)
    assert lake.rows() == [1]
    path.write_bytes(kept)
    lake.publish(batch)
    assert lake.rows() == [1, 2]


def test_reprocessing_replaces_the_rows_of_its_version_in_one_snapshot(tmp_path: Path) -> None:
    lake, fixture = Lake(tmp_path), PipelineFixture(tmp_path)
    fixture.arrive(5)
    pipeline = fixture.pipeline(sinks={"t": lake.sink})
    fixture.run("d", drain=True, pipeline=pipeline)
    before = len(lake.table().snapshots())
    fixture.run("r", reprocessed=1, pipeline=pipeline.replace(transform=_tenfold))
    assert lake.rows() == [0, 1, 2, 3, 4, 5, 12, 13, 14, *range(60, 120, 10)]
    assert len(lake.table().snapshots()) == before + 1
    fixture.run("r2", reprocessed=1, pipeline=pipeline)
    assert lake.rows() == list(range(15))
    assert fixture.verdict().violations == []


def test_rollback_removes_the_rows_of_later_versions_in_one_snapshot(tmp_path: Path) -> None:
    lake, fixture = Lake(tmp_path), PipelineFixture(tmp_path)
    fixture.arrive(6)
    pipeline = fixture.pipeline(sinks={"t": lake.sink})
    fixture.run("d", drain=True, pipeline=pipeline)
    before = len(lake.table().snapshots())
    rollback(pipeline, 0, log=fixture.log())
    assert lake.rows() == list(range(6))
    assert len(lake.table().snapshots()) == before + 1
    fixture.run("again", drain=True, pipeline=pipeline)
    assert lake.rows() == list(range(18))
    assert fixture.verdict().violations == []


def test_skip_of_a_commit_without_rows_creates_a_missing_table_with_the_columns_of_the_log(tmp_path: Path) -> None:
    lake = Lake(tmp_path).with_options(partition_by=["p"])
    batch = lake.batch(3, [], columns=[("id", "long"), ("p", "string")])
    removing = dataclasses.replace(batch, replaced={1: Lake(tmp_path).batch(1, [1]).committable})
    receipt = lake.skip(removing)
    assert receipt is not None
    assert receipt.result == "skipped"
    assert lake.table().schema().column_names == ["id", "p"]


def _tenfold(rows: list[dict[str, int]]) -> list[dict[str, int]]:
    return [{"id": row["id"] * 10} for row in rows]


def test_reprocessing_to_no_rows_removes_the_old_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [1]))
    first = lake.batch(1, [2])
    lake.publish(first)
    receipt = lake.publish(lake.batch(2, [], reprocesses=first))
    assert receipt is not None
    assert receipt.rows == 0
    assert lake.rows() == [1]


def test_commit_of_another_writer_between_read_and_commit_is_kept(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [0]))
    at_step("before commit_table", lambda: lake.table().append(lake.table().scan().to_arrow()))
    lake.publish(lake.batch(1, [1]))
    assert lake.rows() == [0, 0, 1]


def test_two_concurrent_first_publishers_create_one_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    batch = lake.batch(0, [0])
    at_step("before create_table", lambda: lake.publish(batch))
    receipt = lake.publish(batch)
    assert receipt is not None
    assert lake.rows() == [0]
    assert lake.marked() == ["0 applied"]


def test_next_publisher_determines_whether_an_unanswered_commit_succeeded(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [0]))
    batch = lake.batch(1, [1])

    def never(name: str) -> None:
        if name == "after commit_table" or (name == "before load_table" and committed):
            committed.append(name)
            raise requests.ConnectionError

    committed: list[str] = []
    Steps.hook = never
    with pytest.raises(UnavailableError, match="whether the batch is in it is unknown"):
        lake.publish(batch)
    Steps.hook = None
    receipt = lake.publish(batch)
    assert receipt is not None
    assert lake.marked() == ["0 applied", "1 applied"]


def test_batch_that_the_table_refuses_can_be_skipped(tmp_path: Path) -> None:
    lake, fixture = Lake(tmp_path), PipelineFixture(tmp_path)
    fixture.arrive(4)
    pipeline = fixture.pipeline(sinks={"t": lake.sink})
    fixture.run("a", pipeline=pipeline)

    def retype() -> None:
        with lake.table().update_schema() as update:
            update.rename_column("id", "key")

    at_step("before load_table", retype, nth=2)  # accept reads the table first
    with pytest.raises(PublishError, match="no longer accepts its rows"):
        fixture.run("b", pipeline=pipeline)
    Steps.hook = None
    skip(pipeline, 1, sink="t", reason="renamed by the owner", log=fixture.log())
    assert lake.rows("key") == [0, 1, 2, 3, 4, 5]
    assert fixture.verdict().violations == []


@pytest.mark.parametrize("how", ["deleted", "rewritten"])
def test_reprocessing_of_files_that_others_changed_is_refused_and_changes_nothing(tmp_path: Path, how: str) -> None:
    lake = Lake(tmp_path)
    first = lake.batch(0, [1, 2])
    lake.publish(first)
    lake.table().delete("id > 0" if how == "deleted" else EqualTo("id", 2))
    head = lake.table().metadata_location
    with pytest.raises(PublishError, match="rewrote or deleted"):
        lake.publish(lake.batch(1, [3], reprocesses=first))
    assert lake.table().metadata_location == head


def test_reprocessing_of_rows_that_others_deleted_is_refused_before_the_plan(tmp_path: Path) -> None:
    lake, fixture = Lake(tmp_path), PipelineFixture(tmp_path)
    fixture.arrive(4)
    pipeline = fixture.pipeline(sinks={"t": lake.sink})
    fixture.run("d", drain=True, pipeline=pipeline)
    lake.table().delete(EqualTo("id", 0))
    with pytest.raises(InvalidError, match="their rows cannot be removed"):
        fixture.run("r", reprocessed=0, pipeline=pipeline)
    assert fixture.log().plan(2) is None
    assert lake.rows() == list(range(1, 12))


def test_table_errors_are_permanent_and_catalog_errors_are_retried(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [0]))
    batch = lake.batch(1, [1])
    for error, raised, tries in [
        (BadRequestError("no such column"), PublishError, 1),
        (ForbiddenError("read only"), PublishError, 1),
        (ValueError("Cannot write manifest for table version: 3"), PublishError, 1),
        (CommitFailedException("stale"), UnavailableError, 12),
        (ServiceUnavailableError("503"), UnavailableError, 12),
        (ConnectionError("reset"), UnavailableError, 12),
        (OperationalError("locked", None, Exception()), UnavailableError, 12),
    ]:
        calls: list[str] = []

        def fail(name: str, error: Exception = error, calls: list[str] = calls) -> None:
            if name == "before commit_table":
                calls.append(name)
                raise error

        Steps.hook = fail
        with pytest.raises(raised):
            lake.publish(batch)
        assert len(calls) == tries, error
    Steps.hook = None
    assert lake.publish(batch) is not None
    assert lake.rows() == [0, 1]


@pytest.mark.parametrize("step", ["load_table", "create_table"])
def test_table_that_the_catalog_forbids_to_read_or_create_fails_and_names_streamsem_skip(
    tmp_path: Path, step: str
) -> None:
    lake = Lake(tmp_path)
    batch = lake.batch(0, [0])

    def forbid(name: str) -> None:
        if name == f"before {step}":
            raise ForbiddenError("not yours")

    Steps.hook = forbid
    with pytest.raises(PublishError, match="streamsem skip"):
        lake.publish(batch)


def test_marker_survives_expired_snapshots(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    batch = lake.batch(0, [0])
    lake.publish(batch)
    lake.table().append(lake.table().scan().to_arrow())
    table = lake.table()
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    assert lake.marked() == []
    again = lake.publish(batch)
    assert again is not None
    assert again.result == "applied"
    assert lake.rows() == [0, 0]


def test_table_with_equality_deletes_is_neither_merged_into_nor_reprocessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    first = lake.batch(0, [0])
    lake.publish(first)
    with monkeypatch.context() as patched:
        patched.setattr(ManifestWriterV2, "content", lambda self: ManifestContent.DELETES)
        _append_file(lake.table(), "hdfs://others/2.parquet", DataFileContent.EQUALITY_DELETES)
    with pytest.raises(InvalidError, match=r"equality deletes.*compact the table"):
        lake.sink.check_removable(first.committable)
    with pytest.raises(PublishError, match=r"equality deletes.*compact the table"):
        lake.publish(lake.batch(1, [10], reprocesses=first))
    assert lake.marker() == batches.marked(0)
    merging = lake.with_options(mode="upsert", keys=["id"]).sink
    with pytest.raises(DataError, match=r"equality deletes.*compact the table"):
        merging.resolve_schema(first.schema)


def test_attempts_in_use_are_found_beside_equality_deletes_and_files_of_other_locations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [0]))
    lake.table().manage_snapshots().create_tag(lake.table().snapshots()[0].snapshot_id, "kept").commit()
    lake.publish(lake.batch(1, [1]))
    lake.table().delete(EqualTo("id", 0))
    _append_file(lake.table(), "s3a://others/x?y#/1.parquet", DataFileContent.DATA)
    with monkeypatch.context() as patch:  # pyiceberg itself writes no manifest of deletes
        patch.setattr(ManifestWriterV2, "content", lambda self: ManifestContent.DELETES)
        _append_file(lake.table(), "hdfs://others/2.parquet", DataFileContent.EQUALITY_DELETES)
    with pytest.raises(ValueError, match="equality deletes"):
        list(lake.table().scan().plan_files())
    assert lake.sink.attempts_in_use() == {(0, "a"), (1, "a")}, "one by a tag, one by the current snapshot"


def _append_file(table: Table, path: str, content: DataFileContent) -> None:
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        named = DataFile.from_args(
            content=content,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=1,
            equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
        )
        named.spec_id = 0
        append.append_data_file(named)


def test_expiry_removes_old_snapshots_of_the_sink_and_keeps_those_of_other_writers(
    tmp_path: Path, monkeypatch: Any
) -> None:
    lake = Lake(tmp_path).with_options(expire_after_s=60)
    lake.publish(lake.batch(0, [0]))
    lake.publish(lake.batch(1, [1]))
    table = lake.table()
    table.append(table.scan().to_arrow().slice(0, 1))
    lake.publish(lake.batch(2, [2]))
    table = lake.table()
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "kept").commit()
    assert len(lake.table().snapshots()) == 4
    monkeypatch.setattr(iceberg, "SYSTEM_CLOCK", Later())
    lake.publish(lake.batch(3, [3]))
    assert lake.marked() == ["0 applied", "2 applied", "3 applied"], (
        "the snapshots of the tag and the branch, and the new one"
    )
    assert len(lake.table().snapshots()) == 4
    assert len(lake.rows()) == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_crash_at_every_step_then_retry_publishes_once(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "SYSTEM_CLOCK", Later())
    kill_at_every_step(tmp_path, name)


def test_batch_without_rows_creates_no_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    receipt = lake.publish(lake.batch(0, []))
    assert receipt is not None
    assert receipt.rows == 0
    assert lake.marker() is None
    lake.sink.resolve_schema(spark_schema(ID))
    with lake.catalog() as catalog:
        assert not catalog.table_exists("lake.rows")


@pytest.mark.parametrize("damage", ["renamed", "dropped", "rolled back"])
def test_table_that_lost_published_versions_stops_the_run_and_is_left_unchanged(tmp_path: Path, damage: str) -> None:
    lake = Lake(tmp_path)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(8)
    pipeline = fixture.pipeline(sinks={"t": lake.sink})
    fixture.run("a", pipeline=pipeline)
    fixture.run("b", pipeline=pipeline)
    table = lake.table()
    newest = table.snapshots()[-1].snapshot_id
    with lake.catalog() as catalog:
        if damage == "renamed":
            catalog.rename_table(lake.name, "lake.aside")
        elif damage == "dropped":
            catalog.drop_table(lake.name)
        else:
            table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    for run_key in ("c", "d"):
        with pytest.raises(MarkerLostError) as stopped:
            fixture.run(run_key, pipeline=pipeline)
    facts = ["table='lake.rows'", "sink='t'", "version=2", "expected_marker=1", "streamsem skip"]
    assert [fact for fact in facts if fact not in str(stopped.value)] == []
    assert [(f.invariant, f.version) for f in fixture.verdict().violations] == [("I15", 1)]
    with lake.catalog() as catalog:
        assert catalog.table_exists(lake.name) == (damage == "rolled back")
        if damage == "renamed":
            catalog.rename_table("lake.aside", lake.name)
        elif damage == "dropped":
            skip(pipeline, 2, sink="t", reason="the table was dropped", log=fixture.log())
        else:
            lake.table().manage_snapshots().set_current_snapshot(newest).commit()
    fixture.run("rest", drain=True, pipeline=pipeline)
    lost = range(18) if damage == "dropped" else range(0)
    assert lake.rows() == sorted(set(fixture.expected) - set(lost))
    assert fixture.verdict().violations == []


def test_table_whose_rollback_undid_only_later_foreign_commits_is_published_to(tmp_path: Path) -> None:
    lake = Lake(tmp_path).with_options(expire_after_s=60)
    lake.publish(lake.batch(0, [0]))
    own = lake.table().snapshots()[-1].snapshot_id
    lake.table().append(lake.table().scan().to_arrow())
    lake.table().manage_snapshots().rollback_to_snapshot(own).commit()
    lake.publish(replace(lake.batch(1, [1]), expected_marker=batches.before(1)))
    lake.table().append(lake.table().scan().to_arrow().slice(0, 1))
    table = lake.table()
    table.maintenance.expire_snapshots().by_id(table.snapshots()[-2].snapshot_id).commit()
    lake.publish(replace(lake.batch(2, [2]), expected_marker=batches.before(2)))
    assert lake.marker() == batches.marked(2)
