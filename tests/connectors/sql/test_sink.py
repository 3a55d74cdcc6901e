"""The SQL sink on SQLite: the guarantee of each mode after crashes, lost replies, concurrent publishers and with unsuitable tables."""

from __future__ import annotations

import datetime
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import sqlalchemy as sa

from airflow_provider_streamsem import Changes, rollback
from airflow_provider_streamsem.connectors.sql import database
from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    MarkerLostError,
    PublishError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, from_json
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Receipt
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import Crash
from tests.code_blocks import blocks
from tests.connectors.batches import (
    UUID,
    committed_batch,
    resolve_schema,
    schema_of,
    staged,
)
from tests.connectors.sql.database_steps import Steps
from tests.connectors.sql.modes import MODES, publish
from tests.connectors.sql.sqlite_database import Database, database_at
from tests.connectors.staged_parquet.changed_table import changes_of, event, history, newest
from tests.pipeline_fixture import PipelineFixture

TABLE = 'CREATE TABLE "t" (id BIGINT PRIMARY KEY, _streamsem_version BIGINT)'
# Without a key only the marker prevents duplicate rows.
CREATE_MARKERS, INSERT_MARKER = blocks(Path(__file__).parents[3] / "docs" / "connectors" / "sql-sink.md", "sql")
"""The statements of the page."""
OPEN_TABLE = 'CREATE TABLE "t" (id BIGINT NOT NULL, _streamsem_version BIGINT)'
IDS = schema_of(id="long")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_streamsem.connectors.staged_parquet.transactions.SYSTEM_CLOCK", ManualClock())


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    return database_at(tmp_path / "db.sqlite", monkeypatch)


def sink(location: Path, mode: str = "append", **changes: Any) -> JdbcSink:
    return JdbcSink(**{"conn_id": "db", "table": "t", "staging": str(location / "staging"), **MODES[mode], **changes})


@pytest.fixture
def use_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[Steps], None]:
    """Return a function that runs the driver calls of SQLAlchemy as numbered steps."""

    def use(steps: Steps) -> None:
        class Cursor(sqlite3.Cursor):
            connection: Any

            def execute(self, *arguments: Any) -> Any:
                return steps.call("execute", lambda: super(Cursor, self).execute(*arguments), self.die)

            def executemany(self, *arguments: Any) -> Any:
                return steps.call("executemany", lambda: super(Cursor, self).executemany(*arguments), self.die)

            def die(self) -> None:
                self.close()  # otherwise the file stays locked until the cursor is collected
                self.connection.die()

        class Connection(sqlite3.Connection):
            def die(self) -> None:
                super().close()  # SQLite rolls back the open transaction, as it does when a process dies

            def cursor(self, *arguments: Any) -> Any:
                return super().cursor(Cursor)

            def commit(self) -> None:
                steps.call("commit", super().commit, self.die)

            def rollback(self) -> None:
                steps.call("rollback", super().rollback, self.die)

            def close(self) -> None:
                steps.call("close", super().close, self.die)

        def connect(*arguments: Any, **named: Any) -> Any:
            connection = steps.call("connect", lambda: Connection(*arguments, **named), lambda: None)
            assert connection is not None
            return connection

        monkeypatch.setattr("sqlite3.dbapi2.connect", connect)

    return use


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "run_kind"),
    [("append", "batch"), pytest.param("replace_version", "reprocess", marks=pytest.mark.prove)],
)
def test_crash_or_lost_reply_at_any_call_leaves_every_row_once(
    mode: str, run_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_steps: Callable[[Steps], None]
) -> None:
    def scenario(steps: Steps, location: Path) -> None:
        location.mkdir()
        use_steps(Steps())
        db = database_at(location / "db.sqlite", monkeypatch)
        db.run(OPEN_TABLE)
        fixture = PipelineFixture(location)
        fixture.arrive(2)
        pipeline = fixture.pipeline(sinks={"t": sink(location, mode)})
        fixture.run("first", pipeline=pipeline)
        fixture.arrive(1)

        def work() -> None:
            if run_kind == "reprocess":
                fixture.run("again", pipeline=pipeline, reprocessed=0)
            else:
                fixture.run("second", pipeline=pipeline)

        use_steps(steps)
        with suppress(Crash, StreamsemError):
            work()
        use_steps(Steps())
        work()
        if run_kind == "reprocess":
            fixture.run("second", pipeline=pipeline)
        assert db.ids() == fixture.expected, (steps.at, steps.fault, steps.names)
        verdict = fixture.verdict()
        assert verdict.violations == [], (steps.at, steps.fault, steps.names)
        assert db.markers() == [(1 + (run_kind == "reprocess"), "applied")]

    fault_at_every_call(scenario, tmp_path)


