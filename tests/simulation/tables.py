"""Two tables in a database outside the log: each transaction of the product's own sink is a request, which may be late, lost, refused, or answered by a lie."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa

from airflow_provider_streamsem import FilesSink, Pipeline
from airflow_provider_streamsem.connectors.contract import Batch, SinkMarker
from airflow_provider_streamsem.connectors.sql import database
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.errors import MarkerLostError, PublishError, StreamsemError
from airflow_provider_streamsem.stores.contract import UnknownAnswerError
from tests.simulation import checks
from tests.simulation.checks import RawLog, require
from tests.simulation.faults import Fate
from tests.simulation.scheduler import Process, Scheduler, WaitingClock
from tests.simulation.simulated_pipeline import PipelineFixture

Row = dict[str, int]
_TABLES = """
    CREATE TABLE audit (id BIGINT, attempt BIGINT, _streamsem_version BIGINT);
    CREATE TABLE mart (id BIGINT, attempt BIGINT, _streamsem_version BIGINT);
    CREATE TABLE streamsem_markers (pipeline_uuid TEXT, sink TEXT, version BIGINT, state TEXT, outcome TEXT, PRIMARY KEY (pipeline_uuid, sink));
"""


class Tables(PipelineFixture):
    """Files into files and two tables. Rows say which attempt made them; of some attempts no row, or not every one, gets into ``mart``."""

    name = "tables"
    kinds = (*PipelineFixture.kinds, "reprocess", "named reprocess", "skip")
    outside = ("audit", "mart")

    def __init__(self, root: Path, scheduler: Scheduler) -> None:
        super().__init__(root, scheduler)
        self._attempts = 0
        self._path = root / "outside.db"
        self._refusing: dict[tuple[str, int], int] = {}
        self._markers: dict[str, int] = {}
        self._rows: dict[int, list[Row]] = {}
        with closing(sqlite3.connect(self._path)) as db:
            db.executescript(_TABLES)
        self._engine = sa.create_engine(f"sqlite:///{self._path}", poolclass=sa.pool.NullPool)

    def pipeline(self, **changes: Any) -> Pipeline:
        tables = {
            name: JdbcSink(conn_id="outside", table=name, staging=str(self.root / name), mode="replace_version")
            for name in self.outside
        }
        out = FilesSink(path=str(self.root / "out"), format="json")
        return super().pipeline(sinks={"out": out, **tables}, transform=self._transform, rows="any", **changes)

    def _transform(self, rows: list[Row]) -> dict[str, list[Row]]:
        self._attempts += 1
        made = [{"id": row["id"], "attempt": self._attempts} for row in rows]
        return {"out": made, **{name: [row for row in made if _belongs(row, name)] for name in self.outside}}

    # --- requests

    @contextmanager
    def turning(self) -> Iterator[None]:
        marker, commit = database.read_marker, JdbcSink._commit
        with ExitStack() as stack:
            stack.callback(self._engine.dispose)
            for where, name, what in (
                (database, "connected", self._connected),
                (database, "read_marker", partial(self._read_marker, marker)),
                (JdbcSink, "_commit", lambda sink, *given: self._commit(partial(commit, sink), *given)),
                # The rehearsal brings no row, and takes long.
                (JdbcSink, "resolve_schema", lambda sink, schema: schema),
            ):
                stack.enter_context(patch.object(where, name, what))
            stack.enter_context(
                patch(
                    "airflow_provider_streamsem.connectors.staged_parquet.transactions.SYSTEM_CLOCK",
                    WaitingClock(self.scheduler),
                )
            )
            yield

    @contextmanager
    def _connected(self, conn_id: str) -> Iterator[sa.Connection]:
        with self._engine.connect() as connection:
            yield connection

    def _read_marker(self, real: Callable[..., Any], connection: Any, table: Any, uuid: str, sink: str) -> Any:
        with self._request(f"{sink}: read the marker") as process:
            found = real(connection, table, uuid, sink)
            if process is not None:
                said = None if found is None else (found.version, found.state)
                self.scheduler.says(process.name, f"{sink}: the marker is {said}")
        return found

    def _commit(
        self, real: Callable[..., bool], connection: sa.Connection, markers: sa.Table, batch: Batch,
        new: SinkMarker, found: SinkMarker | None,
    ) -> bool:  # fmt: skip
        late = partial(self._land, real, markers, batch, new, found)
        with self._request(f"{batch.sink}: {batch.version} {new.state}", late) as process:
            if process is not None and new.state == "applied" and self._refuses(batch):
                process.refused = True
                self.scheduler.count["transactions refused"] += 1
                raise sqlite3.IntegrityError("poison")
            done = real(connection, markers, batch, new, found)
            self.scheduler.count["transactions applied" if done else "transactions that came too late"] += 1
        return done

    def _land(self, real: Callable[..., bool], markers: sa.Table, batch: Batch, *marker: SinkMarker | None) -> None:
        """A transaction that was under way; nobody hears what becomes of it."""
        with self._engine.connect() as connection, suppress(StreamsemError, sa.exc.SQLAlchemyError):
            done = real(connection, markers, batch, *marker)
            self.scheduler.count["late transactions applied" if done else "transactions that came too late"] += 1

    @contextmanager
    def _request(self, what: str, late: Callable[[], Any] = bool) -> Iterator[Process | None]:
        """The block is applied, or not, and its sender hears so, or not."""
        process = self.scheduler.current
        if process is None:
            yield None
            return
        fate = process.sends(what)
        if fate is Fate.LATE:
            self.scheduler.later(what, late)
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise sqlite3.OperationalError("no answer")
        held, process.holds_locks = process.holds_locks, True
        try:
            yield process
        finally:
            process.holds_locks = held
        try:
            process.answered(fate, what, what)
        except UnknownAnswerError:
            # What an error says of a transaction that was applied may be wrong.
            raise self.rng.choice((sqlite3.OperationalError, sqlite3.IntegrityError))("no answer") from None

    def _refuses(self, batch: Batch) -> bool:
        """Some versions are refused for a time."""
        if self.scheduler.weather.calm:
            return False
        key = (batch.sink, batch.version)
        if key not in self._refusing:
            self._refusing[key] = self.refused_until()
        return self.scheduler.turns < self._refusing[key]

    # --- what must be true

    def excuses(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        if isinstance(error, MarkerLostError):
            return False  # no table ever loses anything here
        if isinstance(error, PublishError) and (process.refused or process.disturbed):
            self.scheduler.count["gave up: a sink refused"] += 1
            return True
        return super().excuses(process, error, log)

    def check(self, log: RawLog) -> None:
        """Each table holds exactly the rows that were decided, up to its marker, skipped ones apart (I15, I18)."""
        with closing(sqlite3.connect(self._path)) as db:
            markers = {
                s: (v, state) for s, v, state in db.execute("SELECT sink, version, state FROM streamsem_markers")
            }
            for name in self.outside:
                at, state = markers.get(name, (-1, ""))
                require(at >= self._markers.get(name, -1), "a marker went back (I15)", name, at)
                self._markers[name] = at
                if log.receipts:
                    said = log.receipts[max(log.receipts)].get("markers", {}).get(name, {}).get("version", -1)
                    is_due = at in log.receipts or at == -1
                    require(said == at if is_due else said < at, "receipts carry another marker (I15)", name, said, at)
                found = Counter(db.execute(f"SELECT id, attempt, _streamsem_version FROM {name}"))
                expected = self._decided(log, name, at, state)
                require(found == expected, "a table is not what was decided (I18)", name, found, expected)

    def _decided(self, log: RawLog, name: str, at: int, state: str) -> Counter[tuple[int, int, int]]:
        current_output: dict[int, int] = {}
        for version in log.committed:
            done = log.receipts.get(version)
            told = "" if done is None else done["sinks"][name]["result"]
            if version == at:
                require(told in ("", state), "receipts say what the marker does not", version, name, told, state)
                told = state
            if told == "applied":
                current_output[log.root(version)] = version
        return Counter(
            (row["id"], row["attempt"], root)
            for root, version in current_output.items()
            for row in self._made(log, version)
            if _belongs(row, name)
        )

    def _made(self, log: RawLog, version: int) -> list[Row]:
        if version not in self._rows:
            self._rows[version] = checks.rows(self.root / "out", log.files(version))
        return self._rows[version]

    def check_end(self, log: RawLog) -> None:
        super().check_end(log)
        for version, receipts in log.receipts.items():
            for name, receipt in receipts["sinks"].items():
                rows = sum(_belongs(row, name) for row in self._made(log, version))
                told = rows if receipt["result"] == "applied" else 0
                require(receipt["rows"] == told, "receipts count other rows", version, name, receipt, rows)
                self.scheduler.count[f"tables: {receipt['result']}"] += 1
                self.scheduler.count["tables: nothing to apply"] += rows == 0


def _belongs(row: Row, name: str) -> bool:
    """Whether a row gets into a table: which ones do differs between attempts."""
    return name == "audit" or (row["id"] + row["attempt"]) % 3 > 0
