"""A pipeline with deduplication whose files repeat ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from airflow_provider_streamsem import Pipeline
from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.pipeline_fixture import PipelineFixture


@dataclass
class RepeatingFixture(PipelineFixture):
    """Every file repeats the ids of the file before it: id ``n`` is in file ``n // 3`` and in the next file."""

    ttl_s: int = 1000
    at_s: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store = LocalStore(str(self.root / "log"))

    def arrive(self, files: int, *, bad_lines: int = 0) -> None:
        for _ in range(files):
            first = max(0, (self.made - 1) * self.rows_per_file)
            made = self.made
            super().arrive(1)
            path = self.root / "in" / f"{made:05d}.json"
            stamp = path.stat().st_mtime_ns
            ids = range(first, (made + 1) * self.rows_per_file)
            path.write_text("".join(json.dumps({"id": n}) + "\n" for n in ids))
            import os

            os.utime(path, ns=(stamp, stamp))

    def log(self, store: Store | None = None) -> CommitLog:
        clock = ManualClock(name=f"p{next(self.clocks)}")
        clock.sleep(self.at_s)
        return CommitLog(store or self.store, clock, RetryPolicy(tries=6))

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"dedup": Dedup(keys=["id"], ttl_s=self.ttl_s), **changes})
