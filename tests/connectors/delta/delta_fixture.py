"""A pipeline fixture whose sink is a Delta table, read by delta-rs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from deltalake import DeltaTable
from deltalake.table import TableAlterer

from airflow_provider_streamsem import Pipeline
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.pipeline.versions.publish import batch_of
from airflow_provider_streamsem.testing.steps import Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.pipeline_fixture import PipelineFixture

W = TypeVar("W", bound="DeltaFixture")
WRITES = (
    (DeltaTable, "create"),
    (DeltaTable, "create_write_transaction"),
    (TableAlterer, "add_columns"),
)


class DeltaFixture(PipelineFixture):
    @property
    def table(self) -> str:
        return str(self.root / "table")

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"sinks": {"table": DeltaSink(self.table)}, **changes})

    def rows(self) -> Counter[int]:
        """Count the ids in the table, read by delta-rs."""
        if not DeltaTable.is_deltatable(self.table):
            return Counter()
        return Counter(DeltaTable(self.table).to_pyarrow_table()["id"].to_pylist())

    def batches(self) -> list[SinkCommit]:
        """Return the batch of each committed version, published or not."""
        opened = bind(self.pipeline(), self.log())
        outcomes = [opened.log.outcome_and_sha256(version) for version in range(opened.head.closed + 1)]
        return [batch_of(opened, *outcome, "table") for outcome in outcomes if outcome is not None]

    def check_exactly_once(self) -> None:
        assert self.verdict().violations == []
        assert self.rows() == self.expected


def crash_at_each_write(
    make_fixture: Callable[[str], W], watch_delta_writes: Any, writes: list[str], retry: str
) -> Iterator[W]:
    """
    Crash a drain before and after each write to the table, and recover it.

    Each step gets a new fixture. The drain dies at the step, then another run follows, and then the first run is retried.

    :param make_fixture: creates a fixture with input, below a directory of this name
    :param watch_delta_writes: the fixture of that name
    :param writes: the steps of a drain that does not die
    :param retry: key of the run that follows
    """
    watching: list[Steps] = []
    watch_delta_writes(lambda name: watching[-1](name))
    for at in [None, *range(len(writes))]:
        fixture = make_fixture(str(at))
        watching.append(Steps(at))
        with suppress(Crash):
            fixture.run("run", drain=True)
        assert watching[-1].died == (at is not None)
        if at is None:
            assert watching[-1].taken == writes
        watching.append(Steps())
        fixture.run(retry, drain=True)
        fixture.run("run", drain=True)
        yield fixture
