"""The deduplication settings of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError

SCOPES = ("pipeline", "batch")


@dataclass(frozen=True, kw_only=True)
class Dedup:
    """
    Drops records whose id is in the deduplication state, and repeated ids within a batch. Runs before the transform.

    If several records of one batch have the same id, one of them passes, and it is not specified which one. A record with a null in a key column has no id
    and always passes.

    :param keys: columns of the parsed records whose values together form the id: strings, integers, decimals, dates, booleans or binary values
    :param ttl_s: time to live of an id, in seconds, 1 or more. A batch drops a record if its id passed in a batch that was planned at most this long before
    :param rows: instead of ``ttl_s``: how many of the newest ids to keep, at least. The state may contain more
    :param scope: ``pipeline``: deduplicates across all batches. ``batch``: deduplicates within each batch and keeps no state
    :raises InvalidError: ``keys`` is empty; scope ``pipeline`` without exactly one of ``ttl_s`` and ``rows``; or scope ``batch`` with either of them
    """

    keys: Sequence[str]
    ttl_s: int | None = None
    rows: int | None = None
    scope: str = "pipeline"

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", arguments.text_list("dedup.keys", self.keys))
        if not self.keys:
            raise InvalidError("dedup.keys must name at least one column")
        arguments.choice("dedup.scope", self.scope, SCOPES)
        for name, value in (("ttl_s", self.ttl_s), ("rows", self.rows)):
            if value is not None:
                arguments.integer(f"dedup.{name}", value, least=1)
        bounds = sum(value is not None for value in (self.ttl_s, self.rows))
        if bounds != (1 if self.scope == "pipeline" else 0):
            raise InvalidError(
                'dedup with scope="pipeline" needs exactly one of ttl_s and rows; with scope="batch" it accepts neither',
                scope=self.scope,
                ttl_s=self.ttl_s,
                rows=self.rows,
            )

    @property
    def keeps_state(self) -> bool:
        """Whether ids are kept after their batch."""
        return self.scope == "pipeline"

    @property
    def conditions(self) -> str:
        """The condition of the delivery guarantee as a short label, such as ``dedup 24 h``."""
        if self.ttl_s is not None:
            return f"dedup {arguments.duration(self.ttl_s)}"
        return f"dedup {self.rows} rows" if self.rows is not None else "dedup in each batch"

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the time in milliseconds UTC before which ids are expired; 0 if ids do not expire by age. ``now_ms``: ``planned_at_ms`` of the plan (I13)."""
        return 0 if self.ttl_s is None else now_ms - self.ttl_s * 1000
