"""The operator that reprocesses a committed version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import integer_or_text
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.hooks.runs import run_key
from airflow_provider_streamsem.observability.observed import Observed
from airflow_provider_streamsem.operators.engines import HasEngine
from airflow_provider_streamsem.operators.outlets import checked_partition_key, emit_outlet_events
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.verbs import CURRENT_LOOKUPS


class ReprocessOperator(HasPipeline, HasEngine, Observed, BaseOperator):  # type: ignore[misc]
    """
    Reprocess a committed version from the same offset ranges with the current transform, and atomically replace its output.

    One task instance reprocesses the version once, whatever its retries and clears. A new DAG run reprocesses the version again and replaces its newest
    output. Readers of earlier versions still read the replaced files.

    The XCom ``return_value`` is as for :class:`MicroBatchOperator`. Its ``version`` is the new version, which replaces the reprocessed one.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param version: the committed version to reprocess: an integer, or a template that renders to one. Use ``expand(version=[…])`` for several versions
    :param current_lookups: whether the transform reads the current rows of the pipeline's lookups. Default: those that the replaced version read
    :param spark_master: as in :class:`MicroBatchOperator`
    :param spark_conn_id: as in :class:`MicroBatchOperator`
    :param spark_conf: as in :class:`MicroBatchOperator`
    :param spark_packages: as in :class:`MicroBatchOperator`
    :param partition_key: as in :class:`MicroBatchOperator`
    :raises InvalidError: an argument is not valid, or two arguments cannot be combined
    """

    template_fields: Sequence[str] = ("pipeline_file", "version", "spark_master", "spark_conn_id", "spark_conf")
    ui_color = "#f3e6c4"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        version: int | str,
        current_lookups: bool = False,
        spark_master: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: dict[str, str] | None = None,
        spark_packages: str | None = None,
        partition_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.set_pipeline(pipeline)
        self.set_engine(spark_master, spark_conn_id, spark_conf, spark_packages)
        self.version = version
        self.current_lookups = CURRENT_LOOKUPS.checked(current_lookups)
        self.partition_key = checked_partition_key(partition_key, self.outlets)

    def execute(self, context: Any) -> dict[str, Any]:
        """
        Reprocess the version, emit the outlet events and return the result.

        :raises StreamsemError: see :func:`airflow_provider_streamsem.pipeline.run.reprocess.reprocess`. An error that is not retryable fails the task at once
        """
        with self.resolved_pipeline(context) as pipeline, self.observed(context["ti"], pipeline) as account:
            version = integer_or_text("version", self.version, least=0)
            key = f"{run_key(context['ti'])}#reprocess:{version}"
            account.result = result = reprocess(
                pipeline, version, run_key=key, current_lookups=self.current_lookups, engine=self.engine()
            )
        document: dict[str, Any] = result.to_json()
        emit_outlet_events(self, context, document)
        return document
