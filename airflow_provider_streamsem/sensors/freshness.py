"""The sensor that waits until a dataset is fresh."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_streamsem.arguments import integer, seconds
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec import Pipeline
from airflow_provider_streamsem.readers.conditions import Freshness
from airflow_provider_streamsem.sensors.condition import PipelineSensor


class FreshnessSensor(PipelineSensor):
    """
    Wait until the lag of the pipeline is within bounds, for example before a report or to monitor a service level objective.

    Freshness is measured against the source, not against the clock. If all records are committed, the data is fresh, however long ago the last commit was.
    While the log does not exist, the sensor waits.

    XCom ``return_value``: ``pipeline``, ``log``, ``version`` (the newest closed version), ``lag`` (number of uncommitted items), ``too_old`` (number of
    uncommitted items older than ``max_age``), ``unit`` (of both), ``last_commit_age_ms`` (milliseconds since the newest outcome).

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param max_lag: maximum number of uncommitted items, inclusive. Items are offsets in Kafka, files in a files source, and landings in a queue source
    :param max_age: maximum age of an uncommitted item, by the Kafka timestamp or the modification time of the file. Integer seconds or a ``timedelta``, 1
        second or more. At least one of ``max_lag`` and ``max_age`` must be given. If both are given, both must hold
    :raises InvalidError: neither ``max_lag`` nor ``max_age`` is given, or an argument is not valid
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        max_lag: int | None = None,
        max_age: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        if max_lag is None and max_age is None:
            raise InvalidError("max_lag or max_age must be given", task=self.task_id)
        self.max_lag = None if max_lag is None else integer("max_lag", max_lag, least=0)
        self.max_age_s = None if max_age is None else seconds("max_age", max_age)
        self._refuse_early()

    def condition_of(self, pipeline: Pipeline) -> Freshness:
        """Return the condition for a pipeline, with this sensor's bounds."""
        return Freshness(pipeline=pipeline, max_lag=self.max_lag, max_age_s=self.max_age_s)
