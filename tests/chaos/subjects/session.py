"""The Spark session and the Kafka stream of the alternatives."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from tests.chaos.setting import MAX_ROWS, Setting
from tests.integration.parts.spark import session_conf


def session(setting: Setting, conf: Mapping[str, str] | None = None) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    builder = builder.appName("chaos").master(setting.master).config("spark.ui.showConsoleProgress", "false")
    for key, value in {**session_conf(), **(conf or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def stream(setting: Setting) -> Any:
    """Return the topic as a stream with isolation level read_committed."""
    return (
        session(setting)
        .readStream.format("kafka")
        .option("kafka.bootstrap.servers", setting.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", setting.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", MAX_ROWS)
        .load()
        .selectExpr("CAST(value AS STRING) value", "partition", "offset")
    )


def drain_query(writer: Any, checkpoint: str) -> bool:
    """Run a query up to the end of the topic at its start. Return whether there was no input."""
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return not any(progress["numInputRows"] for progress in query.recentProgress)