@pytest.mark.slow
@pytest.mark.prove
@pytest.mark.parametrize("keeps_history", [False, True])
def test_changes_apply_once_and_in_order_after_a_crash_or_lost_reply_at_any_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_steps: Callable[[Steps], None], keeps_history: bool
) -> None:
    newest_state = Changes(keys=["k"], sequence_by=["at", "n"])
    changes = Changes(keys=["k"], sequence_by="n", stored_as_scd_type=2) if keeps_history else newest_state
    key = (
        'k BIGINT, "__START_AT" BIGINT, "__END_AT" BIGINT, PRIMARY KEY (k, "__START_AT")'
        if keeps_history
        else "k BIGINT PRIMARY KEY"
    )

    def scenario(steps: Steps, location: Path) -> None:
        location.mkdir()
        use_steps(Steps())
        db = database_at(location / "db.sqlite", monkeypatch)
        db.run(f'CREATE TABLE "t" (at BIGINT NOT NULL, n BIGINT NOT NULL, v TEXT, {key})')
        fixture = PipelineFixture(location, store=LocalStore(str(location / "log")))
        pipeline = fixture.pipeline(sinks={"t": sink(location, changes=changes)}, transform=changes_of)
        fixture.arrive(2)
        fixture.run("first", pipeline=pipeline)
        fixture.arrive(1)
        use_steps(steps)
        with suppress(Crash, StreamsemError):
            fixture.run("second", pipeline=pipeline)
        use_steps(Steps())
        fixture.run("second", pipeline=pipeline)
        events = [event(n) for n in sorted(fixture.expected)]
        if keeps_history:
            found = {
                (row[0], row[1]): row[2:] for row in db.run('SELECT k, "__START_AT", "__END_AT", n, at, v FROM "t"')
            }
            assert found == history([[(k, n, at, v) for k, at, n, v in events]]), (steps.at, steps.fault, steps.names)
        else:
            rows = {k: (at, n, v) for k, at, n, v in db.run('SELECT k, at, n, v FROM "t"')}
            assert rows == newest(events), (steps.at, steps.fault, steps.names)
        assert fixture.verdict().violations == [], (steps.at, steps.fault, steps.names)

    fault_at_every_call(scenario, tmp_path)


def fault_at_every_call(scenario: Callable[[Steps, Path], None], directory: Path) -> None:
    complete_run = Steps()
    scenario(complete_run, directory / "complete")
    assert complete_run.names.count("commit") >= 2
    assert "executemany" in complete_run.names
    for at in range(len(complete_run.names)):
        for fault in ("after", "lost"):  # a crash before a call is a crash after the previous one
            steps = Steps(at, fault)
            scenario(steps, directory / f"{at}-{fault}")
            assert len(steps.names) > at, "the step was not reached"


def commit_without_publishing(fixture: PipelineFixture, pipeline: Pipeline, run_key: str) -> None:
    """Run, and die between the commit and the publishing."""

    def die(*_: Any) -> Receipt:
        raise Crash

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(JdbcSink, "publish", die)
        with suppress(Crash):
            fixture.run(run_key, pipeline=pipeline)
            raise AssertionError("the run did not die")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_columns_whose_names_differ_only_in_punctuation_keep_their_values(
    mode: str, db: Database, tmp_path: Path
) -> None:
    """SQLAlchemy 2.0 derives parameter names from column keys, and would derive one parameter name from two such columns."""
    names = ["unit price", "unit_price", "p%", "pP"]
    db.run(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {', '.join(f'{chr(34)}{name}{chr(34)} TEXT' for name in names)})")
    table = Target(None, "t", "mysql", {}, (), frozenset()).table(names)
    assert sorted(sa.insert(table).compile().params) == ["c0", "c1", "c2", "c3"]
    to = sink(tmp_path, mode)
    schema = schema_of(id="long", **dict.fromkeys(names, "string"))
    values = {"id": [1], **{name: [f"of {name}"] for name in names}}
    to.publish(staged(to, pyarrow.table(values), schema=schema))
    assert db.run("SELECT * FROM t") == [(1, *(f"of {name}" for name in names))]


