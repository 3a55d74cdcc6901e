"""A small world whose sink is a Delta table, read by delta-rs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from deltalake import DeltaTable
from deltalake.table import TableAlterer, TableMerger

from airflow_provider_streamsem import Pipeline
from airflow_provider_streamsem.batch.opening import open_pipeline
from airflow_provider_streamsem.batch.publish import batch_of
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.delta import DeltaSink
from airflow_provider_streamsem.testing.steps import Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.worlds import World

W = TypeVar("W", bound="DeltaWorld")
WRITES = (
    (DeltaTable, "create"),
    (DeltaTable, "create_write_transaction"),
    (TableAlterer, "add_columns"),
    (TableMerger, "execute"),
)


class DeltaWorld(World):
    @property
    def table(self) -> str:
        return str(self.root / "table")

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"sinks": {"table": DeltaSink(self.table)}, **changes})

    def rows(self) -> Counter[int]:
        """The ids, read by delta-rs."""
        if not DeltaTable.is_deltatable(self.table):
            return Counter()
        return Counter(DeltaTable(self.table).to_pyarrow_table()["id"].to_pylist())

    def batches(self) -> list[Batch]:
        """What was, or is to be, published of each version."""
        opened = open_pipeline(self.pipeline(), self.log())
        outcomes = [opened.log.outcome(version) for version in range(opened.head.closed + 1)]
        return [batch_of(opened, *found, "table") for found in outcomes if found is not None]

    def all_is_right(self) -> None:
        assert self.verdict().findings == []
        assert self.rows() == self.expected


def each_death(began: Callable[[str], W], around: Any, writes: list[str], retry: str) -> Iterator[W]:
    """
    For each step around a write to the table, a world of its own where a drain died there, another followed, and then the first one again.

    :param began: makes a world with input, below a directory of this name
    :param around: the fixture
    :param writes: the steps of a drain that does not die
    :param retry: key of the run that follows
    """
    watching: list[Steps] = []
    around(lambda name: watching[-1](name))
    for at in [None, *range(len(writes))]:
        world = began(str(at))
        watching.append(Steps(at))
        with suppress(Crash):
            world.run("run", drain=True)
        assert watching[-1].died == (at is not None)
        if at is None:
            assert watching[-1].taken == writes
        watching.append(Steps())
        world.run(retry, drain=True)
        world.run("run", drain=True)
        yield world
