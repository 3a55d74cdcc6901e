"""Compaction of the table of an Iceberg sink: the rows stay equal, and no writer, crash or reader is affected."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.table.snapshots import Operation

from airflow_provider_streamsem import IcebergSource, Limits, Pipeline, compact, rollback
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.iceberg import files as iceberg_files
from airflow_provider_streamsem.connectors.iceberg import rewrite as iceberg_rewrite
from airflow_provider_streamsem.connectors.sink import TableRewrite
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    OpenVersionError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.compact import Compacted
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.protocol.entries import DataFile
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.iceberg.lake import ID, Lake, Steps
from tests.pipeline_fixture import PipelineFixture

TARGET = 65_536


@pytest.fixture(autouse=True)
def _quick(short_waits: None) -> Iterator[None]:
    yield
    Steps.hook = None


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Versions 0 to 3 are in the table, each in one file."""
    lake = Lake(tmp_path)
    for version in range(4):
        lake.publish(lake.batch(version, [version]))
    return lake


def compacted(lake: Lake, *, dry_run: bool = False, **arguments: Any) -> list[TableRewrite]:
    arguments = {"target_file_bytes": TARGET, "max_bytes": 2**30, "before_commit": lambda: None, **arguments}
    return lake.sink.compact_table(dry_run=dry_run, **arguments)


def paths(lake: Lake) -> list[str]:
    return sorted(task.file.file_path for task in lake.table().scan().plan_files())


def data_files(lake: Lake) -> list[Path]:
    return sorted((Path(lake.sink.path) / "data" / "compacted").glob("*"))


def at_commit(act: Any, *, times: int = 1, after: bool = False) -> None:
    """Call ``act`` before or after the first commits of the compaction. Commits of ``act`` itself do not count."""
    state = {"left": times, "busy": False}

    def hook(name: str) -> None:
        if name == ("after commit_table" if after else "before commit_table") and state["left"] and not state["busy"]:
            state.update(left=state["left"] - 1, busy=True)
            try:
                act()
            finally:
                state["busy"] = False

    Steps.hook = hook


