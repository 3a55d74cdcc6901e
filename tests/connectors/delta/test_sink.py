"""Delta tables built from the staged files: one table log entry for each version, however often and by however many publishers it is published."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_streamsem import reprocess, rollback
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    MarkerConflictError,
    MarkerLostError,
    PublishError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Marker
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash
from tests.connectors import batches
from tests.connectors.delta.delta_fixture import DeltaFixture, crash_at_each_write
from tests.pipeline_fixture import die
from tests.step_by_step import step_by_step


@pytest.fixture
def fixture(tmp_path: Path) -> DeltaFixture:
    fixture = DeltaFixture(tmp_path)
    fixture.arrive(4)
    return fixture


def sink_of(fixture: DeltaFixture) -> DeltaSink:
    sink = fixture.pipeline().sinks["table"]
    assert isinstance(sink, DeltaSink)
    return sink


def publish(fixture: DeltaFixture, batch: SinkCommit) -> Any:
    return sink_of(fixture).publish(batch)


def test_staged_files_become_the_table_files(fixture: DeltaFixture) -> None:
    fixture.run("all", drain=True)
    staged = {f"{fixture.table}/{file.key}" for batch in fixture.batches() for file in batch.committable.files}
    assert set(DeltaTable(fixture.table).file_uris()) == staged
    receipts = fixture.opened().log.receipts(1)
    assert receipts is not None
    assert receipts.sinks["table"].detail == {"table_version": DeltaTable(fixture.table).version()}
    fixture.check_exactly_once()


@pytest.mark.parametrize("retry", ["run", "another"])
def test_crash_around_every_write_to_the_table_then_retry_publishes_each_row_once(
    tmp_path: Path, watch_delta_writes: Any, retry: str
) -> None:
    def make_fixture(name: str) -> DeltaFixture:
        fixture = DeltaFixture(tmp_path / name)
        fixture.arrive(3)
        return fixture

    entry = ["before create_write_transaction", "after create_write_transaction"]
    for fixture in crash_at_each_write(
        make_fixture, watch_delta_writes, ["before create", "after create"] + entry * 2, retry
    ):
        fixture.check_exactly_once()


@pytest.mark.parametrize("version_of_others", [False, True])
def test_commit_whose_reply_was_lost_is_not_repeated(
    fixture: DeltaFixture, watch_delta_writes: Any, version_of_others: bool
) -> None:
    lost: list[str] = []

    def lose(name: str) -> None:
        if name == "after create_write_transaction" and not lost:
            lost.append(name)
            if version_of_others:
                _append_others(fixture)
            raise OSError("the connection was lost")

    fixture.run("first")
    watch_delta_writes(lose)
    fixture.run("second")
    assert lost
    rows = fixture.rows()
    assert rows.pop(-1, 0) == int(version_of_others)
    assert rows == fixture.expected
    assert fixture.verdict().violations == []


def _append_others(fixture: DeltaFixture) -> None:
    import pyarrow

    write_deltalake(fixture.table, pyarrow.table({"id": [-1]}), mode="append")


@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_staged_files_that_were_deleted_or_truncated_are_not_added_to_the_table(
    fixture: DeltaFixture, damage: str
) -> None:
    """VACUUM by another application deletes files that no table entry names yet, if a batch stays unpublished for long."""
    fixture.run("first")
    first = fixture.batches()[0]
    later = replace(first, version=1, root=1, expected_marker=Marker(version=0, outcome=first.outcome))
    for file in first.committable.files:
        path = Path(fixture.table) / file.key
        kept = path.read_bytes()
        path.unlink() if damage == "deleted" else path.write_bytes(kept[:-1])
        with pytest.raises(PublishError, match="restore the files"):
            publish(fixture, later)
        path.write_bytes(kept)
    assert DeltaTable(fixture.table).version() == 1
    assert publish(fixture, first).result == "applied"


def test_outcome_is_unknown_if_the_table_never_replies_and_the_next_run_recovers(
    fixture: DeltaFixture, short_waits: None
) -> None:
    def fail(name: str) -> None:
        raise OSError("no route")

    fixture.run("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", step_by_step("x", lambda *a, **k: None, fail))
        with pytest.raises(UnavailableError, match="whether the batch is in it is unknown"):
            fixture.run("second")
    fixture.run("second")
    fixture.check_exactly_once()


def test_reprocessing_replaces_only_the_files_of_its_version(fixture: DeltaFixture) -> None:
    fixture.run("all", drain=True)
    changed = fixture.pipeline(transform=lambda rows: [{"id": row["id"] + 1000} for row in rows])
    fixture.run("reprocess", reprocessed=0, pipeline=changed)
    assert fixture.rows() == Counter({**{n + 1000: 1 for n in range(6)}, **{n: 1 for n in range(6, 12)}})
    assert fixture.verdict().violations == []


def test_rollback_removes_the_files_of_later_versions_in_one_entry(fixture: DeltaFixture) -> None:
    fixture.run("all", drain=True)
    fixture.arrive(2)
    fixture.run("more")
    before = DeltaTable(fixture.table).version()
    rollback(fixture.pipeline(), 0, log=fixture.log())
    assert fixture.rows() == Counter(range(6))
    assert DeltaTable(fixture.table).version() == before + 1
    assert DeltaTable(fixture.table, version=before).to_pyarrow_table().num_rows == 18, "the table's history"
    fixture.run("again", drain=True)
    fixture.check_exactly_once()


def test_rollback_of_a_missing_table_is_refused_before_the_plan_and_can_be_skipped_after_it(
    fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.run("all", drain=True)
    table = Path(fixture.table) / "_delta_log"
    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "publish", lambda *args: die())
        with suppress(Crash):
            rollback(fixture.pipeline(), 0, log=fixture.log())
    table.rename(fixture.root / "deleted")
    with pytest.raises(MarkerLostError):
        rollback(fixture.pipeline(), 0, log=fixture.log())
    skip(fixture.pipeline(), 2, sink="table", reason="the table was dropped", log=fixture.log())
    fixture.run("again", drain=True)
    assert fixture.rows() == Counter(range(6, 12)), "without the rows that were lost with the table"
    table.rename(fixture.root / "deleted again")
    with pytest.raises(InvalidError, match="the Delta table is missing"):
        rollback(fixture.pipeline(), 2, log=fixture.log())


def test_rollback_of_compacted_files_is_refused_before_the_plan(fixture: DeltaFixture) -> None:
    fixture.run("all", drain=True)
    DeltaTable(fixture.table).optimize.compact()
    with pytest.raises(InvalidError, match="rewrote or deleted"):
        rollback(fixture.pipeline(), 0, log=fixture.log())
    assert fixture.log().plan(2) is None
    assert fixture.rows() == fixture.expected


def test_reprocessing_of_compacted_files_is_refused_and_duplicates_nothing(fixture: DeltaFixture) -> None:
    fixture.run("all", drain=True)

    def compact(name: str) -> None:
        if name == "staged":
            DeltaTable(fixture.table).optimize.compact()

    with pytest.raises(PublishError, match="rewrote or deleted"):
        reprocess(fixture.pipeline(), 0, engine=RowsEngine(compact), log=fixture.log())
    assert fixture.rows() == fixture.expected
    assert fixture.log().plan(3) is None
    skip(fixture.pipeline(), 2, sink="table", reason="compacted", log=fixture.log())
    with pytest.raises(InvalidError, match="rewrote or deleted"):  # known before the plan
        fixture.run("reprocess again", reprocessed=1)
    assert fixture.log().plan(3) is None
    fixture.arrive(1)
    fixture.run("more")
    fixture.check_exactly_once()


def test_added_columns_are_null_in_old_rows(fixture: DeltaFixture) -> None:
    fixture.run("first")
    fixture.run("second", pipeline=fixture.pipeline(transform=lambda rows: [{**row, "shop": "a"} for row in rows]))
    read = DeltaTable(fixture.table).to_pyarrow_table()
    assert Counter(read["shop"].to_pylist()) == {None: 6, "a": 6}


def test_column_of_another_type_is_refused_before_the_commit(fixture: DeltaFixture) -> None:
    fixture.run("first")
    import pyarrow

    write_deltalake(fixture.table, pyarrow.table({"id": pyarrow.array([], pyarrow.int64()), "n": pyarrow.array([], pyarrow.string())}),
                    mode="append", schema_mode="merge")  # fmt: skip
    with pytest.raises(DataError, match="another type"):
        fixture.run("second", pipeline=fixture.pipeline(transform=lambda rows: [{**row, "n": 1} for row in rows]))
    assert fixture.opened().head == 0
    assert fixture.opened().log.plan(1) is not None


def test_existing_table_is_used_if_its_partition_columns_match(tmp_path: Path) -> None:
    import pyarrow

    fixture = DeltaFixture(tmp_path)
    fixture.arrive(1)
    write_deltalake(fixture.table, pyarrow.table({"id": [-1]}))
    fixture.run("first")
    assert fixture.rows() == Counter([-1, 0, 1, 2])
    other = DeltaFixture(tmp_path / "other")
    other.arrive(1)
    write_deltalake(other.table, pyarrow.table({"id": [-1], "p": ["x"]}), partition_by=["p"])
    with pytest.raises(ConflictError, match="other partition columns"):
        other.run("first")
    assert other.opened().head == -1


def test_table_with_a_constraint_is_refused_before_the_commit(fixture: DeltaFixture) -> None:
    fixture.run("first")
    DeltaTable(fixture.table).alter.add_constraint({"small": "id < 1000"})
    with pytest.raises(DataError, match="requirements for writers"):
        fixture.run("second")
    assert fixture.opened().head == 0


def test_bounds_without_an_exact_form_are_omitted(tmp_path: Path) -> None:
    import datetime

    import pyarrow
    import pyarrow.parquet

    far = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.timezone.utc)
    table = pyarrow.table(
        {
            "x": [1.0, float("nan"), 5.0, 7.0],
            "at": pyarrow.array([far] * 4, pyarrow.timestamp("us", "UTC")),
            "n": [1, 2, 3, 4],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "f.parquet", row_group_size=2)
    stats = json.loads(DeltaSink(str(tmp_path)).stats(pyarrow.parquet.read_metadata(tmp_path / "f.parquet")))
    assert (stats["minValues"], stats["maxValues"]) == ({"n": 1}, {"n": 4})


def test_marker_survives_checkpoints_and_cleanup_of_the_table_log(fixture: DeltaFixture) -> None:
    fixture.run("first")
    table = DeltaTable(fixture.table)
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert publish(fixture, fixture.batches()[0]).result == "applied"
    fixture.run("rest", drain=True)
    fixture.check_exactly_once()


def test_batch_without_rows_adds_no_table_entry(fixture: DeltaFixture) -> None:
    fixture.run("first", pipeline=fixture.pipeline(transform=lambda rows: []))
    assert fixture.rows() == Counter()
    fixture.run("second")
    assert fixture.rows() == Counter(range(6, 12))
    assert fixture.verdict().violations == []


def test_statistics_match_the_files(fixture: DeltaFixture) -> None:
    fixture.run("first")
    committable = fixture.batches()[0].committable
    assert not any(file.stats for file in committable.files), "the log has no values of rows"
    (file,) = [*DeltaSink(fixture.table).with_stats(committable)][:1]
    assert json.loads(file.stats) == {
        "numRecords": 6,
        "minValues": {"id": 0},
        "maxValues": {"id": 5},
        "nullCount": {"id": 0},
    }


@pytest.mark.parametrize("damage", ["deleted", "renamed", "created again", "restored"])
def test_table_that_lost_published_versions_stops_the_run_and_is_left_unchanged(
    fixture: DeltaFixture, tmp_path: Path, damage: str
) -> None:
    import pyarrow

    aside = tmp_path / "aside"
    fixture.run("first")
    at = DeltaTable(fixture.table).version()
    fixture.run("second")
    newest = DeltaTable(fixture.table).version()
    fixture.arrive(2)
    if damage == "restored":
        DeltaTable(fixture.table).restore(at)
    else:
        (Path(fixture.table) / "_delta_log").rename(aside)
    if damage == "created again":
        write_deltalake(fixture.table, pyarrow.table({"id": [-1]}))
    before = fixture.rows()
    for run_key in ("third", "fourth"):
        with pytest.raises(MarkerLostError) as stopped:
            fixture.run(run_key)
    facts = [repr(fixture.table), "sink='table'", "version=2", "expected_marker=1", "streamsem skip"]
    assert [fact for fact in facts if fact not in str(stopped.value)] == []
    assert fixture.rows() == before
    assert [(f.invariant, f.version) for f in fixture.verdict().violations] == [("I15", 1)]
    # Recovery: restore the table, or accept the loss.
    if damage == "restored":
        DeltaTable(fixture.table).restore(newest)
    elif damage == "created again":
        skip(fixture.pipeline(), 2, sink="table", reason="the table was lost", log=fixture.log())
        fixture.run("reprocess", reprocessed=2)
        assert fixture.rows() == Counter([-1, *range(12, 18)])
        assert fixture.verdict().violations == []
        return
    else:
        aside.rename(Path(fixture.table) / "_delta_log")
    fixture.run("rest", drain=True)
    fixture.check_exactly_once()


def test_restore_between_the_commit_and_its_receipts_is_detected_before_the_receipts_are_written(
    fixture: DeltaFixture,
) -> None:
    class StoreThatDiesBeforeReceipts(CountingStore):
        def create(self, key: str, data: bytes) -> bool:
            if key == keys.receipts(1):
                raise Crash
            return super().create(key, data)

    fixture.run("first")
    at = DeltaTable(fixture.table).version()
    fixture.arrive(2)
    with suppress(Crash):
        fixture.run("second", store=StoreThatDiesBeforeReceipts(fixture.store))
    DeltaTable(fixture.table).restore(at)
    with pytest.raises(MarkerLostError, match="restored"):
        fixture.run("second")
    assert fixture.log().receipts(1) is None


def test_table_restored_to_a_state_newer_than_the_last_published_version_is_published_to(fixture: DeltaFixture) -> None:
    fixture.run("first")
    at = DeltaTable(fixture.table).version()
    _append_others(fixture)
    DeltaTable(fixture.table).restore(at)
    fixture.run("second")
    fixture.check_exactly_once()


@pytest.mark.parametrize("directory", ["plain", "ä b#c?d=e"])
def test_vacuum_keeps_the_files_of_a_lost_version_that_the_table_names(
    tmp_path: Path, directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log lost a version. With skip, a user accepted that its rows stay in the table."""
    fixture = DeltaFixture(tmp_path / directory)
    fixture.arrive(4)
    fixture.run("first")
    older = {stat.key: fixture.store.read(stat.key) for stat in fixture.store.list("")}
    fixture.run("lost")
    for stat in list(fixture.store.list("")):
        if stat.key not in older:
            fixture.store.delete(stat.key)
    with pytest.raises(MarkerConflictError):
        fixture.run("again")
    skip(fixture.pipeline(), 1, sink="table", reason="the table has the rows", log=fixture.log())
    kept = fixture.rows()
    (skipped,) = vacuum(fixture.pipeline(), log=fixture.log()).attempts
    outcome = fixture.log().outcome(1)
    assert outcome is not None
    assert skipped == ("table", 1, outcome.attempt_id), "not the files of the lost version"
    assert "the table references its files" in caplog.text
    assert fixture.rows() == kept


