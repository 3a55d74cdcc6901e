"""The sensor that detects unread records that the source's retention has deleted or will delete soon."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_streamsem.arguments import integer, seconds
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.readers.conditions import Retention
from airflow_provider_streamsem.sensors.condition import PipelineSensor


class RetentionSensor(PipelineSensor):
    """
    Wait until the source's retention has deleted unread records or will delete some soon. Downstream tasks then send an alert or start a larger drain.

    To check once and continue, set ``timeout=0, soft_fail=True``. The task is then skipped if the condition is not met.

    XCom ``return_value``: ``pipeline``, ``log``, ``version`` (the newest closed version), ``lost``, ``at_risk`` and ``spare``, as in
    :class:`airflow_provider_streamsem.connectors.source.Expiry`, and ``unit``, the unit of the source's items.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated). The records of its source must expire. Other sources, such as files, are
        refused. A ``Pipeline`` object is checked while Airflow parses the DAG, and a file when the task runs
    :param within: met if the source may delete an unread item within this time because of its age (Kafka: ``retention.ms``; NATS: ``max_age``). Integer
        seconds or a ``timedelta``, 1 second or more
    :param records: for sources that also delete by size: met if a partition holds fewer than this number of items before its first unread item. Only
        partitions from which the source has already deleted items count. At least one of ``within`` and ``records`` must be given. If both are given, the
        sensor is met if either condition is met
    :raises InvalidError: neither ``within`` nor ``records`` is given, an argument is not valid, or the items of the source do not expire
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
