"""The sensor that waits for records to read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_streamsem.arguments import integer, seconds
from airflow_provider_streamsem.pipeline.spec import Pipeline
from airflow_provider_streamsem.readers.conditions import OffsetsAvailable
from airflow_provider_streamsem.readers.waiting import limited
from airflow_provider_streamsem.sensors.condition import PipelineSensor


class OffsetsAvailableSensor(PipelineSensor):
    """
    Wait until a run of the pipeline would find work: at least ``min_rows`` rows, or any row after ``max_delay``.

    The sensor plans the next batch with the planner and the limits of a run, and writes nothing. Offsets that another run has planned or is draining do not
    count, until that run has made no progress in the log for ``max_delay``.

    If the pipeline has no log yet, the sensor is met immediately, because the first run creates the log. It is also met while a commit has pending publishes.

    XCom ``return_value``: ``pipeline``, ``log``, ``is_new``, ``version``, ``open_version``, ``ranges``, ``rows``, ``lag``, ``unit``.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param min_rows: minimum number of rows for a run. The files source estimates rows from bytes; Kafka counts offsets. Default: ``limits.min_rows`` of the
        pipeline, otherwise one row
    :param max_delay: how long fewer than ``min_rows`` rows wait after the newest outcome, in integer seconds or as a ``timedelta``. Default:
        ``limits.max_delay_s`` of the pipeline. ``min_rows`` requires one of the two. The limits of the pipeline must not be higher than those of the sensor.
        Otherwise the run leaves the rows that the sensor found for a later run
    :raises InvalidError: ``min_rows`` is given without any delay
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
        self.min_rows = None if min_rows is None else integer("min_rows", min_rows, least=1)
        self.max_delay_s = None if max_delay is None else seconds("max_delay", max_delay)
        self._refuse_early()

    def condition_of(self, pipeline: Pipeline) -> OffsetsAvailable:
        """Return the condition for the pipeline, with this sensor's limits."""
        return OffsetsAvailable(pipeline=limited(pipeline, min_rows=self.min_rows, max_delay_s=self.max_delay_s))