@pytest.mark.parametrize("path", ["s3://lake/a%20b", "/lake/x=%2F", "/lake/a\\b"])
def test_path_that_readers_would_decode_differently_is_refused(path: str) -> None:
    with pytest.raises(InvalidError, match="sink delta: path"):
        DeltaSink(path)
    DeltaSink("/lake/100%/a b")


@pytest.mark.parametrize("value", ["-0.05", "-12.30", "-12.00", "0.05"])
def test_negative_decimal_with_a_fraction_is_refused_as_a_partition_value(tmp_path: Path, value: str) -> None:
    """delta-rs then reads no row of the whole table."""
    sink = DeltaSink(str(tmp_path / "table"), partition_by=["p"])
    batches.resolve_schema(sink, batches.schema_of(id="long", p="decimal(9,2)"))
    directory = Path(sink.attempt_location(0, "a" * 32)) / f"__p={value}"
    directory.mkdir(parents=True)
    rows = pyarrow.table({"id": [1], "p": pyarrow.array([Decimal(value)], pyarrow.decimal128(9, 2))})
    pyarrow.parquet.write_table(rows, directory / "part-0.parquet")
    if Decimal(value) < 0 and Decimal(value) % 1:
        with pytest.raises(DataError, match="negative decimal with a fraction"):
            sink.collect(0, "a" * 32)
    else:
        assert sink.collect(0, "a" * 32).rows == 1
