"""Lookup tables in a database: the conformance suite, on SQLite, whose rows cannot be pinned. Postgres is in tests/integration."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import JdbcTable
from airflow_provider_streamsem.errors import DataError, InvalidError, LogDamagedError, SourceChangedError
from airflow_provider_streamsem.testing.conformance import LookupContract, LookupSystem


class Dimension(LookupSystem):
    """A table in a SQLite file."""

    secrets = ("hunter2",)
    rows = "current"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lookup = JdbcTable(conn_id="db", table="odd t", rows="current")
        self.run('CREATE TABLE "odd t" (id INTEGER PRIMARY KEY, "é""%s :x" TEXT)')

    def run(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.Connection(self.path)) as connection:
            connection.execute(statement, values)
            connection.commit()

    def add(self, ids: Iterable[int]) -> None:
        for id in ids:
            self.run('INSERT INTO "odd t" VALUES (?, ?)', id, str(id))

    def damage(self) -> None:
        self.run('DELETE FROM "odd t"')


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dimension:
    connection = {"conn_type": "sqlite", "host": str(tmp_path / "db.sqlite"), "password": "hunter2"}
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection))
    return Dimension(tmp_path / "db.sqlite")


class TestJdbcTable(LookupContract):
    @pytest.fixture
    def system(self, system: Dimension) -> Dimension:
        return system


def test_database_that_cannot_detect_changes_is_refused_until_the_user_accepts_current_rows(system: Dimension) -> None:
    with pytest.raises(InvalidError, match='set rows="current"'):
        JdbcTable(conn_id="db", table="odd t").pin(0)
    with pytest.raises(SourceChangedError, match="not pinned"):
        JdbcTable(conn_id="db", table="odd t").check_pin(system.lookup.pin(0))


def test_columns_stay_those_of_the_plan(system: Dimension, spark: Any) -> None:
    pin = system.lookup.pin(0)
    system.run('ALTER TABLE "odd t" ADD COLUMN later TEXT')
    assert system.lookup.load(spark, pin).columns == ["id", 'é"%s :x']
    system.run('ALTER TABLE "odd t" DROP COLUMN "é""%s :x"')
    with pytest.raises(DataError, match="lacks columns"):
        system.lookup.load(spark, pin)


def test_missing_table_is_refused_with_a_clear_error(system: Dimension) -> None:
    with pytest.raises(SourceChangedError, match="no such table"):
        replace(system.lookup, table="absent").pin(0)


@pytest.mark.parametrize("change", [{"columns": {}}, {"rows": 3}, {"digest": "7"}, {"columns": {"id": 1}}], ids=str)
def test_forged_pin_is_refused(system: Dimension, change: dict[str, Any]) -> None:
    with pytest.raises(LogDamagedError):
        system.lookup.check_pin({**system.lookup.pin(0), **change})


@pytest.mark.parametrize(
    "arguments", [{"conn_id": ""}, {"table": "a.b.c"}, {"columns": "id"}, {"rows": "pinned"}], ids=str
)
def test_argument_that_is_not_valid_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        JdbcTable(**{"conn_id": "db", "table": "t", **arguments})
