"""A Postgres table that a user with only SELECT reads."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from airflow_provider_streamsem import JdbcSource
from airflow_provider_streamsem.testing.conformance import SourceSystem
from tests.integration.parts.postgres import Postgres


@dataclass
class Table(SourceSystem):
    """A Postgres table. The connection ``db`` is that of the user ``reader``, who may only select from it."""

    column = "v"
    secrets = ("hunter2",)
    dsn: str
    name: str
    source: JdbcSource

    def run(self, statement: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True, options="-c timezone=UTC") as connection:
            cursor = connection.execute(self.named(statement), values or None)
            return cursor.fetchall() if cursor.description else []

    def named(self, statement: str) -> Any:
        return f"{statement} ".replace(" t ", f" {self.name} ")

    def create(self, columns: str, **changes: Any) -> Table:
        self.run(f"CREATE TABLE t ({columns})")
        self.run("GRANT SELECT ON t TO reader")
        self.source = replace(self.source, **changes)
        return self

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        """A session. Its open transaction is rolled back at the end of the block."""
        with closing(psycopg.connect(self.dsn, options="-c timezone=UTC")) as connection:
            yield connection

    def insert(self, connection: psycopg.Connection[Any], v: int) -> None:
        connection.execute(self.named("INSERT INTO t (v) VALUES (%s)"), (v,))

    def add(self, ids: Iterable[int]) -> None:
        self.run("INSERT INTO t (v) SELECT unnest(%s::bigint[])", [*ids])


def new_table(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Table:
    name = f"t{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = 'reader'").fetchall():
            connection.execute("CREATE ROLE reader LOGIN PASSWORD 'hunter2'")
    connection_fields = {"conn_type": "postgres", "host": "127.0.0.1", "port": postgres.port, "login": "reader", "password": "hunter2", "schema": "postgres"}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection_fields))
    return Table(postgres.dsn, name, JdbcSource(conn_id="db", table=name, cursor="id", wait_s=0))
