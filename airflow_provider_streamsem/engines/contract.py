"""What an engine is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engines.dedup import Dedup
from airflow_provider_streamsem.protocol.entries import Committable, Json, Plan, Quarantine
from airflow_provider_streamsem.sinks.contract import Sink
from airflow_provider_streamsem.sources.contract import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    One attempt's work, apart from where its log lies.

    :param transform: ``fn(DataFrame) -> DataFrame`` or ``-> {sink name: DataFrame}``; ``transform_name`` is what errors call it
    :param where: SQL predicate applied before the transform, or ``None``
    :param max_quarantined: the most records that may be bad
    :param schemas: sink → the columns that the log has recorded, as schema JSON
    :param dedup: what is dropped because it was seen; ``state`` is what was remembered before the batch, and ``seen_at_ms`` when that was asked
    """

    source: Source
    sinks: Mapping[str, Sink]
    transform: Callable[[Any], Any]
    transform_name: str
    where: str | None
    max_quarantined: int
    schemas: Mapping[str, str]
    plan: Plan
    attempt_id: str
    dedup: Dedup | None = None
    state: Json = None
    seen_at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """
    What one attempt produced.

    :param handed: sink → rows handed to its writer as the engine counted them, ``None`` where it could not count
    :param schemas: sink → schema JSON in Spark's form
    :param state: what is remembered after the batch
    """

    sinks: Mapping[str, Committable]
    schemas: Mapping[str, str]
    quarantine: Quarantine
    counts: Mapping[str, int]
    handed: Mapping[str, int | None]
    state: Json = None


def nothing_produced(sinks: Mapping[str, Sink], state: Json = None) -> Produced:
    """An attempt at a plan without records."""
    counts = {"read": 0, "parsed": 0, "quarantined": 0, "filtered": 0, **{f"written.{name}": 0 for name in sinks}}
    empty = {name: Committable(format=sink.format, rows=0) for name, sink in sinks.items()}
    return Produced(sinks=empty, schemas={}, quarantine=Quarantine(), counts=counts, handed={}, state=state)


class Engine(Protocol):
    """
    Reads a plan, evaluates the transform once, stages every sink.

    * It reads exactly ``job.plan.pins`` and nothing else; it decides nothing and writes nothing outside the attempt's own places.
    * Constructing one starts nothing; the first :meth:`stage` may.
    """

    def stage(self, job: Job, log: CommitLog) -> Produced:
        """
        Stage one attempt.

        :raises StageError: the engine failed; a retry may help
        :raises DataError: the data or the transform's result are not acceptable
        """
        ...

    def cancel(self) -> None:
        """End the work of a :meth:`stage` that another thread is in, which then fails. Decides nothing."""
        ...
