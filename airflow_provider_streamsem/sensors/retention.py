"""The sensor that detects unread records that retention has removed or is about to remove."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_streamsem.arguments import integer, seconds
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec import Pipeline
from airflow_provider_streamsem.readers.conditions import Retention
from airflow_provider_streamsem.sensors.condition import PipelineSensor


class RetentionSensor(PipelineSensor):
    """
    Alarm that is met when retention has removed unread records or soon will. Downstream tasks alert an operator or start a larger drain.

    To check once and continue, set ``timeout=0, soft_fail=True``. The task is then skipped while there is no danger.

    XCom ``return_value``: ``pipeline``, ``log``, ``version``, ``lost``, ``at_risk``, ``spare``, ``unit``.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated). The records of its source must expire. Sources that keep their items, such
        as files, are refused: while Airflow parses the DAG if ``pipeline`` is a ``Pipeline`` object, otherwise when the task runs
    :param within: met if the topic's ``retention.ms`` allows Kafka to remove an unread record within this time. Integer seconds or a ``timedelta``
    :param records: met if a partition holds fewer than this number of records before its first unread offset. Only partitions from which Kafka has already
        removed records count. For topics with size-based retention. At least one of ``within`` and ``records`` must be given. If both are given, either is
        sufficient
    :raises InvalidError: neither ``within`` nor ``records`` is given, or the source keeps its items
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
        self.records = None if records is None else integer("records", records, least=1)
        self._refuse_early()

    def condition_of(self, pipeline: Pipeline) -> Retention:
        """Return the condition for a pipeline, with this sensor's bounds."""
        return Retention(pipeline=pipeline, within_s=self.within_s, records=self.records)
