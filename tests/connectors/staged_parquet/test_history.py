"""DeltaSink, IcebergSink and JdbcSink keep the history of rows (SCD type 2): it is the same in any order of arrival and after repeats."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem import Changes, DeltaSink, IcebergSink, JdbcSink
from airflow_provider_streamsem.errors import InvalidError, PublishError
from airflow_provider_streamsem.state.layers import tombstones_of
from tests.connectors.staged_parquet.changed_table import (
    HISTORY,
    JOINED_HISTORY,
    KEEP,
    KINDS,
    PARTIAL_HISTORY,
    Delta,
    Event,
    Iceberg,
    Sqlite,
    Table,
    contents,
    history,
    joined,
    with_theirs,
)

_VALUES = st.sampled_from(["a", "b", None])


def _events(values: st.SearchStrategy[str | None] = _VALUES, *, at: int = 7) -> st.SearchStrategy[list[list[Event]]]:
    event = st.tuples(st.integers(0, 2), st.integers(0, at), st.integers(0, 9), values)
    return st.lists(st.lists(event, min_size=1, max_size=6), min_size=1, max_size=5)


@pytest.mark.parametrize("make", [Delta, Iceberg, Sqlite])
@settings(max_examples=25, deadline=None)
@given(applied=_events())
def test_table_has_every_version_of_each_row_in_any_order_of_arrival(
    make: Callable[..., Table], applied: list[list[Event]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        table = make(Path(root), changes=HISTORY)
        for at, events in enumerate(applied):
            table.apply(events)
            assert table.versions() == history(applied[: at + 1])


@pytest.mark.parametrize("make", [Delta, Iceberg])
@settings(max_examples=25, deadline=None)
@given(applied=_events(st.sampled_from(["a", None, KEEP, KEEP])))
def test_version_that_leaves_a_column_unchanged_has_the_value_of_the_version_before(
    make: Callable[..., Table], applied: list[list[Event]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        table = make(Path(root), changes=PARTIAL_HISTORY)
        for at, events in enumerate(applied):
            table.apply(events)
            assert table.versions() == history(applied[: at + 1])


@pytest.mark.parametrize("make", [Delta, Iceberg])
@settings(max_examples=25, deadline=None)
@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), _VALUES), min_size=1, max_size=12),
    cuts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=5),
)
def test_change_of_other_columns_changes_the_current_version_also_after_repeats(
    make: Callable[..., Table], events: list[tuple[int, int, str | None]], cuts: list[tuple[int, int]]
) -> None:
    ordered: list[Event] = [(k, at, n, v) for at, (k, n, v) in enumerate(events)]
    parts = [ordered[: max(cut)] for cut in sorted(cuts, key=max)] + [ordered]
    with tempfile.TemporaryDirectory() as root:
        table = make(Path(root), changes=JOINED_HISTORY)
        for number, part in enumerate(parts):
            batch = part[min(cuts[number]) if number < len(cuts) else 0 :]
            table.apply(batch or part or ordered[:1])
        table.apply(ordered)
        assert table.versions() == joined([ordered])


@pytest.mark.parametrize("make", [Delta, Iceberg])
@settings(max_examples=25, deadline=None)
@given(applied=_events())
def test_joined_versions_have_the_newest_values_and_do_not_overlap_in_any_order_of_arrival(
    make: Callable[..., Table], applied: list[list[Event]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        table = make(Path(root), changes=JOINED_HISTORY)
        for at, events in enumerate(applied):
            table.apply(events)
            expected = {k: version[1:] for (k, _), version in history(applied[: at + 1]).items() if version[0] is None}
            found = table.versions()
            assert {k: version[1:] for (k, _), version in found.items() if version[0] is None} == expected
            for key in {k for k, _ in found}:
                of_key = sorted((start, version) for (k, start), version in found.items() if k == key)
                for (start, version), (following, _) in pairwise(of_key):
                    assert version[0] is not None
                    assert start < version[0] <= following


@pytest.fixture(params=[Delta, Iceberg, Sqlite])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    made: Table = request.param(tmp_path, changes=HISTORY)
    return made


def test_update_ends_a_version_and_a_delete_ends_the_current_one(table: Table) -> None:
    table.apply([(1, 1, 0, "a"), (2, 1, 0, "x")])
    table.apply([(1, 3, 1, "b")])
    table.apply([(2, 4, 0, None), (1, 5, 2, "b")])
    assert table.versions() == {
        (1, 1): (3, 1, 0, "a"),
        (1, 3): (5, 3, 1, "b"),
        (1, 5): (None, 5, 2, "b"),
        (2, 1): (4, 1, 0, "x"),
    }


def test_late_update_is_inserted_into_the_history(table: Table) -> None:
    table.apply([(1, 1, 0, "a"), (1, 5, 0, "c")])
    table.apply([(1, 3, 0, "b")])
    assert table.versions() == {(1, 1): (3, 1, 0, "a"), (1, 3): (5, 3, 0, "b"), (1, 5): (None, 5, 0, "c")}


def test_delete_that_arrives_before_its_insert_ends_that_version(table: Table) -> None:
    table.apply([(1, 5, 0, None)])
    table.apply([(1, 3, 0, None)])
    assert table.versions() == {}
    table.apply([(1, 2, 0, "a"), (1, 4, 0, "b")])
    assert table.versions() == {(1, 2): (3, 2, 0, "a"), (1, 4): (5, 4, 0, "b")}
    assert sum(layer.rows for layer in tombstones_of(table.state)["t"].layers) == 2


def test_late_delete_ends_a_version_in_the_past(table: Table) -> None:
    table.apply([(1, 1, 0, "a"), (1, 5, 0, "c")])
    table.apply([(1, 3, 0, None)])
    assert table.versions() == {(1, 1): (3, 1, 0, "a"), (1, 5): (None, 5, 0, "c")}


def test_batch_that_repeats_changes_changes_nothing(table: Table) -> None:
    events: list[Event] = [(1, 1, 0, "a"), (1, 2, 0, None), (1, 3, 0, "b"), (2, 1, 0, "x")]
    table.apply(events)
    before = table.versions()
    table.apply(events)
    table.apply(events[1:2])
    assert table.versions() == before


def test_batch_is_applied_once(table: Table) -> None:
    table.apply([(1, 1, 0, "a")])
    table.apply([(1, 2, 0, "b")])
    before = table.versions()
    assert table.publish(table.batches[0]) is None
    assert table.publish(table.batches[-1]).result == "applied"
    assert table.versions() == before


@pytest.mark.parametrize("make", [Delta, Iceberg])
@pytest.mark.parametrize(("key", "sequence"), [("string", "timestamp"), ("decimal", "string"), ("date", "decimal"), ("timestamp", "timestamp_ntz"), ("timestamp_ntz", "date")])  # fmt: skip
def test_keys_and_sequences_of_every_type_order_versions(
    make: Callable[..., Table], tmp_path: Path, key: str, sequence: str
) -> None:
    table = make(tmp_path, changes=HISTORY, key=KINDS[key], sequence=KINDS[sequence])
    applied: list[list[Event]] = [
        [(1, 3, 0, "c"), (2, 1, 0, "x")],
        [(1, 1, 0, "a"), (2, 2, 0, None), (3, 5, 0, None)],
        [(1, 2, 0, "b"), (3, 4, 0, "y"), (2, 4, 0, "z")],
    ]
    for at, events in enumerate(applied):
        table.apply(events)
        assert table.versions() == history(applied[: at + 1])


def test_late_change_within_a_joined_version_divides_it(tmp_path: Path) -> None:
    table = Delta(tmp_path, changes=JOINED_HISTORY)
    table.apply([(1, 1, 10, "a"), (1, 5, 50, "a")])
    assert table.versions() == {(1, 1): (None, 5, 50, "a")}
    table.apply([(1, 3, 30, "b")])
    assert table.versions() == {(1, 1): (3, 1, 50, "a"), (1, 3): (5, 3, 30, "b"), (1, 5): (None, 5, 50, "a")}
    table.apply([(1, 3, 31, "a")])
    assert table.versions() == {(1, 1): (None, 5, 50, "a")}


def test_row_of_another_writer_without_a_begin_ends_with_the_first_change(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    theirs = {"k": [1, 2], "at": pyarrow.nulls(2, pyarrow.int64()), "n": [0, 0], "v": ["theirs"] * 2}
    write_deltalake(str(tmp_path / "table"), pyarrow.table(theirs))
    table = Delta(tmp_path, changes=HISTORY)
    table.apply([(1, 3, 0, "ours")])
    read = (
        DeltaTable(str(tmp_path / "table"))
        .to_pyarrow_table()
        .sort_by([("k", "ascending"), ("__START_AT", "ascending")])
    )
    rows = [(row["k"], row["v"], row["__START_AT"], row["__END_AT"]) for row in read.to_pylist()]
    assert sorted(rows, key=str) == [(1, "ours", 3, None), (1, "theirs", None, 3), (2, "theirs", None, None)]


@pytest.mark.parametrize("changes", [HISTORY, JOINED_HISTORY], ids=["every change", "joined versions"])
def test_rows_of_another_writer_end_with_the_next_change_and_keep_their_values(
    tmp_path: Path, changes: Changes
) -> None:
    table = with_theirs(Delta(tmp_path, changes=changes))
    table.apply([(1, 5, 0, "x"), (2, 5, 0, "x"), (2, 2, 0, "late"), (3, 4, 0, "x"), (4, 6, 0, "x")])
    joined = changes.joins_versions
    assert contents(table) == sorted(
        [
            (1, 1, "a", None, 5, "keep"),
            (1, 5, "x", 5, None, None),
            (2, 1 if joined else None, "a", 1, 2, "keep"),
            (2, 2, "late", 2, 3, None),
            (2, 3 if joined else None, "b", 3, 5, "keep"),
            (2, 5, "x", 5, None, None),
            (3, 2 if joined else 9, "a", 2, 4, "keep"),
            (3, 4, "x", 4, 5, None),
            (4, 2 if joined else 0, "a", 2, 6, "keep"),
            (4, 6, "x", 6, None, None),
            (5, None, "a", 1, None, "keep"),
        ],
        key=str,
    )


@pytest.mark.parametrize(
    ("arguments", "joins"),
    [
        ({}, False),
        ({"track_history_column_list": ["v"]}, True),
        ({"track_history_column_list": ["v", "at"]}, False),
        ({"track_history_except_column_list": ["n"]}, False),
        ({"track_history_except_column_list": ["n", "at"]}, True),
    ],
)
def test_each_upsert_begins_a_version_if_the_sequence_is_tracked(
    tmp_path: Path, arguments: dict[str, list[str]], joins: bool
) -> None:
    changes = replace(HISTORY, **arguments)  # type: ignore[arg-type]
    assert changes.joins_versions == joins
    table = with_theirs(Delta(tmp_path, changes=changes), {"k": [1], "at": [3], "v": ["a"], "__START_AT": [2], "__END_AT": [None]})  # fmt: skip
    table.apply([(1, 5, 0, "a"), (1, 6, 1, "a")])
    begins = [row[3] for row in contents(table)]
    assert begins == ([2] if joins else [2, 5, 6])


def test_change_within_a_joined_version_keeps_columns_that_the_batch_lacks(tmp_path: Path) -> None:
    table = with_theirs(Delta(tmp_path, changes=JOINED_HISTORY), {"k": [1], "at": [1], "v": ["a"], "__START_AT": [1], "__END_AT": [None]})  # fmt: skip
    table.apply([(1, 2, 7, "a")])
    assert contents(table) == [(1, 2, "a", 1, None, "keep")]


def test_table_with_a_row_version_twice_is_refused(tmp_path: Path) -> None:
    twice = {"k": [1, 1], "at": [1, 2], "v": ["a", "b"], "__START_AT": [None, None], "__END_AT": [None, None]}
    table = with_theirs(Delta(tmp_path, changes=HISTORY), twice)
    before = contents(table)
    with pytest.raises(PublishError, match="several rows with equal keys and equal __START_AT"):
        table.apply([(1, 3, 0, "x")])
    assert contents(table) == before


def test_file_that_lacks_the_key_has_rows_with_other_keys(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    path = str(tmp_path / "table")
    write_deltalake(path, pyarrow.table({"v": ["theirs"]}))
    kind = KINDS["string"]
    write_deltalake(path, pyarrow.table({"v": ["theirs"], "k": [kind.value(1)]}), mode="append", schema_mode="merge")
    table = Delta(tmp_path, changes=HISTORY, key=kind)
    table.apply([(1, 3, 0, "x")])
    read = [(row["v"], row["__START_AT"], row["__END_AT"]) for row in DeltaTable(path).to_pyarrow_table().to_pylist()]
    assert sorted(read, key=str) == [("theirs", None, 3), ("theirs", None, None), ("x", 3, None)]


class IcebergByEnd(Iceberg):
    @property
    def sink(self) -> IcebergSink:
        return replace(super().sink, partition_by=["__END_AT"], mode="append", keys=(), sequence_by=())


class DeltaByEnd(Delta):
    @property
    def sink(self) -> DeltaSink:
        return replace(super().sink, partition_by=["__END_AT"], mode="append", keys=(), sequence_by=())


@pytest.mark.parametrize("make", [DeltaByEnd, IcebergByEnd])
def test_table_may_be_partitioned_by_the_end_of_row_versions(make: Callable[..., Table], tmp_path: Path) -> None:
    table = make(tmp_path, changes=HISTORY)
    applied: list[list[Event]] = [
        [(1, 1, 0, "a"), (2, 1, 0, "x")],
        [(1, 3, 0, "b"), (2, 2, 0, None)],
        [(1, 2, 0, "late")],
    ]
    for at, events in enumerate(applied):
        table.apply(events)
        assert table.versions() == history(applied[: at + 1])


def test_row_of_a_database_without_a_begin_is_refused(tmp_path: Path) -> None:
    table = Sqlite(tmp_path, changes=HISTORY)
    table.run("INSERT INTO t (k, v) VALUES (1, 'theirs')")
    with pytest.raises(PublishError, match="null __START_AT"):
        table.apply([(1, 3, 0, "x")])


def test_unknown_value_of_an_unchanged_column_is_refused(tmp_path: Path) -> None:
    table = Delta(tmp_path, changes=replace(PARTIAL_HISTORY, unknown_values="fail"))
    table.apply([(1, 1, 0, "a"), (1, 2, 0, None)])
    with pytest.raises(PublishError, match="no values for columns of rows that are not in the table"):
        table.apply([(1, 3, 0, KEEP)])
    assert table.versions() == {(1, 1): (2, 1, 0, "a")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stored_as_scd_type": 3}, "stored_as_scd_type"),
        ({"stored_as_scd_type": 2, "sequence_by": ["s", "t"]}, "one column in sequence_by"),
        ({"stored_as_scd_type": 2, "apply_as_truncates": "op = 't'"}, "must not have apply_as_truncates"),
        ({"track_history_column_list": ["v"]}, "need stored_as_scd_type=2"),
        ({"stored_as_scd_type": 2, "sequence_by": "__START_AT"}, "must not name the columns that the sink adds"),
        ({"stored_as_scd_type": 2, "except_column_list": ["__END_AT"]}, "must not name the columns that the sink adds"),
        ({"stored_as_scd_type": 2, "track_history_column_list": ["v"], "track_history_except_column_list": []}, "both"),
        ({"stored_as_scd_type": 2, "track_history_column_list": ["k"]}, r"must not track history.*columns=\['k'\]"),
        ({"stored_as_scd_type": 2, "track_history_column_list": ["v"], "except_column_list": ["v"]}, "must not track"),
    ],
)
def test_arguments_of_a_history_that_are_not_valid_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        Changes(**{"keys": ["k"], "sequence_by": "s", **arguments})


@pytest.mark.parametrize("changes", [PARTIAL_HISTORY, JOINED_HISTORY, replace(HISTORY, ignore_null_updates=True)])
def test_database_refuses_a_history_that_needs_values_of_the_table(changes: Changes) -> None:
    with pytest.raises(InvalidError, match="compare or copy values of the table"):
        JdbcSink("db", "t", "/staging", changes=changes)


def test_scd_type_of_a_log_must_not_change(tmp_path: Path) -> None:
    kinds = [Delta(tmp_path, changes=changes).sink.immutable_config() for changes in (HISTORY, JOINED_HISTORY, replace(HISTORY, stored_as_scd_type=1))]  # fmt: skip
    assert [kind.get("stored_as_scd_type") for kind in kinds] == [2, 2, None]
    assert [kind.get("track_history_column_list") for kind in kinds] == [None, ["v"], None]
