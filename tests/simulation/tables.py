"""A simulated pipeline into two tables of a database. Each transaction of the product's sink may be late, lost, refused, or answered by a false error."""

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
from airflow_provider_streamsem.connectors.sink import SinkCommit, SinkMarker
from airflow_provider_streamsem.connectors.sql import database
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.errors import MarkerLostError, PublishError, StreamsemError
from airflow_provider_streamsem.stores.contract import UnknownResultError
from tests.simulation import checks
from tests.simulation.checks import RawLog, require
from tests.simulation.faults import Fate
from tests.simulation.scheduler import Process, Scheduler, SinkClock
from tests.simulation.simulated_pipeline import PipelineFixture

Row = dict[str, int]
_TABLES = """
    CREATE TABLE audit (id BIGINT, attempt BIGINT, _streamsem_version BIGINT);
    CREATE TABLE mart (id BIGINT, attempt BIGINT, _streamsem_version BIGINT);
    CREATE TABLE streamsem_markers (pipeline_uuid TEXT, sink TEXT, version BIGINT, state TEXT, outcome TEXT, PRIMARY KEY (pipeline_uuid, sink));
"""


class TablesPipeline(PipelineFixture):
    """A pipeline into files and two tables. Each row has the number of its attempt. Of some attempts, not all rows get into ``mart``."""

    name = "tables"
    kinds = (*PipelineFixture.kinds, "reprocess", "named reprocess", "skip")
    external_sinks = ("audit", "mart")

    def __init__(self, root: Path, scheduler: Scheduler) -> None:
        super().__init__(root, scheduler)
        self._attempts = 0
        self._path = root / "tables.db"
        self._refusing: dict[tuple[str, int], int] = {}
        self._markers: dict[str, int] = {}
        self._rows: dict[int, list[Row]] = {}
        with closing(sqlite3.connect(self._path)) as db:
            db.executescript(_TABLES)
        self._engine = sa.create_engine(f"sqlite:///{self._path}", poolclass=sa.pool.NullPool)

    def pipeline(self, **changes: Any) -> Pipeline:
        tables = {
            name: JdbcSink(conn_id="tables", table=name, staging=str(self.root / name), mode="replace_version")
            for name in self.external_sinks
        }
        out = FilesSink(path=str(self.root / "out"), format="json")
        return super().pipeline(sinks={"out": out, **tables}, transform=self._transform, rows="any", **changes)

    def _transform(self, rows: list[Row]) -> dict[str, list[Row]]:
        self._attempts += 1
        output = [{"id": row["id"], "attempt": self._attempts} for row in rows]
        return {"out": output, **{name: [row for row in output if _belongs(row, name)] for name in self.external_sinks}}

    # --- requests

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        marker, commit = database.read_marker, JdbcSink._commit
        with ExitStack() as stack:
            stack.callback(self._engine.dispose)
            for target, name, replacement in (
                (database, "connected", self._connected),
                (database, "read_marker", partial(self._read_marker, marker)),
                (JdbcSink, "_commit", lambda sink, *args: self._commit(partial(commit, sink), *args)),
                # The rehearsal writes no row, and is slow.
                (JdbcSink, "resolve_schema", lambda sink, schema: schema),
            ):
                stack.enter_context(patch.object(target, name, replacement))
            stack.enter_context(
                patch(
                    "airflow_provider_streamsem.connectors.staged_parquet.transactions.SYSTEM_CLOCK",
                    SinkClock(self.scheduler),
                )
            )
            yield

    @contextmanager
    def _connected(self, conn_id: str) -> Iterator[sa.Connection]:
        with self._engine.connect() as connection:
            yield connection

    def _read_marker(self, real: Callable[..., Any], connection: Any, table: Any, uuid: str, sink: str) -> Any:
        with self._request(f"{sink}: read the marker") as process:
            stored = real(connection, table, uuid, sink)
            if process is not None:
                marker = None if stored is None else (stored.version, stored.state)
                self.scheduler.record(process.name, f"{sink}: the marker is {marker}")
        return stored

    def _commit(
        self, real: Callable[..., bool], connection: sa.Connection, markers: sa.Table, batch: SinkCommit,
        new: SinkMarker, marker: SinkMarker | None,
    ) -> bool:  # fmt: skip
        late = partial(self._commit_late, real, markers, batch, new, marker)
        with self._request(f"{batch.sink}: {batch.version} {new.state}", late) as process:
            if process is not None and new.state == "applied" and self._refuses(batch):
                process.refused = True
                self.scheduler.count["transactions refused"] += 1
                raise sqlite3.IntegrityError("poison")
            applied = real(connection, markers, batch, new, marker)
            self.scheduler.count["transactions applied" if applied else "transactions that came too late"] += 1
        return applied

    def _commit_late(
        self, real: Callable[..., bool], markers: sa.Table, batch: SinkCommit, *marker: SinkMarker | None
    ) -> None:
        """Commit a transaction that was in flight. No process gets the answer."""
        with self._engine.connect() as connection, suppress(StreamsemError, sa.exc.SQLAlchemyError):
            applied = real(connection, markers, batch, *marker)
            self.scheduler.count["late transactions applied" if applied else "transactions that came too late"] += 1

    @contextmanager
    def _request(self, request: str, late: Callable[[], Any] = bool) -> Iterator[Process | None]:
        """Wait for a turn before the block. Depending on the request's fate, the block is applied now, later or never, or its answer is lost."""
        process = self.scheduler.current
        if process is None:
            yield None
            return
        fate = process.begin_request(request)
        if fate is Fate.LATE:
            self.scheduler.schedule_late(request, late)
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise sqlite3.OperationalError("no answer")
        held, process.holds_locks = process.holds_locks, True
        try:
            yield process
        finally:
            process.holds_locks = held
        try:
            process.end_request(fate, request, request)
        except UnknownResultError:
            # The transaction was applied. Either error class may hide that.
            raise self.rng.choice((sqlite3.OperationalError, sqlite3.IntegrityError))("no answer") from None

    def _refuses(self, batch: SinkCommit) -> bool:
        """Whether the table refuses a version now. Some versions are refused for a time."""
        if self.scheduler.faults.stopped:
            return False
        key = (batch.sink, batch.version)
        if key not in self._refusing:
            self._refusing[key] = self.refused_until()
        return self.scheduler.turns < self._refusing[key]

    # --- checks

    def allows_failure(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        if isinstance(error, MarkerLostError):
            return False  # the simulation deletes no table and no marker
        if isinstance(error, PublishError) and (process.refused or process.had_fault):
            self.scheduler.count["gave up: a sink refused"] += 1
            return True
        return super().allows_failure(process, error, log)

    def check(self, log: RawLog) -> None:
        """Check that each table has exactly the committed rows up to its marker, without skipped versions (I15, I18)."""
        with closing(sqlite3.connect(self._path)) as db:
            markers = {
                s: (v, state) for s, v, state in db.execute("SELECT sink, version, state FROM streamsem_markers")
            }
            for name in self.external_sinks:
                at, state = markers.get(name, (-1, ""))
                require(at >= self._markers.get(name, -1), "a marker went back (I15)", name, at)
                self._markers[name] = at
                if log.receipts:
                    recorded = log.receipts[max(log.receipts)].get("markers", {}).get(name, {}).get("version", -1)
                    has_receipts = at in log.receipts or at == -1
                    is_valid = recorded == at if has_receipts else recorded < at
                    require(is_valid, "receipts have another marker than the table (I15)", name, recorded, at)
                rows = Counter(db.execute(f"SELECT id, attempt, _streamsem_version FROM {name}"))
                expected = self._committed(log, name, at, state)
                require(rows == expected, "a table has other rows than the log (I18)", name, rows, expected)

    def _committed(self, log: RawLog, name: str, at: int, state: str) -> Counter[tuple[int, int, int]]:
        current_output: dict[int, int] = {}
        for version in log.committed:
            back = log.work(version, "rollback")
            receipts = log.receipts.get(version)
            result = "" if receipts is None else receipts["sinks"].get(name, {}).get("result", "")
            if back is not None and name not in back.get("publish", ()):
                result = "applied"  # the table has no rows to remove
            if version == at:
                require(result in ("", state), "receipts differ from the marker", version, name, result, state)
                result = state
            if result == "applied" and back is not None:
                removed = {v for v in log.kept(version - 1) if v > back["to"]}
                current_output = {root: v for root, v in current_output.items() if root not in removed}
            elif result == "applied":
                current_output[log.root(version)] = version
        return Counter(
            (row["id"], row["attempt"], root)
            for root, version in current_output.items()
            for row in self._output(log, version)
            if _belongs(row, name)
        )

    def _output(self, log: RawLog, version: int) -> list[Row]:
        if version not in self._rows:
            self._rows[version] = checks.rows(self.root / "out", log.files(version))
        return self._rows[version]

    def check_end(self, log: RawLog) -> None:
        super().check_end(log)
        for version, receipts in log.receipts.items():
            for name, receipt in receipts["sinks"].items():
                rows = sum(_belongs(row, name) for row in self._output(log, version))
                expected = rows if receipt["result"] == "applied" else 0
                require(
                    receipt["rows"] == expected, "receipts have another number of rows", version, name, receipt, rows
                )
                self.scheduler.count[f"tables: {receipt['result']}"] += 1
                self.scheduler.count["tables: no rows to apply"] += rows == 0


def _belongs(row: Row, name: str) -> bool:
    """Whether a row gets into a table. For ``mart`` this depends on the attempt."""
    return name == "audit" or (row["id"] + row["attempt"]) % 3 > 0
