"""An operator on a pipeline fixture, and the context that Airflow gives its task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.pipeline_fixture import PipelineFixture


def context(run_id: str = "r", try_number: int = 1, map_index: int = -1, max_tries: int = 0) -> dict[str, Any]:
    from airflow.sdk.execution_time.context import OutletEventAccessors

    ti = SimpleNamespace(
        dag_id="d", task_id="t", run_id=run_id, map_index=map_index, try_number=try_number, max_tries=max_tries
    )
    return {"ti": ti, "run_id": run_id, "ds": "2024-01-01", "outlet_events": OutletEventAccessors()}


def operator(fixture: PipelineFixture, **arguments: Any) -> Any:
    from airflow_provider_streamsem import MicroBatchOperator

    return MicroBatchOperator(task_id="t", pipeline=arguments.pop("pipeline", fixture.pipeline()), **arguments)
