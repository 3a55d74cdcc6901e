"""How far a pipeline is behind its source."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_streamsem.batch.location import on_its_log
from airflow_provider_streamsem.batch.opening import read_head
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.commitlog.log import open_commit_log
from airflow_provider_streamsem.readers.files import open_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """
    Latest minus committed.

    :param lag: items in the source that no committed version covers
    :param unit: what an item is: the source's partition of offsets (``files``)
    :param last_commit_age_ms: since the newest outcome was decided, ``None`` before the first
    """

    pipeline: str
    lag: int
    unit: str
    version: int
    last_commit_age_ms: int | None


@on_its_log
def lag(pipeline: Pipeline) -> Lag:
    """
    Ask the source and the log; writes nothing.

    :raises InvalidError: there is no log yet
    """
    opened = open_log(open_commit_log(pipeline.log))
    head = read_head(pipeline, opened.log)
    age = None if head.outcome is None else max(0, opened.log.clock.now_ms() - head.outcome.decided_at_ms)
    items = pipeline.source.open(opened.log.of_source(pipeline.source.guarded()), head.outcome).lag(head.next)
    return Lag(
        pipeline=pipeline.name,
        lag=items,
        unit=pipeline.source.unit,
        version=head.closed,
        last_commit_age_ms=age,
    )
