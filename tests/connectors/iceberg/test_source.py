"""The Iceberg source: the conformance suite, and every kind of snapshot of a branch, written by pyiceberg."""

from __future__ import annotations

import json
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
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimeType, UUIDType

from airflow_provider_streamsem import Limits
from airflow_provider_streamsem.connectors.iceberg.pins import FilePin
from airflow_provider_streamsem.connectors.iceberg.source import IcebergSource
from airflow_provider_streamsem.connectors.source import SourceSlice
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    LogDamagedError,
    RecordsMissingError,
    SourceChangedError,
)
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem
from tests.connectors.iceberg.tables import ID, Tables
from tests.connectors.table_files.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Appended(SourceSystem):
    """An Iceberg table. Each call of ``add`` commits one snapshot with one file. The connection has a secret."""

    secrets = ("hidden",)

    def __init__(self, root: Path) -> None:
        self.tables = Tables(root)
        self.source = self.tables.source(conn_id="lake")

    def add(self, ids: Iterable[int]) -> None:
        self.tables.append(*ids)

    def expire(self) -> list[int]:
        tasks = self.tables.loaded().scan().plan_files()
        oldest = min(tasks, key=lambda task: task.file.lower_bounds[1][::-1])
        path = Path(oldest.file.file_path.removeprefix("file://"))
        ids = pyarrow.parquet.read_table(path)["id"].to_pylist()
        path.unlink()
        return ids


class TestIcebergSource(SourceContract):
    @pytest.fixture
    def system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Appended:
        extra = {"s3.secret-access-key": "hidden"}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "generic", "extra": extra}))
        return Appended(tmp_path / "lake")


class CountedProgress(Progress):
    """Checks that the plan has the number of rows, and sorts the rows by id."""

    def rows(self, spark: SparkSession, planned: SourceSlice) -> list[dict[str, Any]]:
        rows = super().rows(spark, planned)
        assert planned.rows == len(rows)
        return sorted(rows, key=lambda row: str(row.get("id")))


def files_of(slices: Iterable[SourceSlice]) -> list[str]:
    return [pin.key for planned in slices for pin in planned.pins if isinstance(pin, FilePin)]


def create_table(root: Path, snapshots: int, **arguments: Any) -> Tables:
    """Create a table whose snapshot ``n`` appends the row ``n``."""
    tables = Tables(root, **arguments)
    for n in range(snapshots):
        tables.append(n)
    return tables


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_runs_in_new_processes_plan_each_file_once_at_every_limit(tmp_path: Path, limit: int) -> None:
    tables = create_table(tmp_path, 3)
    progress = CountedProgress(tables.source(), max_files=limit)
    first = progress.next()
    assert first is not None
    for n in (3, 4):
        tables.append(n)
    slices = [first, *progress.all()]
    assert Counter(files_of(slices)) == Counter(tables.files())
    assert max(len(files_of([planned])) for planned in slices) == min(limit, 3)
    assert progress.next() is None


@pytest.mark.parametrize("limit", ["max_files", "max_bytes", "max_rows"])
def test_batch_ends_exactly_at_its_limit(tmp_path: Path, limit: str) -> None:
    tables = Tables(tmp_path)
    beginning = tables.source(starting="latest")
    whole = CountedProgress(beginning)
    for n in range(4):
        tables.append(n)
    size = next(iter(tables.loaded().scan().plan_files())).file.file_size_in_bytes
    maximum = {"max_files": 2, "max_bytes": 2 * size, "max_rows": 2}[limit]
    for progress in (CountedProgress(tables.source()), whole):
        progress.limits = Limits(**{limit: maximum})
        assert [len(files_of([planned])) for planned in progress.all()] == [2, 2]


def overwrite(table: Table) -> None:
    table.overwrite(pyarrow.table({"id": [9]}))


CHANGING: dict[str, Callable[[Table], Any]] = {
    "delete": lambda table: table.delete("id == 1"),
    "overwrite": lambda table: table.overwrite(pyarrow.table({"id": [9]}), overwrite_filter="id == 1"),
    "upsert": lambda table: table.upsert(pyarrow.table({"id": [1], "p": ["other"]}), join_cols=["id"]),
}


