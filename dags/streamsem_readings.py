r"""
Averages of sensor readings per sensor and five minutes, with state across batches.

Sensors send their readings as JSON files, out of order and with delays. Each run of the DAG reads the new files. The averages of a window are written once,
when no reading within the allowed delay can change them. If no reading arrives for 15 minutes, no-data batches close the windows that are open.

The DAG requires the folder ``arrivals``. This command creates it with two files:

    mkdir -p /tmp/streamsem-readings/arrivals && cd /tmp/streamsem-readings/arrivals && printf '%s\n' > 1.json \
      '{"sensor": "hall", "at": "2026-01-01T12:01:00Z", "celsius": 19.5}' '{"sensor": "hall", "at": "2026-01-01T12:03:00Z", "celsius": 20.5}' && \
      printf '%s\n' '{"sensor": "hall", "at": "2026-01-01T12:30:00Z", "celsius": 21.0}' > 2.json

The first run reads both files and writes no rows. The second run, five minutes later, is a no-data batch. It writes the average of the first window, because
the reading of 12:30 has moved the watermark past its end.

The environment variable STREAMSEM_READINGS_HOME replaces the folder ``/tmp/streamsem-readings``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from airflow.sdk import dag, task

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOME = os.path.abspath(os.environ.get("STREAMSEM_READINGS_HOME", "/tmp/streamsem-readings"))

READINGS = Pipeline(
    name="readings",
    log=f"{HOME}/log",
    source=FilesSource(
        path=f"{HOME}/arrivals",
        format="json",
        schema="sensor string, at timestamp, celsius double",
        hive_partitions=False,
    ),
    sinks={"averages": FilesSink(path=f"{HOME}/averages")},
    limits=Limits(max_files=100),
    # Readings may arrive 15 minutes late, so the delay of the watermark and close_after_s are both 15 minutes.
    state=State(output_mode="append", partitions=2, close_after_s=900),
    require="exactly_once",
)


@dag(
    schedule=timedelta(minutes=5),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    tags=["streamsem"],
)
def streamsem_readings() -> None:
    """Read the new files, and write the averages of closed windows."""

    @task.micro_batch(
        pipeline=READINGS,
        retries=2,
        retry_delay=timedelta(seconds=1),
        spark_conf={"spark.sql.session.timeZone": "UTC", "spark.driver.memory": "1g"},
    )
    def average(readings: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        windows = readings.withWatermark("at", "15 minutes").groupBy(F.window("at", "5 minutes"), "sensor")
        averages = windows.agg(F.avg("celsius").alias("celsius"), F.count("*").alias("readings"))
        return averages.selectExpr("window.start AS at", "sensor", "celsius", "readings")

    average()


streamsem_readings()