def test_late_publisher_of_a_skipped_version_finds_it_skipped(db: Database, tmp_path: Path) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path)})
    fixture.arrive(1)
    commit_without_publishing(fixture, pipeline, "r")
    batch = committed_batch(fixture, pipeline, "t", 0)
    assert skip(pipeline, 0, sink="t", reason="why", log=fixture.log()).sinks["t"].result == "skipped"
    assert sink(tmp_path).publish(batch) == Receipt(result="skipped", rows=0)
    assert db.ids() == Counter()
    assert fixture.verdict().violations == []


def test_reprocessing_replaces_only_the_rows_of_its_chain(db: Database, tmp_path: Path) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(4)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path, "replace_version")})
    fixture.run("a", pipeline=pipeline, drain=True)
    for attempt, tens in (("b", 10), ("c", 20)):
        changed = pipeline.replace(transform=lambda rows, n=tens: [{"id": row["id"] + n} for row in rows])
        fixture.run(attempt, pipeline=changed, reprocessed=0)
    assert db.ids() == Counter([20, 21, 22, 23, 24, 25, 6, 7, 8, 9, 10, 11])
    assert set(db.run("SELECT id / 20, _streamsem_version FROM t")) == {(1, 0), (0, 1)}
    assert fixture.verdict().violations == []


def test_rollback_deletes_the_rows_of_later_versions(db: Database, tmp_path: Path) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(8)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path, "replace_version")})
    fixture.run("a", pipeline=pipeline, drain=True)
    db.run("INSERT INTO t VALUES (100, NULL)")
    rollback(pipeline, 0, log=fixture.log())
    assert db.ids() == Counter([*range(6), 100]), "rows of other writers stay"
    assert db.markers() == [(4, "applied")]
    fixture.run("b", pipeline=pipeline, drain=True)
    assert db.ids() == fixture.expected + Counter([100])
    assert fixture.verdict().violations == []


def test_rows_of_more_versions_than_one_statement_names_are_deleted(db: Database, tmp_path: Path) -> None:
    db.run(OPEN_TABLE)
    db.run(
        "INSERT INTO t WITH RECURSIVE n(v) AS (SELECT 0 UNION ALL SELECT v + 1 FROM n WHERE v < 1000) SELECT v, v FROM n"
    )
    db.run("INSERT INTO t VALUES (2000, NULL)")
    file = DataFile(key="data/0/a/x.parquet", bytes=1, rows=1, checksum="sha256:00")
    replaced = dict.fromkeys(range(1001), Committable(format="parquet", rows=1, files=(file,)))
    publishing = sink(tmp_path, "replace_version")
    batch = staged(publishing, pyarrow.table({"id": [3000]}), 1001, schema=IDS, expected_marker=None, replaced=replaced)
    publish(publishing, batch)
    assert db.ids() == Counter([2000, 3000])


def test_rollback_that_would_delete_rows_of_others_deletes_none_and_can_be_skipped(
    db: Database, tmp_path: Path
) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(4)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path, "replace_version")})
    fixture.run("a", pipeline=pipeline, drain=True)
    db.run("INSERT INTO t VALUES (100, 1)")
    with pytest.raises(PublishError, match="another writer also sets the version column"):
        rollback(pipeline, 0, log=fixture.log())
    assert db.ids() == fixture.expected + Counter([100])
    db.run("DELETE FROM t WHERE _streamsem_version = 1")
    assert rollback(pipeline, 0, log=fixture.log()).version == 2
    fixture.run("b", pipeline=pipeline, drain=True)
    assert db.ids() == fixture.expected


