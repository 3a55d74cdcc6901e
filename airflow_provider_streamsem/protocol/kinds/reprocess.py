"""A reprocessing run: reads the ranges of an earlier commit again, and replaces its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_streamsem.protocol.entries import SPARSE, Earlier, Hidden, Kind, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprocess(Kind):
    """
    The payload of a reprocessing run.

    :param replaces: the visible commit whose rows it replaces
    :param counts: the row counts of that commit. Totals over the log subtract them
    :param held: whether the version stays open until it is committed or aborted on request (W39)
    """

    kind = "reprocess"
    name = "reprocessing run"
    label = "reprocessing run"
    color = "blue.solid"
    invariant = "I20"
    has_rows = True
    stages = True
    uses_spec = True
    replaces: int
    counts: Mapping[str, int]
    held: bool = field(default=False, metadata=SPARSE)

    @property
    def is_held(self) -> bool:
        return self.held

    @property
    def removed_counts(self) -> Mapping[str, int]:
        return self.counts

    @property
    def hidden(self) -> Hidden:
        return Hidden(commits=(self.replaces,))

    def describe(self) -> str:
        return f"reprocessing of version {self.replaces}"

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """Check that the replaced commit is an earlier version (I20)."""
        if not 0 <= self.replaces < plan.version:
            raise self.damaged("a reprocessing run replaces a version that is not earlier", plan.version)

    def check_outcome(self, outcome: Outcome) -> None:
        """Check that the replaced commit is an earlier version (I20)."""
        if not 0 <= self.replaces < outcome.version:
            raise self.damaged("an outcome replaces a version that is not earlier", outcome.version)

    def check_earlier(self, plan: Plan, outcome: Outcome | None, earlier: Earlier) -> None:
        """Check that a commit replaces a commit that is visible before it, and matches it (I20)."""
        if outcome is None or not outcome.committed:
            return
        if self.replaces not in earlier.visible:
            raise self.damaged("a reprocessing run replaces a version that is not visible", plan.version)
        replaced = earlier.plan(self.replaces)
        if replaced is not None:
            self.check_replaced(plan, replaced, earlier.kept[self.replaces])

    def check_replaced(self, plan: Plan, replaced: Plan, outcome: Outcome) -> None:
        """Check that the plan has the ranges, gaps and watermark of the commit that it replaces, and records the counts of that commit (I20)."""
        same = (plan.ranges, plan.gaps, plan.watermark_ms) == (replaced.ranges, replaced.gaps, replaced.watermark_ms)
        if not (same and outcome.committed and self.counts == outcome.counts):
            summary = "a reprocessing run does not match the commit that it replaces"
            raise self.damaged(summary, plan.version, replaces=replaced.version)