def raising(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


def test_rows_stay_equal_in_one_file_of_a_snapshot_that_replaces(lake: Lake) -> None:
    (done,) = compacted(lake)
    assert (done.rows, done.files, done.new_files) == (4, 4, 1)
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.REPLACE
    assert done.table_version == str(snapshot.snapshot_id)
    totals = snapshot.summary.additional_properties
    assert (totals["total-records"], totals["total-data-files"]) == ("4", "1")
    assert (lake.rows(), len(paths(lake))) == ([0, 1, 2, 3], 1)
    lake.publish(lake.batch(4, [4]))
    assert lake.rows() == [0, 1, 2, 3, 4]
    assert lake.marked() == [f"{version} applied" for version in range(5)]


def test_second_compaction_finds_nothing(lake: Lake) -> None:
    compacted(lake)
    assert compacted(lake) == []


def test_dry_run_returns_what_a_compaction_rewrites_and_writes_nothing(lake: Lake) -> None:
    before = sorted(Path(lake.root).rglob("*"))
    (possible,) = compacted(lake, dry_run=True)
    assert sorted(Path(lake.root).rglob("*")) == before
    (done,) = compacted(lake)
    assert (done.rows, done.files, done.bytes) == (possible.rows, possible.files, possible.bytes)
    assert (possible.new_files, possible.new_bytes, possible.table_version) == (None, None, None)


def test_missing_table_has_nothing_to_compact(tmp_path: Path) -> None:
    assert compacted(Lake(tmp_path)) == []


def test_large_work_is_divided_into_several_snapshots(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for version in range(6):
        lake.publish(lake.batch(version, [version]))
    size = max(Path(path.removeprefix("file://")).stat().st_size for path in paths(lake))
    done = compacted(lake, target_file_bytes=2 * size + 2, max_bytes=size)
    assert [(each.files, each.new_files) for each in done] == [(2, 1)] * 3
    assert lake.rows() == list(range(6))


def test_batch_published_before_the_commit_of_the_compaction_is_kept_and_the_new_files_are_used(lake: Lake) -> None:
    batch = lake.batch(4, [4])
    at_commit(lambda: lake.publish(batch))
    (done,) = compacted(lake)
    assert (done.files, len(data_files(lake))) == (4, 1)
    assert (lake.rows(), len(paths(lake))) == ([0, 1, 2, 3, 4], 2)


def test_compaction_during_a_publish_changes_no_row(lake: Lake) -> None:
    batch = lake.batch(4, [4])
    at_commit(lambda: compacted(lake))
    receipt = lake.publish(batch)
    assert receipt is not None
    assert receipt.result == "applied"
    assert (lake.rows(), len(paths(lake))) == ([0, 1, 2, 3, 4], 2)
    assert lake.marked() == [f"{version} applied" for version in range(5)]


def test_deletion_before_the_commit_wins_and_the_compaction_starts_again_without_its_files(lake: Lake) -> None:
    at_commit(lambda: lake.table().delete("id = 1"))
    (done,) = compacted(lake)
    assert (done.files, done.rows) == (3, 3)
    assert (lake.rows(), len(data_files(lake))) == ([0, 2, 3], 1)


def test_compaction_that_always_loses_to_other_writers_is_retryable_and_deletes_its_files(lake: Lake) -> None:
    versions = iter(range(4, 100))

    def publish() -> None:
        version = next(versions)
        lake.publish(lake.batch(version, [version]))

    at_commit(publish, times=100)
    with pytest.raises(UnavailableError, match="other writers committed") as refused:
        compacted(lake)
    Steps.hook = None
    assert refused.value.retryable
    assert data_files(lake) == []
    assert lake.rows() == list(range(next(versions)))
    assert len(compacted(lake)) == 1


@pytest.mark.parametrize(
    "error", [OSError("lost"), CommitFailedException("refused by a repeated request")], ids=["lost", "repeated"]
)
def test_commit_whose_reply_was_lost_is_found_in_the_table(lake: Lake, error: Exception) -> None:
    at_commit(raising(error), after=True)
    (done,) = compacted(lake)
    assert done.new_files == 1
    assert (lake.rows(), len(paths(lake)), len(data_files(lake))) == ([0, 1, 2, 3], 1, 1)


def test_files_remain_if_the_result_of_the_commit_is_unknown(lake: Lake) -> None:
    at_commit(raising(OSError("timed out")))
    with pytest.raises(UnavailableError, match="whether the files of the Iceberg table were replaced is unknown"):
        compacted(lake)
    assert (lake.rows(), len(data_files(lake))) == ([0, 1, 2, 3], 1)


def test_denied_commit_is_not_retryable_and_deletes_its_files(lake: Lake) -> None:
    at_commit(raising(ForbiddenError("no")))
    with pytest.raises(DataError, match="the table was not changed"):
        compacted(lake)
    assert (lake.rows(), data_files(lake)) == ([0, 1, 2, 3], [])


def test_compaction_that_is_killed_at_any_step_leaves_the_table_readable_and_the_next_batch_is_published(
    tmp_path: Path,
) -> None:
    killed = 0
    while True:
        lake = Lake(tmp_path / str(killed))
        lake.root.mkdir()
        for version in range(2):
            lake.publish(lake.batch(version, [version]))
        left = [killed]

        def die(name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Crash

        Steps.hook = die
        try:
            compacted(lake)
            break
        except Crash:
            Steps.hook = None
        assert lake.rows() == [0, 1]
        lake.publish(lake.batch(2, [2]))
        compacted(lake)
        assert (lake.rows(), len(paths(lake))) == ([0, 1, 2], 1)
        killed += 1
    assert killed > 10


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda rows: rows.slice(1), "rows_in_table=4, rows_read=4, rows_written=0, columns=\\[\\]"),
        (lambda rows: rows.set_column(0, "id", pc.add(rows["id"], 1)), "rows_written=4, columns=\\['id'\\]"),
    ],
)
def test_new_file_with_other_rows_is_not_committed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, change: Any, facts: str
) -> None:
    real = iceberg_rewrite.write
    monkeypatch.setattr(
        iceberg_rewrite, "write", lambda file, rows, *more, **named: real(file, map(change, rows), *more, **named)
    )
    before = lake.table().metadata_location
    with pytest.raises(DataError, match=facts):
        compacted(lake)
    assert (lake.table().metadata_location, data_files(lake)) == (before, [])


