"""The sensor that waits until the source has unread records for a batch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_streamsem.arguments import integer, seconds
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.readers.conditions import OffsetsAvailable
from airflow_provider_streamsem.readers.waiting import limited
from airflow_provider_streamsem.sensors.condition import PipelineSensor


class OffsetsAvailableSensor(PipelineSensor):
    """
    Wait until a run of the pipeline would find work: at least ``min_rows`` unread rows, or any unread row after ``max_delay``.

    The sensor plans the next batch as a run does, with the same limits, and writes nothing. Offsets that another run has claimed, by its plan or by its
    drain, do not count. They count again when that run has made no progress in the log for ``max_delay``.

    If the log does not exist, the sensor is met immediately, because the first run creates the log. It is also met while a commit has pending publishes.

    XCom ``return_value``: ``pipeline``, ``log``, ``is_new``, ``version``, ``open_version``, ``ranges``, ``rows``, ``lag``, ``unit``. The fields are those of
    :class:`airflow_provider_streamsem.readers.waiting.Waiting`.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param min_rows: minimum number of rows for a run. The files source estimates rows from bytes; Kafka counts offsets. Default: ``limits.min_rows`` of the
        pipeline, otherwise one row
    :param max_delay: time after the newest outcome at which fewer than ``min_rows`` rows are enough. Integer seconds or a ``timedelta``, 1 second or more.
        Default: ``limits.max_delay_s`` of the pipeline. ``min_rows`` requires one of the two. The limits of the pipeline must not be higher than those of
        the sensor. Otherwise a run that the sensor starts leaves the rows for a later run
    :raises InvalidError: ``min_rows`` is given, but neither ``max_delay`` nor ``limits.max_delay_s``; or an argument is not valid
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
