"""The sensor that waits for a dataset to be fresh."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_streamsem.arguments import seconds, whole
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.readers.conditions import Freshness
from airflow_provider_streamsem.sensors.condition import PipelineSensor


class FreshnessSensor(PipelineSensor):
    """
    Waits until the committed data is near enough to the source: before a report is made, or to watch an objective.

    What the source never gave cannot be late: with nothing left to read, the data is fresh however long ago the last commit was.

    XCom: ``pipeline``, ``log``, ``version``, ``lag``, ``too_old``, ``unit``, ``last_commit_age_ms``.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param max_lag: at most so many items of the source (Kafka: offsets; files: files) are not committed
    :param max_age: none that is not committed is older: by Kafka's timestamps, or the files' times of modification; whole seconds or a ``timedelta``.
        At least one of the two; with both, both hold
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
        self.max_lag = None if max_lag is None else whole("max_lag", max_lag, least=0)
        self.max_age_s = None if max_age is None else seconds("max_age", max_age)
        self._refuse_early()

    def condition_of(self, pipeline: Pipeline) -> Freshness:
        """The bounds, on a pipeline."""
        return Freshness(pipeline=pipeline, max_lag=self.max_lag, max_age_s=self.max_age_s)
