"""A SQLite file that the connection db reaches."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import JdbcSource
from airflow_provider_streamsem.testing.conformance import SourceSystem


def execute(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.Connection(path)) as connection:
        rows = connection.execute(statement, values).fetchall()
        connection.commit()
        return rows


@dataclass
class Database:
    """A SQLite file, reached by the connection ``db``."""

    path: Path

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return execute(self.path, statement)

    def ids(self) -> Counter[int]:
        return Counter(row[0] for row in self.run('SELECT id FROM "t"'))

    def markers(self) -> list[tuple[int, str]]:
        return [(row[0], row[1]) for row in self.run("SELECT version, state FROM streamsem_markers")]


def database_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    return Database(path)


class Table(SourceSystem):
    """A table in a SQLite file. Every second id is missing, as after a rollback."""

    secrets = ("hunter2",)

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.path = path
        connection = {"conn_type": "sqlite", "host": str(path), "password": "hunter2"}
        monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection))
        arguments_of_source = {"conn_id": "db", "table": "odd t", "cursor": "the id", "lag": 0}
        self.source = JdbcSource(**{**arguments_of_source, **changes})
        self.run('CREATE TABLE "odd t" ("the id" INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER, "é""%s :x" TEXT)')

    def run(self, statement: str, *values: Any) -> list[Any]:
        return execute(self.path, statement, *values)

    def add(self, ids: Iterable[int]) -> None:
        for id in ids:
            self.run('INSERT INTO "odd t" VALUES (?, ?, ?)', 2 * id, id, str(id))
