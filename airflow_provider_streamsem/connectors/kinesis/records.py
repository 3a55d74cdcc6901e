"""Reads planned ranges of shards with Spark, decodes the data and marks bad records. Imports pyspark, so only engines import this module."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from airflow_provider_streamsem.connectors.contract import BadRecord
from airflow_provider_streamsem.connectors.kinesis import aggregated, reading
from airflow_provider_streamsem.connectors.kinesis.pins import ShardPin
from airflow_provider_streamsem.connectors.parsing.bad_rows import bad_rows, text_of
from airflow_provider_streamsem.connectors.parsing.decoded import decode
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.connectors.pickling import pickled_by_value
from airflow_provider_streamsem.errors import DataError

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
_BAD, _LOCATION, _REASON = "__streamsem_bad", "__streamsem_location", "__streamsem_reason"


class KinesisRecords:
    """
    The decoded records of planned ranges. Implements :class:`airflow_provider_streamsem.connectors.contract.Loaded`.

    :param read: the records with the columns :data:`COLUMNS`
    :param value: decoder of the data; ``None``: the data stays binary
    """

    bad: Column | None
    frame: DataFrame
    drop: tuple[str, ...]

    def __init__(self, read: DataFrame, value: Decoder | None) -> None:
        if value is None:
            self.frame, self.bad, self.drop = read, None, ()
            return
        decoded = decode(read, "data", value, subjects=[])
        _refuse_reserved_names([*decoded.fields])
        fields = [column.alias(name) for name, column in decoded.fields.items()]
        own = [F.col(name).alias(f"kinesis_{name}") for name in _OWN]
        location = F.struct(*(F.col(name) for name in (*_OWN, "data"))).alias(_LOCATION)
        is_bad = F.coalesce(decoded.bad, F.lit(False))
        self.frame = decoded.frame.select(*fields, *own, is_bad.alias(_BAD), location)
        reason = F.when(is_bad, decoded.why_bad("the data")).alias(_REASON)
        self._explained = decoded.frame.select(is_bad.alias(_BAD), location, reason)
        self._unreadable = decoded.unreadable
        self.bad, self.drop = F.col(_BAD), (_BAD, _LOCATION)

    def bad_records(self) -> Iterator[BadRecord]:
        """Yield the bad records in a second pass over the same ranges."""
        if self.bad is None:
            return
        selected = [F.col(_LOCATION), F.col(_REASON)]
        for row, reason in bad_rows(self._explained, self.bad, selected, reason=_REASON):
            text, encoding = text_of(bytes(row["data"]))
            location = {
                "stream": row["stream"], "shard_id": row["shard_id"], "sequence_number": row["sequence_number"],
                "sub_sequence_number": row["sub_sequence_number"], "partition_key": row["partition_key"], "encoding": encoding,
            }  # fmt: skip
            yield BadRecord(location=location, raw=text, error="; ".join([reason, *self._unreadable]))


def read_ranges(
    spark: SparkSession, pins: Sequence[ShardPin], settings: Mapping[str, Any], *, aggregation: str
) -> DataFrame:
    """
    Return a DataFrame of the pinned ranges with the columns :data:`COLUMNS`, one Spark partition for each range.

    The Python data source is registered under a random name in the session, which is a clone for each attempt. Its class holds ``settings``, which Spark
    serializes and never prints: the plan shows only the name.

    :param settings: the arguments of :func:`airflow_provider_streamsem.connectors.kinesis.reading.client`
    :param aggregation: see ``KinesisSource``
    """
    name = f"kinesis_{secrets.token_hex(8)}"
    # Executors need not have this package.
    with pickled_by_value([aggregated, reading]):
        spark.dataSource.register(_data_source(name, pins, settings, aggregation))
    return spark.read.format(name).load()


def _data_source(
    name: str, pins: Sequence[ShardPin], settings: Mapping[str, Any], aggregation: str
) -> type[DataSource]:
    """Return the class of a data source that reads the pins. Its methods refer to no module of this package, except by value."""
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


def _refuse_reserved_names(names: Sequence[str]) -> None:
    reserved = sorted({name for name in names if name.lower() in {f"kinesis_{own}" for own in _OWN}})
    if reserved:
        summary = "fields of the value have names that are reserved for the columns of Kinesis; nothing became visible"
        raise DataError(summary, fields=reserved)
