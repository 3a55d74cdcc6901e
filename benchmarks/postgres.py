"""
Publishing into Postgres, compared with a bare ``COPY`` of the same rows: ``python -m benchmarks.postgres``.

Both fill the same table on the same server from cached files. The bare ``COPY`` sends a prepared CSV file. Rounds are interleaved, so that other load on the
machine affects both equally. Set ``ROWS`` and ``ROUNDS`` in the environment.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from rich.console import Console
from rich.table import Table

from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.sql import columns as sql_columns
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.connectors.staged_parquet.sink import record_batches
from tests.connectors.batches import schema_of, staged
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import home_for_others, running

ROWS = int(os.environ.get("ROWS", "500000"))
ROUNDS = int(os.environ.get("ROUNDS", "7"))
KINDS = {
    "id": "long",
    "name": "string",
    "amount": "double",
    "price": "decimal(12,2)",
    "at": "timestamp",
    "good": "boolean",
}
CREATE = (
    "CREATE TABLE t (id bigint, name text, amount double precision, price numeric(12,2), at timestamptz, good boolean)"
)


def rows_of(first: int, count: int) -> pyarrow.Table:
    """Return rows ``[first, first + count)``."""
    ids = pyarrow.array(range(first, first + count), pyarrow.int64())
    return pyarrow.table(
        {
            "id": ids,
            "name": pyarrow.array([f"customer number {i % 9973}, of street {i % 97}" for i in range(first, first + count)]),
            "amount": pyarrow.array([i / 7 for i in range(first, first + count)]),
            "price": pyarrow.array([Decimal(i % 100_000).scaleb(-2) for i in range(first, first + count)], pyarrow.decimal128(12, 2)),
            "at": pyarrow.array([1_700_000_000_000_000 + i for i in range(first, first + count)]).cast(pyarrow.timestamp("us", "UTC")),
            "good": pyarrow.array([i % 3 == 0 for i in range(first, first + count)]),
        }
    )  # fmt: skip


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(server: Postgres, location: Path) -> None:
    """Fill the table in turns, and print the medians and their ratios."""
    use_connection(server)
    schema, data = schema_of(**KINDS), rows_of(0, ROWS)
    prepared = location / "rows.csv"
    pyarrow.csv.write_csv(data, prepared, pyarrow.csv.WriteOptions(include_header=False))
    admin = psycopg.connect(server.dsn, autocommit=True)
    admin.execute(CREATE)
    sink = JdbcSink("bench", "t", str(location / "staging"))
    batches: list[SinkCommit] = [staged(sink, data, n, schema=schema) for n in range(ROUNDS + 1)]

    def bare() -> None:
        with psycopg.connect(server.dsn) as connection, open(prepared, "rb") as file:
            with connection.cursor().copy("COPY t FROM STDIN (FORMAT csv)") as copy:
                while chunk := file.read(1 << 18):
                    copy.write(chunk)

    def publish_without_marker(batch: SinkCommit) -> None:
        """Write the rows of a batch in a transaction without a marker (at-least-once)."""
        with sink._connected() as connection:
            target = sql_columns.named(connection, sink.table)
            assert target is not None
            with connection.begin():
                sink._configure_transaction(connection)
                sink._write_rows(connection, target, batch.schema, record_batches(sink.location, batch), batch.root)

    copies, publishes, without_marker = [], [], []
    for n, batch in enumerate(batches):
        calls = [
            (bare, copies),
            (lambda batch=batch: sink.publish(batch), publishes),
            (lambda batch=batch: publish_without_marker(batch), without_marker),
        ]
        for call, seconds in calls[n % 3 :] + calls[: n % 3]:  # type: ignore[misc]
            admin.execute("TRUNCATE t")
            admin.execute("CHECKPOINT")
            elapsed = seconds_of(call)
            assert admin.execute("SELECT count(*), sum(id) FROM t").fetchone() == (ROWS, ROWS * (ROWS - 1) // 2)
            if n:  # the first round is the warm-up
                seconds.append(elapsed)
    small = [staged(sink, rows_of(n, 100), 1_000 + n, schema=schema) for n in range(20)]
    small_publishes = [seconds_of(lambda batch=batch: sink.publish(batch)) for batch in small]  # type: ignore[misc]
    checks = [seconds_of(lambda: sink.resolve_schema(schema)) for _ in range(10)]
    show(prepared.stat().st_size, copies, publishes, without_marker)
    small_ms, check_ms = statistics.median(small_publishes) * 1000, statistics.median(checks) * 1000
    Console().print(f"publish of 100 rows: {small_ms:.0f} ms; check of the columns: {check_ms:.0f} ms")


def use_connection(server: Postgres) -> None:
    """Set the Airflow connection ``bench`` to the server."""
    connection_fields = {
        "conn_type": "postgres",
        "host": "127.0.0.1",
        "port": server.port,
        "login": "postgres",
        "schema": "postgres",
    }
    os.environ["AIRFLOW_CONN_BENCH"] = json.dumps(connection_fields)


def show(csv_bytes: int, copies: list[float], publishes: list[float], without_marker: list[float]) -> None:
    """Print the medians of the rounds in seconds, and their ratios."""
    title = f"{ROWS:,} rows, {csv_bytes / 1e6:.0f} MB of CSV, median of {ROUNDS} rounds"
    table = Table("", "seconds", "rows/s", "ratio", title=title)
    copy_s, publish_s, without_marker_s = map(statistics.median, (copies, publishes, without_marker))
    ratio = statistics.median(publish / copy for publish, copy in zip(publishes, copies, strict=True))
    table.add_row("bare COPY of a prepared file", f"{copy_s:.2f}", f"{ROWS / copy_s:,.0f}", "1")
    table.add_row("publish, append", f"{publish_s:.2f}", f"{ROWS / publish_s:,.0f}", f"{ratio:.2f}")
    table.add_row("the same without the marker", f"{without_marker_s:.2f}", f"{ROWS / without_marker_s:,.0f}", "")
    Console().print(table)
    throughput = statistics.median(
        without / publish for publish, without in zip(publishes, without_marker, strict=True)
    )
    Console().print(f"exactly-once has {throughput:.2f} × the throughput of the same sink without the marker")


def main() -> None:
    """Start a server, and measure."""
    with home_for_others() as home:
        server = Postgres(home / "server")
        with running(server):
            measure(server, home)


if __name__ == "__main__":
    main()
