"""Kafka records on Spark: planned ranges, decoded, bad records told apart. Imports pyspark: only engines reach this."""

from __future__ import annotations

import hashlib
import json
import secrets
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from pyspark.sql.utils import is_remote

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.errors import DataError, UnavailableError
from airflow_provider_streamsem.nested_values import anywhere, holds
from airflow_provider_streamsem.protocol.entries import Json as JsonValue
from airflow_provider_streamsem.sources import avro_schemas, parsing
from airflow_provider_streamsem.sources.contract import BadRecord
from airflow_provider_streamsem.sources.decoding import Avro, Decoder, Json
from airflow_provider_streamsem.sources.sql import struct_of
from airflow_provider_streamsem.sources.text_lines import text_of

if TYPE_CHECKING:
    from airflow_provider_streamsem.sources.kafka import KafkaSource

logger = telemetry.log_of(__name__)

_OWN = ("topic", "partition", "offset", "timestamp", "headers", "key")
_BAD, _PLACE, _DECODED = "__streamsem_bad", "__streamsem_place", "__streamsem_decoded_"
_OLDER = "spark.sql.sources.useV1SourceList"
_REGISTRY_TIMEOUT_S = 30
# Kafka's default of 1 MiB makes a task wait for a fetch every few thousand records: a fifth of the time of a batch of 50,000.
_FETCH_BYTES = 16 << 20


class KafkaRecords:
    """
    The records of some ranges (:class:`airflow_provider_streamsem.sources.contract.Loaded`).

    :param read: Kafka's own columns: topic, partition, offset, timestamp, headers, key, value
    :param topics: by whose names a schema registry is asked
    """

    bad: Column | None
    frame: DataFrame
    drop: tuple[str, ...]

    def __init__(self, source: KafkaSource, read: DataFrame, topics: list[str]) -> None:
        self._source = source
        self._unreadable: list[str] = []
        parts: dict[str, _Decoded] = {}
        for part, decoder in (("key", source.key), ("value", source.value)):
            if decoder is not None:
                parts[part] = _decoded(part, decoder, topics, read)
                read = parts[part].frame
                self._unreadable += parts[part].unreadable
        if not parts:
            self.frame, self.bad, self.drop = read, None, ()
            return
        bad = F.lit(False)
        for decoded in parts.values():
            bad = bad | F.coalesce(decoded.bad, F.lit(False))
        place = F.struct(
            F.col("topic"),
            F.col("partition"),
            F.col("offset"),
            F.col("key").alias("key"),
            F.col("value").alias("value"),
        )
        key = parts["key"].record if "key" in parts else F.col("key")
        if "value" in parts:
            columns = [value.alias(name) for name, value in parts["value"].fields.items()]
            columns += [F.col(name).alias(f"kafka_{name}") for name in _OWN if name != "key"] + [key.alias("kafka_key")]
            _refuse_taken(parts["value"].fields)
        else:
            columns = [F.col(name) for name in _OWN if name != "key"] + [key.alias("key"), F.col("value")]
        self.frame = read.select(*columns, bad.alias(_BAD), place.alias(_PLACE))
        self.bad, self.drop = F.col(_BAD), (_BAD, _PLACE)

    def bad_records(self) -> Iterator[BadRecord]:
        """A second pass over the same ranges, for the bad records only."""
        if self.bad is None:
            return
        asked = [
            part for part, decoder in (("key", self._source.key), ("value", self._source.value)) if decoder is not None
        ]
        error = "; ".join([f"{' or '.join(asked)} cannot be decoded", *self._unreadable])
        for (row,) in self.frame.where(self.bad).select(_PLACE).toLocalIterator():
            text, encoding = _text(row["value"])
            key, key_encoding = _text(row["key"])
            place = {
                "topic": row["topic"], "partition": row["partition"], "offset": row["offset"], "encoding": encoding, "key": key,
                "key_encoding": key_encoding,
            }  # fmt: skip
            yield BadRecord(place=place, raw=text, error=error)


