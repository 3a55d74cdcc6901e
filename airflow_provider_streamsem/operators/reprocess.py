"""The operator that reprocesses a committed version, or the versions with rows of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import exactly_one, integer_or_text, text
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.hooks.runs import last_clear_id, run_key
from airflow_provider_streamsem.observability.observed import Observed
from airflow_provider_streamsem.operators.engines import HasEngine
from airflow_provider_streamsem.operators.outlets import checked_partition_key, emit_outlet_events
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess, reprocess_selection
from airflow_provider_streamsem.pipeline.run.selection import Selection, parse_partitions
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.result import RunResult
from airflow_provider_streamsem.verbs import CURRENT_LOOKUPS


class ReprocessOperator(HasPipeline, HasEngine, Observed, BaseOperator):  # type: ignore[misc]
    """
    Reprocess a committed version from the same offset ranges with the current transform, and atomically replace its output. With ``partition``, reprocess each
    version that has rows of a partition.

    With ``version``, one task instance reprocesses the version once, whatever its retries and clears. With ``partition``, a cleared task reprocesses the
    versions again, so that a backfill of a DAG reprocesses the partitions of its runs. A new DAG run reprocesses the versions again and replaces their newest
    output. Readers of earlier versions still read the replaced files.

    The XCom ``return_value`` is as for :class:`MicroBatchOperator`. Its ``version`` is the new version, which replaces the reprocessed one. With
    ``partition``, it is the last one, ``counts`` and ``batches`` are sums, and ``status`` is ``empty`` if no version has rows of the partition.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param version: the committed version to reprocess: an integer, or a template that renders to one. Use ``expand(version=[…])`` for several versions
    :param partition: in place of ``version`` (templated), for a pipeline with ``partitions`` or ``intervals``: a partition such as ``{{ ds }}``, or several,
        such as ``2026-10-01..2026-10-31``. An interval is in the partition in which it starts, in UTC
    :param current_lookups: whether the transform reads the current rows of the pipeline's lookups. Default: those that the replaced version read
    :param spark_master: as in :class:`MicroBatchOperator`
    :param spark_conn_id: as in :class:`MicroBatchOperator`
    :param spark_conf: as in :class:`MicroBatchOperator`
    :param spark_packages: as in :class:`MicroBatchOperator`
    :param partition_key: as in :class:`MicroBatchOperator`
    :raises InvalidError: an argument is not valid, or two arguments cannot be combined
    """

    template_fields: Sequence[str] = (
        "pipeline_file",
        "version",
        "partition",
        "spark_master",
        "spark_conn_id",
        "spark_conf",
    )
    ui_color = "#f3e6c4"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        version: int | str | None = None,
        partition: str | None = None,
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
        exactly_one(f"task {self.task_id}:", version=version, partition=partition)
        self.version = version
        self.partition = None if partition is None else text("partition", partition)
        self.current_lookups = CURRENT_LOOKUPS.checked(current_lookups)
        self.partition_key = checked_partition_key(partition_key, self.outlets)

    def execute(self, context: Any) -> dict[str, Any]:
        """
        Reprocess the versions, emit the outlet events and return the result.

        :raises StreamsemError: see :func:`airflow_provider_streamsem.pipeline.run.reprocess.reprocess`. An error that is not retryable fails the task at once
        """
        with self.resolved_pipeline(context) as pipeline, self.observed(context["ti"], pipeline) as account:
            account.result = result = self._reprocess(pipeline, context["ti"])
        document: dict[str, Any] = result.to_json()
        emit_outlet_events(self, context, document)
        return document

    def _reprocess(self, pipeline: Pipeline, ti: Any) -> RunResult:
        key, engine = run_key(ti), self.engine()
        if self.partition is not None:
            request = f"{key}#clear-{last_clear_id(ti, self.retries)}"
            selection = Selection(partitions=parse_partitions(self.partition))
            return reprocess_selection(
                pipeline, selection, request=request, current_lookups=self.current_lookups, engine=engine
            )
        version = integer_or_text("version", self.version, least=0)
        run = f"{key}#reprocess:{version}"
        return reprocess(pipeline, version, run_key=run, current_lookups=self.current_lookups, engine=engine)
