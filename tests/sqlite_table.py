"""The sink of the tests as a system of the conformance suite: a table in SQLite that stores the marker with the rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.testing.conformance import SinkSystem
from tests.external_systems import TableSink


class Table(SinkSystem):
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def sink(self) -> TableSink:
        return TableSink(path=str(self.root / "staged"), database=str(self.root / "db.sqlite"))

    def run(self, statement: str) -> list[int]:
        with closing(sqlite3.connect(self.root / "db.sqlite")) as db, db:
            return [row[0] for row in db.execute(statement)]

    def ids(self) -> list[int]:
        exists = (self.root / "db.sqlite").exists()
        return self.run("SELECT id FROM rows") if exists else []

    def watching(self, step: Callable[[str], object]) -> AbstractContextManager[None]:
        return TableSink.step_by_step(step)

    def lose_markers(self) -> None:
        self.run("DELETE FROM markers")

    def lost_reply(self) -> Exception:
        return UnavailableError("no reply")
