"""Reads planned ranges of a NATS stream with Spark, decodes the data and marks bad messages. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem.connectors.nats.reading import Reading
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder, Protobuf
from airflow_provider_streamsem.connectors.parsing.message_records import MessageRecords

COLUMNS = "subject string, sequence long, timestamp timestamp, headers map<string,string>, data binary"
"""The columns of messages, as Spark DDL."""
_OWN = ("subject", "sequence", "timestamp", "headers")


def decoded_messages(spark: SparkSession, reading: Reading, *, stream: str, value: Decoder | None) -> MessageRecords:
    """A message with empty data has null fields. ``value=None``: the data stays binary."""
    return MessageRecords(
        _read(spark, reading),
        value,
        system="nats",
        own=_OWN,
        location=("subject", "sequence"),
        is_empty_null=not isinstance(value, Protobuf),  # an empty Protobuf message has the default of each field
        facts={"stream": stream},
    )


def _read(spark: SparkSession, reading: Reading) -> DataFrame:
    """Each part is one Spark task. The ranges and credentials are part of the function, because Spark shows its plan, but not the function."""
    count = len(reading.parts)
    if count == 0:
        return spark.createDataFrame([], COLUMNS)
    return spark.range(0, count, 1, count).mapInArrow(reading.batches, COLUMNS)
