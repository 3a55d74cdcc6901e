"""A small world whose sink is a Delta table, read by delta-rs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from deltalake import DeltaTable

from airflow_provider_streamsem import Pipeline
from airflow_provider_streamsem.batch.opening import open_pipeline
from airflow_provider_streamsem.batch.publish import batch_of
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.delta import DeltaSink
from airflow_provider_streamsem.testing.steps import Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.worlds import World


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
        return [batch_of(opened, found[0], "table") for found in outcomes if found is not None]

    def all_is_right(self) -> None:
        assert self.verdict().findings == []
        assert self.rows() == self.expected

    def dies_at(self, at: int | None, watching: list[Steps]) -> Steps:
        """
        A drain that dies at one of its writes to the table, or at none.

        :param watching: the last of these is called at each write
        """
        steps = Steps(at)
        watching.append(steps)
        with suppress(Crash):
            self.run("run", drain=True)
        watching.append(Steps())
        return steps
