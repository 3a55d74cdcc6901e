"""Erasures from the table of an Iceberg sink: the selected rows disappear, and no other row changes, also after crashes and among other writers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation

from airflow_provider_streamsem.connectors.iceberg import rewrite as iceberg_rewrite
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import TableErasure
from airflow_provider_streamsem.errors import DataError, InvalidError, StreamsemError
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.iceberg.lake import Lake, Steps
from tests.connectors.odd_values import COLUMNS, odd_rows

WHERE = Predicate.parse("id IN (1, 5, 6)")


@pytest.fixture(autouse=True)
def _quick(short_waits: None) -> Iterator[None]:
    yield
    Steps.hook = None


def lake_at(root: Path) -> Lake:
    """Versions 0 to 3 are in the table, each in one file with two rows."""
    root.mkdir(exist_ok=True)
    lake = Lake(root)
    for version in range(4):
        lake.publish(lake.batch(version, [2 * version, 2 * version + 1]))
    return lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_at(tmp_path)


def erased(lake: Lake, predicate: Predicate = WHERE, *, dry_run: bool = False) -> TableErasure:
    done = lake.sink.erase_rows(predicate, dry_run=dry_run, before_commit=lambda: None)
    assert done is not None
    return done


def test_rows_are_erased_in_one_snapshot_and_later_batches_are_published(lake: Lake) -> None:
    assert (erased(lake, dry_run=True).rows, lake.rows()) == (3, [*range(8)])
    done = erased(lake)
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert (done.rows, done.files, done.table_version) == (3, 3, str(snapshot.snapshot_id))
    assert snapshot.summary.operation == Operation.OVERWRITE
    assert lake.rows() == [0, 2, 3, 4, 7]
    lake.publish(lake.batch(4, [8]))
    assert lake.rows() == [0, 2, 3, 4, 7, 8]
    assert lake.sink.marker("p", "t") is not None
    assert erased(lake).rows == 0


def test_file_of_which_all_rows_are_erased_leaves_the_table(lake: Lake) -> None:
    erased(lake, Predicate.parse("id IN (2, 3)"))
    assert lake.rows() == [0, 1, 4, 5, 6, 7]
    assert len([*lake.table().scan().plan_files()]) == 3


def test_predicate_that_does_not_fit_the_table_erases_nothing(lake: Lake) -> None:
    assert lake.sink.erase_rows(Predicate.parse("other = 1"), dry_run=False, before_commit=lambda: None) is None
    with pytest.raises(InvalidError, match="type of a column does not fit"):
        erased(lake, Predicate.parse("id = '1'"))
    assert lake.rows() == [*range(8)]


def test_branches_and_tags_that_keep_the_rows_are_named(lake: Lake) -> None:
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    with lake.table().manage_snapshots() as manage:
        manage.create_tag(snapshot.snapshot_id, "audited").create_branch(snapshot.snapshot_id, "trial")
    assert [sentence.split(" of ")[0] for sentence in erased(lake).remaining] == ["the branch trial", "the tag audited"]


def test_table_that_does_not_exist_has_nothing_to_erase(tmp_path: Path) -> None:
    assert Lake(tmp_path).sink.erase_rows(WHERE, dry_run=False, before_commit=lambda: None) is None


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_other_rows_keep_every_value_of_every_type(tmp_path_factory: Any, data: st.DataObject) -> None:
    rows = [data.draw(odd_rows(ids=ids)) for ids in (range(4), range(4, 8))]
    chosen = data.draw(st.sets(st.integers(0, 9), min_size=1))
    lake = Lake(tmp_path_factory.mktemp("lake"))
    for version, part in enumerate(rows):
        lake.publish(
            lake.batch(version, [("", part)], columns=[(name, kind) for name, (kind, _, _) in COLUMNS.items()])
        )
    done = erased(lake, Predicate.parse(f"id IN ({', '.join(map(str, sorted(chosen)))})"))
    assert done.rows == len(chosen & {*range(8)})
    table = lake.table()
    expected = [row for row in pa.concat_tables(rows).to_pylist() if row["id"] not in chosen]
    found: list[dict[str, Any]] = []
    for task in table.scan().plan_files():
        parts = iceberg_rewrite.RewrittenTable(table.metadata, table.io, "x").rows(task)
        found += [row for part in parts for row in part.cast(_types(part, rows[0].schema)).to_pylist()]
    assert sorted(repr(sorted(row.items())) for row in found) == sorted(repr(sorted(row.items())) for row in expected)


def _types(part: pa.Table, schema: pa.Schema) -> pa.Schema:
    return pa.schema([schema.field(name) for name in part.schema.names])


def test_files_whose_new_rows_differ_are_not_committed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    real = iceberg_rewrite.write
    monkeypatch.setattr(
        iceberg_rewrite,
        "write",
        lambda target, rows, schema, **named: real(target, [next(iter(rows)).slice(1)], schema, **named),
    )
    before = lake.table().metadata.current_snapshot_id
    with pytest.raises(DataError, match="rows of the new files differ"):
        erased(lake)
    assert lake.table().metadata.current_snapshot_id == before
    assert [*(Path(lake.sink.path) / "data" / "erased").glob("*")] == []


@pytest.mark.slow
def test_crash_at_any_call_is_repaired_by_a_repetition(tmp_path: Path) -> None:
    at, is_done = 0, False
    while not is_done:
        lake = lake_at(tmp_path / str(at))
        steps = iter(range(10_000))

        def die(name: str, steps: Iterator[int] = steps, at: int = at) -> None:
            if next(steps) >= at:
                raise Crash

        Steps.hook = die
        with suppress(Crash):
            erased(lake)
        is_done = next(steps) <= at
        Steps.hook = None
        erased(lake)
        assert lake.rows() == [0, 2, 3, 4, 7]
        assert lake.marked() == [f"{version} applied" for version in range(4)]
        at += 1
    assert at > 10


@pytest.mark.parametrize("after", [False, True])
def test_other_writer_at_the_commit_loses_no_row(lake: Lake, after: bool) -> None:
    state = {"left": 1, "busy": False}

    def hook(name: str) -> None:
        if name == ("after commit_table" if after else "before commit_table") and state["left"] and not state["busy"]:
            state.update(left=0, busy=True)
            lake.publish(lake.batch(4, [8, 9]))
            state["busy"] = False

    Steps.hook = hook
    assert erased(lake).rows == 3
    Steps.hook = None
    assert lake.rows() == [0, 2, 3, 4, 7, 8, 9]


def test_reply_that_was_lost_counts_as_committed(lake: Lake) -> None:
    state = {"left": 1}

    def hook(name: str) -> None:
        if name == "after commit_table" and state["left"]:
            state["left"] = 0
            raise ConnectionError("the connection was reset")

    Steps.hook = hook
    with suppress(StreamsemError):
        erased(lake)
    Steps.hook = None
    erased(lake)
    assert lake.rows() == [0, 2, 3, 4, 7]
