"""A pipeline whose records have an event time."""

from __future__ import annotations

import json
import os
from typing import Any

from airflow_provider_streamsem import Partitions, Pipeline
from airflow_provider_streamsem.readers.conditions import PartitionComplete
from airflow_provider_streamsem.readers.partitions import partition_states
from airflow_provider_streamsem.stores.local import LocalStore
from tests.pipeline_fixture import PipelineFixture

DAY = Partitions(by="at", grain="day", after=3600)
BASE = 19_000 * 86_400_000
"""A midnight in milliseconds since the epoch: 2022-01-08."""
DAYS = ["2022-01-08", "2022-01-09", "2022-01-10", "2022-01-11"]


class TimedFixture(PipelineFixture):
    """A pipeline whose records have the event time ``at``. Its log is on disk."""

    partitions = DAY

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store = LocalStore(str(self.root / "log"))

    def arrives(self, *hours: float | None) -> None:
        """Add a file with a record for each event time, in hours since :data:`BASE`."""
        path = self.root / "in" / f"{self.made:05d}.json"
        times = [None if hour is None else BASE + int(hour * 3_600_000) for hour in hours]
        path.write_text("".join(json.dumps({"id": self.made * 100 + n, "at": at}) + "\n" for n, at in enumerate(times)))
        stamp = 1_700_000_000_000_000_000 + self.made * 1_000_000
        os.utime(path, ns=(stamp, stamp))
        self.made += 1

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"partitions": self.partitions, **changes})

    def batch(self, run_key: str, *hours: float | None) -> Any:
        self.arrives(*hours)
        return self.run(run_key)

    def states(self) -> dict[str, tuple[int, int, bool]]:
        """Return partition → rows, late rows, and whether it is complete."""
        return {each.key: (each.rows, each.late_rows, each.is_complete) for each in partition_states(self.opened())}

    def is_complete(self, key: str) -> bool:
        return PartitionComplete(pipeline=self.pipeline(), partition=key).check().met
