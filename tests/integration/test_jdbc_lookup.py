"""Lookup tables in a real Postgres: every change of a row after the plan is detected."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

import psycopg
import pytest

from airflow_provider_streamsem import JdbcTable
from airflow_provider_streamsem.errors import InvalidError, SourceChangedError
from airflow_provider_streamsem.testing.conformance import LookupContract, LookupSystem
from tests.integration.parts.postgres import Postgres

pytestmark = pytest.mark.integration


class Dimension(LookupSystem):
    """A Postgres table. The connection ``db`` is that of the user ``reader``, who may only select from it."""

    secrets = ("hunter2",)
    rows = "unchanged"

    def __init__(self, dsn: str) -> None:
        self.dsn, self.name = dsn, f"t{uuid.uuid4().hex[:8]}"
        self.lookup = JdbcTable(conn_id="db", table=self.name)
        self.run("CREATE TABLE t (id bigint, name text)")

    def run(self, *statements: str) -> None:
        """Run statements, in one transaction if there are several."""
        with psycopg.connect(self.dsn, autocommit=len(statements) == 1) as connection:
            for statement in statements:
                connection.execute(f"{statement} ".replace(" t ", f" {self.name} "))
            if len(statements) == 1 and statements[0].startswith("CREATE"):
                connection.execute(f"GRANT SELECT ON {self.name} TO reader")

    def add(self, ids: Iterable[int]) -> None:
        self.run(f"INSERT INTO t SELECT unnest(ARRAY{[*ids]}), 'a'")

    def damage(self) -> None:
        self.run("UPDATE t SET name = 'b' WHERE id = 0")


@pytest.fixture
def system(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Dimension:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = 'reader'").fetchall():
            connection.execute("CREATE ROLE reader LOGIN PASSWORD 'hunter2'")
    connection_fields: dict[str, Any] = {"conn_type": "postgres", "host": "127.0.0.1", "port": postgres.port, "login": "reader", "password": "hunter2", "schema": "postgres"}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection_fields))
    return Dimension(postgres.dsn)


class TestJdbcTable(LookupContract):
    @pytest.fixture
    def system(self, system: Dimension) -> Dimension:
        return system


@pytest.mark.parametrize(
    "statements",
    [
        ("DELETE FROM t WHERE id = 1",),
        ("UPDATE t SET name = name",),
        ("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (1, 'a')"),
        ("TRUNCATE t", "INSERT INTO t SELECT unnest(ARRAY[0, 1, 2]), 'a'"),
        ("ALTER TABLE t ALTER id TYPE int",),
        ("ALTER TABLE t DROP COLUMN name",),
        ("ALTER TABLE t RENAME name TO other",),
    ],
    ids=str,
)
def test_every_change_after_the_plan_is_detected(system: Dimension, statements: tuple[str, ...]) -> None:
    system.add(range(3))
    pin = system.lookup.pin(0)
    system.run(*statements)
    with pytest.raises(SourceChangedError, match="after they were planned"):
        system.lookup.check_pin(pin)


@pytest.mark.parametrize(
    "statement",
    ["VACUUM FREEZE t", "VACUUM FULL t", "ANALYZE t", "ALTER TABLE t ADD COLUMN later int DEFAULT 7"],
)
def test_maintenance_and_new_columns_are_not_changes(system: Dimension, statement: str) -> None:
    system.add(range(3))
    pin = system.lookup.pin(0)
    system.run(statement)
    system.lookup.check_pin(pin)


def test_partitions_count_and_a_foreign_one_is_refused(system: Dimension) -> None:
    parent = f"{system.name}_p"
    system.run(f"CREATE TABLE {parent} (id bigint) PARTITION BY LIST (id)")
    system.run(f"CREATE TABLE {parent}_1 PARTITION OF {parent} FOR VALUES IN (1)")
    system.run(f"GRANT SELECT ON {parent} TO reader")
    system.run(f"INSERT INTO {parent} VALUES (1)")
    lookup = JdbcTable(conn_id="db", table=parent)
    pin = lookup.pin(0)
    lookup.check_pin(pin)
    system.run(f"DELETE FROM {parent}_1")
    with pytest.raises(SourceChangedError, match="after they were planned"):
        lookup.check_pin(pin)
    system.run("CREATE EXTENSION IF NOT EXISTS file_fdw")
    system.run(f"CREATE SERVER {system.name}_s FOREIGN DATA WRAPPER file_fdw")
    system.run(
        f"CREATE FOREIGN TABLE {parent}_2 PARTITION OF {parent} FOR VALUES IN (2) SERVER {system.name}_s "
        "OPTIONS (filename '/dev/null')"
    )
    with pytest.raises(InvalidError, match="foreign table"):
        lookup.pin(0)
