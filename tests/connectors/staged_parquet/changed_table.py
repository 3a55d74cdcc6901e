"""A table to which batches of change data are applied, and the rows that it must have."""

from __future__ import annotations

import datetime
import random
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from deltalake import DeltaTable, write_deltalake
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from airflow_provider_streamsem import Changes, DeltaSink, IcebergSink, JdbcSink, tombstones
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connections import Connection, use_resolver
from airflow_provider_streamsem.connectors.changes import CHANGE, END, START, UNCHANGED
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.state.layers import files_of_layers
from airflow_provider_streamsem.stores.local import LocalStore
from tests.connectors import batches

CHANGES = Changes(
    keys=["k"], sequence_by=["at", "n"], apply_as_deletes="op = 'd'", apply_as_truncates="op = 't'", except_column_list=["op"]
)  # fmt: skip
Event = tuple[int | None, int, int, str | None]
"""Key, the two columns of the sequence, and the value; ``None`` for a delete, :data:`KEEP` for an update of other columns. A truncate has no key."""
KEEP, UNKNOWN = "keep", "unknown"
PARTIAL = replace(CHANGES, unchanged_columns="unchanged", unknown_values="null")
HISTORY = Changes(
    keys=["k"], sequence_by="at", apply_as_deletes="op = 'd'", except_column_list=["op"], stored_as_scd_type=2
)
PARTIAL_HISTORY = replace(HISTORY, unchanged_columns="unchanged", unknown_values="null")
JOINED_HISTORY = replace(HISTORY, track_history_column_list=["v"])


@dataclass(frozen=True)
class Kind:
    """
    A type of a key or of a sequence. Tests have small integers in place of its values.

    :param spark: the type in Spark's form; ``arrow``: in pyarrow; ``postgres``: in Postgres
    :param value: integer → value, in ascending order
    """

    spark: str
    arrow: pyarrow.DataType
    postgres: str
    value: Callable[[int], Any]

    def integer(self, value: Any) -> int:
        return next(n for n in range(1_000) if self.value(n) == value)


_START = datetime.datetime(2026, 3, 8, 4, 30, tzinfo=datetime.timezone.utc)
KINDS = {
    "long": Kind("long", pyarrow.int64(), "bigint", lambda n: n),
    "integer": Kind("integer", pyarrow.int32(), "integer", lambda n: n),
    "decimal": Kind("decimal(38,2)", pyarrow.decimal128(38, 2), "numeric(38,2)", lambda n: Decimal(n) * 10**30 + Decimal("0.25")),
    "date": Kind("date", pyarrow.date32(), "date", lambda n: datetime.date(1, 1, 1) + datetime.timedelta(days=n)),
    "timestamp": Kind("timestamp", pyarrow.timestamp("us", "UTC"), "timestamptz", lambda n: _START + datetime.timedelta(hours=n, microseconds=1)),
    "timestamp_ntz": Kind("timestamp_ntz", pyarrow.timestamp("us"), "timestamp", lambda n: _START.replace(tzinfo=None) + datetime.timedelta(minutes=n)),
    "string": Kind("string", pyarrow.string(), "text", lambda n: f"é'\\\u2028 {n:03}"),
}  # fmt: skip


