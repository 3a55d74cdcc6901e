"""Kafka messages for tests without a cluster. They are stored as lines of files, and loaded as :class:`KafkaSource` loads the messages of topics."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.connectors.kafka.source import KafkaSource
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder, Json
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing.lines import json_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.connectors.kafka.records import KafkaRecords

COLUMNS = (
    "topic string, partition int, offset long, timestamp timestamp, headers array<struct<key string, value binary>>, "
    "key binary, value binary"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaMessage:
    """
    A message of a topic, before decoding.

    :param value: the value; text is encoded as UTF-8, and ``None`` is a tombstone
    :param key: the key; text is encoded as UTF-8
    :param topic: the topic; default: the first topic that the source names
    :param partition: the partition
    :param offset: the offset; default: the next offset of the partition
    :param timestamp: a datetime with a time zone, or its ISO text
    :param headers: ``(key, value)`` pairs, or ``{"key": …, "value": …}`` as in Spark
    """

    value: bytes | str | None
    key: bytes | str | None = None
    topic: str | None = None
    partition: int = 0
    offset: int | None = None
    timestamp: datetime | str = "2026-01-01T00:00:00Z"
    headers: Sequence[Any] | None = None


_PARTS = tuple(f.name for f in fields(KafkaMessage))


class Messages:
    """
    Converts rows of a test to messages of the topics of a source. Offsets continue from batch to batch.

    A row is one of:

    * :class:`KafkaMessage`: the complete message.
    * ``bytes`` or ``str``: the value of a message.
    * a mapping: a row as the transform receives it. With a ``value`` decoder, it has the fields of the value and optionally ``kafka_key``, ``kafka_topic``
      and so on. Without a decoder, it has Kafka's own columns.
    """

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._next: Counter[tuple[str, int]] = Counter()

    def line(self, row: object) -> str:
        """
        Return the message of a row as one line of JSON with :data:`COLUMNS`. Binary columns are in base64.

        :raises InvalidError: the row cannot be converted to a message
        """
        message = row if isinstance(row, KafkaMessage) else self._message(row)
        topic = self._topic(message)
        location = (topic, message.partition)
        offset = self._next[location] if message.offset is None else message.offset
        self._next[location] = offset + 1
        at = message.timestamp
        return json.dumps(
            {
                "topic": topic,
                "partition": message.partition,
                "offset": offset,
                "timestamp": at if isinstance(at, str) else at.isoformat(),
                "headers": [{"key": key, "value": _base64(value)} for key, value in map(_pair, message.headers or ())]
                or None,
                "key": _base64(message.key),
                "value": _base64(message.value),
            }
        )

    def _message(self, row: object) -> KafkaMessage:
        if isinstance(row, (str, bytes)):
            return KafkaMessage(value=row)
        if not isinstance(row, Mapping):
            raise InvalidError(
                "a row of a Kafka source must be a mapping, text, bytes or a KafkaMessage", given=type(row).__name__
            )
        if self._source.value is None:
            arguments.known_keys("a row of a Kafka source without a value decoder", row, _PARTS)
            parts = dict(row)
            value = parts.pop("value", None)
        else:
            field_of_column = {f"kafka_{name}": name for name in _PARTS if name != "value"}
            parts = {
                field_of_column[name]: value_of_column
                for name, value_of_column in row.items()
                if name in field_of_column
            }
            value_fields = {
                name: value_of_column for name, value_of_column in row.items() if name not in field_of_column
            }
            value = _encoded("value", self._source.value, value_fields)
        key = parts.pop("key", None)
        if isinstance(key, Mapping):
            key = _encoded("key", self._source.key, key)
        return KafkaMessage(value=value, key=key, **parts)

    def _topic(self, message: KafkaMessage) -> str:
        topic = message.topic or next(iter(self._source.topics), None)
        pattern = self._source.topic_pattern
        is_read = topic in self._source.topics if pattern is None else re.fullmatch(pattern, topic or "") is not None
        if topic is None or not is_read:
            raise InvalidError(
                "the source does not read the topic of this message",
                given=topic,
                accepted=pattern or list(self._source.topics),
            )
        return topic


class GivenMessages:
    """
    A source that loads messages from files. Columns, decoding and quarantine are those of a :class:`KafkaSource`.

    :param kafka: the source that defines columns and decoders
    :param location: the directory of the files
    """

    def __init__(self, kafka: KafkaSource, location: str) -> None:
        self._kafka = kafka
        self._location = location
        self.location = None
        self.spark_packages = tuple(name for name in kafka.spark_packages if name != "kafka")

    def load(self, spark: SparkSession, pins: Sequence[FilePin]) -> KafkaRecords:
        from airflow_provider_streamsem.connectors.kafka.records import KafkaRecords

        read = spark.read.schema(COLUMNS).json([f"{self._location}/{path}" for path in (pin.path for pin in pins)])
        return KafkaRecords(read, key=self._kafka.key, value=self._kafka.value, topics=list(self._kafka.topics))


def _encoded(part: str, decoder: Decoder | None, values: Mapping[str, Any]) -> bytes:
    """Return JSON in UTF-8, with the id 1 of a schema if the decoder expects one. ``part`` is ``key`` or ``value``."""
    if not isinstance(decoder, Json):
        raise InvalidError(
            f"a row may only have the fields of a {part} if the source decodes the {part} from JSON",
            decoder=None if decoder is None else decoder.type,
            accepted=f"bytes of the {part}, or a copy of the source with {part}=Json(...) of the same columns",
        )
    arguments.known_keys(f"a row's {part}", values, _columns(decoder.schema))
    prefix = b"\0\0\0\0\1" if decoder.has_schema_id else b""
    return prefix + json_line(values).encode()


@lru_cache(maxsize=16)
def _columns(schema: str) -> tuple[str, ...]:
    from airflow_provider_streamsem.connectors.parsing import parsed as parsing

    return tuple(f.name for f in parsing.struct(schema, "json").fields)


def _pair(header: Any) -> tuple[str, bytes | str | None]:
    return (header["key"], header["value"]) if isinstance(header, Mapping) else header


def _base64(data: bytes | str | None) -> str | None:
    return None if data is None else base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
