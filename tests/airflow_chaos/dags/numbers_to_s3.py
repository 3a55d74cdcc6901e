"""The DAG under test. Each run defers for two seconds and then drains the topic."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, dag, task

from airflow_provider_streamsem import Limits
from tests.airflow_chaos.pace import hold_batch
from tests.chaos.setting import Setting
from tests.chaos.subjects.streamsem import Streamsem
from tests.integration.parts.spark import session_conf

SETTING = Setting.read(os.environ["STREAMSEM_CHAOS_SETTING"])
# A slow machine must keep up with the producer. Otherwise each run takes longer than the run before it.
LIMITS = Limits(max_rows=2_000)
PYTHON = {"spark.pyspark.python": sys.executable, "spark.driver.memory": "512m"}


class Wait(BaseOperator):  # type: ignore[misc]
    """Defers for two seconds."""

    def execute(self, context: Any) -> None:
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=2)), method_name="resumed")

    def resumed(self, context: Any, event: Any) -> None:
        return None


@dag(
    schedule="@continuous",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
)
def numbers_to_s3() -> None:
    @task.micro_batch(
        pipeline=Streamsem(SETTING).pipeline().replace(limits=LIMITS),
        drain=True,
        spark_master=SETTING.master,
        spark_conf={**session_conf(), **PYTHON},
    )
    def drain(numbers: Any) -> Any:
        hold_batch(SETTING)
        return numbers

    Wait(task_id="wait") >> drain()


numbers_to_s3()
