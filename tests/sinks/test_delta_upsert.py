"""Rows merged into a Delta table by key: whatever is killed, repeated or late, each key has the row that came last."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_streamsem import FilesSink, Pipeline
from airflow_provider_streamsem.batch.maintenance import vacuum
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError, StreamsemError
from airflow_provider_streamsem.sinks import delta_table
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.delta import DeltaSink
from tests.sinks import batches
from tests.sinks.delta_worlds import DeltaWorld, each_death

KEYS = 4


def keyed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some keys come in every batch, some twice in one."""
    return [{"k": row["id"] % KEYS, "v": row["id"]} for row in rows]


class UpsertWorld(DeltaWorld):
    def pipeline(self, **changes: Any) -> Pipeline:
        sink = DeltaSink(self.table, mode="upsert", keys=["k"])
        return super().pipeline(**{"sinks": {"table": sink}, "transform": keyed, **changes})

    def values(self) -> list[tuple[int, int]]:
        return sorted((row["k"], row["v"]) for row in DeltaTable(self.table).to_pyarrow_table().to_pylist())

    @property
    def last_values(self) -> list[tuple[int, int]]:
        return sorted({n % KEYS: n for n in sorted(self.expected)}.items())

    def is_merged(self) -> None:
        assert self.verdict().findings == []
        assert self.values() == self.last_values


@pytest.fixture
def world(tmp_path: Path) -> UpsertWorld:
    made = UpsertWorld(tmp_path)
    made.arrive(4)
    return made


def publish(world: UpsertWorld, version: int) -> Any:
    return world.pipeline().sinks["table"].publish(world.batches()[version], None)  # type: ignore[attr-defined]


def test_each_key_has_its_last_row_and_other_rows_stay(world: UpsertWorld) -> None:
    write_deltalake(world.table, pyarrow.table({"k": [100, 1], "v": [-1, -1], "note": ["theirs", "older"]}))
    world.run("all", drain=True)
    read = {row["k"]: (row["v"], row["note"]) for row in DeltaTable(world.table).to_pyarrow_table().to_pylist()}
    assert read == {100: (-1, "theirs"), 1: (9, "older"), 0: (8, None), 2: (10, None), 3: (11, None)}
    receipts = world.opened().log.receipts(1)
    assert receipts is not None
    assert (receipts.sinks["table"].result, receipts.sinks["table"].rows) == ("applied", 6)
    assert world.verdict().findings == []


@pytest.mark.parametrize("retry", ["run", "another"])
def test_death_around_every_write_of_a_merge_then_a_retry(tmp_path: Path, around: Any, retry: str) -> None:
    def began(name: str) -> UpsertWorld:
        world = UpsertWorld(tmp_path / name)
        world.arrive(4)
        return world

    writes = ["before create", "after create"] + ["before execute", "after execute"] * 2
    for world in each_death(began, around, writes, retry):
        world.is_merged()
        assert DeltaTable(world.table).version() == 2, "a version was merged twice"


def test_merge_whose_answer_was_lost_is_not_made_again(world: UpsertWorld, around: Any) -> None:
    lost: list[str] = []

    def lose(name: str) -> None:
        if name == "after execute" and not lost:
            lost.append(name)
            raise OSError("the connection was lost")

    world.run("first")
    around(lose)
    world.run("second")
    assert lost
    assert DeltaTable(world.table).version() == 2
    world.is_merged()


def test_batch_that_is_merged_again_any_number_of_times_brings_no_old_value_back(world: UpsertWorld) -> None:
    world.run("all", drain=True)
    for _ in range(3):
        assert publish(world, 0) is None
        assert publish(world, 1).result == "applied"
    world.is_merged()
    assert DeltaTable(world.table).version() == 2


