"""An expiry: from then on, no reader reads the versions below a version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_streamsem.protocol.entries import Kind, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire(Kind):
    """
    The payload of an expiry.

    :param oldest: the oldest readable version. The versions below this one expire (W43)
    """

    kind = "expire"
    name = "expiry"
    label = "expiry (vacuum)"
    color = "gray.solid"
    invariant = "I24"
    is_announced = False
    oldest: int

    def newest(self, version: int) -> Mapping[str, int]:
        return {self.kind: self.oldest}

    def describe(self) -> str:
        return f"expiry of the versions below {self.oldest}"

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """Check that the plan raises the oldest readable version to an earlier version (I24)."""
        Kind.check_plan(self, plan, before=before, next=next)
        reached = 0 if before is None else before.oldest_readable
        if not reached < self.oldest < plan.version:
            summary = "the oldest readable version of an expiry does not increase, or is not an earlier version"
            raise self.damaged(summary, plan.version, expires=self.oldest, before=reached)
