"""A pipeline with intervals for tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from airflow_provider_streamsem import Limits, Pipeline, RunResult
from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.pipeline.run.interval import run_interval
from airflow_provider_streamsem.pipeline.run.plan_interval import TimeInterval
from airflow_provider_streamsem.protocol.entries import ReadInterval
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture

FIRST_MS = 1_700_000_000_000
"""The modification time of the first file of a fixture. The others follow each other by a millisecond."""


@dataclass
class IntervalFixture(PipelineFixture):
    """The interval ``[n, m)`` is that of the files ``n`` to ``m``. The clock shows the time of file 1,000."""

    def pipeline(self, **changes: Any) -> Pipeline:
        """Return the pipeline."""
        return super().pipeline(**{"intervals": True, "limits": Limits(), **changes})

    def log(self, store: Store | None = None) -> CommitLog:
        """Open the log as a new process does."""
        clock = ManualClock(FIRST_MS + 1_000, name=f"p{next(self.clocks)}")
        return CommitLog(store or self.store, clock, RetryPolicy(tries=6))

    def read(
        self, start: int, end: int, request: str = "a", *, store: Store | None = None, **arguments: Any
    ) -> RunResult:
        """Read an interval as a new process does."""
        interval = TimeInterval(FIRST_MS + start, FIRST_MS + end)
        spec = arguments.pop("pipeline", None) or self.pipeline()
        given = {"engine": RowsEngine(), **arguments}
        result = run_interval(spec, interval, request=request, log=self.log(store), **given)
        self.returned.append(result)
        return result

    def ids(self, *files: int) -> Counter[int]:
        """Return the ids of some files."""
        return Counter(self.rows_per_file * file + row for file in files for row in range(self.rows_per_file))

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """The time that was read."""
        outcome = self.log().newest_head().outcome
        found: tuple[ReadInterval, ...] = () if outcome is None else outcome.intervals
        return [(each.start_ms - FIRST_MS, each.end_ms - FIRST_MS) for each in found]