@pytest.mark.parametrize("operation", ["delete", "upsert"])
def test_snapshot_that_changes_rows_is_refused_by_name_or_skipped(tmp_path: Path, operation: str) -> None:
    schema = Schema(ID, NestedField(2, "p", StringType(), required=False))
    tables = Tables(tmp_path, schema)
    tables.loaded().append(pyarrow.table({"id": [1, 2], "p": ["a", "b"]}))
    refusing = CountedProgress(tables.source(starting="latest"))
    skipping = CountedProgress(tables.source(starting="latest", changes="skip"))
    tables.append(3, p=["c"])
    before = tables.files()
    CHANGING[operation](tables.loaded())
    changed = tables.loaded().snapshots()
    tables.append(4, p=["d"])
    newest = {*tables.files()} - {*before}
    first = refusing.next()
    assert first is not None
    assert len(files_of([first])) == 1
    with pytest.raises(SourceChangedError, match="overwrites or deletes") as refused:
        refusing.next()
    assert refused.value.fields["snapshot"] in {str(snapshot.snapshot_id) for snapshot in changed}
    assert refused.value.fields["operation"] in ("delete", "overwrite")
    assert refused.value.fields["table"] == "lake.rows"
    skipped = files_of(skipping.all())
    assert skipped[0] == files_of([first])[0]
    assert {*skipped[1:]} <= newest
    assert len(skipped) >= 2


def test_compaction_adds_no_file(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 2)
    progress = CountedProgress(tables.source(starting="latest"))
    table = tables.loaded()
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as rewrite:
        files = [task.file for task in table.scan().plan_files()]
        for file in files:
            rewrite.delete_data_file(file)
        rewrite.append_data_file(files[0])
        summary = rewrite._summary
        rewrite._summary = lambda *given: Summary(Operation.REPLACE, **summary(*given).additional_properties)  # type: ignore[method-assign]
    assert tables.loaded().snapshots()[-1].summary.operation == Operation.REPLACE  # type: ignore[union-attr]
    tables.append(5)
    (planned,) = progress.all()
    assert len(files_of([planned])) == 1
    assert planned.rows == 1


def test_recreated_table_is_refused_before_and_after_a_plan(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 2)
    progress = CountedProgress(tables.source(), max_files=1)
    planned = progress.next()
    assert planned is not None
    tables.catalog.drop_table("lake.rows")
    with pytest.raises(SourceChangedError, match="no Iceberg table"):
        progress.next()
    create_table(tmp_path, 4)
    with pytest.raises(SourceChangedError, match="recreated"):
        progress.next(on_data_loss="record_gap")
    for was_read in (False, True):
        with pytest.raises(SourceChangedError, match="recreated"):
            progress.source.check_pins(progress.stored(planned), was_read=was_read)


def test_branch_that_was_rolled_back_is_refused_even_if_it_has_grown_again(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 2)
    older = tables.loaded().snapshots()[0].snapshot_id
    progress = CountedProgress(tables.source())
    assert len(progress.all()) == 1
    tables.append(2)
    assert progress.next() is not None
    tables.loaded().manage_snapshots().rollback_to_snapshot(older).commit()
    with pytest.raises(SourceChangedError, match="rolled back"):
        progress.next(on_data_loss="record_gap")
    tables.append(20)
    tables.append(30)
    with pytest.raises(SourceChangedError, match="rolled back"):
        progress.next(on_data_loss="record_gap")


def test_metadata_from_an_older_copy_is_refused_even_if_it_has_grown_again(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 2)
    older = tables.loaded().metadata_location
    progress = CountedProgress(tables.source())
    tables.append(2)
    assert progress.all()
    tables.catalog.drop_table("lake.rows")
    tables.catalog.register_table("lake.rows", older)
    with pytest.raises(SourceChangedError, match="rolled back"):
        progress.next()
    tables.append(20)
    with pytest.raises(SourceChangedError, match="rolled back"):
        progress.next(on_data_loss="record_gap")
    tables.append(30)
    with pytest.raises(SourceChangedError, match="rolled back"):
        progress.next(on_data_loss="record_gap")


def expire(tables: Tables, *numbers: int) -> None:
    ids = [tables.loaded().snapshots()[n].snapshot_id for n in numbers]
    tables.loaded().maintenance.expire_snapshots().by_ids(ids).commit()


def test_snapshots_that_were_read_may_expire(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 2)
    progress = CountedProgress(tables.source())
    assert progress.all()
    tables.append(2)
    expire(tables, 0, 1)
    (planned,) = progress.all()
    assert planned.rows == 1


def test_unread_snapshots_that_expired_fail_the_run_or_become_a_gap(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 1)
    progress = CountedProgress(tables.source(starting="latest"))
    for n in (1, 2, 3):
        tables.append(n)
    expire(tables, 0, 1, 2)
    with pytest.raises(SourceChangedError, match="may have expired"):
        progress.next()
    planned = progress.next(on_data_loss="record_gap")
    assert planned is not None
    assert [*planned.gaps.values()] == [((2, 4),)]
    assert planned.rows == 1
    assert progress.next() is None