@dataclass
class Table(ABC):
    """
    A table, and the tombstones in the log of its pipeline, without a pipeline.

    :param spark: opens the session in which the engine ``spark`` merges
    :param now_ms: when the next batch is planned
    :param key: the type of the column ``k``; ``sequence``: that of ``at``
    """

    root: Path
    changes: Changes = CHANGES
    engine: str = "library"
    spark: Any = None
    now_ms: int = 0
    version: int = 0
    state: Json = None
    key: Kind = KINDS["long"]
    sequence: Kind = KINDS["long"]
    batches: list[SinkCommit] = field(default_factory=list)

    @property
    @abstractmethod
    def sink(self) -> Any: ...

    @abstractmethod
    def stored(self) -> Sequence[Any]:
        """Return the rows of the table: tuples of ``k``, ``at``, ``n``, ``v``."""

    def apply(self, events: Sequence[Event], kind: Callable[[Event], str] | None = None) -> Any:
        """Commit and publish one batch. Its rows are staged in the order of their sequence, as Spark stages them."""
        rows = sorted(events, key=lambda event: event[1:3])
        k, at, n, v = zip(*rows, strict=True)
        table = pyarrow.table(
            {
                "k": pyarrow.array([None if each is None else self.key.value(each) for each in k], self.key.arrow),
                "at": pyarrow.array(
                    [None if each is None else self.sequence.value(each) for each in at], self.sequence.arrow
                ),
                "n": pyarrow.array(n, pyarrow.int64()),
                "v": pyarrow.array([None if each == KEEP else each for each in v], pyarrow.string()),
                CHANGE: pyarrow.array([(kind or change)(event) for event in rows], pyarrow.string()),
            }
        )
        if self.changes.is_partial:
            unchanged = pyarrow.array([["v"] if each == KEEP else None for each in v], pyarrow.list_(pyarrow.string()))
            table = table.append_column(UNCHANGED, unchanged)
        if self.changes.keeps_history:
            table = table.append_column(START, table["at"])
            table = table.append_column(END, pyarrow.nulls(len(rows), self.sequence.arrow))
        self.root.mkdir(exist_ok=True)
        log = CommitLog(LocalStore(str(self.root / "log")))
        batch = batches.staged(self.sink, table, self.version, schema=self.schema, log=log, spark=self.spark)
        self.state = tombstones.state_after(
            self.state, {"t": self.sink}, {"t": batch.committable}, {"t": self.schema}, log=log.store.url,
            now_ms=self.now_ms, version=self.version, attempt_id="a" * 32,
        )  # fmt: skip
        self.batches.append(batch := replace(batch, tombstones=files_of_layers(self.state)))
        self.version += 1
        return self.publish(batch)

    def publish(self, batch: SinkCommit) -> Any:
        return self.sink.publish(batch)

    def rows(self) -> dict[int, tuple[int, int, str | None]]:
        rows = self.stored()
        assert len({row[0] for row in rows}) == len(rows), "a key has several rows"
        return {self.key.integer(k): (self.sequence.integer(at), n, v) for k, at, n, v in rows}

    def versions(self) -> dict[tuple[int, int], tuple[int | None, int, int, str | None]]:
        """Return key and begin of a version → its end, and the values of ``at``, ``n``, ``v``."""
        of = self.sequence.integer
        rows = self.stored()
        found = {
            (self.key.integer(k), of(start)): (None if end is None else of(end), of(at), n, v)
            for k, at, n, v, start, end in rows
        }
        assert len(found) == len(rows), "a version is in the table twice"
        return found

    def _tuples(self, table: Any) -> Sequence[Any]:
        assert table.schema.names == self.columns
        return [tuple(row.values()) for row in table.to_pylist()]

    @property
    def columns(self) -> list[str]:
        return ["k", "at", "n", "v", *([START, END] if self.changes.keeps_history else [])]

    @property
    def schema(self) -> str:
        history = {name: self.sequence.spark for name in (START, END) if self.changes.keeps_history}
        return batches.schema_of(k=self.key.spark, at=self.sequence.spark, n="long", v="string", **history)


class Delta(Table):
    @property
    def sink(self) -> DeltaSink:
        return DeltaSink(str(self.root / "table"), changes=self.changes, engine=self.engine)

    def stored(self) -> Sequence[Any]:
        return self._tuples(DeltaTable(str(self.root / "table")).to_pyarrow_table())