def test_rows_of_others_are_not_hidden_by_rows_that_are_missing_from_another_version(
    db: Database, tmp_path: Path
) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(6)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path, "replace_version")})
    fixture.run("a", pipeline=pipeline, drain=True)
    db.run("DELETE FROM t WHERE _streamsem_version = 2")
    db.run("INSERT INTO t VALUES (100, 1)")
    with pytest.raises(PublishError, match="another writer also sets the version column") as refused:
        rollback(pipeline, 0, log=fixture.log())
    assert refused.value.fields["too_many"] == [1]
    assert db.ids() == Counter([*range(12), 100])


def test_rollback_of_a_missing_table_is_refused_before_the_plan(db: Database, tmp_path: Path) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(4)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path, "replace_version")})
    fixture.run("a", pipeline=pipeline, drain=True)
    db.run("ALTER TABLE t RENAME TO other")
    with pytest.raises(InvalidError, match="the database has no such table"):
        rollback(pipeline, 0, log=fixture.log())
    assert fixture.log().plan(2) is None


def test_two_sinks_that_would_replace_each_others_rows_are_refused(db: Database, tmp_path: Path) -> None:
    both = {name: sink(tmp_path / name, "replace_version") for name in ("a", "b")}
    with pytest.raises(InvalidError, match=r"replace each other's rows.*'a', 'b'"):
        PipelineFixture(tmp_path).pipeline(sinks=both)
    PipelineFixture(tmp_path).pipeline(sinks={name: sink(tmp_path / name, "append") for name in ("a", "b")})


def test_reprocessing_that_would_delete_rows_of_others_is_refused_and_deletes_none(
    db: Database, tmp_path: Path
) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path, "replace_version")})
    fixture.run("a", pipeline=pipeline)
    db.run("INSERT INTO t VALUES (100, 0)")
    with pytest.raises(PublishError, match="another writer also sets the version column"):
        fixture.run("b", pipeline=pipeline, reprocessed=0)
    assert db.ids() == fixture.expected + Counter([100])
    assert skip(pipeline, 1, sink="t", reason="leave it", log=fixture.log()).sinks["t"].result == "skipped"
    assert db.ids() == fixture.expected + Counter([100])


def test_reprocessing_is_refused_if_a_trigger_keeps_the_replaced_rows(db: Database, tmp_path: Path) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path, "replace_version")})
    fixture.run("a", pipeline=pipeline)
    db.run("CREATE TRIGGER kept BEFORE DELETE ON t BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(PublishError, match="a trigger or rule of the table keeps them"):
        fixture.run("b", pipeline=pipeline, reprocessed=0)
    assert db.ids() == fixture.expected
    db.run("DROP TRIGGER kept")
    fixture.run("b", pipeline=pipeline, reprocessed=0)
    assert db.ids() == fixture.expected


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_reprocessing_in_a_mode_that_cannot_replace_is_refused_before_anything_is_written(
    mode: str, db: Database, tmp_path: Path
) -> None:
    db.run(TABLE)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path, mode)})
    fixture.run("a", pipeline=pipeline)
    with pytest.raises(InvalidError, match="cannot replace"):
        reprocess(pipeline, 0, run_key="b", log=fixture.log())
    assert fixture.opened().log.plan(1) is None


def test_upsert_keeps_the_last_row_of_a_key_within_and_across_batches(db: Database, tmp_path: Path) -> None:
    db.run('CREATE TABLE t (id BIGINT PRIMARY KEY, "na""me %s" TEXT, mine TEXT DEFAULT \'kept\')')
    to, schema = sink(tmp_path, "upsert"), schema_of(**{"id": "long", 'na"me %s': "string"})
    rows = pyarrow.table({"id": [1, 2, 1], 'na"me %s': ["a", "b", "c"]})
    to.publish(staged(to, rows, 0, schema=schema))
    db.run("UPDATE t SET mine = 'changed'")
    later = pyarrow.table({"id": [2, 3], 'na"me %s': ["d", ""]})
    to.publish(staged(to, later, 1, schema=schema))
    assert db.run("SELECT * FROM t ORDER BY id") == [(1, "c", "changed"), (2, "d", "changed"), (3, "", "kept")]