def test_initial_snapshot_that_expires_before_it_was_read_is_refused(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 2)
    progress = CountedProgress(tables.source(), max_files=1)
    assert progress.next() is not None
    tables.append(2)
    expire(tables, 0, 1)
    with pytest.raises(SourceChangedError, match="expired before"):
        progress.next()


def test_missing_file_fails_the_run_or_its_snapshot_becomes_a_gap(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    progress = CountedProgress(tables.source())
    snapshots = []
    for n in range(4):
        known = {*tables.files()} if n else set()
        tables.append(n)
        snapshots += [*({*tables.files()} - known)]
    initial = CountedProgress(tables.source())
    whole = initial.next()
    assert whole is not None
    (tables.path / snapshots[1]).unlink()
    (tables.path / snapshots[2]).write_bytes(b"other")
    with pytest.raises(SourceChangedError, match="missing"):
        progress.next()
    planned = progress.next(on_data_loss="record_gap")
    assert planned is not None
    assert [*planned.gaps.values()] == [((2, 4),)]
    assert files_of([planned]) == [snapshots[0], snapshots[3]]
    with pytest.raises(RecordsMissingError, match="missing"):
        initial.source.check_pins(initial.stored(whole), was_read=False)


def test_columns_are_found_by_field_id_after_renames_drops_and_promotions(tmp_path: Path, spark: SparkSession) -> None:
    tables = Tables(tmp_path)
    struct = pyarrow.struct([("a", pyarrow.int64()), ("b", pyarrow.string())])
    with tables.loaded().update_schema() as update:
        update.union_by_name(pyarrow.schema([("n", pyarrow.int32()), ("s", struct), ("l", pyarrow.list_(struct))]))
    progress = CountedProgress(tables.source())
    inner = {"a": 1, "b": "x"}

    def rows(n: str, s: str) -> pyarrow.Table:
        kinds = {n: pyarrow.int32(), s: struct, "l": pyarrow.list_(struct)}
        values = {n: [7], s: [inner], "l": [[inner]]}
        return pyarrow.table({"id": [1], **{name: pyarrow.array(values[name], kind) for name, kind in kinds.items()}})

    tables.loaded().append(rows("n", "s"))
    before = progress.next()
    with tables.loaded().update_schema() as update:
        update.rename_column("n", "s2")
        update.rename_column("s", "n")
        update.rename_column("s.a", "z")
    with tables.loaded().update_schema() as update:
        update.update_column("s2", LongType())
        update.add_column("extra", StringType())
        update.add_column(("l", "c"), StringType())
        update.move_first("extra")
    tables.append(2)
    after = progress.next()
    assert before is not None
    assert after is not None
    assert progress.rows(spark, before) == [{"id": 1, "n": 7, "s": inner, "l": [inner]}]
    empty = {"extra": None, "id": 2, "s2": None, "n": None, "l": None}
    assert progress.rows(spark, after) == [empty]
    snapshot = CountedProgress(tables.source())
    (whole,) = snapshot.all()
    renamed = {"extra": None, "id": 1, "s2": 7, "n": {"z": 1, "b": "x"}, "l": [{**inner, "c": None}]}
    assert snapshot.rows(spark, whole) == [renamed, empty]


def test_swapped_names_are_read_by_their_ids_though_the_files_look_alike(tmp_path: Path, spark: SparkSession) -> None:
    fields = [NestedField(n, name, LongType(), required=False) for n, name in enumerate(("id", "a", "b"), 1)]
    tables = Tables(tmp_path, Schema(*fields))
    tables.loaded().append(pyarrow.table({"id": [1], "a": [10], "b": [20]}))
    with tables.loaded().update_schema() as update:
        update.rename_column("a", "c")
    with tables.loaded().update_schema() as update:
        update.rename_column("b", "a")
    with tables.loaded().update_schema() as update:
        update.rename_column("c", "b")
    with tables.loaded().update_schema() as update:
        update.move_before("a", "b")
    tables.loaded().append(pyarrow.table({"id": [2], "a": [20], "b": [10]}))
    progress = CountedProgress(tables.source())
    (whole,) = progress.all()
    assert progress.rows(spark, whole) == [{"id": 1, "a": 20, "b": 10}, {"id": 2, "a": 20, "b": 10}]


def imported(tables: Tables, name: str, rows: dict[str, Any]) -> None:
    """Add a file without field ids to the table."""
    (tables.path / "data").mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(rows), tables.path / "data" / name)
    tables.loaded().add_files([f"file://{tables.path}/data/{name}"])


