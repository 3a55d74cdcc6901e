"""The end of a log that was moved to another location."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_streamsem.errors import LogMovedError
from airflow_provider_streamsem.protocol.entries import Kind, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Kind):
    """
    The payload of the plan that ends a log. No entry follows it.

    :param moved_to: URL of the log that continues this one
    """

    kind = "move"
    name = "move"
    label = "moved"
    color = "gray.solid"
    invariant = "I2"
    ends_log = True
    moved_to: str

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """Refuse every reader and writer with ``LogMovedError``."""
        raise LogMovedError("the log was moved to another location", moved_to=self.moved_to, version=plan.version)
