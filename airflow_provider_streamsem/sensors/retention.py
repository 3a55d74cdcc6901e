"""The sensor that waits for the source to be about to lose what was not read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_streamsem.arguments import seconds, whole
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.readers.conditions import Retention
from airflow_provider_streamsem.sensors.condition import PipelineSensor


class RetentionSensor(PipelineSensor):
    """
    An alarm: met when unread records are gone, or soon will be. What stands after it in the DAG calls a person, or starts a larger drain.

    To ask once and go on, give ``timeout=0, soft_fail=True``: the task is skipped while all is well.

    XCom: ``pipeline``, ``log``, ``version``, ``lost``, ``at_risk``, ``spare``, ``unit``.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated). Its source must be one that loses records after a time: a source that keeps
        its items, such as files, is refused, when the DAG is parsed if the pipeline is at hand then
    :param within: met when the topic's ``retention.ms`` lets Kafka remove an unread record within this time; whole seconds or a ``timedelta``
    :param records: met when fewer records than these lie between a partition's first offset and the first unread one, once Kafka has begun to remove any: for
        topics that are kept by size. At least one of the two; with both, either is enough
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        within: timedelta | float | None = None,
        records: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        if within is None and records is None:
            raise InvalidError("within or records must be given", task=self.task_id)
        self.within_s = None if within is None else seconds("within", within)
        self.records = None if records is None else whole("records", records, least=1)
        self._refuse_early()

    def condition_of(self, pipeline: Pipeline) -> Retention:
        """The bounds, on a pipeline."""
        return Retention(pipeline=pipeline, within_s=self.within_s, records=self.records)
