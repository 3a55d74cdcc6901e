"""Rows of a SQLite table: the conformance suite, ranges and their limits, changed rows, unreadable cursors, and arguments that are not valid."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import JdbcSource
from airflow_provider_streamsem.testing.conformance import SourceContract, SystemFixture


class Table(SystemFixture):
    """A table in a SQLite file. Every second id is missing, as after a rollback."""

    secrets = ("hunter2",)

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.path = path
        connection = {"conn_type": "sqlite", "host": str(path), "password": "hunter2"}
        monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection))
        given = {"conn_id": "db", "table": "odd t", "cursor": "the id", "lag": 0}
        self.source = JdbcSource(**{**given, **changes})
        self.run('CREATE TABLE "odd t" ("the id" INTEGER PRIMARY KEY, id INTEGER, "é""%s :x" TEXT)')

    def run(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.Connection(self.path)) as connection:
            found = connection.execute(statement, values).fetchall()
            connection.commit()
            return found

    def add(self, ids: Iterable[int]) -> None:
        for id in ids:
            self.run('INSERT INTO "odd t" VALUES (?, ?, ?)', 2 * id, id, str(id))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(tmp_path / "db.sqlite", monkeypatch)


class TestJdbcSource(SourceContract):
    @pytest.fixture
    def system(self, table: Table) -> Table:
        return table