def test_values_arrive_unchanged(db: Database, tmp_path: Path) -> None:
    db.run(
        "CREATE TABLE t (b BOOLEAN, i BIGINT, f DOUBLE, s TEXT, x BLOB, d DATE, u DATETIME, n DATETIME, m NUMERIC(12,2), a TEXT, j JSON)"
    )
    to = sink(tmp_path)
    array = {"type": "array", "elementType": "long", "containsNull": True}
    schema = schema_of(b="boolean", i="long", f="double", s="string", x="binary", d="date", u="timestamp", n="timestamp_ntz", m="decimal(12,2)", a=array, j=array)  # fmt: skip
    at = datetime.datetime(2020, 2, 29, 23, 59, 59, 999_999)
    values: dict[str, list[Any]] = {
        "b": [True, None], "i": [-(2**63), None], "f": [float("inf"), None], "s": ["", None], "x": [b"\x00\xff", None], "d": [at.date(), None],
        "u": [at.replace(tzinfo=datetime.timezone.utc), None], "n": [at, None], "m": [Decimal("-1234567890.12"), None], "a": [[1, None], None], "j": [[1], None],
    }  # fmt: skip
    to.publish(staged(to, pyarrow.table(values), schema=schema))
    first, second = db.run("SELECT * FROM t")
    assert first == (1, -(2**63), float("inf"), "", b"\x00\xff", "2020-02-29", "2020-02-29 23:59:59.999999", "2020-02-29 23:59:59.999999", -1234567890.12, "[1,null]", "[1]")  # fmt: skip
    assert second == (None,) * 11


