"""A pipeline fixture with sinks outside the log: tables in SQLite that store markers with their rows. The database is in the fixture's directory."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_streamsem import FilesSink, Pipeline, registry
from airflow_provider_streamsem.connectors.sink import SinkCommit, SinkMarker
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink, record_batches
from airflow_provider_streamsem.errors import PublishError, UnavailableError
from airflow_provider_streamsem.protocol.entries import Json, Receipt
from airflow_provider_streamsem.testing.stores import Crash
from tests.pipeline_fixture import PipelineFixture

# Registers the sink, as another package does with an entry point.
registry._BUILT_IN["sinks"]["table"] = "tests.external_systems:TableSink"


@dataclass(frozen=True)
class TableSink(StagedSink):
    """
    A sink that writes rows ``(id, root)`` and one marker for each pipeline and sink, in one transaction.

    :cvar step: called before and after each transaction, so that a test can stop the sink there
    """

    delivery: ClassVar[str] = "exactly_once"
    reasons: ClassVar[tuple[str, ...]] = ("marker and rows are set in one transaction",)
    can_remove_rows: ClassVar[bool] = True
    keeps_staged: ClassVar[bool] = False
    step: ClassVar[Callable[[str], object]] = staticmethod(lambda name: None)
    path: str
    database: str

    @classmethod
    @contextmanager
    def step_by_step(cls, step: Callable[[str], object]) -> Iterator[None]:
        """Call ``step`` before and after each transaction within the block. An exception of ``step`` fails the transaction."""
        before, cls.step = cls.step, staticmethod(step)  # type: ignore[assignment]
        try:
            yield
        finally:
            cls.step = before  # type: ignore[assignment]

    @classmethod
    @contextmanager
    def dying(cls, at: str) -> Iterator[None]:
        """Simulate that the process dies at a step within the block."""

        def die(name: str) -> None:
            if name == at:
                raise Crash

        with cls.step_by_step(die), suppress(Crash):
            yield
            raise AssertionError("the process did not die")

    @property
    def location(self) -> str:
        return self.path

    def immutable_config(self) -> Json:
        return {"type": "table", "path": self.path, "database": self.database}

    def publish(self, batch: SinkCommit) -> Receipt | None:
        return self._transact(batch, "applied")

    def skip(self, batch: SinkCommit) -> Receipt | None:
        return self._transact(batch, "skipped")

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        with closing(self._connected()) as db:
            return _marker(db, f"{pipeline_uuid}/{sink}")

    def _transact(self, batch: SinkCommit, state: str) -> Receipt | None:
        if batch.is_nothing:
            return Receipt(result="applied", rows=0)
        type(self).step(f"before publish {batch.sink}")
        with closing(self._connected()) as db, db:
            db.execute("BEGIN IMMEDIATE")
            app = f"{batch.pipeline_uuid}/{batch.sink}"
            marker = _marker(db, app)
            is_settled = marker is not None and (marker.version > batch.version or batch.is_settled(marker))
            if not is_settled and state == "applied":
                batch.check_marker(marker, "the table has no marker", table=self.database)
            if not is_settled:
                db.execute("INSERT OR REPLACE INTO markers VALUES (?, ?, ?, ?)", (app, batch.version, state, batch.outcome))  # fmt: skip
            if not is_settled and state == "applied":
                roots = [(batch.sink, root) for root in batch.replaced]
                db.executemany("DELETE FROM rows WHERE sink = ? AND root = ?", roots)
                for records in record_batches(self.path, batch):
                    db.executemany(
                        "INSERT INTO rows VALUES (?, ?, ?)",
                        [(batch.sink, n, batch.root) for n in records["id"].to_pylist()],
                    )
            marker = _marker(db, app)
        assert marker is not None
        type(self).step(f"after publish {batch.sink}")
        if marker.version > batch.version:
            return None
        is_applied = marker.state == "applied"
        return Receipt(result="applied" if is_applied else "skipped", rows=batch.committable.rows if is_applied else 0)

    def _connected(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.database, isolation_level=None)
        except sqlite3.Error as error:
            raise UnavailableError("the database did not answer") from error
        db.executescript(
            "PRAGMA synchronous = OFF; CREATE TABLE IF NOT EXISTS markers (id TEXT PRIMARY KEY, version INT, state TEXT, outcome TEXT);"
            "CREATE TABLE IF NOT EXISTS rows (sink TEXT, id INT, root INT)"
        )
        return db


def _marker(db: sqlite3.Connection, app: str) -> SinkMarker | None:
    row = db.execute("SELECT version, state, outcome FROM markers WHERE id = ?", (app,)).fetchone()
    return None if row is None else SinkMarker(*row)


@dataclass
class PublishingFixture(PipelineFixture):
    """A pipeline fixture that writes each batch to files and to two tables outside the log."""

    @property
    def database(self) -> str:
        return str(self.root / "outside.db")

    def pipeline(self, **changes: Any) -> Pipeline:
        sinks = {
            "out": FilesSink(path=str(self.root / "out"), format="json"),
            "audit": TableSink(path=str(self.root / "audit"), database=self.database),
            "table": TableSink(path=str(self.root / "table"), database=self.database),
        }
        return super().pipeline(**{"sinks": sinks, **changes})

    def rows(self, sink: str) -> Counter[int]:
        """Return how often each id is in the table of a sink."""
        if not Path(self.database).exists():
            return Counter()
        with closing(sqlite3.connect(self.database)) as db:
            return Counter(n for (n,) in db.execute("SELECT id FROM rows WHERE sink = ?", (sink,)))

    def check(self, visible_ids: Callable[[], Counter[int]] | None = None) -> None:
        super().check(visible_ids)
        for sink in ("audit", "table"):
            assert self.rows(sink) - self.expected == Counter(), f"duplicated in {sink}"
            assert self.expected - self.rows(sink) == Counter(), f"lost in {sink}"


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """The table refuses every batch."""

    def refuse(step: str) -> None:
        if step == f"before publish {name}":
            raise PublishError("the table refuses the batch", sink=name)

    with TableSink.step_by_step(refuse):
        yield


def run_with_refused_publish(fixture: PublishingFixture) -> None:
    with refusing("table"), pytest.raises(PublishError, match="streamsem skip"):
        fixture.run("first")