def test_publishers_at_once_and_one_that_sleeps_merge_each_version_once_in_50_rounds(
    tmp_path: Path, around: Any
) -> None:
    world = UpsertWorld(tmp_path)
    world.arrive(2)
    world.run("first")
    sleeping: list[Any] = [lambda step: None]
    around(lambda step: sleeping[-1](step))
    for turn in range(50):
        slept: list[str] = []

        def meanwhile(step: str) -> None:
            if step == "before execute" and not slept:  # noqa: B023
                slept.append(step)  # noqa: B023
                if turn % 2:  # noqa: B023
                    world.arrive(2)
                world.run(f"other {turn}", drain=True)  # noqa: B023

        world.arrive(2)
        sleeping.append(meanwhile)
        world.run(f"turn {turn}")
        sleeping.append(lambda step: None)
        assert slept
        with ThreadPoolExecutor(2) as pool:
            newest = len(world.batches()) - 1
            answers = list(pool.map(lambda version: publish(world, version), [newest, newest]))
        assert [answer.result for answer in answers] == ["applied", "applied"]
        world.is_merged()
    assert DeltaTable(world.table).version() == len(world.batches())


def test_redo_is_refused_before_anything_is_written(world: UpsertWorld) -> None:
    world.run("all", drain=True)
    with pytest.raises(StreamsemError, match="redo"):
        world.run("redo", redone=0)
    assert world.opened().head == 1
    world.is_merged()


def test_staged_rows_are_vacuumed_after_the_receipts_and_the_table_has_all(world: UpsertWorld) -> None:
    world.run("all", drain=True)
    assert len(vacuum(world.pipeline(), log=world.log()).attempts) == 2
    assert not list(Path(world.table).glob("data/**/*.parquet"))
    assert world.verdict().orphans == 0
    world.is_merged()
    world.arrive(1)
    world.run("more")
    world.is_merged()


def test_log_that_appends_cannot_come_to_merge_or_vacuum_would_delete_the_tables_files(world: UpsertWorld) -> None:
    appending = world.pipeline(sinks={"table": DeltaSink(world.table)})
    world.run("first", pipeline=appending)
    with pytest.raises(StreamsemError, match="sinks"):
        world.run("second")
    assert len(DeltaTable(world.table).to_pyarrow_table()) == 6


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda rows: [{"k": None if row["id"] == 1 else row["id"], "v": 1} for row in rows], "have null there"),
        (lambda rows: [{"k": row["id"] / 2, "v": 1} for row in rows], "keys must be text"),
        (lambda rows: [{"v": row["id"]} for row in rows], "lack keys"),
    ],
)
def test_rows_that_have_no_key_are_refused_before_the_decision(world: UpsertWorld, transform: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        world.run("first", pipeline=world.pipeline(transform=transform))
    assert world.opened().head == -1
    world.run("first")
    assert world.opened().head == 0


def test_several_keys_with_odd_names_and_a_column_that_comes_later(tmp_path: Path) -> None:
    odd = "the `key` \"of' it"
    world = UpsertWorld(tmp_path)
    world.arrive(4)
    sink = DeltaSink(world.table, mode="upsert", keys=["K", odd])

    def named(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"K": row["id"] % 2, odd: f"'{row['id'] % 3}", "v": row["id"]} for row in rows]

    world.run("first", pipeline=world.pipeline(sinks={"table": sink}, transform=named))
    later = world.pipeline(sinks={"table": sink}, transform=lambda rows: [{**row, "new": True} for row in named(rows)])
    world.run("second", pipeline=later)
    read = DeltaTable(world.table).to_pyarrow_table().to_pylist()
    assert sorted((row["K"], row[odd], row["v"], row["new"]) for row in read) == sorted(
        (n % 2, f"'{n % 3}", n, True) for n in range(6, 12)
    )


def test_table_that_only_takes_appends_is_refused_before_the_decision(world: UpsertWorld) -> None:
    write_deltalake(world.table, pyarrow.table({"k": [100], "v": [-1]}), configuration={"delta.appendOnly": "true"})
    with pytest.raises(DataError, match="requires more of its writers") as caught:
        world.run("first")
    assert "delta.appendOnly" in str(caught.value)
    assert world.opened().head == -1


def staged(world: UpsertWorld, version: int, table: pyarrow.Table, types: dict[str, str] | None = None) -> Batch:
    """A batch of columns that are whole numbers where their types are not given."""
    sink = DeltaSink(world.table, mode="upsert", keys=["k"])
    kinds = {name: (types or {}).get(name, "long") for name in table.schema.names}
    return batches.staged(sink, table, version, schema=batches.schema_of(**kinds))


