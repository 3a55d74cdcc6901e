"""A mixin for operators that reports their runs as metrics, spans, fields of log lines, links and lineage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from airflow_provider_streamsem.connectors.counting import count, range_unit
from airflow_provider_streamsem.observability.account import Account
from airflow_provider_streamsem.observability.links import BatchLink, SparkUiLink, SparkUiListener
from airflow_provider_streamsem.observability.logs import LogFieldsListener
from airflow_provider_streamsem.observability.spans import SpansListener
from airflow_provider_streamsem.observability.stats import StatsListener
from airflow_provider_streamsem.pipeline.spec import Pipeline, load_pipeline
from airflow_provider_streamsem.telemetry import listening


class Observed:
    """
    A mixin for operators that run a pipeline. It provides links and lineage, and :meth:`observed` reports the run.

    :attr pipeline: the pipeline of the operator; ``None`` if the operator has a ``pipeline_file``
    :attr account: the record of this try; ``None`` before the run starts
    """

    operator_extra_links: ClassVar[tuple[Any, ...]] = (BatchLink(), SparkUiLink())
    pipeline: Pipeline | None
    pipeline_file: str | None
    account: Account | None = None

    @contextmanager
    def observed(self, ti: Any, pipeline: Pipeline) -> Iterator[Account]:
        """
        Report the run of ``pipeline`` within the block as metrics, spans, fields of log lines and links.

        The operator keeps the account, from which the other methods return the lineage.
        """
        account = self.account = Account(pipeline)
        tags = {"dag_id": ti.dag_id, "task_id": ti.task_id, **getattr(ti, "stats_tags", {}), "pipeline": pipeline.name}
        listeners = (
            account,
            LogFieldsListener(),
            SpansListener(),
            StatsListener(tags, range_unit(pipeline.source), partial(count, pipeline.source)),
            SparkUiListener(ti),
        )
        with listening(*listeners):
            yield account

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the inputs and outputs that the spec names; ``None`` without the OpenLineage provider."""
        try:
            from airflow_provider_streamsem.observability import lineage
        except ImportError:
            return None
        return lineage.of_spec(self.pipeline or load_pipeline(self.pipeline_file or ""))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the inputs and outputs of this try; ``None`` without the OpenLineage provider."""
        try:
            from airflow_provider_streamsem.observability import lineage
        except ImportError:
            return None
        return self.get_openlineage_facets_on_start() if self.account is None else lineage.of_account(self.account)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the inputs and outputs of this try before it failed. The facet names the version that it left open."""
        return self.get_openlineage_facets_on_complete(task_instance)
