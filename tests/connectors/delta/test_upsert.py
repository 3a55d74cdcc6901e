"""Rows merged into a Delta table by key: each key has its newest row after crashes, repeats and late publishers."""

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
from airflow_provider_streamsem.connectors.delta import table as delta_table
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from tests.connectors import batches
from tests.connectors.delta.delta_fixture import DeltaFixture, crash_at_each_write
from tests.rounds import ROUNDS

KEYS = 4


def keyed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Map rows to a few keys. Some keys are in every batch, and some are twice in one batch."""
    return [{"k": row["id"] % KEYS, "v": row["id"]} for row in rows]


class UpsertFixture(DeltaFixture):
    def pipeline(self, **changes: Any) -> Pipeline:
        sink = DeltaSink(self.table, mode="upsert", keys=["k"])
        return super().pipeline(**{"sinks": {"table": sink}, "transform": keyed, **changes})

    def values(self) -> list[tuple[int, int]]:
        return sorted((row["k"], row["v"]) for row in DeltaTable(self.table).to_pyarrow_table().to_pylist())

    @property
    def last_values(self) -> list[tuple[int, int]]:
        return sorted({n % KEYS: n for n in sorted(self.expected)}.items())

    def check_merged(self) -> None:
        assert self.verdict().violations == []
        assert self.values() == self.last_values


@pytest.fixture
def fixture(tmp_path: Path) -> UpsertFixture:
    fixture = UpsertFixture(tmp_path)
    fixture.arrive(4)
    return fixture


def publish(fixture: UpsertFixture, version: int) -> Any:
    return fixture.pipeline().sinks["table"].publish(fixture.batches()[version])  # type: ignore[attr-defined]


def test_each_key_has_its_last_row_and_other_rows_are_kept(fixture: UpsertFixture) -> None:
    write_deltalake(fixture.table, pyarrow.table({"k": [100, 1], "v": [-1, -1], "note": ["theirs", "older"]}))
    fixture.run("all", drain=True)
    read = {row["k"]: (row["v"], row["note"]) for row in DeltaTable(fixture.table).to_pyarrow_table().to_pylist()}
    assert read == {100: (-1, "theirs"), 1: (9, "older"), 0: (8, None), 2: (10, None), 3: (11, None)}
    receipts = fixture.opened().log.receipts(1)
    assert receipts is not None
    assert (receipts.sinks["table"].result, receipts.sinks["table"].rows) == ("applied", 6)
    assert fixture.verdict().violations == []


@pytest.mark.parametrize("retry", ["run", "another"])
def test_crash_around_every_write_of_a_merge_then_retry_merges_each_row_once(
    tmp_path: Path, watch_delta_writes: Any, retry: str
) -> None:
    def make_fixture(name: str) -> UpsertFixture:
        fixture = UpsertFixture(tmp_path / name)
        fixture.arrive(4)
        return fixture

    writes = ["before create", "after create"] + [
        "before create_write_transaction",
        "after create_write_transaction",
    ] * 2
    for fixture in crash_at_each_write(make_fixture, watch_delta_writes, writes, retry):
        fixture.check_merged()
        assert DeltaTable(fixture.table).version() == 2, "a version was merged twice"


def test_merge_whose_reply_was_lost_is_not_repeated(fixture: UpsertFixture, watch_delta_writes: Any) -> None:
    lost: list[str] = []

    def lose(name: str) -> None:
        if name == "after create_write_transaction" and not lost:
            lost.append(name)
            raise OSError("the connection was lost")

    fixture.run("first")
    watch_delta_writes(lose)
    fixture.run("second")
    assert lost
    assert DeltaTable(fixture.table).version() == 2
    fixture.check_merged()


def test_repeated_merge_never_restores_an_old_value(fixture: UpsertFixture) -> None:
    fixture.run("all", drain=True)
    for _ in range(3):
        assert publish(fixture, 0) is None
        assert publish(fixture, 1).result == "applied"
    fixture.check_merged()
    assert DeltaTable(fixture.table).version() == 2


def test_concurrent_and_paused_publishers_merge_each_version_once_in_every_round(
    tmp_path: Path, watch_delta_writes: Any
) -> None:
    fixture = UpsertFixture(tmp_path)
    fixture.arrive(2)
    fixture.run("first")
    callbacks: list[Any] = [lambda step: None]
    watch_delta_writes(lambda step: callbacks[-1](step))
    for turn in range(ROUNDS):
        pauses: list[str] = []

        def others_publish(step: str) -> None:
            if step == "before create_write_transaction" and not pauses:  # noqa: B023
                pauses.append(step)  # noqa: B023
                if turn % 2:  # noqa: B023
                    fixture.arrive(2)
                fixture.run(f"other {turn}", drain=True)  # noqa: B023

        fixture.arrive(2)
        callbacks.append(others_publish)
        fixture.run(f"turn {turn}")
        callbacks.append(lambda step: None)
        assert pauses
        with ThreadPoolExecutor(2) as pool:
            newest = len(fixture.batches()) - 1
            receipts = list(pool.map(lambda version: publish(fixture, version), [newest, newest]))
        assert [receipt.result for receipt in receipts] == ["applied", "applied"]
        fixture.check_merged()
    assert DeltaTable(fixture.table).version() == len(fixture.batches())


def test_reprocessing_is_refused_before_anything_is_written(fixture: UpsertFixture) -> None:
    fixture.run("all", drain=True)
    with pytest.raises(StreamsemError, match="reprocess"):
        fixture.run("reprocess", reprocessed=0)
    assert fixture.opened().head == 1
    fixture.check_merged()


def test_staged_rows_are_vacuumed_after_the_receipts_and_the_table_keeps_all_rows(fixture: UpsertFixture) -> None:
    fixture.run("all", drain=True)
    assert len(vacuum(fixture.pipeline(), log=fixture.log()).attempts) == 2
    assert not list(Path(fixture.table).glob("data/**/*.parquet"))
    assert fixture.verdict().orphans == 0
    fixture.check_merged()
    fixture.arrive(1)
    fixture.run("more")
    fixture.check_merged()


def test_changing_append_to_upsert_is_refused_since_vacuum_would_delete_the_table_files(fixture: UpsertFixture) -> None:
    appending = fixture.pipeline(sinks={"table": DeltaSink(fixture.table)})
    fixture.run("first", pipeline=appending)
    with pytest.raises(StreamsemError, match="sinks"):
        fixture.run("second")
    assert len(DeltaTable(fixture.table).to_pyarrow_table()) == 6


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            lambda rows: [{"k": None if row["id"] == 1 else row["id"], "v": 1} for row in rows],
            "have nulls in key columns",
        ),
        (lambda rows: [{"k": row["id"] / 2, "v": 1} for row in rows], "key columns must be strings"),
        (lambda rows: [{"v": row["id"]} for row in rows], "lack key columns"),
    ],
)
def test_rows_without_a_valid_key_are_refused_before_the_commit(
    fixture: UpsertFixture, transform: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        fixture.run("first", pipeline=fixture.pipeline(transform=transform))
    assert fixture.opened().head == -1
    fixture.run("first")
    assert fixture.opened().head == 0


def test_several_keys_with_unusual_names_and_a_column_added_later(tmp_path: Path) -> None:
    unusual = "the `key` \"of' it"
    fixture = UpsertFixture(tmp_path)
    fixture.arrive(4)
    sink = DeltaSink(fixture.table, mode="upsert", keys=["K", unusual])

    def named(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"K": row["id"] % 2, unusual: f"'{row['id'] % 3}", "v": row["id"]} for row in rows]

    fixture.run("first", pipeline=fixture.pipeline(sinks={"table": sink}, transform=named))
    later = fixture.pipeline(
        sinks={"table": sink}, transform=lambda rows: [{**row, "new": True} for row in named(rows)]
    )
    fixture.run("second", pipeline=later)
    read = DeltaTable(fixture.table).to_pyarrow_table().to_pylist()
    assert sorted((row["K"], row[unusual], row["v"], row["new"]) for row in read) == sorted(
        (n % 2, f"'{n % 3}", n, True) for n in range(6, 12)
    )


def test_append_only_table_is_refused_before_the_commit(fixture: UpsertFixture) -> None:
    write_deltalake(fixture.table, pyarrow.table({"k": [100], "v": [-1]}), configuration={"delta.appendOnly": "true"})
    with pytest.raises(DataError, match="requirements for writers") as caught:
        fixture.run("first")
    assert "delta.appendOnly" in str(caught.value)
    assert fixture.opened().head == -1


def staged(
    fixture: UpsertFixture, version: int, table: pyarrow.Table, types: dict[str, str] | None = None
) -> SinkCommit:
    """Return a batch whose columns are integers, except those in ``types``."""
    sink = DeltaSink(fixture.table, mode="upsert", keys=["k"])
    kinds = {name: (types or {}).get(name, "long") for name in table.schema.names}
    return batches.staged(sink, table, version, schema=batches.schema_of(**kinds))


def test_batch_file_without_rows_sets_the_marker_and_later_batches_follow(fixture: UpsertFixture) -> None:
    """Spark writes one file for a DataFrame without rows."""
    sink = DeltaSink(fixture.table, mode="upsert", keys=["k"])
    no_rows = pyarrow.table({"k": pyarrow.array([], pyarrow.int64()), "v": pyarrow.array([], pyarrow.int64())})
    for version, table in enumerate((no_rows, pyarrow.table({"k": [1], "v": [1]}), no_rows)):
        receipt = sink.publish(staged(fixture, version, table))
        assert receipt is not None
        assert (receipt.result, receipt.rows) == ("applied", table.num_rows)
        marker = sink.marker(batches.UUID, "t")
        assert marker is not None
        assert marker.is_of(version, batches.outcome_of(version))
    assert fixture.values() == [(1, 1)]


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
def test_key_of_every_type_is_found_again_in_a_separate_file(
    fixture: UpsertFixture, named: str, kind: pyarrow.DataType, keys: list[Any]
) -> None:
    """Inexact bounds would make the merge skip a file and duplicate its rows."""
    sink = DeltaSink(fixture.table, mode="upsert", keys=["k"])
    versions = 0
    for value in (1, 2):
        for key in keys:
            batch = staged(fixture, versions, keyed_table(kind, [key], value), types={"k": named})
            assert sink.publish(batch) is not None
            versions += 1
    read = DeltaTable(fixture.table).to_pyarrow_table().to_pylist()
    assert sorted(str(row["k"]) for row in read) == sorted(map(str, keys))
    assert {row["v"] for row in read} == {2}


def test_timestamp_key_is_found_in_a_file_with_bounds_truncated_to_milliseconds(fixture: UpsertFixture) -> None:
    """Spark truncates bounds to milliseconds. The largest value is then above the upper bound."""
    at = datetime(2024, 2, 29, 1, 2, 3, 999_999, timezone.utc)
    sink = DeltaSink(fixture.table, mode="upsert", keys=["k"])
    kind = pyarrow.timestamp("us", "UTC")
    sink.publish(staged(fixture, 0, keyed_table(kind, [at], 1), types={"k": "timestamp"}))
    (entry,) = [path for path in Path(fixture.table, "_delta_log").glob("*1.json") if '"add"' in path.read_text()]
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            bound = {"k": "2024-02-29T01:02:03.999Z", "v": 1}
            bounds = {"minValues": bound, "maxValues": bound}
            line["add"]["stats"] = json.dumps({"numRecords": 1, "nullCount": {"k": 0, "v": 0}, **bounds})
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    delta_table._cache.clear()
    sink.publish(staged(fixture, 1, keyed_table(kind, [at], 2), types={"k": "timestamp"}))
    assert [row["v"] for row in DeltaTable(fixture.table).to_pyarrow_table().to_pylist()] == [2]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_table_with_expiring_transaction_numbers_is_refused_before_the_commit(
    fixture: UpsertFixture, mode: str
) -> None:
    table = pyarrow.table({"k": [100], "v": [-1]})
    write_deltalake(fixture.table, table, configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    sink = DeltaSink(fixture.table, mode=mode, keys=["k"] if mode == "upsert" else [])
    with pytest.raises(DataError, match="requirements for writers") as caught:
        fixture.run("first", pipeline=fixture.pipeline(sinks={"table": sink}))
    assert "setTransactionRetentionDuration" in str(caught.value)


def write_int96_file(path: Path, at: datetime, key: int) -> None:
    """Write a file with INT96 timestamps, Spark's default."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pyarrow.table({"k": [key], "at": pyarrow.array([at], pyarrow.timestamp("us", "UTC"))})
    pyarrow.parquet.write_table(rows, path, use_deprecated_int96_timestamps=True)


