"""Two topics of a real broker in one pipeline, joined as streams."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSink, Json, KafkaSource, Pipeline, State, run_batch, verify
from tests.integration.parts.kafka import Broker
from tests.integration.topics import Topics

pytestmark = pytest.mark.integration


@pytest.fixture
def topics(broker: Broker, spark: SparkSession, tmp_path: Path) -> Topics:
    return Topics(broker, tmp_path)


def joined(streams: Mapping[str, DataFrame]) -> DataFrame:
    orders = streams["orders"].withWatermark("at", "1 hour").alias("o")
    payments = streams["payments"].withWatermark("at", "1 hour").alias("p")
    on = F.expr("o.id = p.order_id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 DAY")
    return orders.join(payments, on).selectExpr("o.id", "p.paid", "p.kafka_offset AS payment_offset")


def test_payments_are_joined_with_orders_of_earlier_batches(topics: Topics) -> None:
    at = "2024-01-01T00:00:00Z"
    for name in ("orders", "payments"):
        topics.create(name, 1)
    schemas = {"orders": "id long, at timestamp", "payments": "order_id long, paid long, at timestamp"}
    spec = Pipeline(
        name="joined", log=str(topics.location / "log"), sinks={"out": FilesSink(path=str(topics.location / "out"))},
        sources={
            name: KafkaSource(topics=[topics.name(name)], bootstrap_servers=topics.broker.bootstrap, value=Json(schema))
            for name, schema in schemas.items()
        },
        transform=joined, state=State(output_mode="append", partitions=2),
    )  # fmt: skip
    topics.put("orders", [json.dumps({"id": n, "at": at}) for n in range(4)])
    run_batch(spec, run_key="orders alone")
    topics.put("payments", [json.dumps({"order_id": n, "paid": 10 * n, "at": at}) for n in (2, 9)])
    result = run_batch(spec, run_key="payments alone")
    ranges = {name.partition("@")[0]: ends for name, ends in result.ranges.items()}
    assert ranges == {f"payments/{topics.name('payments')}-0": (0, 2)}
    topics.put("orders", [json.dumps({"id": 9, "at": at}), "{broken"])
    topics.put("payments", [json.dumps({"order_id": 0, "paid": 0, "at": at})])
    result = run_batch(spec, run_key="both")
    assert (result.counts["read.orders"], result.counts["read.payments"], result.counts["quarantined"]) == (2, 1, 1)
    assert sorted(topics.rows("id, paid, payment_offset")) == [(0, 0, 2), (2, 20, 0), (9, 90, 1)]
    assert verify(str(topics.location / "log")).violations == []
