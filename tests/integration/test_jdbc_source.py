"""Rows of real Postgres and MariaDB tables: transactions that commit out of order lose nothing, and every type is read unchanged."""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
import ssl
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy

from airflow_provider_streamsem import FilesSink, JdbcSource, Pipeline, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.sql import settled
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    RecordsMissingError,
    SourceChangedError,
    UnavailableError,
)
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.pipeline.run.run import plan_run
from airflow_provider_streamsem.protocol.offsets import advance, ends
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem
from tests.integration.parts.mariadb import MariaDB
from tests.integration.parts.postgres import PROGRAMS, Postgres
from tests.integration.parts.server import home_for_others, running
from tests.integration.postgres_table import Table, new_table

pytestmark = pytest.mark.integration

UTC = datetime.timezone.utc


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    with home_for_others() as home:
        server = MariaDB(home / "server")
        with running(server):
            yield server


class PairTable(Table):
    """A table whose cursor is a pair. Each call of ``add`` inserts rows with one local time in the past."""

    def add(self, ids: Iterable[int]) -> None:
        ids = [*ids]
        at = datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=ids[0])
        self.run("INSERT INTO t (at, id, v) SELECT %s, v, v FROM unnest(%s::bigint[]) v", at, ids)


@pytest.fixture
def table(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Table:
    return new_table(postgres, monkeypatch)


@pytest.fixture
def no_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the safety margin of the bound: in these tests, no session is between the time of ``now()`` and the lock of its transaction."""
    monkeypatch.setattr(settled, "_BEGIN_US", 0)


class Reader:
    """Plans one slice after another, and selects the column ``v`` of their rows without Spark."""

    def __init__(self, table: Table) -> None:
        self.source = table.source
        self.planner = self.source.open(CommitLog(MemoryStore()), None)
        self.offsets = self.source.initial_offsets()
        self.found: Counter[int] = Counter()

    def read(self, **limits: int) -> list[int]:
        """Return the rows of the next slice."""
        end = self.planner.poll(None)
        planned = self.planner.slice(self.offsets, end, Limits(**limits), None, on_data_loss="fail")
        if planned is None:
            return []
        self.offsets = advance(self.offsets, ends(planned.ranges))
        rows = [v for pin in planned.pins for v in self.values(pin.start, pin.end)]
        assert len(rows) == planned.rows
        self.found.update(rows)
        return rows

    def values(self, start: int, end: int) -> list[int]:
        with self.source.opened() as opened, opened.snapshot():
            query = sqlalchemy.select(sqlalchemy.column("v")).select_from(opened.cursor.table)
            query = query.where(opened.cursor.from_offset(start), opened.cursor.before_offset(end))
            return [row[0] for row in opened.connection.execute(query.order_by(*opened.cursor.table.c))]


class TestPostgresSerial(SourceContract):
    @pytest.fixture
    def system(self, table: Table) -> Table:
        return table.create("id bigserial PRIMARY KEY, v bigint")


@pytest.mark.prove
class TestPostgresPair(SourceContract):
    @pytest.fixture
    def system(self, table: Table) -> Table:
        pair = PairTable(table.dsn, table.name, table.source)
        return pair.create(
            "at timestamp(3), id bigint, v bigint, PRIMARY KEY (at, id)", cursor=("at", "id"), utc_offset="+02:00"
        )


CURSORS = {
    "serial": ("id", "id bigserial PRIMARY KEY"),
    "identity": ("id", "id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    "no sequence": ("id", "id bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"),
    "now": ("at", "at timestamptz NOT NULL DEFAULT now()"),
    "clock": ("at", "at timestamp NOT NULL DEFAULT clock_timestamp()"),
    "pair": ("at,id", "at timestamptz NOT NULL DEFAULT now(), id bigserial"),
}


@pytest.fixture(params=CURSORS)
def any_cursor(table: Table, request: pytest.FixtureRequest, no_margin: None) -> Table:
    cursor, column = CURSORS[request.param]
    return table.create(f"{column}, v bigint", cursor=cursor.split(","))


def test_row_that_commits_after_a_later_row_is_read(any_cursor: Table) -> None:
    reader = Reader(any_cursor)
    with any_cursor.session() as first, any_cursor.session() as second:
        any_cursor.insert(first, 1)
        any_cursor.insert(second, 2)
        second.commit()
        assert reader.read() == []
        first.commit()
    assert reader.read() == [1, 2]
    assert reader.read() == []


def test_row_of_an_aborted_transaction_delays_no_other_row(any_cursor: Table) -> None:
    reader = Reader(any_cursor)
    with any_cursor.session() as first, any_cursor.session() as second:
        any_cursor.insert(first, 1)
        any_cursor.insert(second, 2)
        second.commit()
        assert reader.read() == []
        first.rollback()
    assert reader.read() == [2]


def test_row_of_a_subtransaction_is_not_read_until_its_transaction_ends(any_cursor: Table) -> None:
    reader = Reader(any_cursor)
    with any_cursor.session() as first:
        any_cursor.insert(first, 1)
        first.execute("SAVEPOINT a")
        any_cursor.insert(first, 2)
        first.execute("ROLLBACK TO SAVEPOINT a")
        first.execute("SAVEPOINT b")
        any_cursor.insert(first, 3)
        first.execute("RELEASE SAVEPOINT b")
        any_cursor.add([4])
        assert reader.read() == []
        first.commit()
    assert reader.read() == [1, 3, 4]


def test_row_of_a_prepared_transaction_is_not_read_until_it_ends(any_cursor: Table) -> None:
    reader = Reader(any_cursor)
    with any_cursor.session() as first:
        any_cursor.insert(first, 1)
        first.execute(any_cursor.named("PREPARE TRANSACTION ' t '"))
        first.rollback()
    any_cursor.add([2])
    assert reader.read() == []
    any_cursor.run("COMMIT PREPARED ' t '")
    assert reader.read() == [1, 2]


def test_poll_waits_for_a_transaction_that_is_prepared_during_the_wait(any_cursor: Table) -> None:
    reader = Reader(any_cursor)
    with any_cursor.session() as first:
        any_cursor.insert(first, 1)
        any_cursor.add([2])
        waiting = PreparingClock(any_cursor, first)
        reader.planner = replace(any_cursor.source, wait_s=5).open(CommitLog(MemoryStore(), waiting), None)
        assert reader.read() == [1, 2]
        assert waiting.steps == 2


class PreparingClock(ManualClock):
    """A clock during whose first wait the transaction is prepared, and during whose second one it is committed."""

    def __init__(self, table: Table, session: psycopg.Connection[Any]) -> None:
        super().__init__()
        self.table, self.session, self.steps = table, session, 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.steps += 1
        if self.steps == 1:
            self.session.execute(self.table.named("PREPARE TRANSACTION ' t '"))
            self.session.rollback()
        if self.steps == 2:
            self.table.run("COMMIT PREPARED ' t '")


def test_transaction_that_began_before_the_poll_and_writes_after_it_is_read(any_cursor: Table) -> None:
    reader = Reader(any_cursor)
    with any_cursor.session() as late:
        late.execute("SELECT 1")
        any_cursor.add([1])
        before = reader.read()
        any_cursor.insert(late, 2)
        any_cursor.add([3])
        assert reader.read() == []
        late.commit()
    assert sorted(before + reader.read()) == [1, 2, 3]
    assert reader.read() == []


@pytest.mark.parametrize("column", ["bigserial", "bigint GENERATED ALWAYS AS IDENTITY"])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_value_that_another_sequence_than_the_default_gave_before_the_row_was_written_is_waited_for(
    table: Table, column: str, is_prepared: bool
) -> None:
    table.create(f"id {column} PRIMARY KEY, v bigint")
    table.run(f"CREATE SEQUENCE o{table.name}")
    insert = table.named("INSERT INTO t (id, v) OVERRIDING SYSTEM VALUE VALUES (%s, %s)")
    reader = Reader(table)
    with table.session() as first, table.session() as second:
        ids = [s.execute(f"SELECT nextval('o{table.name}')").fetchone()[0] for s in (first, second)]  # type: ignore[index]
        second.execute(insert, (ids[1], 2))
        second.commit()
        assert reader.read() == []
        first.execute(insert, (ids[0], 1))
        if is_prepared:
            first.execute(table.named("PREPARE TRANSACTION ' t '"))
            first.rollback()
        assert reader.read() == []
        if is_prepared:
            table.run("COMMIT PREPARED ' t '")
        first.commit()
    assert reader.read() == [1, 2]


def test_value_that_no_sequence_gave_is_waited_for_once_its_row_is_written(table: Table) -> None:
    table.create("id bigserial PRIMARY KEY, v bigint")
    reader = Reader(table)
    with table.session() as first:
        first.execute(table.named("INSERT INTO t (id, v) VALUES (7, 1)"))
        table.run("INSERT INTO t (id, v) VALUES (8, 2)")
        assert reader.read() == []
        first.commit()
    assert reader.read() == [1, 2]


def test_open_transaction_that_neither_uses_a_sequence_nor_writes_the_table_delays_nothing(table: Table) -> None:
    table.create("id bigserial PRIMARY KEY, v bigint")
    table.run(f"CREATE TABLE x{table.name} (v bigint)")
    reader = Reader(table)
    with table.session() as other:
        other.execute(table.named("SELECT * FROM t"))
        other.execute(f"INSERT INTO x{table.name} VALUES (1)")
        table.add([1])
        assert reader.read() == [1]


def test_old_transaction_of_the_same_user_limits_times_to_its_begin(
    table: Table, no_margin: None, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create("at timestamptz NOT NULL DEFAULT now(), v bigint", cursor="at")
    connection_fields = {"conn_type": "postgres", "host": "127.0.0.1", "port": postgres.port, "login": "postgres", "schema": "postgres"}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection_fields))
    reader = Reader(table)
    table.add([1])
    with table.session() as old:
        old.execute("SELECT 1")
        table.add([2])
        assert reader.read() == [1]
        assert reader.read() == []
        table.insert(old, 3)
        old.commit()
    assert sorted(reader.read()) == [2, 3]


@pytest.mark.parametrize("kind", ["serial", "now", "clock"])
def test_concurrent_transactions_in_any_order_lose_and_duplicate_no_row(table: Table, kind: str) -> None:
    cursor, column = CURSORS[kind]
    table.create(f"{column}, v bigint", cursor=cursor, wait_s=30)
    table.run(f"CREATE INDEX ON t ({cursor})")
    committed: list[int] = []
    lock = threading.Lock()

    def write(writer: int) -> None:
        chance = random.Random(writer)
        with table.session() as session:
            for at in range(40):
                rows = [writer * 10_000 + at * 10 + n for n in range(chance.randint(1, 3))]
                session.execute("SELECT 1")
                for v in rows:
                    time.sleep(chance.random() * 0.02)
                    table.insert(session, v)
                time.sleep(chance.random() * 0.05)
                if chance.random() < 0.2:
                    session.rollback()
                    continue
                if chance.random() < 0.2:
                    name = f"{table.name}-{writer}-{at}"
                    session.execute(f"PREPARE TRANSACTION '{name}'")
                    session.rollback()
                    time.sleep(chance.random() * 0.05)
                    table.run(f"COMMIT PREPARED '{name}'")
                session.commit()
                with lock:
                    committed.extend(rows)

    reader = Reader(table)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()
    slices = 0
    while any(writer.is_alive() for writer in writers):
        slices += bool(reader.read())
    time.sleep(1.1)
    while reader.read():
        pass
    assert slices > 1
    assert reader.found == Counter(committed)


@pytest.mark.parametrize(
    ("column", "cursor", "named"),
    [
        ("id bigint PRIMARY KEY DEFAULT nextval('cached')", "id", "cache"),
        ("id bigint PRIMARY KEY DEFAULT nextval('blocks')", "id", "increment"),
        ("id text PRIMARY KEY", "id", "type"),
        ("id date PRIMARY KEY", "id", "type"),
        ("id bigserial PRIMARY KEY", "absent", "no such cursor column"),
    ],
)
def test_cursor_without_a_proof_is_refused_by_name(table: Table, column: str, cursor: str, named: str) -> None:
    table.run("CREATE SEQUENCE IF NOT EXISTS cached CACHE 20")
    table.run("CREATE SEQUENCE IF NOT EXISTS blocks INCREMENT BY 50")
    table.create(f"{column}, v bigint", cursor=cursor)
    with pytest.raises(InvalidError, match=named):
        Reader(table).read()


def test_table_of_a_subscription_is_refused_without_a_lag(table: Table) -> None:
    table.create("id bigserial PRIMARY KEY, v bigint")
    table.run("SET allow_system_table_mods = on; INSERT INTO pg_subscription_rel SELECT 1, oid, 'r' FROM pg_class WHERE oid = ' t '::regclass")  # fmt: skip
    with pytest.raises(InvalidError, match="subscription"):
        Reader(table).read()
    table.run("SET allow_system_table_mods = on; DELETE FROM pg_subscription_rel")


def test_table_with_a_foreign_partition_is_refused(table: Table) -> None:
    table.run("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE TABLE t (id bigint, v bigint) PARTITION BY RANGE (id)")  # fmt: skip
    table.run(f"CREATE FOREIGN TABLE f{table.name} PARTITION OF t FOR VALUES FROM (0) TO (9) SERVER s")
    with pytest.raises(InvalidError, match="foreign"):
        Reader(table).read()


def test_partitioned_table_is_read_with_its_partitions(table: Table) -> None:
    table.create("id bigserial, v bigint) PARTITION BY RANGE (id")
    table.run(f"CREATE TABLE a{table.name} PARTITION OF t FOR VALUES FROM (0) TO (3)")
    table.run(f"CREATE TABLE b{table.name} PARTITION OF t FOR VALUES FROM (3) TO (9)")
    reader = Reader(table)
    with table.session() as first:
        table.insert(first, 1)
        table.add([2, 3])
        assert reader.read() == []
        first.commit()
    assert reader.read() == [1, 2, 3]
    with table.session() as first:
        first.execute(f"INSERT INTO b{table.name} (id, v) VALUES (7, 4)")
        table.run("INSERT INTO t (id, v) VALUES (8, 5)")
        assert reader.read() == []
        first.commit()
    assert reader.read() == [4, 5]


def test_replica_is_refused(table: Table, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    table.create("id bigserial PRIMARY KEY, v bigint")
    with home_for_others() as home:
        copy = shutil.which("pg_basebackup", path=":".join(PROGRAMS))
        subprocess.run([str(copy), "-D", str(home / "r" / "data"), "-d", postgres.dsn, "-R", "-c", "fast"], check=True)
        if os.geteuid() == 0:
            for path in (home / "r").rglob("*"):
                shutil.chown(path, "postgres")
        with running(replica := Postgres(home / "r")):
            connection_fields = {"conn_type": "postgres", "host": "127.0.0.1", "port": replica.port, "login": "postgres", "schema": "postgres"}  # fmt: skip
            monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection_fields))
            with pytest.raises(InvalidError, match="replica"):
                Reader(table).read()


def test_view_and_missing_table_are_refused_by_name(table: Table) -> None:
    table.run("CREATE VIEW t AS SELECT 1 AS id, 1 AS v")
    with pytest.raises(SourceChangedError, match="no such table"):
        Reader(table).read()


def test_table_that_the_user_may_not_read_is_refused_by_name(table: Table) -> None:
    table.run("CREATE TABLE t (id bigserial PRIMARY KEY, v bigint)")
    with pytest.raises(DataError, match="42501"):
        Reader(table).read()


def test_start_at_the_end_reads_only_later_rows_and_waits_for_open_transactions(table: Table) -> None:
    table.create("id bigserial PRIMARY KEY, v bigint", starting="latest")
    table.add([1])
    with table.session() as first:
        table.insert(first, 2)
        with pytest.raises(UnavailableError, match="transactions are open"):
            Reader(table)
        first.commit()
    reader = Reader(table)
    table.add([3])
    assert reader.read() == [3]


def test_start_at_a_time_reads_rows_from_then_on_inclusive(table: Table) -> None:
    pair = PairTable(table.dsn, table.name, table.source)
    pair.create("at timestamp, id int, v bigint", cursor=("at", "id"), utc_offset="-01:00", starting="2026-01-01T01:00:03Z")  # fmt: skip
    for id in range(6):
        pair.add([id])
    assert Reader(pair).read() == [3, 4, 5]


def test_equal_times_stay_in_one_batch_and_a_pair_splits_them(table: Table) -> None:
    pair = PairTable(table.dsn, table.name, table.source)
    pair.create("at timestamp, id bigint, v bigint", cursor="at")
    pair.add(range(3))
    pair.add(range(3, 8))
    reader = Reader(pair)
    assert [reader.read(max_rows=4) for _ in range(3)] == [[0, 1, 2], [3, 4, 5, 6, 7], []]
    pair.source = replace(pair.source, cursor=("at", "id"))
    reader = Reader(pair)
    assert [reader.read(max_rows=4) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], []]


@pytest.mark.parametrize("change", ["UPDATE t SET v = v + 1 WHERE id = 2", "DELETE FROM t WHERE id = 2"])
def test_row_that_changes_after_its_plan_fails_the_check(table: Table, change: str) -> None:
    table.create("id bigserial PRIMARY KEY, v bigint")
    table.add(range(4))
    planned = table.source.open(CommitLog(MemoryStore()), None).slice(
        {table.name: 0}, Reader(table).planner.poll(None), Limits(), None, on_data_loss="fail"
    )
    assert planned is not None
    table.source.check_pins(planned.pins, was_read=True)
    table.run("VACUUM FREEZE t")
    table.run("SELECT FROM t FOR UPDATE")
    table.source.check_pins(planned.pins, was_read=True)
    table.run(change)
    with pytest.raises(RecordsMissingError, match="changed or deleted"):
        table.source.check_pins(planned.pins, was_read=True)


def test_changed_row_is_read_again_where_changes_are_followed(table: Table, no_margin: None) -> None:
    table.create("at timestamptz NOT NULL DEFAULT now(), v bigint", cursor="at", changes="follow", wait_s=10)
    table.add(range(4))
    reader = Reader(table)
    assert reader.read() == [0, 1, 2, 3]
    table.run("UPDATE t SET at = now(), v = 10 WHERE v = 2")
    assert reader.read() == [10]


def test_run_is_refused_when_a_planned_row_changed_and_plans_again_with_record_gap(
    table: Table, tmp_path: Path, spark: Any
) -> None:
    table.create("id bigserial PRIMARY KEY, v bigint")
    table.add(range(4))
    sinks = {"out": FilesSink(str(tmp_path / "out"), format="parquet")}
    pipeline = Pipeline(name="p", log=str(tmp_path / "log"), source=table.source, sinks=sinks)
    assert plan_run(pipeline, run_key="1") is None
    table.run("UPDATE t SET v = 30 WHERE v = 3")
    with pytest.raises(RecordsMissingError, match="changed or deleted"):
        run_batch(pipeline, run_key="1")
    run_batch(replace(pipeline, on_data_loss="record_gap"), run_key="1")
    run_batch(pipeline, run_key="2", drain=True)
    files = [file.path for file in open_log(pipeline.log).files()]
    assert sorted(row.v for row in spark.read.parquet(*files).collect()) == [0, 1, 2, 30]


def test_server_that_was_killed_between_plan_and_read_fails_the_run_which_a_retry_completes(
    table: Table, postgres: Postgres, tmp_path: Path, spark: Any
) -> None:
    table.create("id bigserial PRIMARY KEY, v bigint")
    table.add(range(4))
    sinks = {"out": FilesSink(str(tmp_path / "out"), format="parquet")}
    pipeline = Pipeline(name="p", log=str(tmp_path / "log"), source=table.source, sinks=sinks)
    assert plan_run(pipeline, run_key="1") is None
    postgres.kill()
    try:
        with pytest.raises(UnavailableError) as failed:
            run_batch(pipeline, run_key="1")
        assert "hunter2" not in str(failed.value)
    finally:
        postgres.start()
    run_batch(pipeline, run_key="1")
    files = [file.path for file in open_log(pipeline.log).files()]
    assert sorted(row.v for row in spark.read.parquet(*files).collect()) == [0, 1, 2, 3]


def test_missing_index_causes_a_warning_and_an_index_causes_none(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.create("id bigserial, v bigint")
    Reader(table).read()
    assert "no index of table" in caplog.text
    caplog.clear()
    table.run("CREATE INDEX ON t (id, v)")
    Reader(table).read()
    assert "no index" not in caplog.text


def test_password_is_in_no_plan_and_no_error_of_spark(
    table: Table, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create("id bigserial PRIMARY KEY, v bigint")
    table.add(range(4))
    planned = table.source.open(CommitLog(MemoryStore()), None).slice(
        {table.name: 0}, Reader(table).planner.poll(None), Limits(), None, on_data_loss="fail"
    )
    assert planned is not None
    frame = table.source.load(spark, planned.pins).frame
    assert "hunter2" not in frame._jdf.queryExecution().toString()
    assert "reader" not in frame._jdf.queryExecution().toString()
    table.run("DROP TABLE t")
    with pytest.raises(Exception, match=r"streamsem-read refused: .* 42P01") as failed:
        frame.collect()
    assert "hunter2" not in str(failed.value)
    assert table.name not in str(failed.value)


VALUES: dict[str, tuple[str, str, list[Any], list[Any] | None]] = {
    "b": ("boolean", "boolean", [True, False], None),
    "s": ("smallint", "smallint", [-(2**15), 2**15 - 1], None),
    "i": ("integer", "int", [-(2**31), 2**31 - 1], None),
    "l": ("bigint", "bigint", [-(2**63), 2**63 - 1], None),
    "r": ("real", "float", [0.10000000149011612, float("inf")], None),
    "d": ("double precision", "double", [5e-324, 1.7976931348623157e308], None),
    "n": ("numeric(38,18)", "decimal(38,18)", [Decimal("-99999999999999999999.999999999999999999"), Decimal("1E-18")], None),
    "nn": ("numeric", "string", [Decimal("1E-20"), Decimal("12345678901234567890123456789012345678901.5")], ["0.00000000000000000001", "12345678901234567890123456789012345678901.5"]),
    "t": ("text", "string", ["", "é😀\n"], None),
    "c": ("char(3)", "string", ["a", "abc"], ["a  ", "abc"]),
    "x": ("bytea", "binary", [b"", bytes(range(256))], None),
    "day": ("date", "date", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)], None),
    "z": ("timestamptz", "timestamp", [datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime.datetime(2026, 7, 1, 12, 0, 0, 1, UTC)], None),
    "w": ("timestamp", "timestamp_ntz", [datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime.datetime(2026, 7, 1, 12, 0, 0, 1)], None),
    "j": ("jsonb", "string", ['{"a": 1.50}', "[]"], None),
    "u": ("uuid", "string", ["00000000-0000-0000-0000-00000000000f"], None),
    "a": ("integer[]", "string", [[1, None]], ["{1,NULL}"]),
    "k": ("time", "string", [datetime.time(12, 0, 0, 5)], ["12:00:00.000005"]),
    "v": ("interval", "string", [datetime.timedelta(days=1, seconds=1)], ["1 day 00:00:01"]),
}  # fmt: skip


def loaded(table: Table, spark: Any) -> Any:
    end = Reader(table).planner.poll(None)
    planner = table.source.open(CommitLog(MemoryStore()), None)
    planned = planner.slice({table.source.table: 0}, end, Limits(), None, on_data_loss="fail")
    assert planned is not None
    return table.source.load(spark, table.source.read_pins([vars_of(pin) for pin in planned.pins])).frame


def vars_of(pin: Any) -> dict[str, Any]:
    return {"start": pin.start, "end": pin.end, "rows": pin.rows, "digest": pin.digest}


def test_every_value_of_every_postgres_type_is_read_unchanged(table: Table, spark: Any) -> None:
    table.create(
        "id bigserial PRIMARY KEY, " + ", ".join(f'"{name} %s :x"" é" {sql}' for name, (sql, *_) in VALUES.items())
    )
    rows = 1 + max(len(values) for *_, values, _ in VALUES.values())
    filled = {name: [*values, *[None] * (rows - len(values))] for name, (_, _, values, _) in VALUES.items()}
    for at in range(rows):
        marks = ", ".join(["%s"] * len(VALUES))
        table.run(f"INSERT INTO t VALUES (DEFAULT, {marks})", *[filled[name][at] for name in VALUES])
    frame = loaded(table, spark)
    assert [kind for _, kind in frame.dtypes[1:]] == [kind for _, kind, *_ in VALUES.values()]
    found = frame.orderBy("id").collect()
    for name, (_, _, values, read) in VALUES.items():
        column = [row[f'{name} %s :x" é'] for row in found]
        column = [value.replace(tzinfo=UTC) if name == "z" and value else value for value in column]
        column = [bytes(value) if isinstance(value, bytearray) else value for value in column]
        assert column == [*(read or values), *[None] * (rows - len(values))], name


def test_value_that_spark_cannot_hold_fails_the_run_by_column(table: Table, tmp_path: Path, spark: Any) -> None:
    table.create("id bigserial PRIMARY KEY, amount numeric(10,2)")
    table.run("INSERT INTO t (amount) VALUES ('NaN')")
    sinks = {"out": FilesSink(str(tmp_path / "out"))}
    pipeline = Pipeline(name="p", log=str(tmp_path / "log"), source=table.source, sinks=sinks)
    with pytest.raises(DataError, match="'amount'"):
        run_batch(pipeline, run_key="1")
    table.run("ALTER TABLE t ALTER amount TYPE date USING 'infinity'")
    with pytest.raises(SourceChangedError):
        run_batch(pipeline, run_key="1")


@dataclass
class MySqlTable(SourceSystem):
    """A MariaDB table with times in the past, as the connection ``db``."""

    column = "v"
    secrets = ("hunter2",)
    port: int
    source: JdbcSource

    def run(self, statement: str, *values: Any) -> list[Any]:
        with closing(
            pymysql.connect(host="127.0.0.1", port=self.port, user="me", password="hunter2", database="test", autocommit=True)
        ) as connection:  # fmt: skip
            cursor = connection.cursor()
            cursor.execute(f"{statement} ".replace(" t ", f" {self.source.table} "), values or None)
            return list(cursor.fetchall())

    def add(self, ids: Iterable[int]) -> None:
        for id in ids:
            self.run("INSERT INTO t (at, v) VALUES (%s, %s)", datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=id), id)  # fmt: skip


@pytest.fixture
def mysql(mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch) -> MySqlTable:
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)
    connection_fields = {"conn_type": "mysql", "host": "127.0.0.1", "port": mariadb.port, "login": "me", "password": "hunter2", "schema": "test"}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection_fields))
    return MySqlTable(mariadb.port, JdbcSource(conn_id="db", table=f"t{uuid.uuid4().hex[:8]}", cursor="at", lag=60))


@pytest.mark.prove
class TestMariaDB(SourceContract):
    @pytest.fixture
    def system(self, mysql: MySqlTable) -> MySqlTable:
        mysql.run("CREATE TABLE t (at datetime(6) NOT NULL, v bigint, INDEX (at))")
        return mysql


def test_row_of_the_last_lag_seconds_is_left_for_a_later_run(mysql: MySqlTable) -> None:
    mysql.run("CREATE TABLE t (at timestamp(6) NOT NULL, v bigint, INDEX (at))")
    mysql.run("INSERT INTO t VALUES (now(6) - INTERVAL 70 SECOND, 1), (now(6) - INTERVAL 50 SECOND, 2)")
    reader = Reader(mysql)
    assert reader.read() == [1]
    assert reader.read() == []


def test_mariadb_without_a_lag_is_refused(mysql: MySqlTable) -> None:
    mysql.run("CREATE TABLE t (at datetime(6) NOT NULL, v bigint, INDEX (at))")
    mysql.source = replace(mysql.source, lag=None)
    with pytest.raises(InvalidError, match="lag"):
        Reader(mysql).read()


MYSQL_VALUES: dict[str, tuple[str, str, list[Any], list[Any] | None]] = {
    "b": ("boolean", "tinyint", [1, 0], None),
    "tu": ("tinyint unsigned", "smallint", [255, 0], None),
    "i": ("int", "int", [-(2**31), 2**31 - 1], None),
    "iu": ("int unsigned", "bigint", [2**32 - 1, 0], None),
    "l": ("bigint", "bigint", [-(2**63), 2**63 - 1], None),
    "lu": ("bigint unsigned", "decimal(20,0)", [2**64 - 1, 0], [Decimal(2**64 - 1), Decimal(0)]),
    "f": ("float", "float", [0.10000000149011612, 16777215.0], None),
    "d": ("double", "double", [5e-324, 1.7976931348623157e308], None),
    "n": ("decimal(38,18)", "decimal(38,18)", [Decimal("-99999999999999999999.999999999999999999"), Decimal("1E-18")], None),
    "t": ("text", "string", ["", "é😀\n"], None),
    "x": ("blob", "binary", [b"", bytes(range(256))], None),
    "y": ("varbinary(300)", "binary", [b"", bytes(range(256))], None),
    "day": ("date", "date", [datetime.date(1000, 1, 1), datetime.date(9999, 12, 31)], None),
    "z": ("timestamp(6) NULL", "timestamp", [datetime.datetime(2026, 7, 1, 12, 0, 0, 1)], None),
    "w": ("datetime(6)", "timestamp_ntz", [datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)], None),
    "e": ("enum('a','b')", "string", ["a", "b"], None),
    "j": ("json", "string", ['{"a": 1.50}', "[]"], None),
    "k": ("time(6)", "string", [datetime.timedelta(hours=12, microseconds=5)], ["12:00:00.000005"]),
    "yr": ("year", "int", [2026], None),
}  # fmt: skip


def test_every_value_of_every_mariadb_type_is_read_unchanged(mysql: MySqlTable, spark: Any) -> None:
    columns = ", ".join(f'`{name} %%s :x" é` {sql}' for name, (sql, *_) in MYSQL_VALUES.items())
    mysql.run(
        f"CREATE TABLE t (id bigint AUTO_INCREMENT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4".replace("%%", "%")
    )
    mysql.source = replace(mysql.source, cursor="id", lag=0)
    rows = 1 + max(len(values) for *_, values, _ in MYSQL_VALUES.values())
    filled = {name: [*values, *[None] * (rows - len(values))] for name, (_, _, values, _) in MYSQL_VALUES.items()}
    for at in range(rows):
        marks = ", ".join(["%s"] * len(MYSQL_VALUES))
        mysql.run("SET time_zone = '+00:00'")
        mysql.run(f"INSERT INTO t VALUES (NULL, {marks})", *[filled[name][at] for name in MYSQL_VALUES])
    frame = loaded(mysql, spark)
    assert [kind for _, kind in frame.dtypes[1:]] == [kind for _, kind, *_ in MYSQL_VALUES.values()]
    found = frame.orderBy("id").collect()
    for name, (_, _, values, read) in MYSQL_VALUES.items():
        column = [row[f'{name} %s :x" é'] for row in found]
        column = [bytes(value) if isinstance(value, bytearray) else value for value in column]
        assert column == [*(read or values), *[None] * (rows - len(values))], name
