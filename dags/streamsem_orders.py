r"""
Writes orders from Kafka to a table of Parquet files on S3 or disk, exactly once. An Airflow connection names the Spark cluster.

The DAG requires a Kafka topic ``orders`` with JSON records such as ``{"id": 1, "user": "Ann Lee", "cents": 250, "at": "2026-01-01T00:00:00Z"}``, Spark's Kafka
package (docs/how-to/spark-packages.md), and two Airflow connections. For S3 it also requires the package hadoop-aws and credentials. These commands create the
connections:

    airflow connections add kafka_default --conn-type kafka --conn-extra '{"bootstrap.servers": "127.0.0.1:9092"}' && \
      airflow connections add spark_default --conn-type spark --conn-host 'local[*]'

``spark_default`` may be of type ``spark`` or ``spark_connect``. The environment variable STREAMSEM_LAKE sets the location of log and table on S3 or disk
(default: ``/tmp/streamsem-orders``), and STREAMSEM_ORDERS_TOPIC sets the topic.

A cleared task reprocesses its versions from the same offsets. So clear it after a fix of ``clean``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Asset, dag, task

from airflow_provider_streamsem import FilesSink, Json, KafkaSource, Limits, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LAKE = os.environ.get("STREAMSEM_LAKE", "/tmp/streamsem-orders")

ORDERS = Pipeline(
    name="orders",
    log=f"{LAKE}/_streamsem/orders",
    source=KafkaSource(
        topics=[os.environ.get("STREAMSEM_ORDERS_TOPIC", "orders")],
        conn_id="kafka_default",
        starting="earliest",
        value=Json("id long, user string, cents long, at timestamp"),
    ),
    where="cents > 0",
    rows="filter",
    sinks={"orders": FilesSink(path=f"{LAKE}/orders", partition_by=["day"])},
    limits=Limits(max_rows=1_000_000),
    require="exactly_once",
)


def initials(user: str | None) -> str:
    """Return the initials of a name. The function runs on executors, which cannot import this file, so it is sent to them by value."""
    return "".join(word[0] for word in (user or "").split())


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["streamsem"])
def streamsem_orders() -> None:
    """Read all records that are in the topic when the run starts."""

    @task.micro_batch(
        pipeline=ORDERS,
        drain=True,
        rerun="reprocess",
        spark_conn_id="spark_default",
        outlets=[Asset("streamsem_orders")],
        retries=2,
        retry_delay=timedelta(seconds=1),
    )
    def clean(orders: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        short = F.udf(initials, "string")
        return orders.select("id", short("user").alias("initials"), "cents", "at", F.to_date("at").alias("day"))

    clean()


streamsem_orders()
