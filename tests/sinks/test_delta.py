"""Delta tables made of the staged files: one entry of the table's log for each version, however often and by however many it is published."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_streamsem import redo
from airflow_provider_streamsem.batch.maintenance import vacuum
from airflow_provider_streamsem.batch.publish import skip
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    MarkerConflictError,
    MarkerLostError,
    PublishError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Marker
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.delta import DeltaSink
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash
from tests.sinks.delta_worlds import DeltaWorld, each_death
from tests.stepped import stepped


@pytest.fixture
def world(tmp_path: Path) -> DeltaWorld:
    made = DeltaWorld(tmp_path)
    made.arrive(4)
    return made


def sink_of(world: DeltaWorld) -> DeltaSink:
    sink = world.pipeline().sinks["table"]
    assert isinstance(sink, DeltaSink)
    return sink


def publish(world: DeltaWorld, batch: Batch) -> Any:
    return sink_of(world).publish(batch, None)  # type: ignore[arg-type]


def test_files_that_were_staged_are_the_tables_files(world: DeltaWorld) -> None:
    world.run("all", drain=True)
    staged = {f"{world.table}/{file.key}" for batch in world.batches() for file in batch.committable.files}
    assert set(DeltaTable(world.table).file_uris()) == staged
    receipts = world.opened().log.receipts(1)
    assert receipts is not None
    assert receipts.sinks["table"].detail == {"table_version": DeltaTable(world.table).version()}
    world.all_is_right()


@pytest.mark.parametrize("retry", ["run", "another"])
def test_death_around_every_write_to_the_table_then_a_retry(tmp_path: Path, around: Any, retry: str) -> None:
    def began(name: str) -> DeltaWorld:
        world = DeltaWorld(tmp_path / name)
        world.arrive(3)
        return world

    entry = ["before create_write_transaction", "after create_write_transaction"]
    for world in each_death(began, around, ["before create", "after create"] + entry * 2, retry):
        world.all_is_right()


def test_late_publisher_adds_nothing_and_brings_nothing_back(world: DeltaWorld) -> None:
    world.run("first")
    world.run("second")
    world.run("redo", redone=0)
    before = DeltaTable(world.table).version()
    first, second, redone = world.batches()
    assert publish(world, first) is None
    assert publish(world, second) is None
    answered = publish(world, redone)
    assert (answered.result, answered.rows) == ("applied", 6)
    assert DeltaTable(world.table).version() == before
    world.all_is_right()


def test_publishers_at_once_put_a_batch_into_the_table_once_in_50_rounds(world: DeltaWorld) -> None:
    world.run("first")
    template = world.batches()[0]
    table = world.table
    with ThreadPoolExecutor(2) as pool:
        for version in range(1, 51):
            copied = []
            for file in template.committable.files:
                key = f"data/{version}/{version}/part.parquet"
                (Path(table) / key).parent.mkdir(parents=True)
                (Path(table) / key).write_bytes((Path(table) / file.key).read_bytes())
                copied.append(
                    type(file)(key=key, bytes=file.bytes, rows=file.rows, checksum=file.checksum, stats=file.stats)
                )
            committable = type(template.committable)(format="parquet", rows=6, files=tuple(copied))
            last = Marker(version=version - 1, outcome=template.outcome)
            batch = replace(template, version=version, committable=committable, root=version, expected_marker=last)
            answers = list(pool.map(lambda batch: publish(world, batch), [batch, batch]))
            assert [answer.result for answer in answers] == ["applied", "applied"]
    assert set(world.rows().values()) == {51}
    assert DeltaTable(table).version() == 51  # the empty table, and one entry for each version


@pytest.mark.parametrize("version_of_others", [False, True])
def test_commit_whose_answer_was_lost_is_not_made_again(
    world: DeltaWorld, around: Any, version_of_others: bool
) -> None:
    lost: list[str] = []

    def lose(name: str) -> None:
        if name == "after create_write_transaction" and not lost:
            lost.append(name)
            if version_of_others:
                _append_others(world)
            raise OSError("the connection was lost")

    world.run("first")
    around(lose)
    world.run("second")
    assert lost
    rows = world.rows()
    assert rows.pop(-1, 0) == int(version_of_others)
    assert rows == world.expected
    assert world.verdict().findings == []


def _append_others(world: DeltaWorld) -> None:
    import pyarrow

    write_deltalake(world.table, pyarrow.table({"id": [-1]}), mode="append")


@pytest.mark.parametrize("harm", ["deleted", "cut short"])
def test_table_is_not_told_of_staged_files_that_others_have_cleaned_up(world: DeltaWorld, harm: str) -> None:
    """As VACUUM of others does with files that no table names yet, where a batch has waited for long."""
    world.run("first")
    first = world.batches()[0]
    later = replace(first, version=1, root=1, expected_marker=Marker(version=0, outcome=first.outcome))
    for file in first.committable.files:
        path = Path(world.table) / file.key
        kept = path.read_bytes()
        path.unlink() if harm == "deleted" else path.write_bytes(kept[:-1])
        with pytest.raises(PublishError, match="put them back"):
            publish(world, later)
        path.write_bytes(kept)
    assert DeltaTable(world.table).version() == 1
    assert publish(world, first).result == "applied"


def test_table_that_never_answers_is_unknown_and_the_next_run_goes_on(world: DeltaWorld, around: Any) -> None:
    def fail(name: str) -> None:
        raise OSError("no route")

    world.run("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_streamsem.sinks.delta._LONGEST_WAIT_S", 0.0)
        patch.setattr(DeltaTable, "create_write_transaction", stepped("x", lambda *a, **k: None, fail))
        with pytest.raises(UnavailableError, match="whether the batch is in it is unknown"):
            world.run("second")
    world.run("second")
    world.all_is_right()


def test_redo_replaces_the_files_of_the_version_and_only_those(world: DeltaWorld) -> None:
    world.run("all", drain=True)
    twice = world.pipeline(transform=lambda rows: [{"id": row["id"] + 1000} for row in rows])
    world.run("redo", redone=0, pipeline=twice)
    assert world.rows() == Counter({**{n + 1000: 1 for n in range(6)}, **{n: 1 for n in range(6, 12)}})
    assert world.verdict().findings == []


def test_redo_of_files_that_others_compacted_is_refused_and_doubles_nothing(world: DeltaWorld) -> None:
    world.run("all", drain=True)

    def compact(name: str) -> None:
        if name == "staged":
            DeltaTable(world.table).optimize.compact()

    with pytest.raises(PublishError, match="rewritten or deleted"):
        redo(world.pipeline(), 0, engine=RowsEngine(compact), log=world.log())
    assert world.rows() == world.expected
    assert world.log().plan(3) is None
    skip(world.pipeline(), 2, sink="table", reason="compacted", log=world.log())
    with pytest.raises(InvalidError, match="rewrote or deleted"):  # known before the plan
        world.run("redo again", redone=1)
    assert world.log().plan(3) is None
    world.arrive(1)
    world.run("more")
    world.all_is_right()


def test_skipped_version_is_not_in_the_table_nor_can_it_come_later(world: DeltaWorld, around: Any) -> None:
    world.run("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaSink, "publish", lambda *a: (_ for _ in ()).throw(PublishError("refused")))
        with pytest.raises(PublishError):
            world.run("second")
    receipts = skip(world.pipeline(), 1, sink="table", reason="poison", log=world.log())
    assert receipts.sinks["table"].result == "skipped"
    assert publish(world, world.batches()[1]).result == "skipped"
    assert world.rows() == Counter(range(6))
    assert world.verdict().findings == []


def test_new_columns_are_added_and_old_rows_have_null_there(world: DeltaWorld) -> None:
    world.run("first")
    world.run("second", pipeline=world.pipeline(transform=lambda rows: [{**row, "shop": "a"} for row in rows]))
    read = DeltaTable(world.table).to_pyarrow_table()
    assert Counter(read["shop"].to_pylist()) == {None: 6, "a": 6}


def test_column_of_another_type_is_refused_before_the_decision(world: DeltaWorld) -> None:
    world.run("first")
    import pyarrow

    write_deltalake(world.table, pyarrow.table({"id": pyarrow.array([], pyarrow.int64()), "n": pyarrow.array([], pyarrow.string())}),
                    mode="append", schema_mode="merge")  # fmt: skip
    with pytest.raises(DataError, match="another type or spelling"):
        world.run("second", pipeline=world.pipeline(transform=lambda rows: [{**row, "n": 1} for row in rows]))
    assert world.opened().head == 0
    assert world.opened().log.plan(1) is not None


def test_table_that_is_there_is_taken_if_its_partitions_are_the_sinks(tmp_path: Path) -> None:
    import pyarrow

    world = DeltaWorld(tmp_path)
    world.arrive(1)
    write_deltalake(world.table, pyarrow.table({"id": [-1]}))
    world.run("first")
    assert world.rows() == Counter([-1, 0, 1, 2])
    other = DeltaWorld(tmp_path / "other")
    other.arrive(1)
    write_deltalake(other.table, pyarrow.table({"id": [-1], "p": ["x"]}), partition_by=["p"])
    with pytest.raises(ConflictError, match="other partition columns"):
        other.run("first")
    assert other.opened().head == -1


def test_table_that_asks_more_of_its_writers_is_refused_before_the_decision(world: DeltaWorld) -> None:
    world.run("first")
    DeltaTable(world.table).alter.add_constraint({"small": "id < 1000"})
    with pytest.raises(DataError, match="requires more of its writers"):
        world.run("second")
    assert world.opened().head == 0


def test_bounds_that_have_no_exact_form_are_left_out(tmp_path: Path) -> None:
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


def test_marker_outlives_checkpoints_and_clean_up_of_the_tables_log(world: DeltaWorld) -> None:
    world.run("first")
    table = DeltaTable(world.table)
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert publish(world, world.batches()[0]).result == "applied"
    world.run("rest", drain=True)
    world.all_is_right()


def test_batch_without_rows_makes_no_entry(world: DeltaWorld) -> None:
    world.run("first", pipeline=world.pipeline(transform=lambda rows: []))
    assert world.rows() == Counter()
    world.run("second")
    assert world.rows() == Counter(range(6, 12))
    assert world.verdict().findings == []


def test_statistics_are_those_of_the_files(world: DeltaWorld) -> None:
    world.run("first")
    (file,) = world.batches()[0].committable.files[:1]
    assert json.loads(file.stats) == {
        "numRecords": 6,
        "minValues": {"id": 0},
        "maxValues": {"id": 5},
        "nullCount": {"id": 0},
    }


@pytest.mark.parametrize("harm", ["deleted", "renamed", "created again", "restored"])
def test_table_that_lost_published_versions_stops_the_run_by_name_and_is_left_as_it_is(
    world: DeltaWorld, tmp_path: Path, harm: str
) -> None:
    import pyarrow

    aside = tmp_path / "aside"
    world.run("first")
    at = DeltaTable(world.table).version()
    world.run("second")
    newest = DeltaTable(world.table).version()
    world.arrive(2)
    if harm == "restored":
        DeltaTable(world.table).restore(at)
    else:
        (Path(world.table) / "_delta_log").rename(aside)
    if harm == "created again":
        write_deltalake(world.table, pyarrow.table({"id": [-1]}))
    before = world.rows()
    for run_key in ("third", "fourth"):
        with pytest.raises(MarkerLostError) as stopped:
            world.run(run_key)
    facts = [repr(world.table), "sink='table'", "version=2", "expected_marker=1", "streamsem skip"]
    assert [fact for fact in facts if fact not in str(stopped.value)] == []
    assert world.rows() == before
    assert [(f.invariant, f.version) for f in world.verdict().findings] == [("I15", 1)]
    # The way out: the table is put back as it was, or the loss is accepted.
    if harm == "restored":
        DeltaTable(world.table).restore(newest)
    elif harm == "created again":
        skip(world.pipeline(), 2, sink="table", reason="the table was lost", log=world.log())
        world.run("redo", redone=2)
        assert world.rows() == Counter([-1, *range(12, 18)])
        assert world.verdict().findings == []
        return
    else:
        aside.rename(Path(world.table) / "_delta_log")
    world.run("rest", drain=True)
    world.all_is_right()


def test_restore_between_the_commit_and_its_receipts_is_found_before_the_receipts_are_written(
    world: DeltaWorld,
) -> None:
    class DiesBeforeReceipts(CountingStore):
        def create(self, key: str, data: bytes) -> bool:
            if key == keys.receipts(1):
                raise Crash
            return super().create(key, data)

    world.run("first")
    at = DeltaTable(world.table).version()
    world.arrive(2)
    with suppress(Crash):
        world.run("second", store=DiesBeforeReceipts(world.store))
    DeltaTable(world.table).restore(at)
    with pytest.raises(MarkerLostError, match="restored"):
        world.run("second")
    assert world.log().receipts(1) is None


def test_table_that_others_restored_to_a_newer_state_than_the_pipelines_is_published_to(world: DeltaWorld) -> None:
    world.run("first")
    at = DeltaTable(world.table).version()
    _append_others(world)
    DeltaTable(world.table).restore(at)
    world.run("second")
    world.all_is_right()


@pytest.mark.parametrize("directory", ["plain", "ä b#c?d=e"])
def test_vacuum_leaves_the_files_of_a_lost_version_that_the_table_names(
    tmp_path: Path, directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A user accepted with skip that the rows of a version stay which the log has lost."""
    world = DeltaWorld(tmp_path / directory)
    world.arrive(4)
    world.run("first")
    older = {stat.key: world.store.read(stat.key) for stat in world.store.list("")}
    world.run("lost")
    for stat in list(world.store.list("")):
        if stat.key not in older:
            world.store.delete(stat.key)
    with pytest.raises(MarkerConflictError):
        world.run("again")
    skip(world.pipeline(), 1, sink="table", reason="the rows are there", log=world.log())
    kept = world.rows()
    assert vacuum(world.pipeline(), log=world.log()).attempts == ()
    assert "its files are in the table" in caplog.text
    assert world.rows() == kept


@pytest.mark.parametrize("path", ["s3://lake/a%20b", "/lake/x=%2F", "/lake/a\\b"])
def test_path_that_readers_spell_in_different_ways_is_refused(path: str) -> None:
    with pytest.raises(InvalidError, match="sink delta: path"):
        DeltaSink(path)
    DeltaSink("/lake/100%/a b")
