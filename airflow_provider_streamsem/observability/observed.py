"""Operators that are observed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from airflow_provider_streamsem.batch.pipeline import Pipeline, load_pipeline
from airflow_provider_streamsem.observability.account import Account
from airflow_provider_streamsem.observability.links import BatchLink, SparkUiLink, SparkUiListener
from airflow_provider_streamsem.observability.logs import LogFieldsListener
from airflow_provider_streamsem.observability.spans import SpansListener
from airflow_provider_streamsem.observability.stats import StatsListener
from airflow_provider_streamsem.telemetry import heard_by


class Observed:
    """
    For an operator that runs a pipeline: links, lineage, and :meth:`observed` around the run.

    :attr pipeline: as the operator was given it, or ``None`` with a ``pipeline_file``
    :attr account: what this try did; ``None`` before it ran
    """

    operator_extra_links: ClassVar[tuple[Any, ...]] = (BatchLink(), SparkUiLink())
    pipeline: Pipeline | None
    pipeline_file: str | None
    account: Account | None = None

    @contextmanager
    def observed(self, ti: Any, pipeline: Pipeline) -> Iterator[Account]:
        """Tell Airflow's tools what the block does on ``pipeline``; the account stays with the operator."""
        account = self.account = Account(pipeline)
        tags = {"dag_id": ti.dag_id, "task_id": ti.task_id, **getattr(ti, "stats_tags", {}), "pipeline": pipeline.name}
        listeners = (
            account,
            LogFieldsListener(),
            SpansListener(),
            StatsListener(tags, pipeline.source.unit),
            SparkUiListener(ti),
        )
        with heard_by(*listeners):
            yield account

    def get_openlineage_facets_on_start(self) -> Any:
        """What is read and written, as far as that is known before the task runs; ``None`` without the OpenLineage provider."""
        try:
            from airflow_provider_streamsem.observability import lineage
        except ImportError:
            return None
        return lineage.of_spec(self.pipeline or load_pipeline(self.pipeline_file or ""))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What this try read and made visible; ``None`` without the OpenLineage provider."""
        try:
            from airflow_provider_streamsem.observability import lineage
        except ImportError:
            return None
        return self.get_openlineage_facets_on_start() if self.account is None else lineage.of_account(self.account)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """What this try had made visible before it failed, and the version that it left open."""
        return self.get_openlineage_facets_on_complete(task_instance)
