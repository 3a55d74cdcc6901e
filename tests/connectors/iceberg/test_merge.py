"""Rows merged into an Iceberg table by key: each key has its newest row, for any publisher, repeat or delay."""

from __future__ import annotations

import datetime
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from airflow_provider_streamsem.connectors.iceberg import files as iceberg_files
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.errors import ConflictError, DataError, InvalidError, PublishError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.protocol.entries import DataFile
from tests.connectors import batches
from tests.connectors.iceberg.lake import Lake, Steps
from tests.pipeline_fixture import PipelineFixture
from tests.rounds import ROUNDS

COLUMNS = [("id", "long"), ("v", "long")]


@pytest.fixture(autouse=True)
def _quick(short_waits: None) -> Iterator[None]:
    yield
    Steps.hook = None


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, {"mode": "upsert", "keys": ["id"]})


def valued(lake: Lake, version: int, rows: dict[int, int] | list[tuple[int, int]]) -> Any:
    pairs = list(rows.items()) if isinstance(rows, dict) else rows
    table = pyarrow.table({"id": [k for k, _ in pairs], "v": [v for _, v in pairs]})
    return lake.batch(version, [("", table)], columns=COLUMNS)


def values(lake: Lake) -> list[tuple[int, int]]:
    return sorted((row["id"], row["v"]) for row in lake.table().scan().to_arrow().to_pylist())


def test_each_key_has_its_last_row_and_other_rows_are_kept(lake: Lake) -> None:
    lake.publish(valued(lake, 0, {1: 10, 2: 20, 3: 30}))
    receipt = lake.publish(valued(lake, 1, [(2, 21), (4, 40), (2, 22)]))
    assert receipt is not None
    assert (receipt.result, receipt.rows) == ("applied", 3)
    assert values(lake) == [(1, 10), (2, 22), (3, 30), (4, 40)]
    assert set(lake.marked()) == {"0 applied", "1 applied"}


def test_rows_with_several_keys_are_those_of_a_dictionary(tmp_path: Path) -> None:
    lake = Lake(tmp_path, {"mode": "upsert", "keys": ["region", "id"]})
    random, expected = Random(1), dict[tuple[str, int], int]()
    for version in range(8):
        rows = [(random.choice(["a", "b", "b c", ""]), random.randrange(12), random.random()) for _ in range(10)]
        table = pyarrow.table(dict(zip(("region", "id", "v"), map(list, zip(*rows, strict=True)), strict=True)))
        columns = [("region", "string"), ("id", "long"), ("v", "double")]
        lake.publish(lake.batch(version, [("", table)], columns=columns))
        expected |= {(region, id): value for region, id, value in rows}  # type: ignore[misc]
    found = lake.table().scan().to_arrow().to_pylist()
    assert len(found) == len(expected)
    assert {(row["region"], row["id"]): row["v"] for row in found} == expected


def test_late_or_repeated_batch_never_restores_an_old_value(lake: Lake) -> None:
    batches = [valued(lake, version, {1: version, 10 + version: version}) for version in range(3)]
    for batch in batches:
        lake.publish(batch)
    at = lake.table().metadata_location
    assert [lake.publish(batch) for batch in batches[:2]] == [None, None]
    again = lake.publish(batches[2])
    assert again is not None
    assert again.result == "applied"
    assert values(lake) == [(1, 2), (10, 0), (11, 1), (12, 2)]
    assert lake.table().metadata_location == at


