"""The operator that makes the rows of a committed version anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import number
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.redo import redo
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.hooks.runs import run_key
from airflow_provider_streamsem.observability.observed import Observed
from airflow_provider_streamsem.operators.engines import HasEngine
from airflow_provider_streamsem.operators.outlets import checked_partition_key, tell_outlets


class RedoOperator(HasPipeline, HasEngine, Observed, BaseOperator):  # type: ignore[misc]
    """
    Make the rows of a committed version anew from the same offset ranges, with the transform as it is now; readers switch to them in one object.

    Retries and clears of the task are one redo; a new DAG run is another. Where earlier redos replaced the version, the newest of them is replaced.

    The result is that of :class:`MicroBatchOperator`; ``version`` is the version that replaces.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param version: the version, a whole number or a template that gives one; ``expand(version=[…])`` for several
    :param spark_master: as in :class:`MicroBatchOperator`
    :param spark_conn_id: as in :class:`MicroBatchOperator`
    :param spark_conf: as in :class:`MicroBatchOperator`
    :param spark_packages: as in :class:`MicroBatchOperator`
    :param partition_key: as in :class:`MicroBatchOperator`
    """

    template_fields: Sequence[str] = ("pipeline_file", "version", "spark_master", "spark_conn_id", "spark_conf")
    ui_color = "#f3e6c4"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        version: int | str,
        spark_master: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: dict[str, str] | None = None,
        spark_packages: str | None = None,
        partition_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.take_pipeline(pipeline)
        self.take_engine(spark_master, spark_conn_id, spark_conf, spark_packages)
        self.version = version
        self.partition_key = checked_partition_key(partition_key, self.outlets)

    def execute(self, context: Any) -> dict[str, Any]:
        """Redo the version, tell the outlet assets, answer."""
        with self.pipeline_on_its_log(context) as pipeline, self.observed(context["ti"], pipeline) as account:
            version = number("version", self.version, least=0)
            key = f"{run_key(context['ti'])}#redo:{version}"
            account.result = result = redo(pipeline, version, run_key=key, engine=self.engine())
        answer: dict[str, Any] = result.to_json()
        tell_outlets(self, context, answer)
        return answer
