"""The JDBC sink on a real Postgres. It writes the staged rows once with concurrent publishers, crashes at every statement, and a killed server."""

from __future__ import annotations

import datetime
import json
import math
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow
import pytest

from airflow_provider_streamsem import Changes, FilesSource, Pipeline, rollback, run_batch
from airflow_provider_streamsem.connections import Connection, use_resolver
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.sql import columns as sql_columns
from airflow_provider_streamsem.connectors.sql import sink as jdbc
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.errors import DataError, PublishError, StreamsemError, UnavailableError
from airflow_provider_streamsem.protocol.entries import Receipt
from airflow_provider_streamsem.readers.verify import verify
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.batches import marked, resolve_schema, schema_of, staged
from tests.connectors.sql.modes import CREATE, MODES, publish
from tests.connectors.staged_parquet.changed_table import (
    CHANGES,
    HISTORY,
    KINDS,
    PARTIAL,
    Delta,
    apply_randomly,
    apply_randomly_to_history,
    created,
)
from tests.connectors.staged_parquet.changed_table import Database as ChangedTable
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import home_for_others, running
from tests.pipeline_fixture import PipelineFixture
from tests.rounds import ROUNDS

pytestmark = pytest.mark.integration

IDS = schema_of(id="long")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with home_for_others() as home:
        postgres = Postgres(home / "server")
        with running(postgres):
            yield postgres


@dataclass
class Database:
    """A schema for one test, known as the connection ``db``."""

    dsn: str
    schema: str

    def run(self, statement: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT set_config('search_path', quote_ident(%s), false)", (self.schema,))
            cursor = connection.execute(statement, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def ids(self) -> Counter[int]:
        return Counter(row[0] for row in self.run("SELECT id FROM t"))

    def sink(self, location: Path, mode: str = "append", **changes: Any) -> JdbcSink:
        names = {"table": f"{self.schema}.t", "markers": f"{self.schema}.markers"}
        return JdbcSink(**{"conn_id": "db", "staging": str(location / "staging"), **names, **MODES[mode], **changes})


@pytest.fixture
def db(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Database:
    database = Database(server.dsn, f'odd "%s schema {uuid.uuid4().hex[:6]}')
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(database.schema)))
    connection = {"conn_type": "postgres", "host": "127.0.0.1", "port": server.port, "login": "postgres", "password": "hunter2", "schema": "postgres"}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection))
    return database


VALUES: dict[str, tuple[Any, str, pyarrow.DataType, list[Any]]] = {
    "b": ("boolean", "boolean", pyarrow.bool_(), [True, False]),
    "y": ("byte", "smallint", pyarrow.int8(), [-128, 127]),
    "i": ("integer", "integer", pyarrow.int32(), [-(2**31), 2**31 - 1]),
    "l": ("long", "bigint", pyarrow.int64(), [-(2**63), 2**63 - 1]),
    "ln": ("long", "numeric(19)", pyarrow.int64(), [-(2**63), 2**63 - 1]),
    "r": ("float", "real", pyarrow.float32(), [0.5, float("-inf")]),
    "rd": ("float", "double precision", pyarrow.float32(), [0.10000000149011612, float("inf")]),
    "f": ("double", "double precision", pyarrow.float64(), [5e-324, float("inf"), -0.0, 1.7976931348623157e308]),
    "m": ("decimal(38,18)", "numeric(38,18)", pyarrow.decimal128(38, 18), [Decimal("-99999999999999999999.999999999999999999"), Decimal("1E-18")]),
    "mn": ("decimal(38,0)", "numeric", pyarrow.decimal128(38, 0), [Decimal('9' * 38), Decimal(0)]),
    "s": ("string", "text", pyarrow.string(), ["", "NULL", "\\N", "\\.", 'a"b,c', "line\r\nline", "\ttab ", "é😀\u2028", "'; DROP TABLE t; --"]),
    "c": ("string", "varchar(9)", pyarrow.string(), ["", "x"]),
    "x": ("binary", "bytea", pyarrow.binary(), [b"", bytes(range(256)), b"\\x00"]),
    "d": ("date", "date", pyarrow.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "u": ("timestamp", "timestamptz", pyarrow.timestamp("us", "UTC"), [datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.timezone.utc)]),
    "n": ("timestamp_ntz", "timestamp", pyarrow.timestamp("us"), [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)]),
    "a": ({"type": "array", "elementType": "long", "containsNull": True}, "jsonb", pyarrow.list_(pyarrow.int64()), [[], [1, None]]),
    "at": ({"type": "array", "elementType": "long", "containsNull": True}, "text", pyarrow.list_(pyarrow.int64()), [[1, 2]]),
    "o": (
        {"type": "struct", "fields": []}, "json",
        pyarrow.struct([("s", pyarrow.string()), ("f", pyarrow.float64()), ("m", pyarrow.map_(pyarrow.string(), pyarrow.decimal128(4, 2))), ("x", pyarrow.binary()), ("d", pyarrow.date32())]),
        [{"s": 'é"', "f": float("nan"), "m": [("k", Decimal("1.50"))], "x": b"\x00", "d": datetime.date(2020, 1, 1)}],
    ),
}  # fmt: skip
READ_OTHERWISE = {
    "at": ["[1,2]"],
    "o": [{"s": 'é"', "f": "NaN", "m": {"k": "1.50"}, "x": "AA==", "d": "2020-01-01"}],
}


