"""The lag of a pipeline behind its source."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.pipeline.spec.binding import read_head
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.readers.files import open_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """
    The lag of a pipeline: latest offsets of the source minus committed offsets.

    :param pipeline: name of the pipeline
    :param lag: number of items in the source that no committed version covers. With intervals, those after the latest interval that was read
    :param unit: unit of ``lag``, for example ``files`` or ``offsets``
    :param version: the newest closed version; -1 before the first
    :param version_age_ms: milliseconds since the newest version was closed; ``None`` before the first version is closed
    :param minimum_clock_ms: every item that arrived before this time is committed, in milliseconds since the epoch: the minimum over all partitions of all
        sources. ``None`` if all items are committed. 0 if it is unknown, because messages wait in a queue, or a table has an integer cursor
    :param watermark_ms: the watermark of the state after the newest version, in milliseconds since the epoch; ``None`` without one
    """

    pipeline: str
    lag: int
    unit: str
    version: int
    version_age_ms: int | None
    minimum_clock_ms: int | None
    watermark_ms: int | None


@with_log_location
def lag(pipeline: Pipeline) -> Lag:
    """
    Compute the lag of a pipeline from its source and its log. The function writes nothing.

    :raises InvalidError: there is no log at the pipeline's location
    :raises StreamsemError: the log or the source cannot be read
    """
    opened = open_log(commit_log_at(pipeline.log))
    head = read_head(pipeline, opened.log)
    age = None if head.outcome is None else max(0, opened.log.clock.now_ms() - head.outcome.decided_at_ms)
    planner = pipeline.source.open(opened.log.of_source(pipeline.source.immutable_config()), head.hint)
    items = planner.lag(head.read_until, head.hint)
    return Lag(
        pipeline=pipeline.name,
        lag=items,
        unit=pipeline.source.unit,
        version=head.closed,
        version_age_ms=age,
        minimum_clock_ms=planner.minimum_clock(head.read_until) if items else None,
        watermark_ms=None if head.outcome is None else head.outcome.watermark_ms,
    )
