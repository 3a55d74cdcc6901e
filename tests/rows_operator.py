"""An operator that runs a pipeline without Spark."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem import Pipeline, run_batch
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.hooks.runs import run_key
from airflow_provider_streamsem.observability.observed import Observed
from airflow_provider_streamsem.testing.rows import RowsEngine


class RunsRows(HasPipeline, Observed, BaseOperator):
    """Runs a pipeline without Spark, as ``MicroBatchOperator`` runs it with Spark."""

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_pipeline(pipeline)

    def execute(self, context: Any) -> None:
        with self.resolved_pipeline(context) as pipeline, self.observed(context["ti"], pipeline) as account:
            account.result = run_batch(pipeline, run_key=run_key(context["ti"]), engine=RowsEngine())