@pytest.mark.parametrize("mode", MODES)
def test_every_value_of_every_type_arrives_unchanged(mode: str, db: Database, tmp_path: Path) -> None:
    columns = ", ".join(f'"{name} %s ""é" {sql}' for name, (_, sql, _, _) in VALUES.items())
    db.run(f"CREATE TABLE t ({columns}, {CREATE[mode]})")
    rows = 1 + max(len(values) for *_, values in VALUES.values())
    filled = {name: [*values, *[None] * (rows - len(values))] for name, (*_, values) in VALUES.items()}
    table = pyarrow.table(
        {
            **{f'{name} %s "é': pyarrow.array(filled[name], VALUES[name][2]) for name in VALUES},
            "id": pyarrow.array(range(rows)),
        }
    )
    schema = schema_of(**{f'{name} %s "é': kind for name, (kind, *_) in VALUES.items()}, id="long")
    sink = db.sink(tmp_path, mode)
    assert publish(sink, staged(sink, table, schema=schema)) == Receipt(result="applied", rows=rows)
    for name in VALUES:
        expected = [*READ_OTHERWISE.get(name, VALUES[name][3])]
        stored = [row[0] for row in psycopg_rows(db, f'{name} %s "é')]
        stored = [bytes(value) if isinstance(value, memoryview) else value for value in stored]
        assert stored == [*expected, *[None] * (rows - len(expected))], name
        assert [str(v) for v in stored[:2]] == [str(v) for v in [*expected, None][:2]], name


def psycopg_rows(db: Database, column: str) -> list[Any]:
    with psycopg.connect(db.dsn, options="-c timezone=UTC") as connection:
        quoted = psycopg.sql.SQL("SELECT {} FROM {} ORDER BY id").format(
            psycopg.sql.Identifier(column), psycopg.sql.Identifier(db.schema, "t")
        )
        return connection.execute(quoted).fetchall()