def test_concurrent_publishers_and_one_paused_before_its_commit_in_every_round(lake: Lake) -> None:
    lake.publish(valued(lake, 0, {0: 0}))
    for version in range(1, 2 * ROUNDS + 1, 2):
        batch = valued(lake, version, {0: version, version: version})
        later = valued(lake, version + 1, {0: version + 1})
        pauses: list[str] = []
        receipts: list[
            Any
        ] = []  # checked below, because the sink would retry after an error of the callback, and hide it

        def others_publish(
            step: str, batch: Any = batch, later: Any = later, pauses: Any = pauses, receipts: Any = receipts
        ) -> None:
            if step == "before commit_table" and not pauses:
                pauses.append(step)
                receipts.append(lake.publish(batch))
                if batch.version % 4 == 1:
                    receipts.append(lake.publish(later))

        Steps.hook = others_publish
        lake.publish(batch)
        Steps.hook = None
        assert [receipt.result for receipt in receipts] == ["applied"] * (2 if version % 4 == 1 else 1)
        gate = threading.Barrier(2)

        def enter(later: Any = later, gate: Any = gate) -> None:
            gate.wait()
            lake.publish(later)

        threads = [threading.Thread(target=enter) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert lake.marker() == batches.marked(version + 1)
        assert dict(values(lake))[0] == version + 1
    assert values(lake) == [(0, 2 * ROUNDS), *((n, n) for n in range(1, 2 * ROUNDS + 1, 2))]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("string", ["a", "b\'\"", ""]),
        ("integer", [1, -2, 3]),
        ("decimal(9,2)", [Decimal("1.10"), Decimal("-2.00"), Decimal("3.33")]),
        ("date", [datetime.date(2024, 2, 29), datetime.date(1970, 1, 1), datetime.date(1, 1, 1)]),
        ("boolean", [True, False]),
        ("binary", [b"\x00", b"", b"\xff"]),
        ("timestamp", [datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.timezone.utc), datetime.datetime(1969, 1, 1, tzinfo=datetime.timezone.utc)]),
        ("timestamp_ntz", [datetime.datetime(2024, 2, 29, 1, 2, 3, 4), datetime.datetime(1969, 1, 1)]),
    ],
)  # fmt: skip
def test_keys_of_every_type_are_merged(lake: Lake, kind: str, keys: list[Any]) -> None:
    columns = [("id", kind), ("v", "long")]
    arrow = {"decimal(9,2)": pyarrow.decimal128(9, 2), "integer": pyarrow.int32()}.get(kind)

    def staged(version: int, of: list[Any]) -> Any:
        table = pyarrow.table({"id": pyarrow.array(of, arrow), "v": [version] * len(of)})
        return lake.batch(version, [("", table)], columns=columns)

    lake.publish(staged(0, keys))
    lake.publish(staged(1, keys[:1]))
    lake.publish(staged(2, keys[1:]))
    read = lake.table().scan().to_arrow().to_pylist()
    assert sorted((str(row["id"]), row["v"]) for row in read) == sorted(
        [(str(keys[0]), 1), *((str(key), 2) for key in keys[1:])]
    )


def test_key_moves_between_partitions_of_a_partitioned_table(lake: Lake) -> None:
    lake = lake.with_options(partition_by=["v"])
    lake.publish(valued(lake, 0, {1: 1, 2: 1, 3: 2}))
    lake.publish(valued(lake, 1, {2: 2}))
    assert values(lake) == [(1, 1), (2, 2), (3, 2)]