def test_files_without_field_ids_are_read_by_the_name_mapping(tmp_path: Path, spark: SparkSession) -> None:
    tables = Tables(tmp_path, Schema(ID, NestedField(2, "p", StringType(), required=False)))
    imported(tables, "f.parquet", {"id": [1], "p": ["x"]})
    with tables.loaded().update_schema() as update:
        update.rename_column("p", "q")
    tables.append(2, q=["y"])
    progress = CountedProgress(tables.source())
    (whole,) = progress.all()
    assert progress.rows(spark, whole) == [{"id": 1, "q": "x"}, {"id": 2, "q": "y"}]
    with tables.loaded().transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    unmapped = CountedProgress(tables.source())
    (whole,) = unmapped.all()
    with pytest.raises(DataError, match="name mapping"):
        unmapped.source.load(spark, unmapped.stored(whole))
    both = NameMapping.model_validate([{"field-id": 1, "names": ["id", "p"]}])
    with tables.loaded().transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": both.model_dump_json()})
    ambiguous = CountedProgress(tables.source())
    (whole,) = ambiguous.all()
    with pytest.raises(DataError, match="several columns"):
        ambiguous.source.load(spark, ambiguous.stored(whole))


def test_partitioned_rows_with_unusual_values_are_those_of_the_table(tmp_path: Path, spark: SparkSession) -> None:
    names = ["plain", "a b/c:d%é", None, "=", "", "__HIVE_DEFAULT_PARTITION__", "+", "a%20b", "[x]*{y}?"]
    at = datetime(2024, 2, 29, 20, 0, 1, 500_000)
    kinds = pyarrow.schema(
        [("id", pyarrow.int64()), ("p", pyarrow.string()), ("day", pyarrow.date32()), ("at", pyarrow.timestamp("us", tz="UTC")),
         ("local", pyarrow.timestamp("us")), ("price", pyarrow.decimal128(9, 2)), ("m", pyarrow.map_(pyarrow.string(), pyarrow.int64()))]
    )  # fmt: skip
    rows = [
        {"id": n, "p": name, "day": None if n % 3 == 0 else date(1969, 12, 30), "at": at.replace(tzinfo=timezone.utc),
         "local": at, "price": Decimal("1.50"), "m": {"k": n}}
        for n, name in enumerate(names)
    ]  # fmt: skip
    tables = Tables(tmp_path / "a b:c+d", kinds)  # type: ignore[arg-type]
    with tables.loaded().update_spec() as update:
        update.add_identity("p")
        update.add_identity("day")
    progress = CountedProgress(tables.source())
    tables.loaded().append(pyarrow.Table.from_pylist(rows, kinds))
    (planned,) = progress.all()
    read = progress.rows(spark, planned)
    expected = [{**row, "at": at.replace(tzinfo=timezone.utc).timestamp()} for row in rows]
    assert [{**row, "at": row["at"].timestamp()} for row in read] == expected


def test_file_without_its_partition_column_is_refused_by_name(tmp_path: Path, spark: SparkSession) -> None:
    fields = [ID, NestedField(2, "p", StringType(), required=False)]
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    tables = Tables(tmp_path, Schema(*fields), partition_spec=spec)
    tables.append(1, p=["x"])
    (file,) = tables.files()
    rows = pyarrow.parquet.read_table(tables.path / file)
    pyarrow.parquet.write_table(rows.drop_columns(["p"]), tables.path / file)
    progress = CountedProgress(tables.source())
    planned = progress.stored(progress.next(on_data_loss="record_gap") or pytest.fail("nothing"))
    assert planned[1:] == ()  # the file has another size than the metadata says
    size = (tables.path / file).stat().st_size
    table, pin = planned[0], FilePin(file, size, 1, 1, (2,))
    with pytest.raises(DataError, match="lacks columns by which it is partitioned"):
        progress.source.load(spark, [table, pin])