def test_number_that_sqlite_would_turn_into_null_is_refused_before_the_commit(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (f DOUBLE)")
    with pytest.raises(DataError, match=r"nothing became visible \(table='t', columns=\{'f': 'is NaN"):
        staged(sink(tmp_path), pyarrow.table({"f": [float("nan"), None]}), schema=schema_of(f="double"))


REFUSED = {
    "no such table": ("append", "CREATE TABLE other (id BIGINT)", {"id": "long"}),
    "a view": ("append", "CREATE VIEW t AS SELECT 1 AS id", {"id": "long"}),
    "no such column": ("append", "CREATE TABLE t (id BIGINT)", {"id": "long", "more": "long"}),
    "another case": ("append", "CREATE TABLE t (ID BIGINT)", {"id": "long"}),
    "another type": ("append", "CREATE TABLE t (id TEXT)", {"id": "long"}),
    "a decimal that a float cannot hold": ("append", "CREATE TABLE t (id NUMERIC(30,2))", {"id": "decimal(30,2)"}),
    "an untyped column": ("append", "CREATE TABLE t (id BIGINT, a BIGINT)", {"id": "long", "a": "void"}),
    "an unsupported type": ("append", "CREATE TABLE t (id TEXT)", {"id": "interval day to second"}),
    "a missing NOT NULL column": ("append", "CREATE TABLE t (id BIGINT, must TEXT NOT NULL)", {"id": "long"}),
    "a generated column": ("append", "CREATE TABLE t (id BIGINT, twice BIGINT AS (id * 2) STORED)", {"id": "long", "twice": "long"}),
    "no unique index": ("upsert", "CREATE TABLE t (id BIGINT NOT NULL)", {"id": "long"}),
    "a unique index of other columns": ("upsert", "CREATE TABLE t (id BIGINT NOT NULL, a BIGINT, UNIQUE (id, a))", {"id": "long"}),
    "a partial unique index": ("upsert", "CREATE TABLE t (id BIGINT NOT NULL); CREATE UNIQUE INDEX i ON t (id) WHERE id > 0", {"id": "long"}),
    "a key that may be null": ("upsert", "CREATE TABLE t (id BIGINT UNIQUE)", {"id": "long"}),
    "rows without the key": ("upsert", "CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT)", {"a": "long"}),
    "no version column": ("replace_version", "CREATE TABLE t (id BIGINT)", {"id": "long"}),
    "rows with a version column": ("replace_version", TABLE, {"id": "long", "_streamsem_version": "long"}),
    "markers that are not unique": ("append", "CREATE TABLE t (id BIGINT); CREATE TABLE streamsem_markers (pipeline_uuid TEXT, sink TEXT, version BIGINT, state TEXT)", {"id": "long"}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unsuitable_table_or_columns_are_refused_before_the_commit(case: str, db: Database, tmp_path: Path) -> None:
    mode, statements, kinds = REFUSED[case]
    for statement in statements.split("; "):
        db.run(statement)
    with pytest.raises(DataError, match="nothing became visible"):
        resolve_schema(sink(tmp_path, mode), schema_of(**kinds))


KINDS = ["boolean", "byte", "short", "integer", "long", "float", "double", "decimal(15,2)", "decimal(22,2)", "string", "varchar(3)", "binary", "date", "timestamp", "timestamp_ntz", {"type": "array", "elementType": "long", "containsNull": True}]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_error_of_a_column_that_does_not_fit_says_what_does(kind: Any, db: Database, tmp_path: Path) -> None:
    db.run(f"CREATE TABLE t (id {'BLOB' if kind != 'binary' else 'TEXT'})")
    with pytest.raises(DataError) as refused:
        resolve_schema(sink(tmp_path), schema_of(id=kind))
    problem = refused.value.fields["columns"]["id"]  # type: ignore[index]
    declared = problem.partition("declare it as ")[2].partition(", or")[0]
    db.run("DROP TABLE t")
    db.run(f"CREATE TABLE t (id {declared})")
    is_too_long = kind == "decimal(22,2)"
    assert ("SQLite keeps only 15 digits" in problem) == is_too_long
    resolve_schema(sink(tmp_path), schema_of(id="string" if is_too_long else kind))


def test_matching_columns_are_accepted_and_the_check_leaves_no_rows(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT DEFAULT 'x' NOT NULL, _streamsem_version BIGINT)")
    for mode in MODES:
        resolve_schema(sink(tmp_path, mode), IDS)
    assert db.run("SELECT * FROM t") == []
    assert db.markers() == []


@pytest.mark.parametrize("action", ["IGNORE", "REPLACE"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_constraint_that_would_silently_drop_rows_refuses_the_batch(
    db: Database, tmp_path: Path, mode: str, action: str
) -> None:
    db.run(f"CREATE TABLE t (id BIGINT PRIMARY KEY NOT NULL, other BIGINT UNIQUE ON CONFLICT {action})")
    target = sink(tmp_path, mode)
    batch = staged(target, pyarrow.table({"id": [1, 2], "other": [7, 7]}), schema=schema_of(id="long", other="long"))
    with pytest.raises(PublishError, match="UNIQUE"):
        target.publish(batch)
    assert db.ids() == Counter()


def test_nulls_in_a_not_null_column_are_refused_before_the_commit(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id BIGINT, s TEXT NOT NULL)")
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    pipeline = fixture.pipeline(
        sinks={"t": sink(tmp_path)},
        transform=lambda rows: [{**r, "s": "x" if i == 0 else None} for i, r in enumerate(rows)],
    )
    with pytest.raises(DataError, match=r"NOT NULL in the table.*'s'"):
        fixture.run("a", pipeline=pipeline)
    assert fixture.opened().log.outcome(0) is None
    assert db.run("SELECT * FROM t") == []


def test_row_that_breaks_a_constraint_is_reported_and_published_after_the_table_is_fixed(
    db: Database, tmp_path: Path
) -> None:
    db.run('CREATE TABLE "t" (id BIGINT, CONSTRAINT small CHECK (id < 3))')
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path)})
    with pytest.raises(PublishError, match="small") as caught:
        fixture.run("a", pipeline=pipeline)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert caught.value.fields["sqlstate"] == "SQLITE_CONSTRAINT_CHECK" or caught.value.fields["constraint"] == "small"
    assert db.ids() == Counter()
    assert db.markers() == []
    assert fixture.opened().log.receipts(0) is None
    db.run('ALTER TABLE "t" RENAME TO "old"')
    db.run(OPEN_TABLE)
    fixture.run("a", pipeline=pipeline)
    assert db.ids() == fixture.expected
    assert fixture.verdict().violations == []


def test_dropped_marker_table_stops_publishing_and_is_not_recreated(db: Database, tmp_path: Path) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path)})
    fixture.arrive(1)
    fixture.run("a", pipeline=pipeline)
    fixture.arrive(1)
    commit_without_publishing(fixture, pipeline, "b")
    kept = db.run("SELECT * FROM streamsem_markers")
    db.run("DROP TABLE streamsem_markers")
    for emptied in (False, True):
        if emptied:
            db.run(CREATE_MARKERS)
        with pytest.raises(MarkerLostError, match=r"marker table.*table='t', markers='streamsem_markers'") as stopped:
            fixture.run("b", pipeline=pipeline)
        assert "expected_marker=0" in str(stopped.value)
        assert db.ids() == Counter(range(3))
        assert [finding.invariant for finding in fixture.verdict().violations] == ["I15"]
    uuid, name = stopped.value.fields["pipeline_uuid"], stopped.value.fields["sink"]
    version = stopped.value.fields["expected_marker"]
    assert [row[:4] for row in kept] == [(uuid, name, version, "applied")]
    values = {"<pipeline_uuid>": uuid, "<sink>": name, "<expected_marker>": str(version)}
    db.run(re.sub(r"<\w+>", lambda placeholder: values[placeholder[0]], INSERT_MARKER))
    fixture.run("b", pipeline=pipeline)
    assert db.ids() == fixture.expected
    assert fixture.verdict().violations == []


