"""DAGs of one task each over a world of JSON files, for tests of what a scheduler does; an engine without Spark, which says when it is in a batch."""

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
from airflow_provider_streamsem.engines import spark
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.worlds import World

HOME = Path(os.environ["STREAMSEM_RERUNS_HOME"])


def in_a_batch(place: Path) -> Callable[[str], object]:
    """Say when a batch begins and ends, and of which scheduler's task it is; stay in it while there is a file `hold`."""

    def step(name: str) -> None:
        if name not in ("read", "staged"):
            return
        ancestors = [process.pid for process in psutil.Process().parents()]
        said = {"run": os.environ["AIRFLOW_CTX_DAG_RUN_ID"], "step": name, "at": time.time(), "ancestors": ancestors}
        with open(place / "steps.jsonl", "a") as file:
            file.write(json.dumps(said) + "\n")
        while name == "read" and (place / "hold").exists():
            time.sleep(0.1)

    return step


def dag(name: str, **arguments: Any) -> DAG:
    place = HOME / name
    world = World(place, store=LocalStore(str(place / "log")))
    task = {key: arguments.pop(key) for key in ("pool", "rerun") if key in arguments}
    with DAG(name, start_date=datetime(2026, 1, 1), catchup=arguments.pop("catchup", False), **arguments) as made:
        _Operator(
            task_id="t", pipeline=world.pipeline(), drain=True, retries=2, retry_delay=timedelta(seconds=1), **task
        )
    return made


class _Operator(MicroBatchOperator):
    """With the engine without Spark: which place it works at is known only here."""

    def execute(self, context: Any) -> Any:
        assert self.pipeline is not None
        place = Path(self.pipeline.log).parent
        spark.SparkEngine = lambda **_: RowsEngine(in_a_batch(place))  # type: ignore[assignment, misc]
        return super().execute(context)


by_hand = dag("by_hand", schedule=None, max_active_runs=1)
redone = dag("redone", schedule=None, rerun="redo")
beside = dag("beside", schedule=None, max_active_runs=3)
pooled = dag("pooled", schedule=None, max_active_runs=3, pool="one_slot")
caught_up = dag("caught_up", schedule="@daily", catchup=True, max_active_runs=2, end_date=datetime(2026, 1, 3))
filled = dag("filled", schedule="@daily", max_active_runs=2, end_date=datetime(2026, 1, 3))