def add_int96_file(fixture: UpsertFixture, at: datetime, *, bounds: bool, key: int = 1) -> None:
    """Add an INT96 file to the table of keys and times, with or without bounds."""
    from deltalake.transaction import AddAction

    path = Path(fixture.table, f"others-{key}.parquet")
    write_int96_file(path, at, key)
    bound_values = (
        {"k": key, "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z")} if bounds else {"k": key}
    )
    stats = json.dumps({"numRecords": 1, "minValues": bound_values, "maxValues": bound_values, "nullCount": {"k": 0}})
    table = DeltaTable(fixture.table)
    action = AddAction(path.name, path.stat().st_size, {}, 0, True, stats)
    table.create_write_transaction([action], "append", table.schema())
    delta_table._cache.clear()


TIMES = {"k": "long", "at": "timestamp"}
FAR = datetime(9999, 12, 31, tzinfo=timezone.utc)


def timed(key: int) -> pyarrow.Table:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return pyarrow.table({"k": [key], "at": pyarrow.array([at], pyarrow.timestamp("us", "UTC"))})


@pytest.mark.parametrize("bounds", [True, False])
def test_merge_that_would_change_timestamps_of_other_rows_is_refused(fixture: UpsertFixture, bounds: bool) -> None:
    sink = DeltaSink(fixture.table, mode="upsert", keys=["k"])
    sink.publish(staged(fixture, 0, timed(0), TIMES))
    add_int96_file(fixture, FAR, bounds=bounds)
    assert sink.publish(staged(fixture, 1, timed(2), TIMES)) is not None
    with pytest.raises(PublishError, match="contains dates or times that the merge would change") as caught:
        sink.publish(staged(fixture, 2, timed(1), TIMES))
    assert (caught.value.fields["file"], caught.value.fields["columns"]) == ("others-1.parquet", ["at"])
    assert DeltaTable(fixture.table).transaction_version(f"{batches.UUID}/t") == 1


