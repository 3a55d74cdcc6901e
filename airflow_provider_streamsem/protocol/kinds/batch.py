"""A batch: reads ranges of the source and commits their rows."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.entries import Kind, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Kind):
    """The payload of a batch. Its ranges start at the offsets before it, and the next version starts at their ends."""

    kind = "batch"
    name = "batch"
    label = "committed"
    color = "green.solid"
    invariant = "I4"
    has_rows = True
    reads_new_records = True
    stages = True
    uses_spec = True

    def next_offsets(self, plan: Plan, *, committed: bool) -> Offsets:
        """Return the ends of the ranges; after an abort their starts, so that the next plan starts there."""
        return offsets.ends(plan.ranges) if committed else offsets.starts(plan.ranges)

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """Check that the ranges start at the offsets before the plan, and that only a plan without ranges has a watermark (I4)."""
        if before is not None and before.intervals:
            raise LogDamagedError(
                "a batch follows a version that read an interval", invariant="I28", version=plan.version
            )
        if plan.watermark_ms is not None and plan.ranges:
            summary = (
                "a plan has both ranges and a watermark; only a no-data batch, which has no ranges, may set a watermark"
            )
            raise self.damaged(summary, plan.version)
        for partition, (start, end) in plan.ranges.items():
            if start != offsets.position(next, partition) or end <= start:
                raise self.damaged(
                    "a plan's range does not start where the last outcome ended, or is empty",
                    plan.version,
                    partition=partition,
                    range=(start, end),
                    next=offsets.position(next, partition),
                )
