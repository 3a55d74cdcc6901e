"""Plans and reads the slices of a source that reads a table, one after another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import Limits
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.source import SourceSlice
from airflow_provider_streamsem.protocol.codec import canonical, plain
from airflow_provider_streamsem.stores.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Progress:
    """Plans slices of a source with a new planner for each, as runs in new processes do."""

    def __init__(self, source: Any, **limits: int) -> None:
        self.source, self.limits = source, Limits(**limits)
        self.offsets: dict[str, int] = dict(source.initial_offsets())
        self.hint: Any = None

    def next(self, *, on_data_loss: str = "fail") -> SourceSlice | None:
        """Plan one slice and advance to its end."""
        planner = self.source.open(CommitLog(MemoryStore()), self.hint)
        planned = planner.slice(
            self.offsets, planner.poll(self.hint), self.limits, self.hint, on_data_loss=on_data_loss
        )
        if planned is not None:
            self.offsets |= {name: end for name, (_, end) in planned.ranges.items()}
            self.hint = self.source.next_hint(planned.hint, self.stored(planned), {})
        return planned

    def all(self) -> list[SourceSlice]:
        """Plan slices until nothing is unread."""
        return [*iter(self.next, None)]

    def stored(self, planned: SourceSlice) -> Sequence[Any]:
        """Return pins as a later process decodes them."""
        return self.source.read_pins(json.loads(canonical(plain([*planned.pins]))))

    def rows(self, spark: SparkSession, planned: SourceSlice) -> list[dict[str, Any]]:
        """Read a slice with Spark, and check its number of rows."""
        loaded = self.source.load(spark, self.stored(planned))
        rows = [row.asDict(recursive=True) for row in loaded.frame.collect()]
        loaded.check_read(len(rows))  # type: ignore[attr-defined]
        return rows