def test_compaction_is_stopped_before_its_commit_and_deletes_its_files(lake: Lake) -> None:
    with pytest.raises(OpenVersionError):
        compacted(lake, before_commit=raising(OpenVersionError("a reprocessing run is open")))
    assert (lake.rows(), data_files(lake)) == ([0, 1, 2, 3], [])


COLUMNS = [("id", "long"), ("p", "string"), ("d", "date"), ("n", "decimal(10,2)"), ("t", "timestamp")]
LONG = "x" * 200


def test_rows_of_partitions_and_new_columns_stay_equal(tmp_path: Path) -> None:
    lake = Lake(tmp_path).with_options(partition_by=["p", "d", "n"])
    at = pyarrow.array([datetime(1999, 1, 1, 1, 1, 1, 123456, tzinfo=timezone.utc)], pyarrow.timestamp("us", "UTC"))
    directories = [
        f"p={LONG}/d=1969-07-20/n=-1.50",
        "p=_null/d=2020-01-01/n=3.00",
        "p=a_20b_2Fc/d=_null/n=_null",
    ]
    for version in range(3):
        columns = [*COLUMNS, ("more", "string")] if version else COLUMNS
        rows = {"id": [version], "t": at, **({"more": ["x"]} if version else {})}
        lake.publish(lake.batch(version, [(each, pyarrow.table(rows)) for each in directories], columns=columns))
    before = values(lake)
    (done,) = compacted(lake)
    assert (done.files, done.new_files, values(lake)) == (9, 3, before)
    partitions = {(row["p"], row["d"], row["n"]) for row in lake.table().scan().to_arrow().to_pylist()}
    assert (LONG, date(1969, 7, 20), Decimal("-1.50")) in partitions
    assert {tuple(task.file.partition[at] for at in range(3)) for task in lake.table().scan().plan_files()} >= {
        ("a b/c", None, None)
    }
    assert len(list(lake.table().scan(row_filter=f"p = '{LONG}'").plan_files())) == 1
    reprocessed = lake.batch(3, [(directories[0], pyarrow.table({"id": [9], "t": at}))], columns=columns)
    lake.publish(reprocessed)
    assert len(values(lake)) == 10


def test_partitions_that_change_while_the_new_file_is_written_hide_no_row(tmp_path: Path) -> None:
    lake = Lake(tmp_path).with_options(partition_by=["a"])
    for version in range(3):
        rows = pyarrow.table({"id": [version], "b": ["y"]})
        lake.publish(
            lake.batch(
                version,
                [("a=x", rows.append_column("a", pyarrow.array(["x"])))],
                columns=[*ID, ("b", "string"), ("a", "string")],
            )
        )

    def repartition(name: str) -> None:
        if name == "after write":
            Steps.hook = None
            with lake.table().update_spec() as update:
                update.remove_field("a")
                update.add_identity("b")

    Steps.hook = repartition
    with contextlib.suppress(StreamsemError):
        compacted(lake)
    for filter in ("b == 'y'", "a == 'x'"):
        found = lake.table().scan(row_filter=filter).to_arrow()["id"].to_pylist()
        assert sorted(found) == [0, 1, 2], filter


def values(lake: Lake) -> list[str]:
    return sorted(map(repr, lake.table().scan().to_arrow().to_pylist()))


def test_table_that_is_merged_by_key_is_compacted(tmp_path: Path) -> None:
    lake = Lake(tmp_path).with_options(mode="upsert", keys=["id"])
    for version in range(4):
        lake.publish(lake.batch(version, [version]))
    assert len(compacted(lake)) == 1
    lake.publish(lake.batch(4, [0, 4]))
    assert lake.rows() == [0, 1, 2, 3, 4]


def test_file_with_dates_that_pyiceberg_would_change_is_left_alone(lake: Lake) -> None:
    columns = [*ID, ("t", "timestamp")]
    rows = pyarrow.table({"id": [4], "t": pyarrow.array([0], pyarrow.timestamp("us", "UTC"))})
    lake.publish(lake.batch(4, [("", rows)], columns=columns))
    old = pyarrow.table({"id": [5], "t": pyarrow.array([-(10**16)], pyarrow.timestamp("us", "UTC"))})
    path = lake.root / "old.parquet"
    pyarrow.parquet.write_table(old, path, use_deprecated_int96_timestamps=True)
    file = DataFile(key="old.parquet", bytes=path.stat().st_size, rows=1, checksum="")
    added = iceberg_files.iceberg_file(lake.table().metadata, file, f"file://{path}")
    with lake.table().transaction() as commit, commit.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(added)
    (done,) = compacted(lake)
    assert (done.files, len(paths(lake))) == (5, 2)
    assert f"file://{path}" in paths(lake)


