"""The JDBC sink on a real MariaDB with SQLAlchemy and pymysql. Each mode writes each row once. Tables that would change values are refused."""

from __future__ import annotations

import datetime
import json
import ssl
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pymysql
import pytest
from pymysql.connections import Connection
from pymysql.cursors import Cursor
from pymysql.err import OperationalError

from airflow_provider_streamsem import Changes
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sql import columns as sql_columns
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.errors import DataError, PublishError, StreamsemError
from airflow_provider_streamsem.protocol.entries import Receipt
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.batches import resolve_schema, schema_of, staged
from tests.connectors.sql.database_steps import Steps
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
from tests.integration.parts.mariadb import MariaDB
from tests.integration.parts.server import home_for_others, running
from tests.rounds import ROUNDS

pytestmark = pytest.mark.integration

IDS = schema_of(id="long")


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    with home_for_others() as home:
        mariadb = MariaDB(home / "server")
        with running(mariadb):
            yield mariadb


@pytest.fixture(autouse=True)
def no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not load the system's certificates. The driver loads them for each connection, even without TLS, in half of the time of these tests."""
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)


@dataclass
class Database:
    """A table with a unique name, reached by the connection ``db``."""

    port: int
    table: str

    def run(self, statement: str) -> list[Any]:
        with closing(
            pymysql.connect(
                host="127.0.0.1", port=self.port, user="me", password="hunter2", database="test", autocommit=True
            )
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(statement.replace(" t ", f" {self.table} "))
            return list(cursor.fetchall())

    def sink(self, location: Path, mode: str = "append", **changes: Any) -> JdbcSink:
        defaults = {
            "conn_id": "db",
            "staging": str(location / "staging"),
            "table": self.table,
            "markers": f"m{self.table}",
        }
        return JdbcSink(**{**defaults, **MODES[mode], **changes})


@pytest.fixture
def db(server: MariaDB, monkeypatch: pytest.MonkeyPatch) -> Database:
    connection = {
        "conn_type": "mysql",
        "host": "127.0.0.1",
        "port": server.port,
        "login": "me",
        "password": "hunter2",
        "schema": "test",
    }
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection))
    return Database(server.port, f"t{uuid.uuid4().hex[:8]}")


