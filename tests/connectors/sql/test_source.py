"""Rows of a SQLite table: the conformance suite, ranges and their limits, changed rows, unreadable cursors, and arguments that are not valid."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from airflow_provider_streamsem import FilesSink, JdbcSource, Pipeline, guarantee
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.source import SourceEnd, SourceSlice
from airflow_provider_streamsem.connectors.sql.cursor import Cursor, CursorColumn
from airflow_provider_streamsem.connectors.sql.executor_read import Access, reader
from airflow_provider_streamsem.connectors.sql.pins import JdbcPin
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    LogDamagedError,
    RecordsMissingError,
    SourceChangedError,
)
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.offsets import advance, ends
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.conformance import SourceContract
from tests.connectors.sql.sqlite_database import Table


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(tmp_path / "db.sqlite", monkeypatch)


class TestJdbcSource(SourceContract):
    @pytest.fixture
    def system(self, table: Table) -> Table:
        return table


def planner(source: JdbcSource) -> Any:
    return source.open(CommitLog(MemoryStore()), None)


def slices(source: JdbcSource, **limits: int) -> list[SourceSlice]:
    """Return all slices of the table, one after another."""
    found, offsets = [], source.initial_offsets()
    while planned := planner(source).slice(
        offsets, planner(source).poll(None), Limits(**limits), None, on_data_loss="fail"
    ):
        offsets = advance(offsets, ends(planned.ranges))
        found.append(planned)
    return found


def values(table: Table, values: Iterable[int | str | None]) -> Table:
    """Create a table whose cursor is not unique."""
    table.run("CREATE TABLE d (n INTEGER)")
    for value in values:
        table.run("INSERT INTO d VALUES (?)", value)
    table.source = replace(table.source, table="d", cursor="n")
    return table


def test_equal_cursors_stay_in_one_batch_and_one_task(table: Table) -> None:
    values(table, [1, 2, 2, 2, 5, 7, 7])
    planned = slices(replace(table.source, rows_per_task=1), max_rows=2)
    assert [[(pin.start, pin.end, pin.rows) for pin in batch.pins] for batch in planned] == [
        [(0, 2, 1)],
        [(2, 5, 3)],
        [(5, 7, 1)],
        [(7, 8, 2)],
    ]


@given(numbers=st.lists(st.integers(0, 9), max_size=20), most=st.integers(1, 5), per_task=st.integers(1, 5))
def test_batches_and_tasks_partition_the_rows_within_their_limits(
    numbers: list[int], most: int, per_task: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        table = values(Table(tmp_path_factory.mktemp("db") / "db.sqlite", patch), numbers)
        planned = slices(replace(table.source, rows_per_task=per_task), max_rows=most)
    read = [[n for n in sorted(numbers) if pin.start <= n < pin.end] for batch in planned for pin in batch.pins]
    assert [n for rows in read for n in rows] == sorted(numbers)
    assert [len(rows) for rows in read] == [pin.rows for batch in planned for pin in batch.pins]
    assert all(len(rows) <= per_task or len({*rows}) == 1 for rows in read)
    assert all(
        batch.rows <= most or len({n for n in numbers if batch.pins[0].start <= n < batch.pins[-1].end}) == 1
        for batch in planned
    )


@given(
    rows=st.lists(st.tuples(st.datetimes(datetime.datetime(1971, 1, 1)), st.integers(0, 2**63 - 1)), max_size=10),
    hours=st.integers(-14, 14),
)
def test_offsets_of_a_pair_are_ordered_as_its_values_and_convert_back_to_them(
    rows: list[tuple[datetime.datetime, int]], hours: int
) -> None:
    time = CursorColumn("at", is_time=True, zoned=False, unit=1, nullable=False)
    number = CursorColumn("id", is_time=False, zoned=False, unit=1, nullable=False)
    table = sa.Table("t", sa.MetaData(), sa.Column("at", sa.DateTime), sa.Column("id", sa.BigInteger))
    cursor = Cursor(table, (time, number), datetime.timedelta(hours=hours))
    assert sorted(rows) == sorted(rows, key=cursor.offset_of)
    near_the_end = datetime.datetime(9999, 12, 29)
    assert all(cursor.values_of(cursor.offset_of(row)) == row for row in rows if row[0] < near_the_end)


@pytest.mark.parametrize("value", [None, -1, "text"])
def test_row_without_a_cursor_fails_the_run_or_is_read_once_it_has_one(table: Table, value: Any) -> None:
    values(table, [1, value])
    with pytest.raises(DataError, match="null_cursor"):
        planner(table.source).poll(None)
    skipping = replace(table.source, null_cursor="skip")
    assert [batch.rows for batch in slices(skipping)] == [1]
    table.run("UPDATE d SET n = 2 WHERE n IS ?", value)
    assert [batch.rows for batch in slices(skipping)] == [2]


def test_database_other_than_postgres_needs_a_lag_and_the_last_values_are_left(table: Table) -> None:
    values(table, range(10))
    with pytest.raises(InvalidError, match="lag=0 is safe"):
        planner(replace(table.source, lag=None)).poll(None)
    assert planner(replace(table.source, lag=3)).poll(None).offsets == {"d": 7}


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM d WHERE n = 3", "changed or deleted"),
        ("UPDATE d SET n = 20 WHERE n = 3", "changed or deleted"),
        ("INSERT INTO d VALUES (3)", "committed late"),
    ],
)
def test_changed_number_of_rows_of_a_plan_fails_its_check(table: Table, statement: str, problem: str) -> None:
    values(table, range(10))
    (planned,) = slices(table.source)
    table.source.check_pins(planned.pins, was_read=True)
    table.run(statement)
    with pytest.raises(RecordsMissingError, match=problem):
        table.source.check_pins(planned.pins, was_read=True)


def test_sqlite_ids_that_may_repeat_are_refused(table: Table) -> None:
    table.run("CREATE TABLE r (id INTEGER PRIMARY KEY, s TEXT)")
    source = replace(table.source, table="r", cursor="id", columns=())
    with pytest.raises(InvalidError, match="ids of deleted rows"):
        source.open(CommitLog(MemoryStore()), None).poll(None)


def test_updated_row_leaves_its_range_where_changes_are_followed(table: Table) -> None:
    values(table, range(10))
    source = replace(table.source, changes="follow")
    (planned,) = slices(source)
    table.run("UPDATE d SET n = 20 WHERE n = 3")
    source.check_pins(planned.pins, was_read=True)
    table.run("INSERT INTO d VALUES (4), (5)")
    with pytest.raises(RecordsMissingError, match="committed late"):
        source.check_pins(planned.pins, was_read=True)


def test_drain_reaches_its_target_though_the_remaining_rows_were_deleted(table: Table) -> None:
    values(table, range(10))
    table.run("DELETE FROM d")
    planned = planner(table.source).slice({"d": 4}, SourceEnd({"d": 10}), Limits(), None, on_data_loss="fail")
    assert (planned.ranges, planned.pins, planned.rows) == ({"d": (4, 10)}, [], 0)


def test_start_is_a_value_or_the_end_of_the_table(table: Table) -> None:
    values(table, range(10))
    assert replace(table.source, starting=4).initial_offsets() == {"d": 4}
    assert replace(table.source, starting="latest").initial_offsets() == {"d": 10}
    with pytest.raises(InvalidError, match="no times"):
        replace(table.source, starting="2026-01-01T00:00:00Z").initial_offsets()


def test_age_of_unread_rows_of_an_integer_cursor_is_unknown(table: Table) -> None:
    values(table, range(10))
    bound_planner = planner(table.source)
    assert (bound_planner.minimum_clock({"d": 4}), bound_planner.minimum_clock({"d": 10})) == (0, None)
    assert (
        bound_planner.unread_before({"d": 4}, 0),
        bound_planner.unread_before({"d": 4}, 1),
        bound_planner.lag({"d": 4}, None),
    ) == (0, 6, 6)


def test_only_the_named_columns_are_read_and_a_missing_one_is_refused(table: Table, spark: Any) -> None:
    assert replace(table.source, columns=["id"]).load(spark, ()).frame.columns == ["id"]
    with pytest.raises(DataError, match="other"):
        replace(table.source, columns=["other"]).load(spark, ())


def test_value_of_another_type_than_its_column_is_refused_by_name_and_read_as_text(table: Table, spark: Any) -> None:
    table.run("CREATE TABLE m (n INTEGER, c INTEGER)")
    values = [1, "n/a", 0.1, 2.0, None]
    for at, value in enumerate(values):
        table.run("INSERT INTO m VALUES (?, ?)", at, value)
    source = replace(table.source, table="m", cursor="n")
    (planned,) = slices(source)
    with pytest.raises(Exception, match="column 'c' has a value"):
        source.load(spark, planned.pins).frame.collect()
    frame = replace(source, as_text=["c"]).load(spark, planned.pins).frame
    assert [row.c for row in frame.orderBy("n").collect()] == ["1", "n/a", "0.1", "2", None]
    with pytest.raises(DataError, match="other"):
        replace(source, as_text=["other"]).load(spark, ())


@pytest.mark.parametrize(("name", "cursor"), [("missing", "the id"), ("odd t", "missing")])
def test_missing_table_or_column_is_refused_by_name(table: Table, name: str, cursor: str) -> None:
    with pytest.raises((SourceChangedError, InvalidError), match="no such"):
        planner(replace(table.source, table=name, cursor=cursor)).poll(None)


def test_missing_index_causes_a_warning_at_the_first_poll(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    planner(table.source).poll(None)
    assert "no index" not in caplog.text
    polling = planner(values(table, [1]).source)
    polling.poll(None)
    polling.poll(None)
    assert caplog.text.count("no index of table d begins with n") == 1


def test_terms_state_the_conditions_that_the_source_cannot_check(table: Table) -> None:
    def label(**changes: Any) -> str:
        source = replace(table.source, **changes)
        return guarantee(Pipeline(name="p", log="/log", source=source, sinks={"out": FilesSink("/out")})).named

    assert label(lag=None) == "exactly-once (ascending cursor)"
    assert label(lag=60) == "exactly-once (lag 60, unchanged rows)"
    assert label(lag=None, changes="follow") == "exactly-once (ascending cursor, newest state of a row)"


def test_lineage_names_the_server_and_the_table_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PG", "postgres://me:hunter2@db.example:5432/shop")
    source = JdbcSource(conn_id="pg", table="sales.orders", cursor="id")
    assert source.lineage({}) == [("postgres://db.example:5432", "shop.sales.orders")]


@pytest.mark.parametrize(
    "arguments",
    [
        {"conn_id": ""},
        {"table": "a.b.c"},
        {"cursor": ()},
        {"cursor": ("a", "b", "c")},
        {"columns": "id"},
        {"as_text": "id"},
        {"lag": -1},
        {"changes": "ignore"},
        {"null_cursor": "ignore"},
        {"utc_offset": "Europe/Berlin"},
        {"starting": "yesterday"},
        {"starting": -1},
        {"wait_s": -1},
        {"rows_per_task": 0},
    ],
    ids=str,
)
def test_argument_that_is_not_valid_is_refused_by_name(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(arguments))):
        JdbcSource(**{"conn_id": "db", "table": "t", "cursor": "id", **arguments})


@pytest.mark.parametrize(
    "pins",
    [[JdbcPin(3, 3, 1)], [JdbcPin(-1, 3, 1)], [JdbcPin(0, 3, -1)], [JdbcPin(0, 3, 1), JdbcPin(2, 4, 1)]],
    ids=str,
)
def test_pins_that_are_no_ascending_ranges_are_refused(table: Table, pins: list[JdbcPin]) -> None:
    with pytest.raises(LogDamagedError):
        table.source.read_pins([{"start": pin.start, "end": pin.end, "rows": pin.rows, "digest": ""} for pin in pins])


def test_executors_unpickle_the_read_without_this_package(tmp_path: Path) -> None:
    (tmp_path / "read").write_bytes(
        cloudpickle.dumps(
            reader(
                Access(sa.URL.create("sqlite", database=str(tmp_path / "db")), {}, ()),
                [("SELECT 1 UNION SELECT 2", ())], ["n"], [pyarrow.int64()], rows_per_batch=1,
            )
        )
    )  # fmt: skip
    code = (
        "import pickle, pyarrow, sys; sys.modules['airflow_provider_streamsem'] = None\n"
        "numbers = pyarrow.record_batch([pyarrow.array([0])], names=['id'])\n"
        "print([batch.to_pydict() for batch in pickle.load(open(sys.argv[1], 'rb'))(iter([numbers]))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "read")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[{'n': [1]}, {'n': [2]}]"
