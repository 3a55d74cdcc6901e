"""The Delta source: the conformance suite, and every kind of entry of a table's log, written by delta-rs."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_streamsem import FilesSink, Limits, Pipeline, reprocess, run_batch, verify
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.delta.pins import FilePin
from airflow_provider_streamsem.connectors.delta.source import DeltaSource
from airflow_provider_streamsem.connectors.source import SourceSlice
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    LogDamagedError,
    RecordsMissingError,
    SourceChangedError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem
from tests.connectors.delta.tables import added, append, commit, create_table, definition, field, with_deletion_vector
from tests.connectors.table_files.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Table(SourceSystem):
    """A Delta table. Each call of ``add`` commits one version with one file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        write_deltalake(self.path, pyarrow.table({"id": pyarrow.array([], pyarrow.int64())}))
        self.source = DeltaSource(path=self.path)

    def add(self, ids: Iterable[int]) -> None:
        write_deltalake(self.path, pyarrow.table({"id": pyarrow.array([*ids], pyarrow.int64())}), mode="append")

    def expire(self) -> list[int]:
        oldest = min(
            pyarrow.table(DeltaTable(self.path).get_add_actions()).to_pylist(), key=lambda add: add["min"]["id"]
        )
        (Path(self.path) / oldest["path"]).unlink()
        return [*range(oldest["min"]["id"], oldest["max"]["id"] + 1)]


