"""Mixin that reports the runs of an operator to Airflow's tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from airflow_provider_streamsem.observability.account import Account
from airflow_provider_streamsem.observability.links import BatchLink, SparkUiLink, SparkUiListener
from airflow_provider_streamsem.observability.logs import LogFieldsListener
from airflow_provider_streamsem.observability.spans import SpansListener
from airflow_provider_streamsem.observability.stats import StatsListener
from airflow_provider_streamsem.pipeline.spec import Pipeline, load_pipeline
from airflow_provider_streamsem.telemetry import listening


class Observed:
    """
    Mixin for operators that run a pipeline: links, lineage, and :meth:`observed` for the run.

    :attr pipeline: the pipeline that was given to the operator, or ``None`` with a ``pipeline_file``
    :attr account: the record of this try; ``None`` before it runs
    """

    operator_extra_links: ClassVar[tuple[Any, ...]] = (BatchLink(), SparkUiLink())
    pipeline: Pipeline | None
    pipeline_file: str | None
    account: Account | None = None

    @contextmanager
    def observed(self, ti: Any, pipeline: Pipeline) -> Iterator[Account]:
        """Report the run of ``pipeline`` inside the block to metrics, spans, log fields and links. The operator keeps the account for lineage."""
        account = self.account = Account(pipeline)
        tags = {"dag_id": ti.dag_id, "task_id": ti.task_id, **getattr(ti, "stats_tags", {}), "pipeline": pipeline.name}
        listeners = (
            account,
            LogFieldsListener(),
            SpansListener(),
            StatsListener(tags, pipeline.source.unit),
            SparkUiListener(ti),
        )
        with listening(*listeners):
            yield account

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the inputs and outputs that are known before the task runs; ``None`` without the OpenLineage provider."""
        try:
            from airflow_provider_streamsem.observability import lineage
        except ImportError:
            return None
        return lineage.of_spec(self.pipeline or load_pipeline(self.pipeline_file or ""))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what this try read and made visible; ``None`` without the OpenLineage provider."""
        try:
            from airflow_provider_streamsem.observability import lineage
        except ImportError:
            return None
        return self.get_openlineage_facets_on_start() if self.account is None else lineage.of_account(self.account)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return what this try made visible before it failed, and the version that it left open."""
        return self.get_openlineage_facets_on_complete(task_instance)
