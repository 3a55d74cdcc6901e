"""Reads planned ranges of shards with Spark, decodes the data and marks bad records. Imports pyspark, so only engines import this module."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from airflow_provider_streamsem.connectors import python_worker, varints
from airflow_provider_streamsem.connectors.kinesis import aggregated, reading
from airflow_provider_streamsem.connectors.kinesis.pins import ShardPin
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.connectors.parsing.message_records import MessageRecords
from airflow_provider_streamsem.connectors.pickling import pickle_by_value

COLUMNS = (
    "stream string, shard_id string, sequence_number string, sub_sequence_number long, approximate_arrival_timestamp timestamp, "
    "partition_key string, data binary"
)
"""The columns of the records, as Spark DDL."""
_OWN = (
    "stream",
    "shard_id",
    "sequence_number",
    "sub_sequence_number",
    "approximate_arrival_timestamp",
    "partition_key",
)


def decoded_records(read: DataFrame, value: Decoder | None) -> MessageRecords:
    """``value=None``: the data stays binary."""
    location = [name for name in _OWN if name != "approximate_arrival_timestamp"]
    return MessageRecords(read, value, system="kinesis", own=_OWN, location=location)


def read_ranges(
    spark: SparkSession, pins: Sequence[ShardPin], settings: Mapping[str, Any], *, aggregation: str
) -> DataFrame:
    """
    Return a DataFrame of the pinned ranges with the columns :data:`COLUMNS`, one Spark partition for each range.

    The Python data source is registered under a random name in the session, which is a clone for each attempt. Its class holds ``settings``, which Spark
    serializes and never prints: the plan shows only the name.
    """
    name = f"kinesis_{secrets.token_hex(8)}"
    pickle_by_value(aggregated, python_worker, reading, varints)
    spark.dataSource.register(_data_source(name, pins, settings, aggregation))
    return spark.read.format(name).load()


def _data_source(
    name: str, pins: Sequence[ShardPin], settings: Mapping[str, Any], aggregation: str
) -> type[DataSource]:
    """The methods of the class refer to no module of this package, except by value."""
    ranges = [dataclasses.asdict(pin) for pin in pins]
    arguments, columns = dict(settings), COLUMNS
    client, batches = reading.client, reading.batches

    class Reader(DataSourceReader):  # type: ignore[misc]  # pyspark has no types here
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(n) for n in range(len(ranges))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield from batches(client(**arguments), ranges[partition.value], aggregation)

    class Source(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return columns

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    return Source
