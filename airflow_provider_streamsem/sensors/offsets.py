"""The sensor that waits for something to read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_streamsem.arguments import seconds, whole
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.readers.conditions import OffsetsAvailable
from airflow_provider_streamsem.readers.waiting import limited
from airflow_provider_streamsem.sensors.condition import PipelineSensor


class OffsetsAvailableSensor(PipelineSensor):
    """
    Waits until a run of the pipeline would find work: at least ``min_rows`` rows, or any after ``max_delay``.

    It plans the next batch as the run would, by the same rule and with the same limits, and writes nothing. Rows that another run has planned, or is draining,
    do not count until that run has made no step for ``max_delay``. Where the pipeline has no log yet it is met at once: the first run makes the log.

    XCom: ``pipeline``, ``log``, ``is_new``, ``version``, ``open_version``, ``ranges``, ``rows``, ``lag``, ``unit``.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param min_rows: so many rows are worth a run (files: estimated from bytes; Kafka: offsets); default: ``limits.min_rows`` of the pipeline, or one row
    :param max_delay: how long fewer rows wait after the newest outcome; whole seconds or a ``timedelta``; default: ``limits.max_delay_s`` of the pipeline; one
        of the two is needed with ``min_rows``. Give the pipeline the same limits, or lower ones: else the run leaves the rows waiting that the sensor has found
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        min_rows: int | None = None,
        max_delay: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.min_rows = None if min_rows is None else whole("min_rows", min_rows, least=1)
        self.max_delay_s = None if max_delay is None else seconds("max_delay", max_delay)
        self._refuse_early()

    def condition_of(self, pipeline: Pipeline) -> OffsetsAvailable:
        """The pipeline with this sensor's limits."""
        return OffsetsAvailable(pipeline=limited(pipeline, min_rows=self.min_rows, max_delay_s=self.max_delay_s))
