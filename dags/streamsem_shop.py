r"""
Matches the orders of a shop with their payments. An order without a payment within 30 minutes is written as unpaid.

Orders and payments arrive as JSON files in two directories, out of order and with delays. The state keeps an order until its payment arrives or the 30 minutes
have passed in event time. So the two may be in different batches. Each order is written exactly once: as paid or as unpaid.

The DAG requires the directories ``orders`` and ``payments``. This command creates them with three orders and two payments:

    mkdir -p /tmp/streamsem-shop/orders /tmp/streamsem-shop/payments && cd /tmp/streamsem-shop && printf '%s\n' > orders/1.json \
      '{"id": 1, "shop": "north", "at": "2026-01-01T12:00:00Z"}' '{"id": 2, "shop": "north", "at": "2026-01-01T12:05:00Z"}' \
      '{"id": 3, "shop": "south", "at": "2026-01-01T13:30:00Z"}' && printf '%s\n' > payments/1.json \
      '{"order_id": 1, "cents": 1250, "paid_at": "2026-01-01T12:10:00Z"}' '{"order_id": 3, "cents": 300, "paid_at": "2026-01-01T13:40:00Z"}'

The first run writes orders 1 and 3 as paid. The second run, ten minutes later, is a no-data batch: it writes order 2 as unpaid, because the watermark is after
12:35.

The environment variable STREAMSEM_SHOP_HOME replaces the directory ``/tmp/streamsem-shop``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from airflow.sdk import dag, task

from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOME = os.path.abspath(os.environ.get("STREAMSEM_SHOP_HOME", "/tmp/streamsem-shop"))


def arrivals(name: str, columns: str) -> FilesSource:
    """Return the source of the JSON files in a directory."""
    return FilesSource(path=f"{HOME}/{name}", format="json", schema=columns, hive_partitions=False)


SHOP = Pipeline(
    name="shop",
    log=f"{HOME}/log",
    sources={
        "orders": arrivals("orders", "id long, shop string, at timestamp"),
        "payments": arrivals("payments", "order_id long, cents long, paid_at timestamp"),
    },
    sinks={"orders": FilesSink(path=f"{HOME}/matched")},
    state=State(output_mode="append", partitions=2, late="quarantine", close_after_s=3600),
    require="exactly_once",
)


@dag(
    schedule=timedelta(minutes=10),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    tags=["streamsem"],
)
def streamsem_shop() -> None:
    """Read the new orders and payments, and write the orders that are paid, or that can no longer be paid in time."""

    @task.micro_batch(
        pipeline=SHOP,
        retries=2,
        retry_delay=timedelta(seconds=1),
        spark_conf={"spark.sql.session.timeZone": "UTC", "spark.driver.memory": "1g"},
    )
    def match(arrived: Mapping[str, DataFrame]) -> DataFrame:
        from pyspark.sql import functions as F

        orders = arrived["orders"].withWatermark("at", "10 minutes")
        payments = arrived["payments"].withWatermark("paid_at", "10 minutes")
        in_time = F.expr("id = order_id AND paid_at BETWEEN at AND at + INTERVAL 30 MINUTES")
        matched = orders.join(payments, in_time, "left_outer")
        return matched.selectExpr("id", "shop", "at", "paid_at IS NOT NULL AS paid", "cents")

    match()


streamsem_shop()
