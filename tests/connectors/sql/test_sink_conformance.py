"""The conformance suite of sinks, on the SQL sink with SQLite, in each mode."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.conformance import SinkSystem, TransactionalSinkContract
from tests.rounds import ROUNDS

pytestmark = pytest.mark.slow
MODES: dict[str, dict[str, Any]] = {
    "append": {"mode": "append"},
    "upsert": {"mode": "upsert", "keys": ["id"]},
    "replace_version": {"mode": "replace_version"},
}


class SqliteSystem(SinkSystem):
    """A SQLite file, which the connection ``db`` names."""

    def __init__(self, root: Path, mode: str, patch: pytest.MonkeyPatch) -> None:
        self.root, self.mode, self._patch = root, mode, patch
        root.mkdir()
        patch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": "sqlite", "host": str(self.file)}))
        key = (
            "PRIMARY KEY" if mode == "upsert" else "NOT NULL"
        )  # without a key, only the marker prevents duplicate rows
        self.run(f'CREATE TABLE "t" (id BIGINT {key}, _streamsem_version BIGINT)')

    @property
    def file(self) -> Path:
        return self.root / "db.sqlite"

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.Connection(self.file)) as connection, connection:
            return connection.execute(statement).fetchall()

    def sink(self) -> JdbcSink:
        return JdbcSink(conn_id="db", table="t", staging=str(self.root / "staging"), **MODES[self.mode])

    def ids(self) -> list[int]:
        return [row[0] for row in self.run('SELECT id FROM "t"')]

    def lose_markers(self) -> None:
        self.run("DROP TABLE streamsem_markers")

    def lost_reply(self) -> Exception:
        return sqlite3.OperationalError("disk I/O error")

    def blocks_others(self, step: str) -> bool:
        """A transaction of SQLite locks the file from its first statement to its commit."""
        return step not in ("before connect", "after connect", "after commit", "before close", "after close")

    @contextmanager
    def watching(self, step: Callable[[str], object]) -> Iterator[None]:
        opened: list[sqlite3.Connection] = []
        cursors: list[sqlite3.Cursor] = []

        def stepped(name: str, call: Callable[..., Any]) -> Any:
            def request(*given: Any, **named: Any) -> Any:
                step(f"before {name}")
                reply = call(*given, **named)
                step(f"after {name}")
                return reply

            return request

        class Cursor(sqlite3.Cursor):
            def execute(self, *given: Any) -> Any:
                return stepped("execute", super().execute)(*given)

            def executemany(self, *given: Any) -> Any:
                return stepped("executemany", super().executemany)(*given)

        class Connection(sqlite3.Connection):
            def cursor(self, *given: Any) -> Any:
                cursors.append(super().cursor(Cursor))
                return cursors[-1]

            def commit(self) -> None:
                stepped("commit", super().commit)()

            def rollback(self) -> None:
                stepped("rollback", super().rollback)()

            def close(self) -> None:
                stepped("close", super().close)()

        def connect(*given: Any, **named: Any) -> Any:
            opened.append(stepped("connect", Connection)(*given, **named))
            return opened[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sqlite3.dbapi2.connect", connect)
            try:
                yield
            finally:
                for cursor in cursors:  # an open cursor keeps the file locked
                    with suppress(sqlite3.ProgrammingError):  # the connection is closed
                        cursor.close()
                for connection in opened:  # SQLite rolls back an open transaction, as it does when a process dies
                    sqlite3.Connection.close(connection)


class TestJdbcSink(TransactionalSinkContract):
    rounds = ROUNDS

    @pytest.fixture(params=MODES)
    def fresh(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], SinkSystem]:
        monkeypatch.setattr(
            "airflow_provider_streamsem.connectors.staged_parquet.transactions.SYSTEM_CLOCK", ManualClock()
        )
        roots = (tmp_path / str(number) for number in range(1_000))
        return lambda: SqliteSystem(next(roots), request.param, monkeypatch)
