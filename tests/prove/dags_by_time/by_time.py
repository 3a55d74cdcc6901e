"""DAGs that work by dates, for tests with a real scheduler. The engine needs no Spark."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, PartitionedAssetTimetable, task

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    Gate,
    Limits,
    MicroBatchOperator,
    PartitionCompleteSensor,
    Partitions,
    Pipeline,
    ReprocessOperator,
)
from airflow_provider_streamsem.spark import spark_engine as spark
from airflow_provider_streamsem.testing.rows import RowsEngine

HOME = Path(os.environ["STREAMSEM_BY_TIME_HOME"])
START = datetime(2026, 1, 1)
HOURLY = CronDataIntervalTimetable("0 * * * *", timezone="UTC")
DAILY = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=1)}


def pipeline(name: str, **arguments: Any) -> Pipeline:
    """Return a pipeline that reads the JSON files of ``HOME/name/in``."""
    source = FilesSource(path=str(HOME / name / "in"), format="json", schema="id long, at timestamp")
    sinks = {"out": FilesSink(path=str(HOME / name / "out"), format="json")}
    return Pipeline(name=name, log=str(HOME / name / "log"), source=source, sinks=sinks, **arguments)


class WithoutSpark:
    """Sets the engine without Spark when the task runs."""

    def execute(self, context: Any) -> Any:
        spark.SparkEngine = lambda **_: RowsEngine()  # type: ignore[assignment, misc]
        return super().execute(context)  # type: ignore[misc]


class Load(WithoutSpark, MicroBatchOperator):
    """Runs a batch or reads an interval."""


class Reprocess(WithoutSpark, ReprocessOperator):
    """Reprocesses versions."""


hourly_pipeline = pipeline("hourly", intervals=True)
hours = Asset("hours")
reports = Asset("reports")

with DAG(
    "hourly", schedule=HOURLY, start_date=START, end_date=datetime(2026, 1, 2, 23), catchup=True, max_active_runs=4
):
    Load(
        task_id="t",
        pipeline=hourly_pipeline,
        interval="data_interval",
        outlets=[hours],
        partition_key="interval",
        **RETRIES,
    )

with DAG("report", schedule=PartitionedAssetTimetable(assets=hours), catchup=False):

    @task(outlets=[reports])
    def report(dag_run: Any = None) -> str:
        return str(dag_run.partition_key)

    report()

with DAG("summary", schedule=PartitionedAssetTimetable(assets=reports), catchup=False):

    @task
    def summary(dag_run: Any = None) -> str:
        return str(dag_run.partition_key)

    summary()

days = pipeline("days", partitions=Partitions(by="at", after=0), limits=Limits(max_files=1))

with DAG("days", schedule=None, max_active_runs=1):
    Load(task_id="t", pipeline=days, drain=True, **RETRIES)

with DAG(
    "days_backfill", schedule=DAILY, start_date=START, catchup=False, max_active_runs=1, is_paused_upon_creation=True
):
    Reprocess(task_id="t", pipeline=days, partition="{{ ds }}", **RETRIES)

with DAG("gated", schedule=None):
    Load(task_id="t", pipeline=pipeline("gated", gates=[Gate(max_rows=3, on_failure="hold")]), **RETRIES)

late = pipeline("late", partitions=Partitions(by="at", after=0))

with DAG("late", schedule=None):
    Load(task_id="t", pipeline=late, drain=True, **RETRIES)

with DAG("waiting", schedule=None):
    PartitionCompleteSensor(task_id="t", pipeline=late, partition="2026-01-02", deferrable=True, poke_interval=1)

with DAG("mapped", schedule=None):
    Load.partial(task_id="t", drain=True, **RETRIES).expand(
        pipeline=[str(HOME / f"mapped-{n}.toml") for n in range(20)]
    )