def test_batch_whose_file_has_no_rows_sets_the_marker_and_stops_nothing(world: UpsertWorld) -> None:
    """Spark writes one file for a DataFrame without rows."""
    sink = DeltaSink(world.table, mode="upsert", keys=["k"])
    none = pyarrow.table({"k": pyarrow.array([], pyarrow.int64()), "v": pyarrow.array([], pyarrow.int64())})
    for version, table in enumerate((none, pyarrow.table({"k": [1], "v": [1]}), none)):
        receipt = sink.publish(staged(world, version, table), None)  # type: ignore[arg-type]
        assert receipt is not None
        assert (receipt.result, receipt.rows) == ("applied", table.num_rows)
        found = sink.marker(batches.UUID, "t")
        assert found is not None
        assert found.is_of(version, batches.outcome_of(version))
    assert world.values() == [(1, 1)]


def keyed_table(kind: pyarrow.DataType, keys: list[Any], value: int) -> pyarrow.Table:
    return pyarrow.table({"k": pyarrow.array(keys, kind), "v": pyarrow.array([value] * len(keys), pyarrow.int64())})


@pytest.mark.parametrize(
    ("named", "kind", "keys"),
    [
        ("string", pyarrow.string(), ["a", "x" * 40 + "1", "x" * 40 + "2", "", "é'`"]),
        ("short", pyarrow.int16(), [-3, 0, 7]),
        ("long", pyarrow.int64(), [2**53, 2**53 + 1, -(2**63)]),
        ("decimal(9,2)", pyarrow.decimal128(9, 2), [Decimal("-1.10"), Decimal("0.05"), Decimal("1234567.89")]),
        ("decimal(18,2)", pyarrow.decimal128(18, 2), [Decimal("1234567890123456.78"), Decimal("1234567890123456.79")]),
        ("decimal(38,18)", pyarrow.decimal128(38, 18), [Decimal("1.000000000000000001"), Decimal("1.000000000000000002")]),
        ("date", pyarrow.date32(), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
        ("timestamp", pyarrow.timestamp("us", "UTC"), [datetime(2024, 2, 29, 1, 2, 3, micros, timezone.utc) for micros in (1, 999, 1001)]),
        ("boolean", pyarrow.bool_(), [True, False]),
        ("binary", pyarrow.binary(), [b"\x00", b"", b"\xff"]),
    ],
)  # fmt: skip
def test_key_of_every_type_is_found_again_in_a_file_of_its_own(
    world: UpsertWorld, named: str, kind: pyarrow.DataType, keys: list[Any]
) -> None:
    """Bounds that are not exact would have a file passed over, and its rows doubled."""
    sink = DeltaSink(world.table, mode="upsert", keys=["k"])
    versions = 0
    for value in (1, 2):
        for key in keys:
            batch = staged(world, versions, keyed_table(kind, [key], value), types={"k": named})
            assert sink.publish(batch, None) is not None  # type: ignore[arg-type]
            versions += 1
    read = DeltaTable(world.table).to_pyarrow_table().to_pylist()
    assert sorted(str(row["k"]) for row in read) == sorted(map(str, keys))
    assert {row["v"] for row in read} == {2}


def test_time_key_in_a_file_whose_writer_cut_its_bounds_to_milliseconds_is_found(world: UpsertWorld) -> None:
    """As Spark does; the largest value is then above the upper bound."""
    at = datetime(2024, 2, 29, 1, 2, 3, 999_999, timezone.utc)
    sink = DeltaSink(world.table, mode="upsert", keys=["k"])
    kind = pyarrow.timestamp("us", "UTC")
    sink.publish(staged(world, 0, keyed_table(kind, [at], 1), types={"k": "timestamp"}), None)  # type: ignore[arg-type]
    (entry,) = [path for path in Path(world.table, "_delta_log").glob("*1.json") if '"add"' in path.read_text()]
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            bound = {"k": "2024-02-29T01:02:03.999Z", "v": 1}
            bounds = {"minValues": bound, "maxValues": bound}
            line["add"]["stats"] = json.dumps({"numRecords": 1, "nullCount": {"k": 0, "v": 0}, **bounds})
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    delta_table._kept.clear()
    sink.publish(staged(world, 1, keyed_table(kind, [at], 2), types={"k": "timestamp"}), None)  # type: ignore[arg-type]
    assert [row["v"] for row in DeltaTable(world.table).to_pyarrow_table().to_pylist()] == [2]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_table_whose_transaction_numbers_expire_is_refused_before_the_decision(world: UpsertWorld, mode: str) -> None:
    table = pyarrow.table({"k": [100], "v": [-1]})
    write_deltalake(world.table, table, configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    sink = DeltaSink(world.table, mode=mode, keys=["k"] if mode == "upsert" else [])
    with pytest.raises(DataError, match="requires more of its writers") as caught:
        world.run("first", pipeline=world.pipeline(sinks={"table": sink}))
    assert "setTransactionRetentionDuration" in str(caught.value)


def int96(path: Path, at: datetime, key: int) -> None:
    """A file as Spark writes it by default."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pyarrow.table({"k": [key], "at": pyarrow.array([at], pyarrow.timestamp("us", "UTC"))})
    pyarrow.parquet.write_table(rows, path, use_deprecated_int96_timestamps=True)


def added(world: UpsertWorld, at: datetime, *, bounds: bool, key: int = 1) -> None:
    """Have the table of keys and times name a file with INT96, with or without bounds."""
    from deltalake.transaction import AddAction

    path = Path(world.table, f"others-{key}.parquet")
    int96(path, at, key)
    said = {"k": key, "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z")} if bounds else {"k": key}
    stats = json.dumps({"numRecords": 1, "minValues": said, "maxValues": said, "nullCount": {"k": 0}})
    table = DeltaTable(world.table)
    action = AddAction(path.name, path.stat().st_size, {}, 0, True, stats)
    table.create_write_transaction([action], "append", table.schema())
    delta_table._kept.clear()


TIMES = {"k": "long", "at": "timestamp"}
FAR = datetime(9999, 12, 31, tzinfo=timezone.utc)


def timed(key: int) -> pyarrow.Table:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return pyarrow.table({"k": [key], "at": pyarrow.array([at], pyarrow.timestamp("us", "UTC"))})


@pytest.mark.parametrize("bounds", [True, False])
def test_merge_that_would_change_times_of_other_rows_is_refused(world: UpsertWorld, bounds: bool) -> None:
    sink = DeltaSink(world.table, mode="upsert", keys=["k"])
    sink.publish(staged(world, 0, timed(0), TIMES), None)  # type: ignore[arg-type]
    added(world, FAR, bounds=bounds)
    with pytest.raises(PublishError, match="holds dates or times in a form that the merge would change") as caught:
        sink.publish(staged(world, 1, timed(1), TIMES), None)  # type: ignore[arg-type]
    assert (caught.value.fields["file"], caught.value.fields["columns"]) == ("others-1.parquet", ["at"])
    assert DeltaTable(world.table).transaction_version(f"{batches.UUID}/t") == 0


def test_merge_leaves_a_file_alone_that_holds_none_of_the_keys(world: UpsertWorld) -> None:
    sink = DeltaSink(world.table, mode="upsert", keys=["k"])
    sink.publish(staged(world, 0, timed(0), TIMES), None)  # type: ignore[arg-type]
    added(world, FAR, bounds=False, key=7)
    before = Path(world.table, "others-7.parquet").read_bytes()
    assert sink.publish(staged(world, 1, timed(0), TIMES), None) is not None  # type: ignore[arg-type]
    assert "others-7.parquet" in str(DeltaTable(world.table).file_uris())
    assert Path(world.table, "others-7.parquet").read_bytes() == before


@pytest.mark.parametrize("bounds", [True, False])
def test_merge_keeps_times_that_every_reader_reads_alike(world: UpsertWorld, bounds: bool) -> None:
    sink = DeltaSink(world.table, mode="upsert", keys=["k"])
    sink.publish(staged(world, 0, timed(0), TIMES), None)  # type: ignore[arg-type]
    near = datetime(1999, 12, 31, 1, 2, 3, 4, timezone.utc)
    added(world, near, bounds=bounds)
    both = pyarrow.concat_tables([timed(0), timed(2)])  # the file lies between the keys
    assert sink.publish(staged(world, 1, both, TIMES), None) is not None  # type: ignore[arg-type]
    read = {row["k"]: row["at"] for row in DeltaTable(world.table).to_pyarrow_table().to_pylist()}
    assert read[1] == near


def test_merge_whose_staged_rows_are_gone_names_the_files(world: UpsertWorld) -> None:
    batch = staged(world, 0, pyarrow.table({"k": [1], "v": [1]}))
    for file in batch.committable.files:
        Path(world.table, file.key).unlink()
    sink = DeltaSink(world.table, mode="upsert", keys=["k"])
    with pytest.raises(PublishError, match="staged files were deleted") as caught:
        sink.publish(batch, None)  # type: ignore[arg-type]
    assert caught.value.fields["files"] == [file.key for file in batch.committable.files]


def test_date_that_python_does_not_have_is_refused_before_the_decision(world: UpsertWorld) -> None:
    far = pyarrow.table({"k": [1], "at": pyarrow.array([3_000_000], pyarrow.int32()).cast(pyarrow.date32())})
    with pytest.raises(DataError, match="outside of the years 1 to 9999"):
        staged(world, 0, far)


def test_log_and_other_datasets_inside_the_table_are_refused(world: UpsertWorld) -> None:
    """Delta's VACUUM would delete them."""
    for change in (
        {"log": f"{world.table}/log"},
        {"sinks": {**world.pipeline().sinks, "f": FilesSink(f"{world.table}/f")}},
    ):
        with pytest.raises(InvalidError):
            world.pipeline(**change)


def test_column_that_must_not_be_null_is_refused_before_the_decision(world: UpsertWorld) -> None:
    inner = pyarrow.struct([pyarrow.field("a", pyarrow.int64(), nullable=False)])
    schema = pyarrow.schema([pyarrow.field("k", pyarrow.int64(), nullable=False), ("v", pyarrow.int64()), ("s", inner)])
    write_deltalake(world.table, pyarrow.table({"k": [100], "v": [-1], "s": [{"a": 1}]}, schema=schema))
    with pytest.raises(DataError, match="requires more of its writers") as caught:
        world.run("first")
    assert "k: NOT NULL" in str(caught.value)
    assert "s: NOT NULL" in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    ["decimal(9,2)", "binary", "double", "timestamp", {"type": "array", "elementType": "long", "containsNull": True}],
)
def test_partition_column_of_a_type_that_merging_would_write_wrongly_is_refused(world: UpsertWorld, kind: Any) -> None:
    sink = DeltaSink(world.table, mode="upsert", keys=["k"], partition_by=["p"])
    with pytest.raises(DataError, match="cannot partition"):
        sink.accept(batches.schema_of(k="long", p=kind))


def test_names_that_merging_uses_itself_are_refused_before_the_decision(world: UpsertWorld) -> None:
    named = world.pipeline(transform=lambda rows: [{"k": row["id"], "__delta_rs_source": 1} for row in rows])
    with pytest.raises(DataError, match="names that merging uses itself"):
        world.run("first", pipeline=named)


def test_keys_that_change_are_refused_or_they_would_not_have_been_checked(world: UpsertWorld) -> None:
    world.run("first")
    with pytest.raises(StreamsemError, match="sinks"):
        world.run("second", pipeline=world.pipeline(sinks={"table": DeltaSink(world.table, mode="upsert", keys=["v"])}))


@pytest.mark.parametrize("given", [{"mode": "upsert"}, {"keys": ["k"]}, {"mode": "merge", "keys": ["k"]}])
def test_mode_and_keys_that_do_not_fit_are_refused(given: Any) -> None:
    with pytest.raises(InvalidError):
        DeltaSink("/table", **given)