def read_ranges(spark: SparkSession, source: KafkaSource, settings: Mapping[str, str], pins: JsonValue) -> DataFrame:
    """The pinned ranges with Kafka's own columns."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for topic, _, number, start, end, _ in pins:
        assigned.setdefault(topic, []).append(number)
        starts.setdefault(topic, {})[str(number)] = start
        ends.setdefault(topic, {})[str(number)] = end
    options = {"kafka.max.partition.fetch.bytes": str(_FETCH_BYTES), **source.options, **settings}
    options["kafka.isolation.level"] = source.isolation
    reader = spark.read.format("kafka").options(
        **options,
        **_group(options, pins),
        assign=json.dumps(assigned),
        startingOffsets=json.dumps(starts),
        endingOffsets=json.dumps(ends),
        failOnDataLoss="true",  # a record that is gone fails the task: nothing is read from elsewhere in its stead
        includeHeaders="true",
    )
    with _newer_source(spark):
        read = reader.load()
    return read.selectExpr(*(f"`{name}`" for name in (*_OWN, "value")))


@contextmanager
def _newer_source(spark: SparkSession) -> Iterator[None]:
    """
    Spark's older Kafka source makes objects of each row, and rows of them again; streaming queries have the newer one, too (ADR 0014).

    Which one it is, is settled when a classic session makes the DataFrame. Behind Spark Connect that is when the plan runs, and the older one stays.
    """
    if is_remote():
        yield
        return
    before = spark.conf.get(_OLDER)
    spark.conf.set(_OLDER, ",".join(name for name in before.split(",") if name.strip().lower() != "kafka"))
    try:
        yield
    finally:
        spark.conf.set(_OLDER, before)


def _group(options: Mapping[str, str], pins: JsonValue) -> dict[str, str]:
    """
    A consumer group that the next batch has, too: an executor then goes on with the consumer of the batch before, and with the records that it fetched ahead.

    What was fetched ahead is of one history of the log. A log is cut short, or made again, only under another epoch of its leader or another topic id, so
    those are part of what a group is of. Consumers are assigned and never commit: the group is a name, and new in each process.
    """
    histories = sorted([topic, topic_id, number, epoch] for topic, topic_id, number, _, _, epoch in pins)
    if any(epoch < 0 or not topic_id for _, topic_id, _, epoch in histories):  # a broker that does not tell
        return {}
    of = json.dumps([sorted(options.items()), histories])
    return {"kafka.group.id": _named_group(hashlib.sha256(of.encode()).hexdigest())}


@lru_cache(maxsize=1024)
def _named_group(of: str) -> str:
    return f"spark-kafka-relation-{secrets.token_hex(16)}"


class _Decoded:
    """
    A part of the messages, decoded.

    :param frame: what the columns are of
    :param record: a struct of the fields; null where the message has no such part
    :param fields: name → value
    :param bad: whether the part cannot be decoded
    :param unreadable: versions of the registry's subjects whose records are bad, with the reason
    """

    def __init__(
        self,
        frame: DataFrame,
        record: Column,
        fields: Mapping[str, Column],
        bad: Column,
        unreadable: Sequence[str] = (),
    ) -> None:
        self.frame, self.record, self.fields, self.bad, self.unreadable = frame, record, fields, bad, unreadable


def _decoded(part: str, decoder: Decoder, topics: list[str], read: DataFrame) -> _Decoded:
    return _json(part, decoder, read) if isinstance(decoder, Json) else _avro(part, decoder, topics, read)


def _json(part: str, decoder: Json, read: DataFrame) -> _Decoded:
    columns = parsing.struct(decoder.schema, "json")
    column = f"{_DECODED}{part}"
    parsed = parsing.with_json(read, f"CAST({part} AS STRING)", columns, decoder.options, column)
    is_bad = F.col(part).isNotNull() & F.col(parsed.bad)
    fields = {name: F.expr(value) for name, value in parsed.values.items()}
    record = F.when(F.col(part).isNotNull(), F.expr(struct_of(parsed.values)))
    return _Decoded(parsed.frame.withColumn(parsed.bad, is_bad), record, fields, F.col(parsed.bad))


def _avro(part: str, decoder: Avro, topics: list[str], read: DataFrame) -> _Decoded:
    """
    A record is decoded inside an outer record, before a field that holds a random word: Avro puts fields one after the other without marks, so the bytes
    are those of the message followed by the word. Only a message that is exactly one record leaves the word where it belongs.
    """
    column, word = f"{_DECODED}{part}", secrets.token_bytes(16)
    names = [f["name"] for f in json.loads(decoder.schema)["fields"]]
    data = F.col(part)
    unreadable: list[str] = []
    if decoder.registry is None:
        outer = _from_avro(F.concat(data, F.lit(word)), decoder.schema, decoder.schema)
    else:
        outer = _from_avro(F.lit(None).cast("binary"), decoder.schema, decoder.schema)
        payload = F.concat(F.expr(f"substring({part}, 6)"), F.lit(word))
        versions = _versions(decoder.registry, [f"{topic}-{part}" for topic in topics])
        readable: dict[int, str] = {}
        for version in versions:
            reason = version.unreadable(decoder.schema)
            if reason is None:
                readable[version.id] = version.schema
            else:
                logger.warning("records of a schema are quarantined: %s", reason)
                unreadable.append(reason)
        for number, schema in readable.items():
            head = F.lit(b"\0" + number.to_bytes(4, "big"))
            outer = F.when(
                F.expr(f"substring({part}, 1, 5)") == head, _from_avro(payload, schema, decoder.schema)
            ).otherwise(outer)
    wrapped = read.withColumn(column, outer)
    whole = F.col(column)["record"].isNotNull() & (F.col(column)["word"] == F.lit(word))
    # Spark's reader takes the bytes of a string as they are, and Avro demands UTF-8.
    kind = wrapped.schema[column].dataType
    is_text = holds(kind, StringType)
    other = anywhere(F.col(column), kind, StringType, lambda text: ~F.is_valid_utf8(text)) if is_text else F.lit(False)
    bad = data.isNotNull() & (~F.coalesce(whole, F.lit(False)) | F.coalesce(other, F.lit(False)))
    frame = wrapped.withColumn(f"{column}_bad", bad).withColumn(column, F.col(column)["record"])
    fields = {name: F.col(column)[name] for name in names}
    return _Decoded(frame, F.col(column), fields, F.col(f"{column}_bad"), unreadable)


def _from_avro(data: Column, writer: str, reader: str) -> Column:
    from pyspark.sql.avro.functions import from_avro

    options = {"mode": "PERMISSIVE", "avroSchema": _outer(reader), "datetimeRebaseMode": "CORRECTED"}
    return from_avro(data, _outer(writer), options)


def _outer(schema: str) -> str:
    word = {"name": "word", "type": {"type": "fixed", "name": "StreamsemWord", "size": 16}}
    return json.dumps(
        {"type": "record", "name": "StreamsemOuter", "fields": [{"name": "record", "type": json.loads(schema)}, word]}
    )


@dataclass(frozen=True, slots=True)
class _Version:
    """One version of a subject in a schema registry."""

    subject: str
    number: int
    id: int
    schema: str
    has_references: bool

    def unreadable(self, reader: str) -> str | None:
        """Why its records cannot be read exactly with another schema, or ``None``."""
        if self.has_references:
            why = "it refers to other schemas, which is not supported"
        else:
            field = avro_schemas.inexact_field(self.schema, reader)
            if field is None:
                return None
            why = f"its values would change in field {field}"
        return f"schema {self.id} (subject {self.subject}, version {self.number}): {why}"


def _versions(registry: str, subjects: list[str]) -> list[_Version]:
    """Every Avro version of the subjects."""
    found: list[_Version] = []
    for subject in subjects:
        place = f"{registry.rstrip('/')}/subjects/{quote(subject, safe='')}/versions"
        for number in _ask(place):
            answer = _ask(f"{place}/{int(number)}")
            if answer and answer.get("schemaType", "AVRO") == "AVRO":
                found.append(_version(f"{place}/{int(number)}", subject, int(number), answer))
    if not found:
        raise DataError(
            "the schema registry knows no Avro schema of these subjects; nothing became visible", subjects=subjects
        )
    return found


def _version(place: str, subject: str, number: int, answer: Mapping[str, Any]) -> _Version:
    try:
        schema = answer["schema"]
        json.loads(schema)
        return _Version(subject, number, int(answer["id"]), schema, bool(answer.get("references")))
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(
            "the schema registry gave no clear answer; nothing became visible", place=place
        ) from error


def _ask(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=_REGISTRY_TIMEOUT_S) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        if getattr(error, "code", None) == 404:
            return []
        raise UnavailableError("the schema registry gave no clear answer; nothing became visible", place=url) from error


def _refuse_taken(names: Iterable[str]) -> None:
    taken = sorted({name for name in names if name.lower() in {f"kafka_{own}" for own in _OWN}})
    if taken:
        raise DataError(
            "fields of the value have names that are Kafka's own here; nothing became visible", fields=taken
        )


def _text(value: bytes | None) -> tuple[str, str]:
    """A value as text, and how: ``utf-8``; ``base64`` where it is no text; ``null`` where there is none."""
    if value is None:
        return "", "null"
    return text_of(bytes(value))