class TestDeltaSource(SourceContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> Table:
        return Table(tmp_path / "table")


def files_of(slices: Iterable[SourceSlice]) -> list[str]:
    return [pin.key for planned in slices for pin in planned.pins if isinstance(pin, FilePin)]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_runs_in_new_processes_plan_each_file_once_at_every_limit(tmp_path: Path, limit: int) -> None:
    table = create_table(tmp_path / "t", 4)
    progress = Progress(DeltaSource(path=str(table)), max_files=limit)
    first = progress.next()
    assert first is not None
    append(table, 4)
    DeltaTable(str(table)).optimize.compact()
    append(table, 5)
    slices = [first, *progress.all()]
    assert sorted(files_of(slices)) == sorted(
        add["path"] for version in range(7) for add in added_by(table, version) if add["dataChange"]
    )
    assert max(len(files_of([planned])) for planned in slices) == min(limit, 4)
    assert progress.next() is None


def added_by(table: Path, version: int) -> list[dict[str, Any]]:
    lines = (table / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def test_log_with_a_snapshot_and_versions_is_verified_and_reprocessed(tmp_path: Path, spark: SparkSession) -> None:
    table = create_table(tmp_path / "t", 2)
    pipeline = Pipeline(
        name="table", log=str(tmp_path / "log"), source=DeltaSource(path=str(table)), limits=Limits(max_files=1),
        sinks={"out": FilesSink(path=str(tmp_path / "out"), format="parquet")},
    )  # fmt: skip
    run_batch(pipeline, run_key="first", drain=True)
    append(table, 2)
    DeltaTable(str(table)).optimize.compact()
    run_batch(pipeline, run_key="second", drain=True)
    reprocess(pipeline, 0, run_key="again")
    opened = open_log(commit_log_at(pipeline.log), pipeline=pipeline)
    assert verify(opened).violations == []
    rows = spark.read.parquet(*[file.path for file in opened.files()])
    assert sorted(row["id"] for row in rows.collect()) == [0, 1, 2]


@pytest.mark.parametrize("limit", ["max_files", "max_bytes", "max_rows"])
def test_batch_ends_exactly_at_its_limit(tmp_path: Path, limit: str) -> None:
    table = create_table(tmp_path / "t", 4)
    size = added_by(table, 0)[0]["size"]
    maximum = {"max_files": 2, "max_bytes": 2 * size, "max_rows": 2}[limit]
    for starting in ("earliest", 0):
        exact = Progress(DeltaSource(path=str(table), starting=starting), **{limit: maximum}).all()
        assert [len(files_of([planned])) for planned in exact] == [2, 2]
    below = Progress(DeltaSource(path=str(table), starting=0), max_bytes=1).all()
    assert [len(files_of([planned])) for planned in below] == [1, 1, 1, 1]


def overwrite(table: str) -> None:
    write_deltalake(table, pyarrow.table({"id": [9]}), mode="overwrite")


def merge(table: str) -> None:
    merger = DeltaTable(table).merge(pyarrow.table({"id": [1, 9]}), "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


CHANGING: dict[str, Callable[[str], Any]] = {
    "delete": lambda table: DeltaTable(table).delete("id = 1"),
    "update": lambda table: DeltaTable(table).update(updates={"id": "id + 10"}, predicate="id = 1"),
    "merge": merge,
    "overwrite": overwrite,
    "restore": lambda table: DeltaTable(table).restore(0),
}


@pytest.mark.parametrize("operation", CHANGING)
def test_version_that_changes_rows_is_refused_by_name_or_skipped_as_a_whole(tmp_path: Path, operation: str) -> None:
    table = create_table(tmp_path / "t", 2)
    source = DeltaSource(path=str(table), starting="latest")
    refusing = Progress(source)
    skipping = Progress(DeltaSource(path=str(table), starting="latest", changes="skip"))
    append(table, 2)
    CHANGING[operation](str(table))
    append(table, 3)
    before = refusing.next()
    assert before is not None
    assert files_of([before]) == [added_by(table, 2)[0]["path"]]
    with pytest.raises(SourceChangedError, match="changes, deletes or restores") as refused:
        refusing.next()
    assert refused.value.fields["version"] == 3
    assert str(refused.value.fields["operation"]) in ("DELETE", "UPDATE", "MERGE", "WRITE", "RESTORE")
    assert files_of(skipping.all()) == [added_by(table, version)[0]["path"] for version in (2, 4)]


@pytest.mark.parametrize(
    "operation",
    [
        lambda table: DeltaTable(table).optimize.compact(),
        lambda table: DeltaTable(table).optimize.z_order(["id"]),
        lambda table: DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False),
        lambda table: DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"}),
    ],
    ids=["compact", "z_order", "vacuum", "set_property"],
)
def test_version_without_new_rows_adds_no_file(tmp_path: Path, operation: Callable[[str], Any]) -> None:
    table = create_table(tmp_path / "t", 2)
    progress = Progress(DeltaSource(path=str(table), starting="latest"))
    operation(str(table))
    assert files_of(progress.all()) == []


def test_change_feed_equals_that_of_another_reader(tmp_path: Path, spark: SparkSession) -> None:
    table = tmp_path / "t"
    rows = pyarrow.table({"id": [0, 1, 2], "p": ["a", None, "b"]})
    write_deltalake(str(table), rows, partition_by=["p"], configuration={"delta.enableChangeDataFeed": "true"})
    for operation in ("update", "delete", "restore"):
        append(table, 1, p=["a"])
        CHANGING[operation](str(table))
    newer = pyarrow.table({"id": [2, 9], "p": ["a", None]})
    merger = DeltaTable(str(table)).merge(newer, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()
    write_deltalake(str(table), newer, mode="overwrite")
    source = DeltaSource(path=str(table), starting=0, changes="read")
    progress = Progress(source)
    read = [row for slice_ in progress.all() for row in progress.rows(spark, slice_)]
    expected = pyarrow.table(DeltaTable(str(table)).load_cdf(starting_version=0)).to_pylist()
    columns = ("id", "p", "_change_type", "_commit_version")
    assert Counter(tuple(row[c] for c in columns) for row in read) == Counter(
        tuple(row[c] for c in columns) for row in expected
    )
    for row in read:
        entry = table / "_delta_log" / f"{row['_commit_version']:020d}.json"
        assert row["_commit_timestamp"].timestamp() <= entry.stat().st_mtime + 1
    snapshot = Progress(DeltaSource(path=str(table), changes="read"))
    planned = snapshot.next()
    assert planned is not None
    newest = DeltaTable(str(table)).version()
    assert {(row["_change_type"], row["_commit_version"]) for row in snapshot.rows(spark, planned)} == {
        ("insert", newest)
    }


def test_changes_of_a_table_without_a_change_feed_are_refused_by_name(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", 2)
    progress = Progress(DeltaSource(path=str(table), starting="latest", changes="read"))
    append(table, 2)
    DeltaTable(str(table)).delete("id = 1")
    assert len(files_of([progress.next() or pytest.fail("nothing")])) == 1
    with pytest.raises(SourceChangedError, match="no change data feed"):
        progress.next()


def test_partition_values_of_every_type_are_those_of_the_table(tmp_path: Path, spark: SparkSession) -> None:
    names = ["plain", "a b/c:d%é", None, "=", "__HIVE_DEFAULT_PARTITION__", "x" * 100, "+", "a%20b", "[x]*{y}?"]
    at = datetime(2024, 2, 29, 20, 0, 1, 500_000, tzinfo=timezone.utc)
    rows = pyarrow.table(
        {
            "id": [*range(len(names))],
            "p": names,
            "day": [None if n % 3 == 0 else date(1969, 12, 30) for n in range(len(names))],
            "at": [at for _ in names],
            "local": [at.replace(tzinfo=None) for _ in names],
            "price": [Decimal("1.50") for _ in names],
            "ok": [n % 2 == 0 for n in range(len(names))],
        }
    )
    table = tmp_path / "a b:c+d"
    partition_by = ["p", "day", "at", "local", "price", "ok"]
    write_deltalake(str(table), rows, partition_by=partition_by)
    for starting in ("earliest", 0):
        progress = Progress(DeltaSource(path=str(table), starting=starting))
        planned = progress.next()
        assert planned is not None
        read = sorted(progress.rows(spark, planned), key=lambda row: row["id"])
        assert next([*row] for row in read) == rows.column_names
        assert [{**row, "at": row["at"].timestamp()} for row in read] == [
            {**row, "at": at.timestamp()} for row in rows.to_pylist()
        ]


def test_column_that_is_added_begins_with_a_new_batch(tmp_path: Path, spark: SparkSession) -> None:
    table = create_table(tmp_path / "t", 2)
    progress = Progress(DeltaSource(path=str(table), starting=0))
    append(table, 2, extra=["new"])
    append(table, 3)
    before, after = progress.all()
    assert progress.rows(spark, before) == [{"id": 0}, {"id": 1}]
    assert sorted(progress.rows(spark, after), key=lambda row: row["id"]) == [
        {"id": 2, "extra": "new"},
        {"id": 3, "extra": None},
    ]
    snapshot = Progress(DeltaSource(path=str(table)))
    whole = snapshot.next()
    assert whole is not None
    assert {row["extra"] for row in snapshot.rows(spark, whole)} == {"new", None}


def test_renamed_columns_are_read_by_their_physical_names(tmp_path: Path, spark: SparkSession) -> None:
    table = tmp_path / "t"
    mapped = {"delta.columnMapping.mode": "name"}

    def define(name: str, part: str, inner: str) -> list[dict[str, Any]]:
        struct = {"type": "struct", "fields": [field(inner, **{"delta.columnMapping.id": 4, "delta.columnMapping.physicalName": "c-4"})]}  # fmt: skip
        kinds = [("c-1", name, "long"), ("c-2", part, "string"), ("c-3", "n", struct)]
        fields = [
            field(name, kind, **{"delta.columnMapping.id": int(physical[2:]), "delta.columnMapping.physicalName": physical})  # type: ignore[arg-type]
            for physical, name, kind in kinds
        ]  # fmt: skip
        return definition(fields, features=["columnMapping"], configuration=mapped, partitionColumns=[part])

    def file(n: int) -> dict[str, Any]:
        return added(table, f"f{n}.parquet", {"c-1": [n], "c-3": [{"c-4": n}]}, partitionValues={"c-2": f"p{n}"})

    commit(table, 0, *define("id", "p", "a"), file(0))
    commit(table, 1, *define("`i d`", "q", "b"))
    commit(table, 2, file(2))
    snapshot, versions = Progress(DeltaSource(path=str(table))), Progress(DeltaSource(path=str(table), starting=0))
    (whole,) = snapshot.all()
    assert sorted(row["`i d`"] for row in snapshot.rows(spark, whole)) == [0, 2]
    before, after = versions.all()
    assert versions.rows(spark, before) == [{"id": 0, "p": "p0", "n": {"a": 0}}]
    assert versions.rows(spark, after) == [{"`i d`": 2, "q": "p2", "n": {"b": 2}}]


def test_rows_that_a_deletion_vector_removes_are_not_in_the_snapshot(tmp_path: Path, spark: SparkSession) -> None:
    with_deletion_vector(tmp_path / "t")
    progress = Progress(DeltaSource(path=str(tmp_path / "t")))
    (whole,) = progress.all()
    assert sorted(row["id"] for row in progress.rows(spark, whole)) == [0, 1, 2, 4, 5, 6, 7, 8]


def test_changes_by_deletion_vectors_need_a_package_that_the_error_names(tmp_path: Path, spark: SparkSession) -> None:
    with_deletion_vector(tmp_path / "t", **{"delta.enableChangeDataFeed": "true"})
    progress = Progress(DeltaSource(path=str(tmp_path / "t"), starting=1, changes="read"))
    (planned,) = progress.all()
    with pytest.raises(DataError, match="Spark's Delta package"):
        progress.source.load(spark, progress.stored(planned))


def test_recreated_table_is_refused_before_and_after_a_plan(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", 3)
    progress = Progress(DeltaSource(path=str(table)), max_files=1)
    planned = progress.next()
    assert planned is not None
    shutil.rmtree(table)
    with pytest.raises(SourceChangedError, match="no Delta table"):
        progress.next()
    create_table(table, 5)
    with pytest.raises(SourceChangedError, match="recreated"):
        progress.next(on_data_loss="record_gap")
    for was_read in (False, True):
        with pytest.raises(SourceChangedError, match="recreated"):
            progress.source.check_pins(progress.stored(planned), was_read=was_read)


def test_history_from_an_older_copy_is_refused_even_if_it_has_grown_again(tmp_path: Path) -> None:
    table, copy = create_table(tmp_path / "t", 2), tmp_path / "copy"
    shutil.copytree(table, copy)
    progress = Progress(DeltaSource(path=str(table), starting=0))
    append(table, 2)
    append(table, 3)
    (planned,) = progress.all()
    shutil.rmtree(table)
    shutil.copytree(copy, table)
    append(table, 20)
    with pytest.raises(SourceChangedError, match="older copy"):
        progress.next(on_data_loss="record_gap")
    with pytest.raises(SourceChangedError, match="older copy"):
        progress.source.check_pins(progress.stored(planned), was_read=True)
    append(table, 30)
    append(table, 40)
    with pytest.raises(SourceChangedError, match="older copy"):
        progress.next(on_data_loss="record_gap")


def test_versions_without_entries_fail_the_run_or_become_a_gap(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", 5)
    progress = Progress(DeltaSource(path=str(table), starting=0), max_files=1)
    assert progress.next() is not None
    DeltaTable(str(table)).create_checkpoint()
    for version in range(3):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(SourceChangedError, match="entries were deleted") as refused:
        progress.next()
    assert (refused.value.fields["version"], refused.value.fields["oldest"]) == (1, 3)
    with pytest.raises(SourceChangedError):  # only the newest version can be built from its checkpoint
        progress.next(on_data_loss="record_gap")
    progress.limits = Limits()
    planned = progress.next(on_data_loss="record_gap")
    assert planned is not None
    assert [*planned.gaps.values()] == [((1, 3),)]
    assert files_of([planned]) == [added_by(table, version)[0]["path"] for version in (3, 4)]


def test_version_with_a_missing_file_fails_the_run_or_becomes_a_gap(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", 4)
    (table / added_by(table, 1)[0]["path"]).unlink()
    (table / added_by(table, 2)[0]["path"]).write_bytes(b"other")
    progress = Progress(DeltaSource(path=str(table), starting=0))
    with pytest.raises(SourceChangedError, match="VACUUM"):
        progress.next()
    planned = progress.next(on_data_loss="record_gap")
    assert planned is not None
    assert [*planned.gaps.values()] == [((1, 3),)]
    assert len(files_of([planned])) == 2


def test_file_that_vacuum_deletes_under_a_plan_is_reported_as_missing(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", 2)
    progress = Progress(DeltaSource(path=str(table)))
    planned = progress.next()
    assert planned is not None
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(RecordsMissingError, match="VACUUM"):
        progress.source.check_pins(progress.stored(planned), was_read=False)


def test_starting_selects_a_version_or_a_time(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", 4)
    for version in range(4):
        stamp = (1_700_000_000 + 10 * version) * 1_000_000_000
        os.utime(table / "_delta_log" / f"{version:020d}.json", ns=(stamp, stamp))

    def first(starting: str | int) -> list[int]:
        return sorted(DeltaSource(path=str(table), starting=starting).initial_offsets().values())

    assert first("earliest") == first("2000-01-01T00:00:00Z") == first("2023-11-14T22:13:20Z") == [-4, 4]
    assert first("latest") == first(4) == first("2023-11-14T22:13:51Z") == [4]
    assert first(2) == first("2023-11-14T22:13:40Z") == first("2023-11-14T22:13:31Z") == [2]
    with pytest.raises(InvalidError, match="does not have"):
        first(5)


def test_in_commit_timestamps_determine_the_first_version(tmp_path: Path) -> None:
    table = tmp_path / "t"
    on = {"delta.enableInCommitTimestamps": "true"}
    for version in range(4):
        actions = definition([field("id")], configuration=on) if version == 0 else []
        commit(table, version, *actions, added(table, f"{version}.parquet", {"id": [version]}))
        entry = table / "_delta_log" / f"{version:020d}.json"
        information = {"commitInfo": {"inCommitTimestamp": 1_700_000_000_000 + 10_000 * version, "operation": "WRITE"}}
        entry.write_text("\n".join([json.dumps(information), *entry.read_text().splitlines()[1:]]))
    source = DeltaSource(path=str(table), starting="2023-11-14T22:13:40Z")
    assert [*source.initial_offsets().values()] == [2]


def test_files_of_concurrent_writers_are_each_planned_once(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", 1)
    progress = Progress(DeltaSource(path=str(table)), max_files=3)
    threads = [Thread(target=lambda first=first: [append(table, n) for n in range(first, first + 6)]) for first in (10, 20, 30)]  # type: ignore[misc]  # fmt: skip
    for thread in threads:
        thread.start()
    slices = []
    while any(thread.is_alive() for thread in threads):
        slices += progress.all()
    slices += progress.all()
    assert Counter(files_of(slices)) == Counter(pyarrow.table(DeltaTable(str(table)).get_add_actions())["path"].to_pylist())  # fmt: skip


def test_features_that_this_source_cannot_read_are_refused_by_name(tmp_path: Path) -> None:
    fields = [field("id"), field("raw", "binary")]
    widened, clone, binary = tmp_path / "widened", tmp_path / "clone", tmp_path / "binary"
    commit(widened, 0, *definition(fields, features=["typeWidening"]))
    with pytest.raises(SourceChangedError, match="typeWidening"):
        DeltaSource(path=str(widened)).initial_offsets()
    commit(clone, 0, *definition(fields))
    commit(clone, 1, added(clone, "f.parquet", {"id": [1]}, path=f"file://{tmp_path}/other/f.parquet"))
    with pytest.raises(SourceChangedError, match="shallow clone"):
        Progress(DeltaSource(path=str(clone), starting=0)).all()
    commit(binary, 0, *definition(fields, partitionColumns=["raw"]))
    with pytest.raises(SourceChangedError, match="binary"):
        DeltaSource(path=str(binary)).initial_offsets()


def test_damaged_entry_is_refused_by_name(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", 2)
    progress = Progress(DeltaSource(path=str(table), starting="latest"))
    append(table, 2)
    planner = progress.source.open(CommitLog(MemoryStore()), None)
    end = planner.poll(None)
    (table / "_delta_log" / f"{2:020d}.json").write_text("{")
    with pytest.raises((SourceChangedError, UnavailableError)):
        planner.slice(progress.offsets, end, Limits(), None, on_data_loss="record_gap")


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "table"},
        {"path": "s3://b/a%20b"},
        {"path": "/t", "changes": "ignore"},
        {"path": "/t", "starting": "yesterday"},
        {"path": "/t", "starting": -1},
        {"path": "/t", "starting": True},
    ],
    ids=str,
)
def test_argument_that_is_not_valid_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        DeltaSource(**arguments)


@pytest.mark.parametrize(
    "path", ["../f", "/f", "_delta_log/0.json", "a//b", "s3://b/f", "file:///f", "%2E%2E/f", "a/%2E%2E/%2E%2E/f"]
)
def test_pin_of_a_file_outside_the_table_is_refused(tmp_path: Path, path: str) -> None:
    progress = Progress(DeltaSource(path=str(create_table(tmp_path / "t"))))
    planned = progress.next()
    assert planned is not None
    table, file = plain([*planned.pins])  # type: ignore[misc]
    with pytest.raises(LogDamagedError):
        progress.source.read_pins([table, {**file, "path": path}])  # type: ignore[dict-item]


def test_missing_table_is_refused_with_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SourceChangedError, match="no Delta table"):
        DeltaSource(path=str(tmp_path)).initial_offsets()