class Iceberg(Table):
    @property
    def sink(self) -> IcebergSink:
        location = str(self.root / "table")
        return IcebergSink(location, "lake.t", properties=self._catalog, changes=self.changes, engine=self.engine)

    @property
    def _catalog(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db", "warehouse": str(self.root)}

    def stored(self) -> Sequence[Any]:
        return self._tuples(load_catalog("default", **self._catalog).load_table("lake.t").scan().to_arrow())


CREATE = "CREATE TABLE {} (k {} PRIMARY KEY, at {}, n bigint, v varchar(9) NOT NULL)"


def created(name: str, key: str, sequence: str, changes: Changes) -> str:
    """Return the statement that creates a table. A value that is not known must be accepted. A table with history has at most one current version of a row."""
    if changes.keeps_history:
        quote = "`" if "decimal" in sequence else '"'
        start, end = (f"{quote}{column}{quote}" for column in (START, END))
        history = f"{start} {sequence}, {end} {sequence}, PRIMARY KEY (k, {start})"
        return f"CREATE TABLE {name} (k {key}, at {sequence}, n bigint, v varchar(9) NOT NULL, {history})"
    statement = CREATE.format(name, key, sequence)
    return statement.replace(" NOT NULL", "") if changes.is_partial else statement


@dataclass
class Database(Table):
    """
    A table of a database. It has a column that must not be null, which a delete lacks.

    :param run: runs a statement, and returns its rows
    :param names: arguments of the sink: the connection and the names of the tables
    """

    run: Callable[[str], Sequence[Any]] = lambda statement: []
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def sink(self) -> JdbcSink:
        return JdbcSink(staging=str(self.root / "staging"), changes=self.changes, **self.names)

    def stored(self) -> Sequence[Any]:
        rows = self.run("SELECT * FROM t ")
        return [tuple(row) for row in rows]


class Sqlite(Database):
    """A table in a SQLite file, which the connection ``db`` reaches."""

    def __init__(self, root: Path, changes: Changes = CHANGES) -> None:
        super().__init__(root, changes=changes, run=self._run, names={"conn_id": "db", "table": "t"})
        self._run(created("t", "bigint", "bigint", changes))

    def _run(self, statement: str) -> Sequence[Any]:
        with closing(sqlite3.connect(self.root / "table.db")) as connection, connection:
            return connection.execute(statement).fetchall()

    def apply(self, events: Sequence[Event], kind: Callable[[Event], str] | None = None) -> Any:
        with self._connected():
            return super().apply(events, kind)

    def publish(self, batch: SinkCommit) -> Any:
        with self._connected():
            return super().publish(batch)

    def _connected(self) -> AbstractContextManager[None]:
        host = str(self.root / "table.db")
        return use_resolver(lambda conn_id: Connection(conn_id=conn_id, conn_type="sqlite", host=host))


def change(event: Event) -> str:
    return "t" if event[0] is None else "d" if event[3] is None else "u"


def newest(events: Sequence[Event]) -> dict[int, tuple[int, int, str | None]]:
    """
    Return the rows that a table has after these events, one after the other: an event applies if no newer one came before it. A value that is kept although
    there is no row is not known.
    """
    states: dict[int, Event] = {}
    truncated: tuple[int, int] = (-1, -1)
    for k, *event in events:
        at = (event[0], event[1])
        if k is None:
            truncated = max(truncated, at)
            states = {key: known for key, known in states.items() if known[1:3] >= truncated or known[3] is None}
        elif at >= truncated and (k not in states or at >= states[k][1:3]):
            value = event[2]
            if value == KEEP:
                known = states[k][3] if k in states else None
                value = UNKNOWN if known is None else known
            states[k] = (k, *at, value)
    return {k: (at, n, None if v == UNKNOWN else v) for k, (_, at, n, v) in states.items() if v is not None}


def history(applied: Sequence[Sequence[Event]]) -> dict[tuple[int, int], tuple[int | None, int, int, str | None]]:
    """Return the versions that a table has after these batches: see :meth:`Table.versions`. Of events with equal sequences, the last one to arrive counts."""
    known: dict[tuple[int, int], tuple[int, str | None]] = {}
    for batch in applied:
        own = {(k, at): (n, v) for k, at, n, v in sorted(batch, key=lambda event: event[1:3]) if k is not None}
        known |= own
        for k, at in sorted(own):  # a value that is kept is that of the version before
            before = max((other for other in known if other[0] == k and other[1] < at), default=None)
            if own[k, at][1] == KEEP:
                value = UNKNOWN if before is None or known[before][1] is None else known[before][1]
                known[k, at] = (own[k, at][0], value)
    ends = {
        at: next((other[1] for other in sorted(known) if other[0] == at[0] and other[1] > at[1]), None) for at in known
    }
    return {
        (k, at): (ends[k, at], at, n, None if v == UNKNOWN else v) for (k, at), (n, v) in known.items() if v is not None
    }


def joined(applied: Sequence[Sequence[Event]]) -> dict[tuple[int, int], tuple[int | None, int, int, str | None]]:
    """Return :func:`history` if only another value of ``v`` begins a version. This holds while no event is late."""
    result: dict[tuple[int, int], tuple[int | None, int, int, str | None]] = {}
    for (k, start), version in sorted(history(applied).items()):
        before = max((other for other in result if other[0] == k), default=None)
        if before is not None and result[before][0] == start and result[before][3] == version[3]:
            result[before] = version
        else:
            result[k, start] = version
    return result


def in_arrival_order(applied: Sequence[Sequence[Event]]) -> list[Event]:
    return [event for batch in applied for event in sorted(batch, key=lambda event: event[1:3])]


def event(n: int) -> Event:
    """Return the change of the n-th record: of few keys, often late, and a third of them deletes."""
    return (n % 4, (n * 7) % 5, n, None if n % 3 == 0 else str(n))


def changes_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    events = [event(row["id"]) for row in rows]
    return [{"k": k, "at": at, "n": n, "v": v or "", CHANGE: "d" if v is None else "u"} for k, at, n, v in events]


PARTIAL_EVENTS = st.tuples(
    st.sampled_from([0, 1, 2]), st.integers(0, 3), st.integers(0, 1), st.sampled_from(["a", "b", None, KEEP, KEEP])
)
EVENTS = st.tuples(
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, None]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(["a", "b", None]),
).map(lambda event: event if event[0] is not None else (*event[:3], None))