def test_merge_does_not_touch_a_file_without_matching_keys(fixture: UpsertFixture) -> None:
    sink = DeltaSink(fixture.table, mode="upsert", keys=["k"])
    sink.publish(staged(fixture, 0, timed(0), TIMES))
    add_int96_file(fixture, FAR, bounds=False, key=7)
    before = Path(fixture.table, "others-7.parquet").read_bytes()
    assert sink.publish(staged(fixture, 1, timed(0), TIMES)) is not None
    assert "others-7.parquet" in str(DeltaTable(fixture.table).file_uris())
    assert Path(fixture.table, "others-7.parquet").read_bytes() == before


@pytest.mark.parametrize("bounds", [True, False])
def test_merge_keeps_timestamps_that_all_readers_read_the_same(fixture: UpsertFixture, bounds: bool) -> None:
    sink = DeltaSink(fixture.table, mode="upsert", keys=["k"])
    sink.publish(staged(fixture, 0, timed(0), TIMES))
    near = datetime(1999, 12, 31, 1, 2, 3, 4, timezone.utc)
    add_int96_file(fixture, near, bounds=bounds)
    both = pyarrow.concat_tables([timed(0), timed(2)])  # the key of the file is between the two keys
    assert sink.publish(staged(fixture, 1, both, TIMES)) is not None
    read = {row["k"]: row["at"] for row in DeltaTable(fixture.table).to_pyarrow_table().to_pylist()}
    assert read[1] == near


