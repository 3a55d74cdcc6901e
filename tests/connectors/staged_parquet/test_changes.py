"""DeltaSink, IcebergSink and JdbcSink apply change data: the table has the newest state of each key, in any order of arrival and after repeats."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem import Changes, DeltaSink, tombstones
from airflow_provider_streamsem.connectors.staged_parquet import keyed_rows
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError
from airflow_provider_streamsem.state.layers import tombstones_of
from tests.connectors.staged_parquet.changed_table import (
    CHANGES,
    EVENTS,
    KEEP,
    KINDS,
    PARTIAL,
    PARTIAL_EVENTS,
    Delta,
    Event,
    Iceberg,
    Sqlite,
    Table,
    apply_randomly,
    apply_without_effect,
    in_arrival_order,
    newest,
    truncate_rows_of_another_writer,
)


@pytest.mark.parametrize("make", [Delta, Iceberg, Sqlite])
@settings(max_examples=15, deadline=None)
@given(applied=st.lists(st.lists(EVENTS, min_size=1, max_size=6), min_size=1, max_size=5))
def test_table_has_the_newest_state_of_each_key_in_any_order_of_arrival(
    make: Callable[[Path], Table], applied: list[list[Event]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        table = make(Path(root))
        for at, events in enumerate(applied):
            assert table.apply(events).rows == len(events)
            assert table.rows() == newest(in_arrival_order(applied[: at + 1]))


@pytest.mark.parametrize("make", [Delta, Iceberg, Sqlite])
@settings(max_examples=15, deadline=None)
@given(applied=st.lists(st.lists(st.one_of(PARTIAL_EVENTS, EVENTS), min_size=1, max_size=6), min_size=1, max_size=5))
def test_update_that_leaves_a_column_unchanged_keeps_the_newest_value_in_any_order_of_arrival(
    make: Callable[..., Table], applied: list[list[Event]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        table = make(Path(root), changes=PARTIAL)
        for at, events in enumerate(applied):
            assert table.apply(events).rows == len(events)
            assert table.rows() == newest(in_arrival_order(applied[: at + 1]))


@pytest.mark.parametrize("arguments", [PARTIAL, replace(CHANGES, unknown_values="null")], ids=["same", "others"])
@pytest.mark.parametrize("make", [Delta, Iceberg, Sqlite])
def test_update_of_an_unknown_row_that_leaves_a_column_unchanged_is_published_only_if_its_null_is_accepted(
    make: Callable[..., Table], tmp_path: Path, arguments: Changes
) -> None:
    """Staged rows keep their meaning, though the arguments change before they are published."""
    table = make(tmp_path, changes=replace(PARTIAL, unknown_values="fail"))
    table.apply([(1, 1, 0, "a"), (2, 1, 0, "b")])
    table.apply([(1, 2, 0, KEEP), (2, 2, 0, None), (3, 2, 0, "c"), (3, 3, 0, KEEP)])
    assert table.rows() == {1: (2, 0, "a"), 3: (3, 0, "c")}
    with pytest.raises(PublishError, match="no values for columns of rows that are not in the table") as raised:
        table.apply([(2, 3, 0, KEEP), (1, 3, 0, KEEP)])
    assert raised.value.fields["columns"] == ["v"]
    assert table.rows() == {1: (2, 0, "a"), 3: (3, 0, "c")}
    table.changes = arguments
    table.publish(table.batches[-1])
    assert table.rows() == {1: (3, 0, "a"), 2: (3, 0, None), 3: (3, 0, "c")}


def test_update_of_a_row_in_a_database_leaves_a_required_column_unchanged(tmp_path: Path) -> None:
    table = Sqlite(tmp_path)
    table.changes = PARTIAL
    table.apply([(1, 1, 0, "a")])
    table.apply([(1, 2, 0, KEEP)])
    assert table.rows() == {1: (2, 0, "a")}


@pytest.fixture(params=[Delta, Iceberg, Sqlite])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    made: Table = request.param(tmp_path)
    return made


@pytest.mark.parametrize("make", [Delta, Iceberg])
@pytest.mark.parametrize(
    ("key", "sequence"), [("string", "timestamp"), ("decimal", "timestamp_ntz"), ("date", "string"), ("timestamp", "decimal"), ("timestamp_ntz", "date")]
)  # fmt: skip
def test_keys_and_sequences_of_every_type_are_compared(
    make: Callable[..., Table], tmp_path: Path, key: str, sequence: str
) -> None:
    apply_randomly(make(tmp_path, key=KINDS[key], sequence=KINDS[sequence]), count=4)


def test_tombstones_are_kept_when_a_key_and_a_sequence_get_wider_types(tmp_path: Path) -> None:
    table = Iceberg(tmp_path, key=KINDS["integer"], sequence=KINDS["integer"])
    table.apply([(1, 1, 0, "a"), (2, 1, 0, "b")])
    table.apply([(1, 5, 0, None), (3, 5, 0, None)])
    table.key = table.sequence = KINDS["long"]
    table.apply([(1, 4, 0, "late"), (3, 4, 0, "late"), (4, 1, 0, None)])
    assert table.rows() == {2: (1, 0, "b")}
    assert [layer.rows for layer in tombstones_of(table.state)["t"].layers] == [2, 1]


def test_tombstones_of_other_types_are_dropped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Delta(tmp_path, key=KINDS["long"])
    table.apply([(1, 5, 0, None)])
    table.key = KINDS["string"]
    shutil.rmtree(tmp_path / "table")
    with caplog.at_level(logging.WARNING, logger="airflow_provider_streamsem"):
        table.version, table.batches = 0, []
        table.root = tmp_path / "other"
        table.apply([(1, 4, 0, "a"), (2, 5, 0, None)])
    assert any("tombstones are dropped" in text for text in caplog.messages)
    assert table.rows() == {1: (4, 0, "a")}


@pytest.mark.parametrize("keys", [["at"], ["at_max"], ["k0", ".x"]])
def test_key_may_have_any_name(tmp_path: Path, keys: list[str]) -> None:
    changes = Changes(keys=keys, sequence_by="s")
    rows = pyarrow.table({**dict.fromkeys(keys, pyarrow.array([1, 1, 2])), "s": [1, 3, 2]})
    assert tombstones._newest([rows], changes).to_pylist() == [
        {**dict.fromkeys(keys, 1), "s": 3},
        {**dict.fromkeys(keys, 2), "s": 2},
    ]


@pytest.mark.parametrize("kind", ["double", "boolean", "binary", "string of a database"])
def test_sequence_without_a_total_order_is_refused(kind: str) -> None:
    fields = [{"name": "s", "type": kind.split()[0]}]
    with pytest.raises(DataError, match="must be integers, decimals, dates or timestamps"):
        keyed_rows.check_sequence_types(fields, ["s"], of_database="database" in kind)


def test_batch_without_effect_is_published(table: Table) -> None:
    apply_without_effect(table)


def test_late_update_does_not_insert_a_deleted_row_again(table: Table) -> None:
    table.apply([(1, 1, 0, "a"), (2, 1, 0, "b")])
    table.apply([(1, 5, 0, None)])
    table.apply([(1, 4, 9, "late"), (2, 0, 0, "late")])
    assert table.rows() == {2: (1, 0, "b")}
    table.apply([(1, 6, 0, "new")])
    assert table.rows() == {1: (6, 0, "new"), 2: (1, 0, "b")}


def test_delete_that_arrives_before_its_insert_is_remembered(table: Table) -> None:
    table.apply([(1, 5, 0, None), (2, 5, 0, "b")])
    table.apply([(1, 4, 0, "a")])
    assert table.rows() == {2: (5, 0, "b")}


def test_batch_of_deletes_only_deletes_and_is_published_once(table: Table) -> None:
    table.apply([(1, 1, 0, "a"), (2, 1, 0, "b")])
    table.apply([(1, 2, 0, None)])
    table.apply([(2, 2, 0, None), (3, 2, 0, None)])
    assert table.rows() == {}
    assert table.publish(table.batches[0]) is None
    assert table.publish(table.batches[-1]).result == "applied"
    assert table.rows() == {}


def test_truncate_deletes_older_rows_and_no_late_change_inserts_one(table: Table) -> None:
    table.apply([(1, 1, 0, "a"), (2, 5, 0, "b"), (3, 1, 0, "c")])
    table.apply([(None, 3, 0, None), (3, 4, 0, "new")])
    assert table.rows() == {2: (5, 0, "b"), 3: (4, 0, "new")}
    table.apply([(1, 2, 9, "late"), (4, 3, 1, "after")])
    assert table.rows() == {2: (5, 0, "b"), 3: (4, 0, "new"), 4: (3, 1, "after")}


def test_truncate_deletes_rows_of_another_writer(tmp_path: Path) -> None:
    truncate_rows_of_another_writer(Delta(tmp_path))


def test_tombstone_is_kept_for_its_time_to_live(tmp_path: Path) -> None:
    ttl = Changes(keys=["k"], sequence_by=["at", "n"], tombstone_ttl_s=10)
    for late_ms, expected in ((10_000, {}), (10_001, {1: (1, 0, "late")})):
        table = Delta(tmp_path / str(late_ms), ttl)
        table.apply([(1, 5, 0, None)])
        table.now_ms = late_ms
        table.apply([(1, 1, 0, "late")])
        assert table.rows() == expected


def test_number_of_layers_stays_small_and_no_tombstone_is_lost(tmp_path: Path) -> None:
    table = Delta(tmp_path)
    for k in range(40):
        table.apply([(k, 5, 0, None)])
        assert len(tombstones_of(table.state)["t"].layers) <= 6
    table.apply([(k, 4, 0, "late") for k in range(40)])
    assert table.rows() == {}


def test_missing_file_with_tombstones_is_reported_and_nothing_is_published(table: Table) -> None:
    table.apply([(1, 5, 0, None)])
    (file,) = (table.root / "log" / "state").rglob("tombstones-t.parquet")
    file.rename(file.with_suffix(".moved"))
    with pytest.raises(PublishError, match="tombstones is missing"):
        table.apply([(1, 1, 0, "late")])
    assert table.rows() == {}
    file.with_suffix(".moved").rename(file)
    assert table.publish(table.batches[-1]).result == "applied"
    assert table.rows() == {}


@pytest.mark.parametrize(
    ("column", "message"),
    [("k", r"nulls in key columns.*\['k'\]"), ("at", r"nulls in columns of sequence_by.*\['at'\]")],
)
def test_null_in_a_key_or_a_sequence_is_refused_before_the_commit(table: Table, column: str, message: str) -> None:
    event: dict[str, Any] = {"k": 1, "at": 1, "n": 1, column: None}
    with pytest.raises(DataError, match=message):
        table.apply([(event["k"], event["at"], event["n"], "a")], kind=lambda event: "u")


def test_row_of_another_writer_without_a_sequence_is_older_than_every_change(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "table"), pyarrow.table({"k": [1, 2], "v": ["theirs", "theirs"]}))
    table = Delta(tmp_path)
    table.apply([(1, 0, 0, "ours")])
    read = {row["k"]: row["v"] for row in DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()}
    assert read == {1: "ours", 2: "theirs"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": [], "sequence_by": "s"}, "at least one column"),
        ({"keys": ["k"], "sequence_by": []}, "at least one column"),
        ({"keys": ["k"], "sequence_by": "s", "except_column_list": ["s"]}, r"must keep the columns.*lacking=\['s'\]"),
        ({"keys": ["k"], "sequence_by": "s", "column_list": ["s", "v"]}, r"must keep the columns.*lacking=\['k'\]"),
        ({"keys": ["k"], "sequence_by": "s", "column_list": ["k", "s"], "except_column_list": []}, "both"),
        ({"keys": ["k"], "sequence_by": "s", "tombstone_ttl_s": 0}, "tombstone_ttl_s"),
    ],
)
def test_changes_that_are_not_valid_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        Changes(**arguments)


def test_changes_set_mode_keys_and_sequence_of_the_sink(tmp_path: Path) -> None:
    given: Mapping[str, Any] = {"keys": ["k"], "sequence_by": "s"}
    sink = DeltaSink(str(tmp_path), changes=given)  # type: ignore[arg-type]  # a table of TOML
    assert (sink.mode, sink.keys, sink.sequence_by, sink.changes) == ("upsert", ("k",), ("s",), Changes(**given))
    with pytest.raises(InvalidError, match="keys must not be given beside changes"):
        DeltaSink(str(tmp_path), keys=["other"], changes=Changes(**given))
    with pytest.raises(InvalidError, match=r"unknown names.*key"):
        DeltaSink(str(tmp_path), changes={"key": "k"})  # type: ignore[arg-type]