@pytest.mark.parametrize(
    "damage", ["the markers were dropped", "the markers were emptied", "an older copy", "no table"]
)
def test_database_that_lost_published_versions_stops_the_run_and_creates_nothing(
    db: Database, tmp_path: Path, damage: str
) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path)})
    fixture.arrive(6)
    fixture.run("a", pipeline=pipeline)
    older = db.path.read_bytes()
    fixture.run("b", pipeline=pipeline)
    newest = db.path.read_bytes()
    if damage == "an older copy":
        db.path.write_bytes(older)
    else:
        db.run({"the markers were dropped": "DROP TABLE streamsem_markers", "no table": 'DROP TABLE "t"'}.get(damage, "DELETE FROM streamsem_markers"))  # fmt: skip
    before = db.run("SELECT name FROM sqlite_master ORDER BY 1")
    refused = DataError if damage in ("the markers were dropped", "no table") else MarkerLostError
    for run_key in ("c", "d"):
        with pytest.raises(refused, match=r"streamsem_markers|no such table; nothing became visible \(table='t'"):
            fixture.run(run_key, pipeline=pipeline)
    assert db.run("SELECT name FROM sqlite_master ORDER BY 1") == before
    if damage != "no table":
        assert [(f.invariant, f.version) for f in fixture.verdict().violations] == [("I15", 1)]
    if damage == "an older copy":
        skip(pipeline, 2, sink="t", reason="version 1 was lost with the disk", log=fixture.log())
        assert db.ids() == Counter(range(6))
        db.run(f'INSERT INTO "t" (id) VALUES {", ".join(f"({n})" for n in range(6, 18))}')
    else:
        db.path.write_bytes(newest)
    fixture.run("rest", drain=True, pipeline=pipeline)
    assert db.ids() == fixture.expected
    assert fixture.verdict().violations == []


def test_version_is_skipped_after_the_marker_table_was_dropped_and_later_ones_are_published(
    db: Database, tmp_path: Path
) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path)})
    fixture.arrive(1)
    fixture.run("a", pipeline=pipeline)
    fixture.arrive(1)
    commit_without_publishing(fixture, pipeline, "b")
    db.run("DROP TABLE streamsem_markers")
    skip(pipeline, 1, sink="t", reason="the table has the rows", log=fixture.log())
    fixture.arrive(1)
    fixture.run("c", pipeline=pipeline)
    assert db.markers() == [(2, "applied")]
    assert db.ids() == Counter([0, 1, 2, 6, 7, 8])


def test_passwords_and_row_values_never_appear_in_output(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    db.run("CREATE TABLE t (s TEXT PRIMARY KEY)")
    to, schema = sink(tmp_path), schema_of(s="string")
    batch = staged(to, pyarrow.table({"s": ["hunter2", "hunter2"]}), schema=schema)
    outputs = []
    for call in (lambda: to.publish(batch), lambda: to.resolve_schema(schema)):
        with pytest.raises(StreamsemError) as caught:
            call()
        error: BaseException | None = caught.value
        while error is not None:
            outputs.append(f"{error!s} {error!r}")
            error = error.__cause__ or error.__context__
        unreachable = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "me", "password": "hunter2"}
        monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(unreachable))
    assert isinstance(caught.value, UnavailableError)
    fixture = PipelineFixture(tmp_path)
    outputs += [repr(to), json.dumps(fixture.pipeline(sinks={"t": to}).to_json()), caplog.text]
    assert "hunter2" not in "".join(outputs)