def test_merge_with_deleted_staged_rows_names_the_files(fixture: UpsertFixture) -> None:
    batch = staged(fixture, 0, pyarrow.table({"k": [1], "v": [1]}))
    for file in batch.committable.files:
        Path(fixture.table, file.key).unlink()
    sink = DeltaSink(fixture.table, mode="upsert", keys=["k"])
    with pytest.raises(PublishError, match="staged files were deleted") as caught:
        sink.publish(batch)
    assert caught.value.fields["files"] == [file.key for file in batch.committable.files]


def test_date_outside_of_pythons_range_is_refused_before_the_commit(fixture: UpsertFixture) -> None:
    far = pyarrow.table({"k": [1], "at": pyarrow.array([3_000_000], pyarrow.int32()).cast(pyarrow.date32())})
    with pytest.raises(DataError, match="outside the years 1 to 9999"):
        staged(fixture, 0, far)


def test_log_and_other_datasets_inside_the_table_are_refused(fixture: UpsertFixture) -> None:
    """Delta's VACUUM would delete them."""
    for change in (
        {"log": f"{fixture.table}/log"},
        {"sinks": {**fixture.pipeline().sinks, "f": FilesSink(f"{fixture.table}/f")}},
    ):
        with pytest.raises(InvalidError):
            fixture.pipeline(**change)


