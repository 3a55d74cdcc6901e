"""Reads planned ranges of a Pulsar topic with Spark, decodes the data and marks bad messages. Imports pyspark, so only engines import this module."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem.connectors import python_worker, varints
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.connectors.parsing.message_records import MessageRecords
from airflow_provider_streamsem.connectors.pickling import pickle_by_value
from airflow_provider_streamsem.connectors.pulsar import reading
from airflow_provider_streamsem.connectors.pulsar.access import Access
from airflow_provider_streamsem.connectors.pulsar.entries import LedgerPin

COLUMNS = (
    "topic string, ledger_id long, entry_id long, batch_index int, publish_timestamp timestamp, event_timestamp timestamp, key string, "
    "properties map<string,string>, data binary"
)
"""The columns of messages, as Spark DDL."""
_OWN = ("topic", "ledger_id", "entry_id", "batch_index", "publish_timestamp", "event_timestamp", "key", "properties")


def decoded_messages(
    spark: SparkSession, access: Access, pins: Sequence[LedgerPin], value: Decoder | None
) -> MessageRecords:
    """A null message has null fields. ``value=None``: the data stays binary."""
    location = ("topic", "ledger_id", "entry_id", "batch_index")
    return MessageRecords(_read(spark, access, pins), value, system="pulsar", own=_OWN, location=location)


def _read(spark: SparkSession, access: Access, pins: Sequence[LedgerPin]) -> DataFrame:
    """Each range is one Spark task. The ranges and credentials are part of the function, because Spark shows its plan, but not the function."""
    if not pins:
        return spark.createDataFrame([], COLUMNS)
    planned = [dataclasses.asdict(pin) for pin in pins]
    pickle_by_value(python_worker, reading, varints)
    read = partial(reading.batches, access=access.for_executors(), pins=planned)
    return spark.range(0, len(pins), 1, len(pins)).mapInArrow(read, COLUMNS)
