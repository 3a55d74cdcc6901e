"""A rollback: restores the offsets, the columns and the state after an earlier version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.entries import SPARSE, Earlier, Hidden, Kind, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback(Kind):
    """
    The payload of a rollback.

    :param to: the version to which it returns. The rows of all versions between this one and the rollback, both exclusive, are no longer visible
    :param next: the offsets after version ``to``, with every partition that the log has now
    :param counts: the row counts that the versions in between added to the totals. Totals over the log subtract them
    :param publish: the sinks outside the log that have rows of these versions. Publishing the rollback removes the rows from them
    """

    kind = "rollback"
    name = "rollback"
    label = "rollback"
    color = "purple.solid"
    invariant = "I21"
    chains = ("rollback",)
    to: int
    next: Offsets
    counts: Mapping[str, int]
    publish: tuple[str, ...] = field(default=(), metadata=SPARSE)

    @property
    def based_on(self) -> int | None:
        return self.to

    @property
    def removed_counts(self) -> Mapping[str, int]:
        return self.counts

    @property
    def hidden(self) -> Hidden:
        return Hidden(after=self.to)

    def next_offsets(self, plan: Plan, *, committed: bool) -> Offsets:
        return self.next if committed else {}

    def describe(self) -> str:
        return f"rollback to version {self.to}"

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """Check that the position is at or below the offsets of the head in every partition (I21)."""
        Kind.check_plan(self, plan, before=before, next=next)
        if not (0 <= self.to < plan.version and {*self.next} == {*next} and offsets.reached(next, self.next)):
            raise self.damaged("a rollback returns to a position that is not before it", plan.version, to=self.to)

    def check_outcome(self, outcome: Outcome) -> None:
        """Check that the commit has no output, and that the version to which it returns is earlier (I21)."""
        Kind.check_outcome(self, outcome)
        if not 0 <= self.to < outcome.version:
            raise self.damaged("an outcome rolls back to a version that is not earlier", outcome.version)

    def check_earlier(self, plan: Plan, outcome: Outcome | None, earlier: Earlier) -> None:
        """Check the rollback against the version to which it returns, and that it names the sinks with rows of the versions in between (I21)."""
        restored = earlier.kept.get(self.to)
        if restored is None:
            what = "a rollback returns to a version that was rolled back or does not exist"
            raise self.damaged(what, plan.version)
        expected = {partition: offsets.position(restored.next, partition) for partition in self.next}
        names = ("state", "schemas", "watermark_ms", "intervals") if outcome is not None and outcome.committed else ()
        is_restored = all(getattr(outcome, name) == getattr(restored, name) for name in names)
        if not (self.next == expected and is_restored and dict(self.counts) == dict(earlier.counts_after(self.to))):
            summary = "a rollback does not match the version to which it returns"
            raise self.damaged(summary, plan.version, to=self.to)
        published = earlier.published_after(self.to)
        if {*self.publish} != published:
            what = f"the rollback to version {self.to} names the sinks {[*self.publish]}, but {sorted(published)} have rows of the versions after {self.to}"
            raise self.damaged(what, plan.version)