def test_not_null_column_is_refused_before_the_commit(fixture: UpsertFixture) -> None:
    inner = pyarrow.struct([pyarrow.field("a", pyarrow.int64(), nullable=False)])
    schema = pyarrow.schema([pyarrow.field("k", pyarrow.int64(), nullable=False), ("v", pyarrow.int64()), ("s", inner)])
    write_deltalake(fixture.table, pyarrow.table({"k": [100], "v": [-1], "s": [{"a": 1}]}, schema=schema))
    with pytest.raises(DataError, match="requirements for writers") as caught:
        fixture.run("first")
    assert "k: NOT NULL" in str(caught.value)
    assert "s: NOT NULL" in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    ["decimal(9,2)", "binary", "double", "timestamp", {"type": "array", "elementType": "long", "containsNull": True}],
)
def test_partition_column_of_a_type_that_a_merge_would_write_wrongly_is_refused(
    fixture: UpsertFixture, kind: Any
) -> None:
    sink = DeltaSink(fixture.table, mode="upsert", keys=["k"], partition_by=["p"])
    with pytest.raises(DataError, match="cannot partition"):
        sink.resolve_schema(batches.schema_of(k="long", p=kind))


def test_changed_keys_are_refused(fixture: UpsertFixture) -> None:
    fixture.run("first")
    with pytest.raises(StreamsemError, match="sinks"):
        fixture.run(
            "second", pipeline=fixture.pipeline(sinks={"table": DeltaSink(fixture.table, mode="upsert", keys=["v"])})
        )


@pytest.mark.parametrize("arguments", [{"mode": "upsert"}, {"keys": ["k"]}, {"mode": "merge", "keys": ["k"]}])
def test_mode_and_keys_that_do_not_match_are_refused(arguments: Any) -> None:
    with pytest.raises(InvalidError):
        DeltaSink("/table", **arguments)