def test_spec_round_trips_and_its_immutable_config_includes_the_location_of_the_rows(tmp_path: Path) -> None:
    pipeline = PipelineFixture(tmp_path).pipeline(sinks={"t": sink(tmp_path, "upsert", table="s.t", markers="s.m")})
    again = from_json(pipeline.without_transform())
    assert again.sinks == pipeline.sinks
    assert pipeline.immutable_config()["sinks"]["t"] == {
        "type": "jdbc", "conn_id": "db", "table": "s.t", "markers": "s.m", "staging": f"{tmp_path}/staging", "mode": "upsert", "version_column": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "merge"}, {"keys": ["id"]}, {"mode": "upsert"}, {"mode": "upsert", "keys": "id"}, {"table": "a.b.c"}, {"table": ""}, {"markers": "t"}, {"conn_id": ""}, {"staging": "memory://x"}],
)  # fmt: skip
def test_contradictory_arguments_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidError):
        JdbcSink(**{"conn_id": "db", "table": "t", "staging": str(tmp_path), **wrong})


@pytest.mark.parametrize(
    "connection",
    ['{"conn_type": "sqlite"}', '{"conn_type": "http", "host": "x"}', '{"conn_type": "generic", "host": "x"}', '{"conn_type": "generic", "extra": {"sqlalchemy_scheme": "no+such"}}'],
)  # fmt: skip
def test_connection_without_a_database_is_refused(
    connection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DB", connection)
    with pytest.raises(InvalidError):
        resolve_schema(sink(tmp_path), IDS)


def test_sqlite_file_is_found_by_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = database_at(tmp_path / "db.sqlite", monkeypatch)
    db.run(OPEN_TABLE)
    monkeypatch.setenv("AIRFLOW_CONN_DB", f"sqlite:///{tmp_path}/db.sqlite")
    assert sink(tmp_path).marker(UUID, "t") is None
    resolve_schema(sink(tmp_path), IDS)
    assert db.markers() == []
    with database.connected("db") as connection:
        assert connection.engine.url.database == str(tmp_path / "db.sqlite")


@pytest.fixture
def published(db: Database, tmp_path: Path) -> PipelineFixture:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    fixture.run("a", pipeline=fixture.pipeline(sinks={"t": sink(tmp_path)}))
    return fixture


def test_staged_rows_are_vacuumed_after_their_receipts(
    published: PipelineFixture, tmp_path: Path, db: Database
) -> None:
    from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum

    pipeline = published.pipeline(sinks={"t": sink(tmp_path)})
    done = vacuum(pipeline, log=published.log())
    assert [attempt[:2] for attempt in done.attempts] == [("t", 0)]
    late = committed_batch(published, pipeline, "t", 0)
    assert sink(tmp_path).publish(late) == Receipt(result="applied", rows=3)
    assert db.ids() == published.expected
    assert published.verdict().violations == []


def test_versions_lost_in_a_restore_are_reprocessed_after_the_loss_was_accepted(db: Database, tmp_path: Path) -> None:
    db.run(OPEN_TABLE)
    fixture = PipelineFixture(tmp_path)
    pipeline = fixture.pipeline(sinks={"t": sink(tmp_path, "replace_version")})
    fixture.arrive(6)
    fixture.run("a", pipeline=pipeline)
    older = db.path.read_bytes()
    fixture.run("b", pipeline=pipeline)
    db.path.write_bytes(older)
    with pytest.raises(MarkerLostError):
        fixture.run("c", pipeline=pipeline)
    skip(pipeline, 2, sink="t", reason="the newest copy is lost", log=fixture.log())
    for version in (1, 2):
        fixture.run(f"again {version}", reprocessed=version, pipeline=pipeline)
    assert db.ids() == fixture.expected
    assert fixture.verdict().violations == []
