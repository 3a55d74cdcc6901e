"""DAGs with one task each, which reads JSON files, for tests with a real scheduler. The engine needs no Spark and records when it is in a batch."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from airflow.sdk import DAG

from airflow_provider_streamsem import MicroBatchOperator
from airflow_provider_streamsem.spark import spark_engine as spark
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture

HOME = Path(os.environ["STREAMSEM_RERUNS_HOME"])


def record_steps(location: Path) -> Callable[[str], object]:
    """Return a function that records the start and end of a batch, and its ancestor processes. It waits in the batch while the file `hold` exists."""

    def step(name: str) -> None:
        if name not in ("read", "staged"):
            return
        ancestors = [process.pid for process in psutil.Process().parents()]
        event = {"run": os.environ["AIRFLOW_CTX_DAG_RUN_ID"], "step": name, "at": time.time(), "ancestors": ancestors}
        with open(location / "steps.jsonl", "a") as file:
            file.write(json.dumps(event) + "\n")
        while name == "read" and (location / "hold").exists():
            time.sleep(0.1)

    return step


def dag(name: str, **arguments: Any) -> DAG:
    location = HOME / name
    fixture = PipelineFixture(location, store=LocalStore(str(location / "log")))
    task = {key: arguments.pop(key) for key in ("pool", "rerun") if key in arguments}
    with DAG(name, start_date=datetime(2026, 1, 1), catchup=arguments.pop("catchup", False), **arguments) as created:
        _Operator(
            task_id="t", pipeline=fixture.pipeline(), drain=True, retries=2, retry_delay=timedelta(seconds=1), **task
        )
    return created


class _Operator(MicroBatchOperator):
    """Sets the engine without Spark at execution, when the location of the pipeline is known."""

    def execute(self, context: Any) -> Any:
        assert self.pipeline is not None
        location = Path(self.pipeline.log).parent
        spark.SparkEngine = lambda **_: RowsEngine(record_steps(location))  # type: ignore[assignment, misc]
        return super().execute(context)


manual = dag("manual", schedule=None, max_active_runs=1)
reprocessed = dag("reprocessed", schedule=None, rerun="reprocess")
concurrent = dag("concurrent", schedule=None, max_active_runs=3)
pooled = dag("pooled", schedule=None, max_active_runs=3, pool="one_slot")
caught_up = dag("caught_up", schedule="@daily", catchup=True, max_active_runs=2, end_date=datetime(2026, 1, 3))
backfilled = dag("backfilled", schedule="@daily", max_active_runs=2, end_date=datetime(2026, 1, 3))
