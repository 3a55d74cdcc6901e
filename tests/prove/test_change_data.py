"""
A DeltaSink, an IcebergSink and a JdbcSink follow a table of Postgres while Debezium, the broker, and the drivers of the pipeline are killed at random.

The workload inserts, updates, deletes and truncates rows, changes keys, and alters the table. After each round, the tables equal the source.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from airflow_provider_streamsem import open_log, run_batch, verify
from airflow_provider_streamsem.connections import use_resolver
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from tests.integration.captured_table import CapturedTable
from tests.integration.parts.kafka import Broker
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import home_for_others, running
from tests.integration.parts.spark import session_conf

COLUMNS = "name text, amount numeric(12,2), at timestamp, big text, note text"
DECODED = "id bigint, name string, amount decimal(12,2), at timestamp_ntz, big string"
SETTINGS = {
    "decimal.handling.mode": "string",
    "time.precision.mode": "microseconds",
    "value.converter.replace.null.with.default": "false",
}
DECODER = {"decimal_handling_mode": "string", "time_precision_mode": "microseconds"}
ROUNDS, ROUND_S, KEYS = 3, 40, 40
BIG = "(SELECT string_agg(md5((n * {0})::text), '') FROM generate_series(1, 200) n)"


def statement(rng: random.Random) -> str:
    """Return a statement about a few random rows."""
    key, other, value = rng.randrange(KEYS), rng.randrange(KEYS), rng.randrange(10**6)
    return rng.choices(
        [
            f"INSERT INTO customers (id, name, amount, at, big) VALUES ({key}, 'n{value}', {value}.25, now(), {BIG.format(value)}) ON CONFLICT DO NOTHING",
            f"INSERT INTO customers (id, name) VALUES ({key}, 'n{value}') ON CONFLICT DO NOTHING",
            f"UPDATE customers SET name = 'u{value}', amount = -{value} WHERE id % 7 = {key % 7}",
            f"UPDATE customers SET big = {BIG.format(value)} WHERE id = {key}",
            f"UPDATE customers SET id = {other} WHERE id = {key} AND big IS NULL AND NOT EXISTS (SELECT FROM customers WHERE id = {other})",
            f"DELETE FROM customers WHERE id = {key}",
            f"ALTER TABLE customers DROP COLUMN note, ADD COLUMN note text DEFAULT 'd{value}'",
            "TRUNCATE customers",
        ],
        weights=[20, 20, 20, 10, 15, 15, 1, 1],
    )[0]


class Workload(threading.Thread):
    """Commits random transactions until it is stopped. Some are rolled back."""

    def __init__(self, table: CapturedTable, seed: int) -> None:
        super().__init__(daemon=True)
        self.table, self.rng, self.stopped, self.committed = table, random.Random(seed), threading.Event(), 0

    def run(self) -> None:
        while not self.stopped.wait(self.rng.random() * 0.1):
            statements = [statement(self.rng) for _ in range(self.rng.randrange(1, 6))]
            if self.rng.random() < 0.1:
                with suppress(psycopg.errors.DivisionByZero):
                    self.table.run(*statements, "SELECT 1 / 0")
                continue
            self.table.run(*statements)
            self.committed += 1


class Drivers:
    """Processes that run the pipeline: one in a loop, or one until the topic is drained."""

    def __init__(self, table: CapturedTable) -> None:
        self._arguments = [str(table.home), table.schema, table.broker.bootstrap, str(table.postgres.port)]
        self._log = table.home / "drivers.log"
        self.running: subprocess.Popen[bytes] | None = None
        self._started = 0

    def start(self, *, is_last: bool = False) -> subprocess.Popen[bytes]:
        self._started += 1
        program = (
            f"from tests.prove.test_change_data import drive; drive({self._arguments!r}, {self._started}, {is_last})"
        )
        with open(self._log, "ab") as log:
            self.running = subprocess.Popen(
                [sys.executable, "-c", program],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self.running

    def ended(self, seconds: float) -> bool:
        """Wait for the running driver, and return whether it ended without an error."""
        assert self.running is not None
        with suppress(subprocess.TimeoutExpired):
            return self.running.wait(seconds) == 0
        self.kill()
        return False

    def kill(self) -> None:
        """Kill the driver and its JVM."""
        if self.running is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()


def drive(arguments: list[str], number: int, is_last: bool) -> None:
    """Run the pipeline. ``is_last``: until a run has drained the topic."""
    home, schema, bootstrap, port = arguments
    servers: Any = SimpleNamespace(port=int(port)), SimpleNamespace(bootstrap=bootstrap)
    table = CapturedTable(*servers, Path(home), COLUMNS, DECODED, DECODER, SETTINGS, schema)
    engine = SparkEngine(master="local[1]", conf=session_conf())
    run = 0
    with use_resolver(table.connection):
        while True:
            run += 1
            try:
                run_batch(table.pipeline, run_key=f"{number}-{run}", drain=True, engine=engine)
                if is_last:
                    return
            except StreamsemError as error:
                print(type(error).__name__, error, flush=True)
            time.sleep(0.5)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[CapturedTable]:
    with home_for_others() as home:
        postgres, broker = Postgres(home / "postgres"), Broker(tmp_path / "kafka")
        with running(postgres, broker):
            made = CapturedTable(postgres, broker, tmp_path, COLUMNS, DECODED, DECODER, SETTINGS)
            made.create()
            made.create_copy(COLUMNS)
            with running(made.worker):
                yield made


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.timeout(1_800)
def test_delta_iceberg_and_postgres_equal_their_source_though_debezium_broker_and_drivers_are_killed(
    table: CapturedTable,
) -> None:
    rng = random.Random(7)
    drivers, kills, victims = Drivers(table), [], itertools.cycle(["driver", "debezium", "driver", "broker"])
    for number in range(ROUNDS):
        workload = Workload(table, number)
        workload.start()
        drivers.start()
        deadline = time.monotonic() + ROUND_S
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(1, 9))
            kills.append(next(victims))
            if kills[-1] == "driver":
                drivers.kill()
                drivers.start()
            else:
                server = table.worker if kills[-1] == "debezium" else table.broker
                server.kill()
                time.sleep(rng.random())
                server.start()
        workload.stopped.set()
        workload.join()
        drivers.kill()
        if table.worker.status() != "RUNNING":  # it gives up if the broker is away for too long
            table.worker.kill()
            table.worker.start()
        table.capture()
        drivers.start(is_last=True)
        assert drivers.ended(240), (table.home / "drivers.log").read_text()[-3000:]
        table.check()
        print(
            json.dumps({"round": number, "transactions": workload.committed, "kills": kills, "rows": len(table.rows())})
        )
    log = open_log(str(table.home / "log"))
    assert kills.count("driver") >= 4
    assert log.view().counts["quarantined"] == 0
    assert verify(str(table.home / "log")).violations == []
