"""A table to which batches of change data are applied, and the rows that it must have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from deltalake import DeltaTable
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from airflow_provider_streamsem import Changes, DeltaSink, IcebergSink, tombstones
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.changes import CHANGE
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.state.layers import files_of_layers
from airflow_provider_streamsem.stores.local import LocalStore
from tests.connectors import batches

CHANGES = Changes(
    keys=["k"], sequence_by=["at", "n"], apply_as_deletes="op = 'd'", apply_as_truncates="op = 't'", except_column_list=["op"]
)  # fmt: skip
SCHEMA = batches.schema_of(k="long", at="long", n="long", v="string")
Event = tuple[int | None, int, int, str | None]
"""Key, the two columns of the sequence, and the value; ``None`` for a delete. A truncate has no key."""


@dataclass
class Table:
    """
    A table, and the tombstones in the log of its pipeline, without a pipeline.

    :param format: ``delta`` or ``iceberg``
    :param spark: opens the session in which the engine ``spark`` merges
    :param now_ms: when the next batch is planned
    """

    root: Path
    format: str
    changes: Changes = CHANGES
    engine: str = "library"
    spark: Any = None
    now_ms: int = 0
    version: int = 0
    state: Json = None
    batches: list[SinkCommit] = field(default_factory=list)

    @property
    def sink(self) -> Any:
        if self.format == "delta":
            return DeltaSink(str(self.root / "table"), changes=self.changes, engine=self.engine)
        location = str(self.root / "table")
        return IcebergSink(location, "lake.t", properties=self.catalog, changes=self.changes, engine=self.engine)

    @property
    def catalog(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db", "warehouse": str(self.root)}

    def apply(self, events: Sequence[Event], kind: Callable[[Event], str] | None = None) -> Any:
        """Commit and publish one batch. Its rows are staged in the order of their sequence, as Spark stages them."""
        rows = sorted(events, key=lambda event: event[1:3])
        columns = [*zip(*rows, strict=True)] or [()] * 4
        table = pyarrow.table(
            {
                **{
                    name: pyarrow.array(column, pyarrow.int64())
                    for name, column in zip(("k", "at", "n"), columns, strict=False)
                },
                "v": pyarrow.array(columns[3], pyarrow.string()),
                CHANGE: pyarrow.array([(kind or change)(event) for event in rows], pyarrow.string()),
            }
        )
        log = CommitLog(LocalStore(str(self.root / "log")))
        batch = batches.staged(self.sink, table, self.version, schema=SCHEMA, log=log, spark=self.spark)
        self.state = tombstones.state_after(
            self.state, {"t": self.sink}, {"t": batch.committable}, log=log.store.url,
            now_ms=self.now_ms, version=self.version, attempt_id="a" * 32,
        )  # fmt: skip
        files = files_of_layers(self.state)
        self.batches.append(batch := replace(batch, tombstones=files))
        self.version += 1
        return self.sink.publish(batch)

    def rows(self) -> dict[int, tuple[int, int, str]]:
        if self.format == "delta":
            table = DeltaTable(str(self.root / "table")).to_pyarrow_table()
        else:
            table = load_catalog("default", **self.catalog).load_table("lake.t").scan().to_arrow()
        assert table.schema.names == ["k", "at", "n", "v"]
        rows = [tuple(row.values()) for row in table.to_pylist()]
        assert len({row[0] for row in rows}) == len(rows), "a key has several rows"
        return {row[0]: row[1:] for row in rows}


def change(event: Event) -> str:
    return "t" if event[0] is None else "d" if event[3] is None else "u"


def newest(events: Sequence[Event]) -> dict[int, tuple[int, int, str]]:
    """Return the rows that a table has after these events, one after the other: an event applies if no newer one came before it."""
    states: dict[int, Event] = {}
    truncated: tuple[int, int] = (-1, -1)
    for k, *event in events:
        at = (event[0], event[1])
        if k is None:
            truncated = max(truncated, at)
            states = {key: known for key, known in states.items() if known[1:3] >= truncated or known[3] is None}
        elif at >= truncated and (k not in states or at >= states[k][1:3]):
            states[k] = (k, *event)
    return {k: (at, n, v) for k, (_, at, n, v) in states.items() if v is not None}


def in_arrival_order(applied: Sequence[Sequence[Event]]) -> list[Event]:
    return [event for batch in applied for event in sorted(batch, key=lambda event: event[1:3])]


EVENTS = st.tuples(
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, None]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(["a", "b", None]),
).map(lambda event: event if event[0] is not None else (*event[:3], None))
