"""The sensor that waits until a partition by event time is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.readers.conditions import PartitionComplete
from airflow_provider_streamsem.sensors.condition import ConditionSensor


class PartitionCompleteSensor(HasPipeline, ConditionSensor):
    """
    Wait until a partition of a pipeline with ``partitions`` is complete, or until a pipeline with ``intervals`` has read a period of time.

    The sensor reads the log. With ``complete="source time"``, it also asks the source whether it has unread records of the partition.

    XCom ``return_value``: ``pipeline``, ``log``, ``version``, ``partition`` and ``complete_until_ms``, the time up to which partitions are complete, in
    milliseconds since the epoch.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param partition: the key of the partition (templated): an hour such as ``2026-01-31T05``, a day such as ``{{ ds }}``, or a month such as ``2026-01``. Its
        start as ISO 8601 text is accepted, too, such as ``{{ dag_run.partition_key }}``. For a pipeline with intervals: the period, ``START/END``, such as
        ``{{ data_interval_start }}/{{ data_interval_end }}``
    :raises InvalidError: an argument is not valid
    """

    template_fields: Sequence[str] = ("pipeline_file", "partition")

    def __init__(self, *, pipeline: Pipeline | str, partition: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_pipeline(pipeline)
        self.partition = partition

    def condition(self, context: Any) -> PartitionComplete:
        """
        Return the condition with its templates rendered and its values validated.

        :raises InvalidError: the pipeline has no partitions, or the text does not name one of its partitions
        """
        return PartitionComplete(pipeline=self.rendered_pipeline(context), partition=text("partition", self.partition))
