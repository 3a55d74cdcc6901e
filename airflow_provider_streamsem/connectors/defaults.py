"""Defaults of the members of a source and its planner that are equal for most sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_streamsem.connectors.contract import Planner
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, between, length


class SourceDefaults:
    """
    Defaults of :class:`~airflow_provider_streamsem.connectors.contract.Source`. A source of another package should extend this class, so that it still works
    after a later release adds a member.
    """

    __slots__ = ()

    @property
    def conditions(self) -> str:
        """``""``: the guarantee is unconditional."""
        return ""

    @property
    def extra(self) -> str:
        """``""``: no extra of this package is needed."""
        return ""

    @property
    def spark_packages(self) -> tuple[str, ...]:
        """``()``: no Spark package is needed."""
        return ()

    @property
    def location(self) -> str | None:
        """``None``: a dataset cannot overlap the source."""
        return None

    def initial_offsets(self) -> Offsets:
        """Return no offsets: the first batch starts at offset 0 of each partition."""
        return {}

    def next_hint(self, hint: Json, pins: Sequence[Any], counts: Mapping[str, int]) -> Json:
        """Return the hint of the plan unchanged."""
        return hint


class PlannerDefaults:
    """
    Defaults of :class:`~airflow_provider_streamsem.connectors.contract.Planner`, for a source that does not know when its records arrived. A planner of
    another package should extend this class, so that it still works after a later release adds a member.
    """

    __slots__ = ()

    def lag(self: Planner, start: Offsets, hint: Json) -> int:
        """Return the number of offsets from ``start`` (inclusive) to the end of the source. A planner whose :meth:`poll` writes must override this method."""
        return length(between(start, self.poll(hint).offsets))

    def unread_before(self: Planner, start: Offsets, at_ms: int) -> int:
        """Return the lag, because any unread item may have arrived before ``at_ms``."""
        return self.lag(start, None) if at_ms > 0 else 0

    def minimum_clock(self: Planner, start: Offsets) -> int | None:
        """Return 0 while items are unread, because they may have arrived at any time; else ``None``."""
        return 0 if self.lag(start, None) else None