def apply_randomly(table: Table, *, count: int = 9) -> None:
    """Apply batches with late changes, deletes and truncates, and compare the rows after each batch."""
    chance = random.Random(7)
    values = ["a", "b", None, *([KEEP, KEEP] if table.changes.is_partial else [])]
    applied: list[list[Event]] = []
    for batch in range(count):
        events: list[Event] = [
            (chance.randrange(12), chance.randrange(10), chance.randrange(3), chance.choice(values)) for _ in range(7)
        ]
        applied.append([*events, (None, chance.randrange(4, 8), 0, None) if batch % 4 == 2 else (12, 9, batch, "c")])
        assert table.apply(applied[-1]).rows == 8
        assert table.rows() == newest(in_arrival_order(applied))


def apply_randomly_to_history(table: Table, other: Table, *, count: int) -> None:
    """Apply batches with late changes, repeats and deletes to two tables, and compare the versions after each batch."""
    chance = random.Random(11)
    values = ["a", "b", None, *([KEEP, KEEP] if table.changes.is_partial else [])]
    applied: list[list[Event]] = []
    for _ in range(count):
        repeated = chance.sample(applied[-1], 2) if applied else []
        applied.append([*repeated, *((chance.randrange(5), chance.randrange(12), chance.randrange(3), chance.choice(values)) for _ in range(9))])  # fmt: skip
        for each in (table, other):
            each.apply(applied[-1])
        assert table.versions() == other.versions()
        if not table.changes.joins_versions:
            assert table.versions() == history(applied)


THEIRS = {
    "k": [1, 2, 2, 3, 4, 5],
    "at": [1, None, None, 9, 0, None],
    "v": ["a", "a", "b", "a", "a", "a"],
    "__START_AT": [None, 1, 3, 2, 2, 1],
    "__END_AT": [None, 3, None, 5, None, None],
}
"""Rows of another writer: sequences that are null, or that no change of the row version can have."""


def with_theirs(table: Table, columns: Mapping[str, list[Any]] = THEIRS) -> Table:
    """Create the Delta table with rows of another writer, which also has a column ``c``."""
    rows = {name: pyarrow.array(values, pyarrow.string() if name == "v" else pyarrow.int64()) for name, values in columns.items()}  # fmt: skip
    n = pyarrow.array([0] * len(columns["k"]), pyarrow.int64())
    kept = pyarrow.array(["keep"] * len(columns["k"]))
    ordered = {"k": rows["k"], "at": rows["at"], "n": n, "v": rows["v"], "__START_AT": rows["__START_AT"], "__END_AT": rows["__END_AT"], "c": kept}  # fmt: skip
    table.root.mkdir(exist_ok=True)
    write_deltalake(str(table.root / "table"), pyarrow.table(ordered))
    return table


def contents(table: Table) -> list[tuple[Any, ...]]:
    """Return the rows (k, at, v, begin, end, c) of the table."""
    read = DeltaTable(str(table.root / "table")).to_pyarrow_table().to_pylist()
    return sorted(((row["k"], row["at"], row["v"], row["__START_AT"], row["__END_AT"], row["c"]) for row in read), key=str)  # fmt: skip


def apply_without_effect(table: Table) -> None:
    """Apply batches that change no row: of a new table, and of one with rows."""
    assert table.apply([(1, 5, 0, None), (2, 5, 0, None)]).result == "applied"
    assert table.rows() == {}
    assert table.apply([(1, 4, 0, "late")]).result == "applied"
    table.apply([(3, 5, 0, "c")])
    assert table.apply([(3, 4, 0, "late"), (4, 4, 0, None), (None, 0, 0, None)]).result == "applied"
    assert table.rows() == {3: (5, 0, "c")}


def truncate_rows_of_another_writer(table: Delta) -> None:
    """The rows have equal keys, null keys and null sequences."""
    rows = {"k": [1, 1, None, 2, 3], "at": [1, 2, 1, None, 9], "n": [0] * 5, "v": ["theirs"] * 5}
    schema = pyarrow.schema(
        [("k", pyarrow.int64()), ("at", pyarrow.int64()), ("n", pyarrow.int64()), ("v", pyarrow.string())]
    )
    write_deltalake(str(table.root / "table"), pyarrow.table(rows, schema=schema))
    table.apply([(None, 5, 0, None), (4, 6, 0, "ours")])
    assert table.rows() == {3: (9, 0, "theirs"), 4: (6, 0, "ours")}
