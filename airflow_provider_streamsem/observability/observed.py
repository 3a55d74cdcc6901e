"""A mixin for operators that reports their runs as metrics, spans, fields of log lines, links and lineage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from airflow_provider_streamsem.observability.account import Account
from airflow_provider_streamsem.observability.links import BatchLink, SparkUiLink, SparkUiListener
from airflow_provider_streamsem.observability.logs import LogFieldsListener
from airflow_provider_streamsem.observability.spans import SpansListener
from airflow_provider_streamsem.observability.stats import StatsListener
from airflow_provider_streamsem.pipeline.spec.location import located
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, load_pipeline
from airflow_provider_streamsem.telemetry import listening, log_of

logger = log_of(__name__)

LOG_KEY = "streamsem_log"
"""Key of the XCom with which a run names its log, so that the web view finds the pipelines of a DAG."""


class Observed:
    """
    A mixin for operators that run a pipeline. It provides links and lineage, and :meth:`observed` reports the run.

    :attr pipeline: the pipeline of the operator; ``None`` if the operator has a ``pipeline_file``
    :attr log_conn_id: the connection of the log, once the pipeline is rendered; ``None`` without one
    :attr account: the record of this try; ``None`` before the run starts
    """

    operator_extra_links: ClassVar[tuple[Any, ...]] = (BatchLink(), SparkUiLink())
    pipeline: Pipeline | None
    pipeline_file: str | None
    log_conn_id: str | None
    account: Account | None = None

    @contextmanager
    def observed(self, ti: Any, pipeline: Pipeline) -> Iterator[Account]:
        """
        Report the run of ``pipeline`` within the block as metrics, spans, fields of log lines and links.

        The operator keeps the account, from which the other methods return the lineage.
        """
        account = self.account = Account(pipeline)
        self._name_log(ti, pipeline)
        tags = {"dag_id": ti.dag_id, "task_id": ti.task_id, **getattr(ti, "stats_tags", {}), "pipeline": pipeline.name}
        listeners = (
            account,
            LogFieldsListener(),
            SpansListener(),
            StatsListener(tags, pipeline.source.range_unit, pipeline.source.count),
            SparkUiListener(ti),
        )
        with listening(*listeners):
            yield account

    def _name_log(self, ti: Any, pipeline: Pipeline) -> None:
        """Push the location of the log for the web view. A failure does not affect the run."""
        try:
            with located(pipeline) as found:
                value = {"pipeline": found.name, "log": found.log, "conn_id": self.log_conn_id or ""}
                ti.xcom_push(key=LOG_KEY, value=value)
        except Exception:
            logger.warning("the web view may not show this pipeline, because its XCom was not stored", exc_info=True)

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
