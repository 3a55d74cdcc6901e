"""Erasures from the table of a SQL sink, on SQLite. ``tests/integration`` has Postgres and MariaDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.errors import DataError, InvalidError
from tests.connectors.sql.sqlite_database import Database, database_at, execute


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    db = database_at(tmp_path / "db.sqlite", monkeypatch)
    execute(db.path, 'CREATE TABLE "t" (id BIGINT PRIMARY KEY, "full name" TEXT)')
    for number, name in enumerate(["a", "A", "a ", None, "O'Brien"]):
        execute(db.path, 'INSERT INTO "t" VALUES (?, ?)', number, name)
    return db


@pytest.fixture
def sink(db: Database, tmp_path: Path) -> JdbcSink:
    return JdbcSink(conn_id="db", table="t", staging=str(tmp_path / "staging"))


def ids(db: Database) -> list[int]:
    return [row[0] for row in execute(db.path, 'SELECT id FROM "t" ORDER BY id')]


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("id IN (0, 3, 9)", [1, 2, 4]),
        ("`full name` = 'a'", [1, 2, 3, 4]),
        ("`full name` = 'O''Brien' AND id = 4", [0, 1, 2, 3]),
        ("`full name` = 'a' AND id = 1", [0, 1, 2, 3, 4]),
    ],
)
def test_selected_rows_are_deleted(db: Database, sink: JdbcSink, where: str, left: list[int]) -> None:
    predicate = Predicate.parse(where)
    preview = sink.erase_rows(predicate, dry_run=True, before_commit=lambda: None)
    assert ids(db) == [0, 1, 2, 3, 4]
    done = sink.erase_rows(predicate, dry_run=False, before_commit=lambda: None)
    assert preview == done
    assert done is not None
    assert (done.rows, ids(db)) == (5 - len(left), left)
    repeated = sink.erase_rows(predicate, dry_run=False, before_commit=lambda: None)
    assert repeated is not None
    assert repeated.rows == 0


def test_table_without_the_columns_has_nothing_to_erase(db: Database, sink: JdbcSink) -> None:
    assert sink.erase_rows(Predicate.parse("other = 1"), dry_run=False, before_commit=lambda: None) is None
    execute(db.path, 'DROP TABLE "t"')
    assert sink.erase_rows(Predicate.parse("id = 1"), dry_run=False, before_commit=lambda: None) is None


def test_value_of_another_type_than_the_column_is_refused(db: Database, sink: JdbcSink) -> None:
    with pytest.raises(InvalidError, match="type of a column does not fit"):
        sink.erase_rows(Predicate.parse("id = '1'"), dry_run=False, before_commit=lambda: None)
    assert ids(db) == [0, 1, 2, 3, 4]


def test_texts_that_the_collation_of_a_column_considers_equal_stay(db: Database, sink: JdbcSink) -> None:
    execute(db.path, 'DROP TABLE "t"')
    execute(db.path, 'CREATE TABLE "t" (id BIGINT, name TEXT COLLATE NOCASE)')
    for number, name in enumerate(["A", "a", "á"]):
        execute(db.path, 'INSERT INTO "t" VALUES (?, ?)', number, name)
    sink.erase_rows(Predicate.parse("name = 'a'"), dry_run=False, before_commit=lambda: None)
    sink.erase_rows(Predicate.parse("name = 'á'"), dry_run=False, before_commit=lambda: None)
    assert ids(db) == [0]


def test_rows_that_a_trigger_keeps_are_reported_and_none_is_erased(db: Database, sink: JdbcSink) -> None:
    execute(db.path, 'CREATE TRIGGER keep BEFORE DELETE ON "t" WHEN OLD.id = 1 BEGIN SELECT RAISE(IGNORE); END')
    with pytest.raises(InvalidError, match="a trigger or rule of the table keeps them"):
        sink.erase_rows(Predicate.parse("id IN (0, 1)"), dry_run=False, before_commit=lambda: None)
    assert ids(db) == [0, 1, 2, 3, 4]


def test_error_of_the_database_contains_no_value(db: Database, sink: JdbcSink) -> None:
    execute(db.path, "CREATE TRIGGER no BEFORE DELETE ON \"t\" BEGIN SELECT RAISE(ABORT, 'O''Brien must stay'); END")
    with pytest.raises(DataError) as raised:
        sink.erase_rows(Predicate.parse("`full name` = 'O''Brien'"), dry_run=False, before_commit=lambda: None)
    assert "Brien" not in str(raised.value)
    assert ids(db) == [0, 1, 2, 3, 4]