def test_nan_arrives_as_nan(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (f double precision, r real)")
    sink, nan = db.sink(tmp_path), float("nan")
    table = pyarrow.table({"f": pyarrow.array([nan, None]), "r": pyarrow.array([nan, None], pyarrow.float32())})
    publish(sink, staged(sink, table, schema=schema_of(f="double", r="float")))
    (first, second) = db.run("SELECT f, r FROM t")
    assert (math.isnan(first[0]), math.isnan(first[1]), *second) == (True, True, None, None)


def test_rows_of_one_column_with_nulls_arrive(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (s text)")
    sink = db.sink(tmp_path)
    publish(sink, staged(sink, pyarrow.table({"s": ["", None, "x"]}), schema=schema_of(s="string")))
    assert db.run("SELECT s FROM t") == [("",), (None,), ("x",)]


@pytest.mark.parametrize(
    "mode", ["append", *(pytest.param(m, marks=pytest.mark.prove) for m in MODES if m != "append")]
)
def test_two_concurrent_publishers_and_a_late_one_apply_each_version_once(
    mode: str, db: Database, tmp_path: Path
) -> None:
    db.run(f"CREATE TABLE t ({CREATE[mode]})")
    sink = db.sink(tmp_path, mode)
    rows = 200
    batches = []
    for version in range(ROUNDS):
        ids = range(version * rows, version * rows + rows)
        batch = staged(sink, pyarrow.table({"id": [*ids]}), version, schema=IDS)
        batches.append(batch)
        start = threading.Barrier(2)
        receipts: list[Receipt | None] = []

        def publish_batch(batch: Any = batch, start: Any = start, receipts: Any = receipts) -> None:
            start.wait()
            receipts.append(publish(db.sink(tmp_path, mode), batch))

        threads = [threading.Thread(target=publish_batch) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert receipts == [Receipt(result="applied", rows=rows)] * 2
        late = batches[version // 2]
        assert publish(sink, late) == (None if late.version < version else receipts[0])
        assert sink.marker(late.pipeline_uuid, "t") == marked(version)
    assert db.ids() == Counter(range(ROUNDS * rows))


@pytest.mark.parametrize("mode", ["append", "replace_version"])
@pytest.mark.parametrize("version", [0, 1])
def test_second_publisher_waits_for_the_first_and_then_finds_the_version_marked(
    version: int, mode: str, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(f"CREATE TABLE t ({CREATE[mode]})")
    sink = db.sink(tmp_path, mode)
    for earlier in range(version):
        publish(sink, staged(sink, pyarrow.table({"id": [100 + earlier]}), earlier, schema=IDS))
    batch = staged(sink, pyarrow.table({"id": [1, 2]}), version, schema=IDS)
    first_is_copying, first_may_continue = threading.Event(), threading.Event()
    real = jdbc.record_batches

    def slow(*arguments: Any) -> Any:
        if threading.current_thread().name == "first":
            first_is_copying.set()
            assert first_may_continue.wait(20)
        return real(*arguments)

    monkeypatch.setattr(jdbc, "record_batches", slow)
    receipts: dict[str, Receipt | None] = {}

    def publish_batch() -> None:
        receipts[threading.current_thread().name] = publish(db.sink(tmp_path, mode), batch)

    first, second = (
        threading.Thread(target=publish_batch, name="first"),
        threading.Thread(target=publish_batch, name="second"),
    )
    first.start()
    assert first_is_copying.wait(20)
    second.start()
    second.join(1)
    assert second.is_alive(), "the second publisher did not wait for the row of the marker"
    first_may_continue.set()
    first.join()
    second.join()
    assert receipts == {"first": Receipt(result="applied", rows=2), "second": Receipt(result="applied", rows=2)}
    assert db.ids() == Counter([1, 2, *range(100, 100 + version)])


@dataclass
class Steps:
    """Records the calls of a process on its connections to Postgres. The call number ``at`` fails."""

    at: int = -1
    fault: str = ""
    names: list[str] = field(default_factory=list)
    dead: bool = False


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> Callable[[Steps], None]:
    """Return a function that runs psycopg's calls as numbered steps."""
    now = [Steps()]

    def wrap(cls: Any, name: str, pgconn_of: Callable[[Any], Any]) -> None:
        real = getattr(cls, name)

        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            steps = now[0]
            if steps.dead:
                raise Crash
            is_target = len(steps.names) == steps.at
            steps.names.append(name)
            result = real(self, *arguments, **named)
            if is_target:
                pgconn_of(self).finish()  # the server sees the connection close, as when a process dies
                if steps.fault == "lost":
                    raise psycopg.OperationalError("server closed the connection unexpectedly")
                steps.dead = True
                raise Crash
            return result

        monkeypatch.setattr(cls, name, call)

    wrap(psycopg.Cursor, "execute", lambda cursor: cursor.connection.pgconn)
    wrap(psycopg.Copy, "write", lambda copy: copy.connection.pgconn)
    wrap(psycopg.Connection, "commit", lambda connection: connection.pgconn)
    wrap(psycopg.Connection, "rollback", lambda connection: connection.pgconn)

    def use(steps: Steps) -> None:
        now[0] = steps

    return use


@pytest.mark.parametrize(
    "mode", ["append", *(pytest.param(mode, marks=pytest.mark.prove) for mode in MODES if mode != "append")]
)
def test_crash_or_lost_reply_at_any_statement_leaves_every_row_once(
    mode: str, db: Database, tmp_path: Path, stepping: Callable[[Steps], None]
) -> None:
    def scenario(steps: Steps, location: Path, n: int) -> None:
        stepping(Steps())
        db.run("DROP TABLE IF EXISTS t")
        db.run(f"CREATE TABLE t ({CREATE[mode]})")
        sink = db.sink(location, mode)
        more: dict[str, Any] = {"sink_name": f"t{n}"}
        first = staged(sink, pyarrow.table({"id": [1, 2]}), 0, schema=IDS, **more)
        publish(sink, first)
        more |= {"root": 0, "replaced": {0: first.committable}} if mode == "replace_version" else {}
        batch = staged(sink, pyarrow.table({"id": [3, 4]}), 1, schema=IDS, **more)
        stepping(steps)
        with suppress(Crash):
            assert publish(sink, batch) == Receipt(result="applied", rows=2)
        stepping(Steps())
        assert publish(sink, batch) == Receipt(result="applied", rows=2)
        expected = [3, 4] if mode == "replace_version" else [1, 2, 3, 4]
        assert db.ids() == Counter(expected), (steps.at, steps.fault, steps.names)

    whole = Steps()
    scenario(whole, tmp_path / "whole", 0)
    assert {"execute", "write", "commit"} <= {*whole.names}
    for at in range(len(whole.names)):
        for fault in ("dead", "lost"):
            scenario(Steps(at, fault), tmp_path / f"{at}-{fault}", 1 + 2 * at + (fault == "lost"))


REFUSED = {
    "unlogged": ("append", "CREATE UNLOGGED TABLE t (id bigint)", "long"),
    "a view": ("append", "CREATE VIEW t AS SELECT 1::bigint AS id", "long"),
    "too small": ("append", "CREATE TABLE t (id integer)", "long"),
    "half the digits": ("append", "CREATE TABLE t (id real)", "double"),
    "a number that is rounded": ("append", "CREATE TABLE t (id numeric(10,2))", "decimal(12,4)"),
    "a domain of numbers that are rounded": ("append", "CREATE DOMAIN cents AS numeric(10,2); CREATE DOMAIN money2 AS cents; CREATE TABLE t (id money2)", "decimal(12,4)"),
    "a domain of times that are rounded": ("append", "CREATE DOMAIN seconds AS timestamptz(0); CREATE TABLE t (id seconds)", "timestamp"),
    "a time without its zone": ("append", "CREATE TABLE t (id timestamp)", "timestamp"),
    "a time that gets a zone": ("append", "CREATE TABLE t (id timestamptz)", "timestamp_ntz"),
    "a time that is rounded": ("append", "CREATE TABLE t (id timestamptz(3))", "timestamp"),
    "an array of Postgres": ("append", "CREATE TABLE t (id bigint[])", {"type": "array", "elementType": "long", "containsNull": True}),
    "generated": ("append", "CREATE TABLE t (x int DEFAULT 1, id bigint GENERATED ALWAYS AS IDENTITY)", "long"),
    "text that is cut to 63 bytes": ("append", "CREATE TABLE t (id name)", "string"),
    "text that is cut to one byte": ("append", 'CREATE TABLE t (id "char")', "string"),
    "a domain of text that is cut": ("append", "CREATE DOMAIN cut AS name; CREATE TABLE t (id cut)", "string"),
    "an unlogged partition": ("append", "CREATE TABLE t (id bigint) PARTITION BY RANGE (id); CREATE UNLOGGED TABLE t1 PARTITION OF t DEFAULT", "long"),
    "a composite type": ("append", "CREATE TYPE pair AS (a int, b numeric(5,1)); CREATE TABLE t (id pair)", "string"),
    "a point": ("append", "CREATE TABLE t (id point)", "string"),
    "text whose spaces are cut": ("append", "CREATE TABLE t (id bpchar)", "string"),
    "no unique index": ("upsert", "CREATE TABLE t (id bigint NOT NULL)", "long"),
    "a rule that COPY ignores": ("append", "CREATE TABLE t (id bigint); CREATE TABLE u (id bigint); CREATE RULE r AS ON INSERT TO t DO INSTEAD INSERT INTO u VALUES (NEW.id)", "long"),
    "tables that inherit": ("upsert", "CREATE TABLE t (id bigint PRIMARY KEY); CREATE TABLE u () INHERITS (t)", "long"),
    "a unique constraint that waits": ("upsert", "CREATE TABLE t (id bigint NOT NULL UNIQUE DEFERRABLE)", "long"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unsuitable_table_or_columns_are_refused_before_the_commit(case: str, db: Database, tmp_path: Path) -> None:
    mode, statement, kind = REFUSED[case]
    db.run(statement)
    with pytest.raises(DataError, match="nothing became visible"):
        resolve_schema(db.sink(tmp_path, mode), schema_of(id=kind))


def test_every_column_type_that_an_error_advises_holds_its_values(db: Database, tmp_path: Path) -> None:
    array = {"type": "array", "elementType": "long", "containsNull": True}
    kinds = {f"c{at}": kind for at, kind in enumerate([*sql_columns._FITTING["postgresql"], "decimal(38,18)"])}
    kinds = {name: array if kind == "nested" else kind for name, kind in kinds.items()}
    advised = {name: sql_columns.fitting(kind, "postgresql").removeprefix("declare it as ") for name, kind in kinds.items()}  # fmt: skip
    declared = ", ".join(f"{name} {text.rpartition(', or')[0]}" for name, text in advised.items())
    db.run(f"CREATE TABLE t ({declared})")
    resolve_schema(db.sink(tmp_path, "append"), schema_of(**kinds))


def test_user_without_insert_privilege_is_refused_before_the_commit(
    db: Database, server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run("CREATE TABLE t (id bigint)")
    resolve_schema(db.sink(tmp_path), IDS)
    role = f"r{uuid.uuid4().hex[:8]}"
    db.run(f"CREATE ROLE {role} LOGIN PASSWORD 'hunter2'")
    quoted = '"' + db.schema.replace('"', '""') + '"'
    with psycopg.connect(db.dsn, autocommit=True) as connection:
        connection.execute(f"GRANT USAGE ON SCHEMA {quoted} TO {role}")  # type: ignore[arg-type]
    db.run(f"GRANT SELECT, INSERT, UPDATE ON markers TO {role}")
    db.run(f"GRANT SELECT ON t TO {role}")
    monkeypatch.setenv("AIRFLOW_CONN_DB", f"postgres://{role}:hunter2@127.0.0.1:{server.port}/postgres")
    with pytest.raises(DataError, match="42501"):
        resolve_schema(db.sink(tmp_path), IDS)
    db.run(f"GRANT INSERT ON t TO {role}")
    resolve_schema(db.sink(tmp_path), IDS)


MISFITS: dict[str, tuple[str, str, Any, Any]] = {
    "text": ("varchar(3)", "string", "ééé", "abcd"),
    "text with spaces that would be cut off": ("varchar(3)", "string", "a  ", "a   "),
    "one character": ("char(1)", "string", "é", "éé"),
    "NUL": ("text", "string", "\x01", "a\0b"),
    "uuid": ("uuid", "string", "{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1"),
    "enum": ("mood", "string", "good day", "Good day"),
    "date": ("date", "date", datetime.date(1, 1, 1), -719_163),
    "date that has no text": ("date", "date", 11_248_737, 11_248_738),
    "time that has no text": ("timestamptz", "timestamp", datetime.datetime(9999, 1, 1), 1_711_852_200_123 * 1_000_000),
    "text in a domain": ("short", "string", "abc", "abcd"),
    "date in an array": (
        "jsonb",
        {"type": "array", "elementType": "date", "containsNull": True},
        [datetime.date(1, 1, 1)],
        [2_932_897],
    ),
    "NUL in an array": ("jsonb", {"type": "array", "elementType": "string", "containsNull": True}, ["\\u0000"], ["\0"]),
    "array that is too long": (
        "varchar(7)",
        {"type": "array", "elementType": "string", "containsNull": True},
        ["abc"],
        ["abcd"],
    ),
    "null in an array": ("jsonb NOT NULL", {"type": "array", "elementType": "long", "containsNull": True}, [1], None),
}


ALTERED = {
    "fewer digits": "ALTER m TYPE numeric(10,0)",
    "half the digits": "ALTER d TYPE real",
    "a time that is rounded": "ALTER u TYPE timestamptz(0)",
    "text that is filled up": "ALTER s TYPE char(9)",
    "unlogged": "SET UNLOGGED",
}


@pytest.mark.parametrize("case", ALTERED)
def test_table_altered_after_the_commit_gets_no_rows_if_values_would_change(
    case: str, db: Database, tmp_path: Path
) -> None:
    db.run("CREATE TABLE t (m numeric(10,2), d double precision, u timestamptz, s varchar(9))")
    sink = db.sink(tmp_path)
    at = datetime.datetime(2026, 1, 1, 0, 0, 0, 500_000, datetime.timezone.utc)
    rows = pyarrow.table(
        {"m": [Decimal("1.55")], "d": [0.1], "u": pyarrow.array([at], pyarrow.timestamp("us", "UTC")), "s": ["ab"]}
    )
    batch = staged(sink, rows, schema=schema_of(m="decimal(10,2)", d="double", u="timestamp", s="string"))
    db.run(f"ALTER TABLE t {ALTERED[case]}")
    with pytest.raises(PublishError, match="was altered after the commit"):
        publish(sink, batch)
    assert db.run("SELECT * FROM t") == []
    assert sink.marker(batch.pipeline_uuid, "t") is None


def test_table_altered_after_the_commit_gets_rows_that_still_fit(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id bigint, s varchar(9))")
    sink = db.sink(tmp_path)
    batch = staged(sink, pyarrow.table({"id": [1], "s": ["a"]}), schema=schema_of(id="long", s="string"))
    db.run("ALTER TABLE t ADD later int, ALTER s TYPE text")
    assert publish(sink, batch) == Receipt(result="applied", rows=1)
    assert db.run("SELECT id, s, later FROM t") == [(1, "a", None)]


def arrow(kind: Any, value: Any) -> pyarrow.Array:
    """Return a column of one value. Dates beyond Python's range are given as days."""
    times = {"date": pyarrow.date32(), "timestamp": pyarrow.timestamp("us", "UTC")}
    return pyarrow.array([value], times.get(kind) if isinstance(kind, str) else None)


def test_values_beyond_a_column_bound_are_refused_before_the_commit_and_those_on_the_bound_arrive(
    db: Database, tmp_path: Path
) -> None:
    db.run("CREATE TYPE mood AS ENUM ('good day', 'bad')")
    db.run("CREATE DOMAIN short AS varchar(3)")
    db.run(f"CREATE TABLE t ({', '.join(f'c{n} {sql}' for n, (sql, *_) in enumerate(MISFITS.values()))})")
    schema = schema_of(**{f"c{n}": kind for n, (_, kind, _, _) in enumerate(MISFITS.values())})
    sink = db.sink(tmp_path)
    good: dict[str, Any] = {f"c{n}": arrow(kind, fits) for n, (_, kind, fits, _) in enumerate(MISFITS.values())}
    publish(sink, staged(sink, pyarrow.table(good), schema=schema))
    assert len(db.run("SELECT 1 FROM t")) == 1
    bad = {f"c{n}": pyarrow.array([misfit], good[f"c{n}"].type) for n, (*_, misfit) in enumerate(MISFITS.values())}
    with pytest.raises(DataError, match="nothing became visible") as refused:
        staged(sink, pyarrow.table(bad), 1, schema=schema)
    assert sorted(refused.value.fields["columns"]) == sorted(bad)  # type: ignore[call-overload]
    for name in bad:  # without the check, the database would refuse or change each of them
        if name == "c1":
            continue
        attempt = chr(ord("a") + int(name[1:]))
        batch = staged(sink, pyarrow.table(good), 2, schema=schema, attempt=attempt)
        location = Path(sink.attempt_location(2, attempt * 32)) / "part-00000.parquet"
        pyarrow.parquet.write_table(pyarrow.table({**good, name: bad[name]}), location)
        with pytest.raises(PublishError):
            publish(sink, batch)


def test_broken_constraint_is_named_without_a_value(
    db: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db.run("CREATE TABLE t (s text CONSTRAINT only_once UNIQUE)")
    sink = db.sink(tmp_path)
    batch = staged(sink, pyarrow.table({"s": ["hunter2", "hunter2"]}), schema=schema_of(s="string"))
    with pytest.raises(PublishError) as caught:
        publish(sink, batch)
    assert caught.value.fields == {"table": sink.table, "version": 0, "problem": "UniqueViolation", "sqlstate": "23505", "constraint": "only_once", "of": "t"}  # fmt: skip
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "hunter2" not in f"{caught.value}{caplog.text}"
    assert db.run("SELECT * FROM t") == []
    assert sink.marker(batch.pipeline_uuid, "t") is None


def test_upsert_keeps_the_last_row_of_a_key_and_the_columns_that_the_rows_lack(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (a bigint, b text, v text, mine text DEFAULT 'kept', PRIMARY KEY (b, a))")
    sink, schema = db.sink(tmp_path, "upsert", keys=["a", "b"]), schema_of(a="long", b="string", v="string")
    rows = pyarrow.table({"a": [1, 1, 2, 1], "b": ["x", "y", "x", "x"], "v": ["1", "2", "3", None]})
    publish(sink, staged(sink, rows, 0, schema=schema))
    db.run("UPDATE t SET mine = 'changed'")
    publish(sink, staged(sink, pyarrow.table({"a": [2, 3], "b": ["x", "x"], "v": ["9", ""]}), 1, schema=schema))
    found = db.run("SELECT a, b, v, mine FROM t ORDER BY a, b")
    assert found == [
        (1, "x", None, "changed"),
        (1, "y", "2", "changed"),
        (2, "x", "9", "changed"),
        (3, "x", "", "kept"),
    ]


def upserting(db: Database, tmp_path: Path) -> tuple[JdbcSink, SinkCommit]:
    """Create a batch that upserts rows 1 and 2. Row 1 exists already."""
    db.run("CREATE TABLE t (id bigint PRIMARY KEY, v bigint)")
    db.run("INSERT INTO t VALUES (1, 0)")
    sink = db.sink(tmp_path, "upsert")
    batch = staged(sink, pyarrow.table({"id": [1, 2], "v": [1, 2]}), schema=schema_of(id="long", v="long"))
    return sink, batch


def test_deadlock_with_another_writer_is_retried_until_the_rows_are_applied(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch = upserting(db, tmp_path)
    real, tries = jdbc.record_batches, []

    def concurrent_update(*arguments: Any) -> Any:
        tries.append(1)
        # Our transaction holds the marker's row and waits for row 1. The other one holds row 1 and waits for the marker's row.
        if len(tries) == 1:
            other.execute("UPDATE t SET v = 7 WHERE id = 1")
            waiter.start()
            time.sleep(0.3)
        return real(*arguments)

    other = psycopg.connect(db.dsn)
    other.execute("SELECT set_config('search_path', quote_ident(%s), false)", (db.schema,))
    other.execute("SET deadlock_timeout = '1min'")  # so that Postgres aborts our transaction

    def wait_for_marker() -> None:
        other.execute("INSERT INTO markers VALUES (%s, 't', -5, 'x') ON CONFLICT DO NOTHING", (batch.pipeline_uuid,))
        other.rollback()

    waiter = threading.Thread(target=wait_for_marker)
    monkeypatch.setattr(jdbc, "record_batches", concurrent_update)
    assert publish(sink, batch) == Receipt(result="applied", rows=2)
    waiter.join()
    other.close()
    assert len(tries) == 2
    assert db.run("SELECT id, v FROM t ORDER BY id") == [(1, 1), (2, 2)]


def test_serialization_failure_is_retried_until_the_rows_are_applied(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch = upserting(db, tmp_path)
    real, tries = jdbc.record_batches, []

    def concurrent_update(*arguments: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:  # after the snapshot of our transaction
            db.run("UPDATE t SET v = 7 WHERE id = 1")
        return real(*arguments)

    monkeypatch.setattr(jdbc, "record_batches", concurrent_update)
    db.run("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'")
    try:
        assert publish(sink, batch) == Receipt(result="applied", rows=2)
    finally:
        db.run("ALTER DATABASE postgres RESET default_transaction_isolation")
    assert len(tries) == 2
    assert db.run("SELECT id, v FROM t ORDER BY id") == [(1, 1), (2, 2)]


def test_pipeline_continues_after_the_server_was_killed_while_publishing(
    db: Database, server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run("CREATE TABLE t (id bigint, _streamsem_version bigint)")
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    pipeline = fixture.pipeline(sinks={"t": db.sink(tmp_path, "replace_version")})
    fixture.run("a", pipeline=pipeline)
    fixture.arrive(2)
    real = jdbc.record_batches

    def killed(*arguments: Any) -> Any:
        server.kill()
        yield from real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(jdbc, "record_batches", killed)
        with pytest.raises(UnavailableError) as caught:
            fixture.run("b", pipeline=pipeline)
    assert "hunter2" not in str(caught.value)
    server.start()
    for _ in range(50):
        with suppress(StreamsemError):
            fixture.run("b", pipeline=pipeline)
            break
        time.sleep(0.2)
    assert db.ids() == fixture.expected
    fixture.run("c", pipeline=pipeline, reprocessed=0)
    assert db.ids() == fixture.expected
    assert fixture.verdict().violations == []


def test_rollback_deletes_the_rows_of_later_versions(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id bigint, _streamsem_version bigint)")
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(6)
    pipeline = fixture.pipeline(sinks={"t": db.sink(tmp_path, "replace_version")})
    fixture.run("a", pipeline=pipeline, drain=True)
    rollback(pipeline, 0, log=fixture.log())
    assert db.ids() == Counter(range(6))
    fixture.run("b", pipeline=pipeline, drain=True)
    assert db.ids() == fixture.expected
    assert fixture.verdict().violations == []


def test_commit_is_synchronous_even_if_the_role_disables_it(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run("CREATE TABLE t (id bigint)")
    db.run("ALTER ROLE postgres SET synchronous_commit = off")
    settings = []
    real = jdbc.postgres_copy.append

    def append(connection: Any, *arguments: Any) -> None:
        settings.append(connection.exec_driver_sql("SHOW synchronous_commit").scalar())
        real(connection, *arguments)

    try:
        monkeypatch.setattr(jdbc.postgres_copy, "append", append)
        sink = db.sink(tmp_path)
        publish(sink, staged(sink, pyarrow.table({"id": [1]}), schema=IDS))
    finally:
        db.run("ALTER ROLE postgres RESET synchronous_commit")
    assert settings == ["on", "on"]


def test_rows_that_spark_staged_are_written_with_an_airflow_connection(
    db: Database, server: Postgres, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_DB")
    known = Connection(
        conn_id="db", conn_type="postgres", host="127.0.0.1", port=server.port, login="postgres", schema="postgres"
    )
    db.run(
        "CREATE TABLE t (id bigint, s text, at timestamptz, d date, m numeric(12,2), tags jsonb, o jsonb, mp jsonb, x bytea, _streamsem_version bigint)"
    )
    (tmp_path / "in").mkdir()
    lines = [
        {"id": n, "s": "" if n else None, "at": "2020-02-29T23:59:59.999999Z", "tags": [n, None]} for n in range(1_000)
    ]
    (tmp_path / "in" / "a.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pipeline = Pipeline(
        name="spark",
        log=str(tmp_path / "log"),
        source=FilesSource(path=str(tmp_path / "in"), format="json", schema="id long, s string, at timestamp, tags array<int>"),
        sinks={"t": db.sink(tmp_path, "replace_version")},
        transform=lambda frame: frame.selectExpr(
            "id", "s", "at", "date'2020-01-02' AS d", "CAST(id / 4 AS decimal(12,2)) AS m", "tags",
            "named_struct('a', id, 'at', at) AS o", "map('k', id) AS mp", "X'00FF' AS x",
        ),
    )  # fmt: skip
    with use_resolver(lambda conn_id: {"db": known}[conn_id]):
        run_batch(pipeline, run_key="a", drain=True, engine=SparkEngine())
        verdict = verify(pipeline)
    assert verdict.violations == []
    rows = db.run("SELECT id, s, at AT TIME ZONE 'UTC', d, m, tags, o, mp, x, _streamsem_version FROM t ORDER BY id")
    at = datetime.datetime(2020, 2, 29, 23, 59, 59, 999_999)
    assert rows[0][:2] == (0, None)
    assert rows[3] == (3, "", at, datetime.date(2020, 1, 2), Decimal("0.75"), [3, None], {"a": 3, "at": at.isoformat() + "+00:00"}, {"k": 3}, b"\x00\xff", 0)  # fmt: skip
    assert [row[0] for row in rows] == [*range(1_000)]


@pytest.mark.parametrize("changes", [CHANGES, PARTIAL], ids=["all columns", "unchanged columns"])
@pytest.mark.parametrize(
    ("key", "sequence"), [("long", "long"), ("string", "timestamp"), ("decimal", "timestamp_ntz"), ("date", "decimal"), ("timestamp", "date")]
)  # fmt: skip
def test_changes_give_the_newest_state_of_each_key_in_any_order_of_arrival(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, sequence: str, changes: Changes
) -> None:
    connection = {**json.loads(os.environ["AIRFLOW_CONN_DB"]), "extra": {"options": "-c timezone=America/New_York"}}
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection))
    kinds = KINDS[key], KINDS[sequence]
    db.run(created("t", *(kind.postgres for kind in kinds), changes))
    names = {"conn_id": "db", "table": f"{db.schema}.t", "markers": f"{db.schema}.markers"}
    apply_randomly(ChangedTable(tmp_path, changes, run=db.run, names=names, key=kinds[0], sequence=kinds[1]))


@pytest.mark.parametrize(("key", "sequence"), [("string", "timestamp"), ("decimal", "long"), ("date", "decimal")])
def test_history_equals_that_of_a_delta_table(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, sequence: str
) -> None:
    connection = {**json.loads(os.environ["AIRFLOW_CONN_DB"]), "extra": {"options": "-c timezone=America/New_York"}}
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection))
    kinds = KINDS[key], KINDS[sequence]
    db.run(created("t", *(kind.postgres for kind in kinds), HISTORY))
    db.run('CREATE UNIQUE INDEX one_current_version ON t (k) WHERE "__END_AT" IS NULL')
    names = {"conn_id": "db", "table": f"{db.schema}.t", "markers": f"{db.schema}.markers"}
    table = ChangedTable(tmp_path / "db", HISTORY, run=db.run, names=names, key=kinds[0], sequence=kinds[1])
    apply_randomly_to_history(table, Delta(tmp_path / "delta", HISTORY, key=kinds[0], sequence=kinds[1]), count=6)


def test_change_whose_delete_a_trigger_would_suppress_is_refused(db: Database, tmp_path: Path) -> None:
    db.run(created("t", "bigint", "bigint", CHANGES))
    names = {"conn_id": "db", "table": f"{db.schema}.t", "markers": f"{db.schema}.markers"}
    table = ChangedTable(tmp_path, run=db.run, names=names)
    table.apply([(1, 1, 0, "a")])
    db.run("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
    db.run("CREATE TRIGGER keep BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION keep()")
    with pytest.raises(PublishError, match="still in the table after their deletion"):
        table.apply([(1, 2, 0, None)])
    db.run("DROP TRIGGER keep ON t")
    assert table.publish(table.batches[-1]).result == "applied"
    assert table.rows() == {}
    db.run("CREATE RULE keep AS ON DELETE TO t DO INSTEAD NOTHING")
    with pytest.raises(DataError, match="has a rule for INSERT, UPDATE or DELETE"):
        table.apply([(2, 2, 0, "b")])


def test_keys_that_the_database_compares_without_case_are_refused_for_changes(db: Database, tmp_path: Path) -> None:
    db.run("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    db.run("CREATE TABLE t (k text COLLATE loose PRIMARY KEY, at bigint, n bigint, v text)")
    names = {"conn_id": "db", "table": f"{db.schema}.t", "markers": f"{db.schema}.markers"}
    with pytest.raises(DataError, match="considers different texts of key columns equal"):
        ChangedTable(tmp_path, run=db.run, names=names, key=KINDS["string"]).apply([(1, 1, 0, "a")])


def test_selected_rows_are_erased(db: Database, tmp_path: Path) -> None:
    db.run('CREATE TABLE t (id BIGINT PRIMARY KEY, "the name" VARCHAR(20))')
    db.run("INSERT INTO t VALUES (1, 'a'), (2, 'A'), (3, NULL), (4, 'O''Brien'), (5, 'á')")
    sink = JdbcSink(conn_id="db", table=f"{db.schema}.t", staging=str(tmp_path / "staging"))
    for where, left in (("id IN (1, 9)", 4), ("`the name` = 'O''Brien'", 3), ("`the name` = 'a' AND id = 2", 3)):
        predicate = Predicate.parse(where)
        assert sink.erase_rows(predicate, dry_run=True, before_commit=lambda: None) == sink.erase_rows(
            predicate, dry_run=False, before_commit=lambda: None
        )
        assert len(db.run("SELECT id FROM t ")) == left


def test_texts_that_the_collation_of_a_column_considers_equal_stay(db: Database, tmp_path: Path) -> None:
    db.run("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    db.run("CREATE TABLE t (id bigint, name text COLLATE loose, fixed char(5))")
    db.run("INSERT INTO t VALUES (1, 'A', 'x'), (2, 'a', 'y'), (3, 'a ', 'x '), (4, NULL, NULL)")
    sink = JdbcSink(conn_id="db", table=f"{db.schema}.t", staging=str(tmp_path / "staging"))
    for where, left in (("name = 'a'", [1, 3, 4]), ("fixed = 'x'", [4])):
        sink.erase_rows(Predicate.parse(where), dry_run=False, before_commit=lambda: None)
        assert [row[0] for row in db.run("SELECT id FROM t ORDER BY id")] == left