def test_only_the_configured_branch_is_read(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 1)
    with pytest.raises(SourceChangedError, match="no branch"):
        tables.source(branch="audit").initial_offsets()
    newest = tables.loaded().snapshots()[-1].snapshot_id
    tables.loaded().manage_snapshots().create_branch(newest, "audit").create_tag(newest, "first").commit()
    with pytest.raises(SourceChangedError, match="no branch"):
        tables.source(branch="first").initial_offsets()
    main = CountedProgress(tables.source(starting="latest"))
    audit = CountedProgress(tables.source(starting="tag:first", branch="audit"))
    both = [tables.append(n, branch=branch) for n, branch in enumerate(("main", "audit", "audit", "main"), 1)]
    for progress in (main, audit):
        (planned,) = progress.all()
        assert planned.rows == 2
        assert progress.next() is None
    tables.append(9, branch="audit")
    assert [planned.rows for planned in audit.all()] == [1]
    assert [planned.rows for planned in CountedProgress(tables.source(starting=both[0])).all()] == [1]
    with pytest.raises(InvalidError, match="does not have"):
        tables.source(starting=both[1]).initial_offsets()
    with pytest.raises(InvalidError, match="does not have"):
        tables.source(starting="tag:other").initial_offsets()


def test_starting_at_a_time_selects_the_first_later_snapshot(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 3)
    times = [snapshot.timestamp_ms for snapshot in tables.loaded().snapshots()]
    assert times == sorted({*times})

    def start(at_ms: int) -> list[int]:
        return sorted(tables.source().offsets_for_time(at_ms).values())

    assert start(0) == start(times[0]) == sorted(tables.source().initial_offsets().values()) == [-3, 4]
    assert start(times[1]) == start(times[0] + 1) == [2]
    assert start(times[2] + 1) == [4]


def test_delete_files_of_the_initial_snapshot_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.manifest import ManifestContent, ManifestFile

    tables = create_table(tmp_path, 2)
    # pyiceberg writes no delete files, so its own manifests are read as manifests of delete files.
    monkeypatch.setattr(ManifestFile, "content", property(lambda manifest: ManifestContent.DELETES))
    with pytest.raises(SourceChangedError, match="merge-on-read"):
        tables.source().initial_offsets()


def test_files_of_concurrent_writers_are_each_planned_once(tmp_path: Path) -> None:
    tables = create_table(tmp_path, 1)
    progress = CountedProgress(tables.source(), max_files=3)

    def write(first: int) -> None:
        mine = SqlCatalog("default", **tables.properties)
        for n in range(first, first + 3):
            while True:
                try:
                    mine.load_table("lake.rows").append(pyarrow.table({"id": [n]}))
                    break
                except CommitFailedException:
                    continue

    threads = [Thread(target=write, args=(first,)) for first in (10, 20)]
    for thread in threads:
        thread.start()
    slices = []
    while any(thread.is_alive() for thread in threads):
        slices += progress.all()
    slices += progress.all()
    assert Counter(files_of(slices)) == Counter(tables.files())


def test_tables_that_this_source_cannot_read_are_refused_by_name(tmp_path: Path) -> None:
    old = Tables(tmp_path / "old", properties={"format-version": "1"})
    with pytest.raises(SourceChangedError, match="format-version 1"):
        old.source().initial_offsets()
    odd = [NestedField(2, "clock", TimeType(), required=False), NestedField(3, "key", UUIDType(), required=False)]
    with pytest.raises(SourceChangedError, match="clock: time"):
        Tables(tmp_path / "odd", Schema(ID, *odd)).source().initial_offsets()
    elsewhere = create_table(tmp_path / "elsewhere", 1)
    source = IcebergSource(path=str(tmp_path / "other"), table="lake.rows", properties=elsewhere.properties)
    with pytest.raises(SourceChangedError, match="not below the source's path"):
        source.initial_offsets()
    for manifests in (elsewhere.path / "metadata").glob("snap-*.avro"):
        manifests.unlink()
    with pytest.raises(SourceChangedError, match="metadata file of the Iceberg table is missing"):
        elsewhere.source().initial_offsets()


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "table"},
        {"table": "rows"},
        {"branch": ""},
        {"changes": "read"},
        {"starting": "yesterday"},
        {"starting": -1},
        {"properties": {"py-io-impl": "os.system"}},
        {"properties": {"token": "hidden"}},
    ],
    ids=str,
)
def test_argument_that_is_not_valid_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        IcebergSource(**{"path": "/t", "table": "lake.rows", **arguments})


@pytest.mark.parametrize("key", ["../f", "/f", "a//b", "a/../../f", ""])
def test_pin_of_a_file_outside_the_location_is_refused(tmp_path: Path, key: str) -> None:
    progress = CountedProgress(create_table(tmp_path, 1).source())
    planned = progress.next()
    assert planned is not None
    table, file = plain([*planned.pins])  # type: ignore[misc]
    with pytest.raises(LogDamagedError):
        progress.source.read_pins([table, {**file, "key": key}])  # type: ignore[dict-item]
    with pytest.raises(LogDamagedError):
        progress.source.read_pins([{**table, "schema": "{"}, file])  # type: ignore[dict-item]
