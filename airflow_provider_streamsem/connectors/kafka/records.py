"""Reads planned Kafka ranges with Spark, decodes the records and marks bad records. Imports pyspark, so only engines import this module."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.parsing.bad_rows import bad_rows, text_of
from airflow_provider_streamsem.connectors.parsing.decoded import Decoded, decode
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.connectors.parsing.message_records import refuse_reserved
from airflow_provider_streamsem.connectors.source import BadRecord, Loaded

if TYPE_CHECKING:
    from airflow_provider_streamsem.connectors.kafka.pins import RangePin

COLUMNS = (
    "topic string, partition int, offset long, timestamp timestamp, headers array<struct<key: string, value: binary>>, "
    "key binary, value binary"
)
"""The columns of Kafka records, as Spark DDL."""
_OWN = ("topic", "partition", "offset", "timestamp", "headers", "key")
_BAD, _RECORD_LOCATION = "__streamsem_bad", "__streamsem_location"
_REASON, _KEY = "__streamsem_reason", "__streamsem_key"
_V1_SOURCES = "spark.sql.sources.useV1SourceList"
# With Kafka's default of 1 MiB a task waits for a fetch every few thousand records. This took a fifth of the time of a batch of 50,000 records.
_FETCH_BYTES = 16 << 20


class KafkaRecords(Loaded):
    """
    The decoded records of planned ranges, from a frame ``read`` with Kafka's columns. A key or value without decoder stays binary.

    :param topics: topics whose subjects are requested from the schema registry
    """

    bad: Column | None
    frame: DataFrame
    drop: tuple[str, ...]

    def __init__(self, read: DataFrame, *, key: Decoder | None, value: Decoder | None, topics: list[str]) -> None:
        self._decoders = {part: decoder for part, decoder in (("key", key), ("value", value)) if decoder is not None}
        self._read, self._topics = read, topics
        if not self._decoders:
            self.frame, self.bad, self.drop = read, None, ()
            return
        read, parts = self._decoded(keeps_data=False)
        key_sql = "key"
        if "key" in parts:
            read, key_sql = read.withColumn(_KEY, parts["key"].record()), _KEY
        own = {name: quoted(name) for name in _OWN if name != "key"}
        if "value" in parts:
            columns = [
                *parts["value"].columns,
                *(f"{sql} AS kafka_{name}" for name, sql in own.items()),
                f"{key_sql} AS kafka_key",
            ]
            refuse_reserved(parts["value"].fields, (f"kafka_{own}" for own in _OWN))
        else:
            columns = [*own.values(), f"{key_sql} AS key", "value"]
        self.frame = read.selectExpr(*columns, f"{_any_bad(parts)} AS {_BAD}")
        self.bad, self.drop = F.col(_BAD), (_BAD,)

    def _decoded(self, *, keeps_data: bool) -> tuple[DataFrame, dict[str, Decoded]]:
        """``keeps_data`` says whether the result must have the binary key and value beside their fields."""
        read, parts = self._read, {}
        for part, decoder in self._decoders.items():
            subjects = [f"{topic}-{part}" for topic in self._topics]
            parts[part] = decode(read, part, decoder, subjects=subjects, keeps_data=keeps_data)
            read = parts[part].frame
        return read, parts

    def bad_records(self) -> Iterator[BadRecord]:
        if self.bad is None:
            return
        read, parts = self._decoded(keeps_data=True)
        location = F.struct(*(F.col(name) for name in ("topic", "partition", "offset", "key", "value")))
        reasons = ", ".join(decoded.why_bad(part) for part, decoded in parts.items())
        explained = read.withColumn(_RECORD_LOCATION, location).selectExpr(
            f"{_any_bad(parts)} AS {_BAD}", _RECORD_LOCATION, f"concat_ws('; ', {reasons}) AS {_REASON}"
        )
        selected = [F.col(_RECORD_LOCATION), F.col(_REASON)]
        for row, reason in bad_rows(explained, F.col(_BAD), selected, reason=_REASON):
            text, encoding = _text(row["value"])
            key, key_encoding = _text(row["key"])
            location = {
                "topic": row["topic"], "partition": row["partition"], "offset": row["offset"], "encoding": encoding, "key": key,
                "key_encoding": key_encoding,
            }  # fmt: skip
            yield BadRecord(location=location, raw=text, error=reason)


def _any_bad(parts: Mapping[str, Decoded]) -> str:
    return " OR ".join(f"coalesce({decoded.bad}, false)" for decoded in parts.values())


def read_ranges(
    spark: SparkSession, settings: Mapping[str, str], pins: Sequence[RangePin], *, isolation: str
) -> DataFrame:
    """Return a DataFrame of the pinned ranges with Kafka's columns. ``settings`` includes ``cluster.java_settings``."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for pin in pins:
        assigned.setdefault(pin.topic, []).append(pin.partition)
        starts.setdefault(pin.topic, {})[str(pin.partition)] = pin.start
        ends.setdefault(pin.topic, {})[str(pin.partition)] = pin.end
    options = {"kafka.max.partition.fetch.bytes": str(_FETCH_BYTES), **settings}
    options["kafka.isolation.level"] = isolation
    reader = spark.read.format("kafka").options(
        **options,
        **_group(options, pins),
        assign=json.dumps(assigned),
        startingOffsets=json.dumps(starts),
        endingOffsets=json.dumps(ends),
        failOnDataLoss="true",  # A missing offset fails the task. Spark must not read other records instead.
        includeHeaders="true",
    )
    with _v2_source(spark):
        read = reader.load()
    return read.selectExpr(*(f"`{name}`" for name in (*_OWN, "value")))


@contextmanager
def _v2_source(spark: SparkSession) -> Iterator[None]:
    """
    Within the block, Spark uses its Data Source V2 for Kafka (ADR 0014), which does not convert each row to Java objects and back, as V1 does.

    A classic session chooses the source when it creates the DataFrame. A Spark Connect server chooses it when the plan runs, which is after this block, so it
    uses the V1 source.
    """
    if is_remote():
        yield
        return
    before = spark.conf.get(_V1_SOURCES)
    spark.conf.set(_V1_SOURCES, ",".join(name for name in before.split(",") if name.strip().lower() != "kafka"))
    try:
        yield
    finally:
        spark.conf.set(_V1_SOURCES, before)


def _group(options: Mapping[str, str], pins: Sequence[RangePin]) -> dict[str, str]:
    """
    Consecutive batches share the name, so that an executor reuses the consumer of the previous batch and the records that it has prefetched.

    After a truncation of the partition, prefetched records would be wrong. A partition is truncated only under a new leader epoch, and a recreated topic has a
    new topic id, so the name depends on both. Without one of them, the result is ``{}``. Consumers use manual assignment and commit no offsets, so the group
    has no other effect.
    """
    histories = sorted([pin.topic, pin.topic_id, pin.partition, pin.epoch] for pin in pins)
    if any(pin.epoch < 0 or not pin.topic_id for pin in pins):  # the broker does not report them
        return {}
    identity = json.dumps([sorted(options.items()), histories])
    return {"kafka.group.id": _named_group(hashlib.sha256(identity.encode()).hexdigest())}


@lru_cache(maxsize=1024)
def _named_group(identity: str) -> str:
    """The cache returns the same random name for the same identity."""
    return f"spark-kafka-relation-{secrets.token_hex(16)}"


def _text(value: bytes | None) -> tuple[str, str]:
    if value is None:
        return "", "null"
    return text_of(bytes(value))