def test_table_that_requires_another_writer_is_refused(lake: Lake) -> None:
    with lake.table().transaction() as change:
        change.set_properties({"write.format.default": "orc"})
    with pytest.raises(InvalidError, match="cannot be rewritten by pyiceberg"):
        compacted(lake)


class Fixture(PipelineFixture):
    """A pipeline whose only sink is an Iceberg table."""

    @property
    def lake(self) -> Lake:
        return Lake(self.root)

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"sinks": {"t": self.lake.sink}, **changes})

    def compacted(self, **arguments: Any) -> list[Compacted]:
        return compact(self.pipeline(), log=self.log(), **{"sink": "t", "target_file_bytes": TARGET, **arguments})

    def check_exactly_once(self) -> None:
        assert self.verdict().violations == []
        assert self.lake.rows() == sorted(self.expected.elements())


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    """Versions 0 to 2 of the pipeline are in the table."""
    fixture = Fixture(tmp_path)
    fixture.arrive(6)
    fixture.run("first", drain=True)
    return fixture


def test_compacted_version_cannot_be_reprocessed_or_rolled_back_and_a_later_one_can(fixture: Fixture) -> None:
    head = fixture.log().find_head().closed
    (done,) = fixture.compacted()
    assert (done.version, done.commits, done.files) == (None, None, 3)
    assert fixture.log().find_head().closed == head
    fixture.arrive(4)
    fixture.run("next", drain=True)
    head = fixture.log().find_head().closed
    with pytest.raises(InvalidError, match="another writer rewrote or deleted files"):
        fixture.run("refused", reprocessed=1)
    with pytest.raises(InvalidError, match="another writer rewrote or deleted files"):
        rollback(fixture.pipeline(), 1, log=fixture.log())
    assert fixture.log().find_head().closed == head
    fixture.run("later", reprocessed=head)
    fixture.check_exactly_once()
    rollback(fixture.pipeline(), 3, log=fixture.log())
    assert fixture.lake.rows() == list(range(24))
    fixture.run("again", drain=True)
    fixture.check_exactly_once()


def test_table_is_not_compacted_while_a_reprocessing_run_must_remove_files(fixture: Fixture) -> None:
    def refused() -> None:
        with pytest.raises(OpenVersionError, match="must remove files from tables"):
            fixture.compacted()

    at_commit(refused)
    fixture.run("again", reprocessed=1)
    fixture.check_exactly_once()


def test_vacuum_after_a_compaction_keeps_the_files_of_older_snapshots(fixture: Fixture) -> None:
    snapshot = fixture.lake.table().current_snapshot()
    assert snapshot is not None
    fixture.arrive(2)
    fixture.dies("next", at="collect t")
    fixture.run("next")
    fixture.compacted()
    assert len(vacuum(fixture.pipeline(), log=fixture.log(), all_versions=True).attempts) == 1
    old = fixture.lake.table().scan(snapshot_id=snapshot.snapshot_id).to_arrow()["id"].to_pylist()
    assert Counter(old) == Counter(range(18))
    fixture.check_exactly_once()


@pytest.mark.parametrize("changes", ["refuse", "skip"])
def test_iceberg_source_reads_no_row_of_a_compacted_table_twice(lake: Lake, changes: str) -> None:
    source = IcebergSource(
        path=lake.sink.path, table=lake.name, properties=lake.properties, starting="earliest", changes=changes
    )
    offsets: dict[str, int] = dict(source.initial_offsets())
    hint: Any = None

    def read() -> int:
        nonlocal hint
        rows = 0
        while True:
            planner = source.open(CommitLog(MemoryStore()), hint)
            planned = planner.slice(offsets, planner.poll(hint), Limits(), hint, on_data_loss="fail")
            if planned is None:
                return rows
            offsets.update({name: end for name, (_, end) in planned.ranges.items()})
            hint = source.next_hint(planned.hint, planned.pins, {})
            rows += planned.rows

    assert read() == 4
    compacted(lake)
    assert read() == 0
    lake.publish(lake.batch(4, [4]))
    assert read() == 1