def test_whole_pipeline_is_merged_verified_and_vacuumed(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    lake = Lake(tmp_path, {"mode": "upsert", "keys": ["id"]})
    fixture.arrive(4)
    pipeline = fixture.pipeline(
        sinks={"t": lake.sink}, transform=lambda rows: [{"id": row["id"] % 4, "v": row["id"]} for row in rows]
    )
    fixture.run("all", pipeline=pipeline, drain=True)
    assert values(lake) == [(0, 8), (1, 9), (2, 10), (3, 11)]
    assert fixture.verdict().violations == []
    assert len(vacuum(pipeline, log=fixture.log()).attempts) == 2
    assert values(lake) == [(0, 8), (1, 9), (2, 10), (3, 11)]
    with pytest.raises(StreamsemError, match="reprocess"):
        fixture.run("reprocess", reprocessed=0, pipeline=pipeline)
    with pytest.raises(ConflictError):
        fixture.run("more", pipeline=fixture.pipeline(sinks={"t": Lake(tmp_path).sink}))
    fixture.arrive(1)
    fixture.run("more", pipeline=pipeline)
    assert values(lake) == [(0, 12), (1, 13), (2, 14), (3, 11)]


def test_null_keys_and_missing_columns_are_refused_and_lose_nothing(lake: Lake) -> None:
    lake.publish(valued(lake, 0, {1: 1}))
    with pytest.raises(DataError, match="have nulls in key columns"):
        valued(lake, 1, [(None, 1)])  # type: ignore[list-item]
    only_ids = replace(lake.batch(2, [1]), expected_marker=batches.before(1))
    with pytest.raises(DataError, match="whose values a merge would lose"):
        lake.sink.resolve_schema(only_ids.schema)
    with pytest.raises(PublishError, match="no longer accepts its rows"):
        lake.publish(only_ids)
    assert values(lake) == [(1, 1)]


def test_batch_file_without_rows_sets_the_marker_and_later_batches_follow(lake: Lake) -> None:
    """Spark writes one file for a DataFrame without rows."""
    for version, rows in enumerate(({}, {1: 1}, {})):
        table = pyarrow.table(
            {name: pyarrow.array(of, pyarrow.int64()) for name, of in (("id", rows.keys()), ("v", rows.values()))}
        )
        data = io.BytesIO()
        pyarrow.parquet.write_table(table, data)
        assert lake.sink.dataset().create(f"data/{version}/a/part-0.parquet", data.getvalue())
        markers = {"outcome": batches.outcome_of(version), "expected_marker": batches.before(version)}
        batch = replace(valued(lake, 10 + version, {}), version=version, committable=lake.sink.collect(version, "a"), **markers)  # fmt: skip
        receipt = lake.publish(batch)
        assert receipt is not None
        assert (receipt.result, receipt.rows) == ("applied", len(rows))
        assert lake.marker() == batches.marked(version)
    assert values(lake) == [(1, 1)]


def test_timestamp_outside_of_pythons_range_is_refused_before_the_commit(lake: Lake) -> None:
    far = pyarrow.array([400_000_000_000_000_000], pyarrow.int64()).cast(pyarrow.timestamp("us", "UTC"))
    with pytest.raises(DataError, match="outside the years 1 to 9999"):
        lake.batch(0, [("", pyarrow.table({"id": [1], "at": far}))], columns=[("id", "long"), ("at", "timestamp")])


@pytest.mark.parametrize(
    "properties",
    [
        {"write.format.default": "orc"},
        {"write.parquet.compression-codec": "lzo"},
        {"write.parquet.compression-codec": "UNCOMPRESSED"},
        {"write.parquet.compression-codec": "snappy", "write.parquet.compression-level": "3"},
        {"write.parquet.page-size-bytes": "many"},
        {"write.metadata.metrics.default": "some"},
    ],
)
def test_table_whose_file_format_pyiceberg_cannot_write_is_refused_and_loses_nothing(
    lake: Lake, properties: Any
) -> None:
    lake.publish(valued(lake, 0, {1: 1}))
    with lake.table().transaction() as change:
        change.set_properties(properties)
    batch = valued(lake, 1, {1: 2})
    with pytest.raises(DataError, match="pyiceberg cannot write"):
        lake.sink.resolve_schema(batch.schema)
    with pytest.raises(PublishError):
        lake.publish(batch)
    assert values(lake) == [(1, 1)]


def test_vacuum_deletes_no_file_of_a_table_with_hashed_file_paths(tmp_path: Path) -> None:
    """A directory ``data/1/0001`` of such a table is not an attempt at version 1."""
    lake, fixture = Lake(tmp_path), PipelineFixture(tmp_path)
    fixture.arrive(6)
    pipeline = fixture.pipeline(sinks={"t": lake.sink})
    fixture.run("all", pipeline=pipeline, drain=True)
    spread = tmp_path / "table" / "data" / "1" / "0001" / "1010" / "01101110"
    spread.mkdir(parents=True)
    (spread / "file.parquet").write_bytes(b"of others")
    assert vacuum(pipeline, log=fixture.log()).attempts == ()
    assert (spread / "file.parquet").exists()


@pytest.mark.parametrize(
    "arguments",
    [{"mode": "upsert"}, {"keys": ["k"]}, {"mode": "upsert", "keys": ["k.l"]}],
)
def test_mode_and_keys_that_do_not_match_are_refused(arguments: Any) -> None:
    with pytest.raises(InvalidError):
        IcebergSink("/table", "lake.rows", **arguments)


@pytest.mark.parametrize("year", [9999, 1999])
def test_merge_that_would_change_timestamps_of_other_rows_is_refused(lake: Lake, year: int) -> None:
    """Spark's procedure add_files adds such a file if Spark wrote it with default settings."""
    columns = [*COLUMNS[:1], ("at", "timestamp")]
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    rows = lambda key: pyarrow.table({"id": [key], "at": pyarrow.array([at], pyarrow.timestamp("us", "UTC"))})  # noqa: E731
    lake.publish(lake.batch(0, [("", rows(0))], columns=columns))
    theirs = pyarrow.table(
        {"id": [2, 9], "at": pyarrow.array([at.replace(year=year)] * 2, pyarrow.timestamp("us", "UTC"))}
    )
    path = lake.root / "others.parquet"
    pyarrow.parquet.write_table(theirs, path, use_deprecated_int96_timestamps=True)
    file = DataFile(key="others.parquet", bytes=path.stat().st_size, rows=2, checksum="")
    data_file = iceberg_files.iceberg_file(lake.table().metadata, file, f"file://{path}")
    with lake.table().transaction() as commit, commit.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(data_file)
    batch = lake.batch(1, [("", pyarrow.concat_tables([rows(2), rows(3)]))], columns=columns)
    if year == 9999:
        with pytest.raises(PublishError, match="contains dates or times that the merge would change") as caught:
            lake.publish(batch)
        assert caught.value.fields["columns"] == ["at"]
    else:
        lake.publish(batch)
        times = lake.table().scan(row_filter="id == 9").to_arrow()["at"].to_pylist()
        assert times == [at.replace(year=1999)]


def test_merge_with_deleted_staged_rows_names_the_files(lake: Lake) -> None:
    batch = valued(lake, 0, {1: 10})
    for file in batch.committable.files:
        (Path(lake.sink.path) / file.key).unlink()
    with pytest.raises(PublishError, match="staged files were deleted"):
        lake.publish(batch)