@pytest.mark.parametrize("mode", MODES)
def test_two_concurrent_publishers_and_a_late_one_apply_each_version_once(
    mode: str, db: Database, tmp_path: Path
) -> None:
    db.run(f"CREATE TABLE t ({CREATE[mode]})")
    batches = []
    for version in range(ROUNDS):
        batches.append(
            staged(db.sink(tmp_path, mode), pyarrow.table({"id": [version * 2, version * 2 + 1]}), version, schema=IDS)
        )
        start = threading.Barrier(2)
        receipts: list[Receipt | None] = []

        def publish_batch(batch: Any = batches[-1], start: Any = start, receipts: Any = receipts) -> None:
            start.wait()
            receipts.append(publish(db.sink(tmp_path, mode), batch))

        threads = [threading.Thread(target=publish_batch) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert receipts == [Receipt(result="applied", rows=2)] * 2
        late = batches[version // 2]
        assert publish(db.sink(tmp_path, mode), late) == (None if late.version < version else receipts[0])
    assert Counter(row[0] for row in db.run("SELECT id FROM t ")) == Counter(range(2 * ROUNDS))


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> Callable[[Steps], None]:
    """Return a function that runs the driver's calls as numbered steps."""
    watched = [(Connection, name) for name in ("connect", "commit", "rollback")]
    watched += [(Cursor, name) for name in ("execute", "executemany")]
    originals = {(owner, name): getattr(owner, name) for owner, name in watched}

    def use(steps: Steps) -> None:
        for owner, name in watched:

            def call(self: Any, *arguments: Any, owner: Any = owner, name: str = name, **named: Any) -> Any:
                connection = self if owner is Connection else self.connection

                def lost() -> Exception:
                    connection._force_close()
                    return OperationalError(2013, "Lost connection to MySQL server during query")

                work = originals[owner, name]
                return steps.call(name, lambda: work(self, *arguments, **named), connection._force_close, lost)

            monkeypatch.setattr(owner, name, call)

    return use


@pytest.mark.parametrize(
    ("mode", "run_kind"),
    [
        ("upsert", "batch"),
        *(
            pytest.param(mode, run_kind, marks=pytest.mark.prove)  # Postgres and SQLite run each of them in the gate
            for mode, run_kind in (
                ("append", "batch"),
                ("replace_version", "batch"),
                ("replace_version", "reprocess"),
                ("append", "skip"),
            )
        ),
    ],
)
def test_crash_or_lost_reply_at_any_call_leaves_every_row_once(
    mode: str, run_kind: str, db: Database, tmp_path: Path, stepping: Callable[[Steps], None]
) -> None:
    def scenario(steps: Steps, name: str) -> None:
        database = Database(db.port, f"t{uuid.uuid4().hex[:8]}")
        database.run(f"CREATE TABLE t ({CREATE[mode]})")
        sink = database.sink(tmp_path / name, mode)
        first = staged(sink, pyarrow.table({"id": [1, 2]}), 0, schema=IDS)
        publish(sink, first)
        reprocessed = {"root": 0, "replaced": {0: first.committable}} if run_kind == "reprocess" else {}
        batch = staged(sink, pyarrow.table({"id": [3, 4]}), 1, schema=IDS, **reprocessed)

        def publish_or_skip() -> Receipt | None:
            return sink.skip(batch) if run_kind == "skip" else publish(sink, batch)

        stepping(steps)
        with suppress(Crash, StreamsemError):
            publish_or_skip()
        stepping(Steps())
        for _ in range(2):
            receipt = publish_or_skip()
            assert receipt is not None, steps
            assert receipt.result == ("skipped" if run_kind == "skip" else "applied"), steps
        expected = {"batch": [1, 2, 3, 4], "skip": [1, 2], "reprocess": [3, 4]}[run_kind]
        assert sorted(row[0] for row in database.run("SELECT id FROM t ")) == expected, steps
        assert publish(sink, first) is None

    whole = Steps()
    scenario(whole, "whole")
    assert whole.names.count("commit") >= 1
    for at in range(len(whole.names)):
        for fault in ("after", "lost"):
            steps = Steps(at, fault)
            scenario(steps, f"{at}-{fault}")
            assert len(steps.names) > at, "the step was not reached"


def test_values_arrive_unchanged(db: Database, tmp_path: Path) -> None:
    db.run(
        "CREATE TABLE t (b boolean, i bigint, f double, s longtext CHARACTER SET utf8mb4, x longblob, d date, u datetime(6), n datetime(6), m decimal(38,18), a longtext)"
    )
    array = {"type": "array", "elementType": "long", "containsNull": True}
    schema = schema_of(b="boolean", i="long", f="double", s="string", x="binary", d="date", u="timestamp", n="timestamp_ntz", m="decimal(38,18)", a=array)  # fmt: skip
    at = datetime.datetime(2020, 2, 29, 23, 59, 59, 999_999)
    values: dict[str, list[Any]] = {
        "b": [True, None], "i": [-(2**63), None], "f": [1.7976931348623157e308, None], "s": ["'\\\"é😀%s", None], "x": [bytes(range(256)), None], "d": [at.date(), None],
        "u": [at.replace(tzinfo=datetime.timezone.utc), None], "n": [at, None], "m": [Decimal("-99999999999999999999.999999999999999999"), None], "a": [[1, None], None],
    }  # fmt: skip
    sink = db.sink(tmp_path)
    publish(sink, staged(sink, pyarrow.table(values), schema=schema))
    first, second = db.run("SELECT * FROM t ")
    assert first == (1, -(2**63), 1.7976931348623157e308, "'\\\"é😀%s", bytes(range(256)), at.date(), at, at, Decimal("-99999999999999999999.999999999999999999"), "[1,null]")  # fmt: skip
    assert second == (None,) * 10


def test_upsert_keeps_the_last_row_of_a_key_and_reprocessing_replaces_its_version(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id bigint PRIMARY KEY, v bigint, mine int DEFAULT 7)")
    sink, schema = db.sink(tmp_path, "upsert"), schema_of(id="long", v="long")
    publish(sink, staged(sink, pyarrow.table({"id": [1, 2, 1], "v": [1, 2, 3]}), 0, schema=schema))
    db.run("UPDATE t SET mine = 8")
    publish(sink, staged(sink, pyarrow.table({"id": [2, 3], "v": [9, None]}), 1, schema=schema))
    assert db.run("SELECT * FROM t ORDER BY id") == [(1, 3, 8), (2, 9, 8), (3, None, 7)]
    db.run("DROP TABLE t ")
    db.run(f"CREATE TABLE t ({CREATE['replace_version']})")
    reprocessing = db.sink(tmp_path / "reprocess", "replace_version", markers=f"r{db.table}")
    first = staged(reprocessing, pyarrow.table({"id": [1, 2]}), 0, schema=IDS)
    publish(reprocessing, first)
    publish(reprocessing, staged(reprocessing, pyarrow.table({"id": [3]}), 1, schema=IDS))
    publish(
        reprocessing,
        staged(reprocessing, pyarrow.table({"id": [4]}), 2, schema=IDS, root=0, replaced={0: first.committable}),
    )
    assert sorted(db.run("SELECT * FROM t ")) == [(3, 1), (4, 0)]


def test_key_0_stays_0_in_an_auto_increment_column(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id bigint AUTO_INCREMENT PRIMARY KEY, v bigint)")
    sink, schema = db.sink(tmp_path, "upsert"), schema_of(id="long", v="long")
    for version in range(3):
        publish(sink, staged(sink, pyarrow.table({"id": [0], "v": [version]}), version, schema=schema))
    assert db.run("SELECT * FROM t ") == [(0, 2)]


@pytest.fixture
def non_strict(server: MariaDB) -> Iterator[None]:
    """New sessions of the server store another value in place of one that does not fit."""
    with (
        closing(pymysql.connect(unix_socket=str(server.log.with_name("socket")), user="root")) as root,
        root.cursor() as cursor,
    ):
        cursor.execute("SELECT @@GLOBAL.sql_mode")
        before = cursor.fetchone()
        cursor.execute("SET GLOBAL sql_mode = ''")
        yield
        cursor.execute("SET GLOBAL sql_mode = %s", before)


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("varchar(9) CHARACTER SET latin1", "string", "日x"),
        ("double unsigned", "double", -1.5),
        ("enum('a')", "string", "a"),
    ],
)
def test_non_strict_server_refuses_values_that_do_not_fit(
    db: Database, non_strict: None, tmp_path: Path, column: str, kind: str, value: Any
) -> None:
    db.run(f"CREATE TABLE t (c {column})")
    sink = db.sink(tmp_path)
    batch = staged(sink, pyarrow.table({"c": [value]}), schema=schema_of(c=kind))
    if value == "a":
        publish(sink, batch)
        assert db.run("SELECT * FROM t ") == [("a",)]
    else:
        with pytest.raises(PublishError):
            publish(sink, batch)
        assert db.run("SELECT * FROM t ") == []


def test_broken_constraint_is_named_without_a_value(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (s varchar(20), UNIQUE KEY only_once (s))")
    sink = db.sink(tmp_path)
    batch = staged(sink, pyarrow.table({"s": ["hunter2", "hunter2"]}), schema=schema_of(s="string"))
    with pytest.raises(PublishError, match="only_once") as caught:
        publish(sink, batch)
    assert "hunter2" not in str(caught.value)
    assert caught.value.fields["sqlstate"] == "23000"
    assert db.run("SELECT * FROM t ") == []
    assert sink.marker(batch.pipeline_uuid, "t") is None


REFUSED = {
    "not transactional": ("append", "id bigint) ENGINE=MyISAM", "long"),
    "another unique index": ("upsert", "id bigint PRIMARY KEY, v bigint DEFAULT 1 UNIQUE)", "long"),
    "the beginnings of keys": ("upsert", "id varchar(100), UNIQUE (id(5)))", "string"),
    "the beginnings of a primary key": ("upsert", "id varchar(100), PRIMARY KEY (id(5)))", "string"),
    "the beginnings of other columns": ("upsert", "id bigint PRIMARY KEY, v varchar(100), UNIQUE (v(5)))", "long"),
    "unsigned": ("append", "id bigint unsigned)", "long"),
    "a second's parts": ("append", "id datetime)", "timestamp"),
    "a time that depends on the session": ("append", "id timestamp(6) NULL)", "timestamp"),
    "too small": ("append", "id mediumint)", "integer"),
    "half the digits": ("append", "id float)", "double"),
    "a number that is rounded": ("append", "id double(10,2))", "double"),
    "bytes that are filled up": ("append", "id binary(4))", "binary"),
    "a set of words": ("append", "id set('a','b'))", "string"),
    "a name that the driver cannot update": ("upsert", "id bigint PRIMARY KEY, `a%b` bigint)", "a%b"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsuitable_table_or_columns_are_refused_before_the_commit(case: str, db: Database, tmp_path: Path) -> None:
    mode, columns, kind = REFUSED[case]
    db.run(f"CREATE TABLE t ({columns}")
    schema = schema_of(**{"id": "long", kind: "long"}) if "%" in kind else schema_of(id=kind)
    with pytest.raises(DataError, match="nothing became visible"):
        resolve_schema(db.sink(tmp_path, mode), schema)


def test_every_column_type_that_an_error_advises_holds_its_values(db: Database, tmp_path: Path) -> None:
    array = {"type": "array", "elementType": "long", "containsNull": True}
    kinds = {f"c{at}": kind for at, kind in enumerate([*sql_columns._FITTING["mysql"], "decimal(38,18)"])}
    kinds = {name: array if kind == "nested" else kind for name, kind in kinds.items()}
    advised = {name: sql_columns.fitting(kind, "mysql").removeprefix("declare it as ") for name, kind in kinds.items()}
    declared = ", ".join(f"{name} {text.rpartition(', or')[0]}" for name, text in advised.items())
    db.run(f"CREATE TABLE t ({declared})")
    resolve_schema(db.sink(tmp_path, "append"), schema_of(**kinds))


ALTERED = {
    "a unique index": ("upsert", "ADD UNIQUE (v)"),
    "no primary key": ("upsert", "DROP PRIMARY KEY"),
    "another engine": ("append", "ENGINE=MyISAM"),
    "fewer digits": ("append", "MODIFY m decimal(10,0)"),
    "text that is cut": ("append", "MODIFY s char(20)"),
}


@pytest.mark.parametrize("case", ALTERED)
def test_table_altered_after_the_commit_gets_no_rows_if_values_would_change(
    case: str, db: Database, tmp_path: Path
) -> None:
    mode, change = ALTERED[case]
    db.run("CREATE TABLE t (id bigint PRIMARY KEY, v bigint, m decimal(10,2), s varchar(20))")
    sink = db.sink(tmp_path, mode)
    rows = pyarrow.table({"id": [1, 2], "v": [7, 7], "m": [Decimal("1.55"), Decimal("2.45")], "s": ["a ", "b"]})
    schema = schema_of(id="long", v="long", m="decimal(10,2)", s="string")
    batch = staged(sink, rows, schema=schema)
    db.run(f"ALTER TABLE t {change}")
    with pytest.raises(PublishError, match="was altered after the commit"):
        publish(sink, batch)
    assert db.run("SELECT * FROM t ") == []
    assert sink.marker(batch.pipeline_uuid, "t") is None


@pytest.mark.parametrize(
    "change",
    [
        "ADD CONSTRAINT small CHECK (id < 2)",
        "PARTITION BY LIST (id) (PARTITION p1 VALUES IN (1))",
    ],
)
def test_rows_that_the_server_refuses_are_not_retried(change: str, db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id bigint)")
    db.run(f"ALTER TABLE t {change}")
    sink = db.sink(tmp_path)
    batch = staged(sink, pyarrow.table({"id": [1, 2]}), schema=IDS)
    with pytest.raises(PublishError, match="the database refuses a statement"):
        publish(sink, batch)
    assert db.run("SELECT * FROM t ") == []


def test_rows_that_a_trigger_refuses_are_not_retried(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id bigint)")
    db.run(f"CREATE TRIGGER no_{db.table} BEFORE INSERT ON t FOR EACH ROW SIGNAL SQLSTATE '45000'")
    sink = db.sink(tmp_path)
    batch = staged(sink, pyarrow.table({"id": [1]}), schema=IDS)
    with pytest.raises(PublishError, match="the database refuses a statement"):
        publish(sink, batch)


def test_text_longer_than_max_allowed_packet_is_refused_before_the_commit(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (s longtext)")
    sink = db.sink(tmp_path)
    (max_bytes,) = db.run("SELECT @@max_allowed_packet")[0]
    with pytest.raises(DataError, match="max_allowed_packet"):
        staged(sink, pyarrow.table({"s": ["x" * (max_bytes + 1)]}), schema=schema_of(s="string"))


@pytest.mark.parametrize("changes", [CHANGES, PARTIAL], ids=["all columns", "unchanged columns"])
def test_changes_give_the_newest_state_of_each_key_in_any_order_of_arrival(
    db: Database, tmp_path: Path, changes: Changes
) -> None:
    db.run(created(db.table, "bigint", "bigint", changes))
    names = {"conn_id": "db", "table": db.table, "markers": f"m{db.table}"}
    apply_randomly(ChangedTable(tmp_path, changes, run=db.run, names=names))


def test_history_equals_that_of_a_delta_table(db: Database, tmp_path: Path) -> None:
    db.run(created(db.table, "bigint", "decimal(38,2)", HISTORY))
    names = {"conn_id": "db", "table": db.table, "markers": f"m{db.table}"}
    table = ChangedTable(tmp_path / "db", HISTORY, run=db.run, names=names, sequence=KINDS["decimal"])
    apply_randomly_to_history(table, Delta(tmp_path / "delta", HISTORY, sequence=KINDS["decimal"]), count=6)


@pytest.mark.parametrize(("collation", "is_exact"), [("utf8mb4_general_ci", False), ("utf8mb4_bin", False), ("utf8mb4_nopad_bin", True)])  # fmt: skip
def test_text_keys_of_changes_need_a_collation_that_compares_every_character(
    db: Database, tmp_path: Path, collation: str, is_exact: bool
) -> None:
    db.run(created(db.table, f"varchar(40) COLLATE {collation}", "bigint", CHANGES))
    names = {"conn_id": "db", "table": db.table, "markers": f"m{db.table}"}
    table = ChangedTable(tmp_path, run=db.run, names=names, key=KINDS["string"])
    if is_exact:
        apply_randomly(table, count=3)
    else:
        with pytest.raises(DataError, match="considers different texts of key columns equal"):
            table.apply([(1, 1, 0, "a")])


def test_selected_rows_are_erased(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id BIGINT PRIMARY KEY, `the name` VARCHAR(20))")
    db.run("INSERT INTO t VALUES (1, 'a'), (2, 'A'), (3, NULL), (4, 'O''Brien'), (5, 'á')")
    sink = db.sink(tmp_path)
    for where, left in (("id IN (1, 9)", 4), ("`the name` = 'O''Brien'", 3), ("`the name` = 'a' AND id = 2", 3)):
        predicate = Predicate.parse(where)
        assert sink.erase_rows(predicate, dry_run=True, before_commit=lambda: None) == sink.erase_rows(
            predicate, dry_run=False, before_commit=lambda: None
        )
        assert len(db.run("SELECT id FROM t ")) == left


@pytest.mark.parametrize("charset", ["utf8mb4 COLLATE utf8mb4_general_ci", "utf8mb4 COLLATE utf8mb4_bin", "latin1"])
def test_texts_that_the_collation_of_a_column_considers_equal_stay(db: Database, tmp_path: Path, charset: str) -> None:
    db.run(f"CREATE TABLE t (id BIGINT, name VARCHAR(20) CHARACTER SET {charset})")
    db.run("INSERT INTO t VALUES (1, 'A'), (2, 'a'), (3, 'a '), (4, 'á'), (5, NULL)")
    for value, left in (("a", [1, 3, 4, 5]), ("á", [1, 3, 5])):
        db.sink(tmp_path).erase_rows(Predicate.parse(f"name = '{value}'"), dry_run=False, before_commit=lambda: None)
        assert [row[0] for row in db.run("SELECT id FROM t ORDER BY id")] == left
