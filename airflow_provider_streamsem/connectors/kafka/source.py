"""
Kafka source: bounded reads of topics over the offset range ``[start, end)`` of each partition.

The planner fixes the ranges, and pins them with the topic id and the leader epoch. The number of records is counted, never computed from offsets. Transaction
markers, aborted records and compaction leave offsets without records, which is not data loss.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK, tries
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.kafka import authentication
from airflow_provider_streamsem.connectors.kafka.client import settings_of
from airflow_provider_streamsem.connectors.kafka.cluster import (
    End,
    KafkaCluster,
    Partition,
    java_settings,
    lineage_names,
    parse_partition,
)
from airflow_provider_streamsem.connectors.kafka.expiry import expiry
from airflow_provider_streamsem.connectors.kafka.offset_ranges import joined, shared
from airflow_provider_streamsem.connectors.kafka.pins import RangePin, read_pins, refuse_other_topics
from airflow_provider_streamsem.connectors.kafka.starting import TOPIC, starting
from airflow_provider_streamsem.connectors.parsing import decoders as decoding
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.connectors.source import Expiry, Planner, Source, SourceEnd, SourceSlice
from airflow_provider_streamsem.errors import (
    OR_RECORD_GAP,
    DataError,
    InvalidError,
    RecordsMissingError,
    SourceChangedError,
)
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, between, length, position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.connectors.kafka.records import KafkaRecords

logger = logging.getLogger(__name__)

_BEFORE_A_GAP_S = (1.0, 2.0, 4.0)  # delays between requests for a missing partition, before it becomes a gap
OPTIONS = (
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "kafkaconsumer.polltimeoutms",
    "minpartitions",
    "maxrecordsperpartition",
)
_DO_TRUNCATED = (
    "restore the records of the partition, or start a new pipeline with a new log that reads the topic as it is now. Records at and above `end` may differ "
    "from those that were read."
)


@dataclass(frozen=True, slots=True)
class KafkaSource(Source):
    """
    Reads the records of Kafka topics.

    Without a ``value`` decoder the columns are Kafka's: ``topic string, partition int, offset long, timestamp timestamp, headers
    array<struct<key string, value binary>>, key binary, value binary``. With a ``value`` decoder the columns are the fields of the value, and Kafka's columns
    ``kafka_topic``, ``kafka_partition``, ``kafka_offset``, ``kafka_timestamp``, ``kafka_headers``, ``kafka_key``. A null value (a tombstone) has null fields. A
    record that cannot be decoded is quarantined with topic, partition and offset.

    :param topics: topic names. Exactly one of ``topics`` and ``topic_pattern`` must be given
    :param topic_pattern: a regular expression that matches whole topic names. Topics that are created later are read from their beginning
    :param conn_id: an Airflow connection of type ``kafka``. Exactly one of ``conn_id`` and ``bootstrap_servers`` must be given
    :param bootstrap_servers: ``host:port,…`` of a cluster without security
    :param starting: offsets at which a new pipeline starts: ``earliest``, ``latest``, a timestamp with a time zone such as ``2026-01-31T00:00:00Z``, or
        ``{"orders-0": 42, …}`` (inclusive). Partitions that the mapping does not name start at the earliest offset. Partitions that are created later are read
        from their beginning
    :param isolation: ``read_committed`` or ``read_uncommitted``: the isolation level of the read and of the end offsets
    :param key: decoder of the key, :class:`Json`, :class:`Avro` or :class:`Protobuf`. Default: the key stays binary
    :param value: decoder of the value, as for ``key``, or :class:`Debezium`
    :param options: options of Spark's Kafka source that do not change which records are read: ``minPartitions``, ``maxRecordsPerPartition``,
        ``fetchOffset.numRetries``, ``fetchOffset.retryIntervalMs``, ``kafkaConsumer.pollTimeoutMs``
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    extra: ClassVar[str] = "kafka"
    unit: ClassVar[str] = "offsets"
    limits: ClassVar[tuple[str, ...]] = ("max_rows", "min_rows")
    compacts: ClassVar[bool] = True
    has_retention: ClassVar[bool] = True
    reasons: ClassVar[tuple[str, ...]] = (
        "the plan records offset ranges and topic ids, and every attempt reads exactly these ranges",
        "missing offsets and recreated topics fail the run, or are recorded as gaps; a truncated partition fails it",
    )
    topics: Sequence[str] = ()
    topic_pattern: str | None = None
    conn_id: str | None = None
    bootstrap_servers: str | None = None
    starting: str | Mapping[str, int] = "earliest"
    isolation: str = "read_committed"
    key: Decoder | None = None
    value: Decoder | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = "source kafka:"
        object.__setattr__(self, "topics", arguments.text_list(f"{where} topics", self.topics))
        for topic in self.topics:
            arguments.text(f"{where} topics", topic, pattern=TOPIC, accepted=TOPIC)
        arguments.exactly_one(where, topics=self.topics or None, topic_pattern=self.topic_pattern)
        if self.topic_pattern is not None:
            _check_pattern(f"{where} topic_pattern", self.topic_pattern)
        arguments.exactly_one(where, conn_id=self.conn_id, bootstrap_servers=self.bootstrap_servers)
        for name in ("conn_id", "bootstrap_servers"):
            if getattr(self, name) is not None:
                arguments.text(
                    f"{where} {name}", getattr(self, name), pattern=r"[^\s@]+", accepted="text without spaces and '@'"
                )
        object.__setattr__(self, "starting", starting(f"{where} starting", self.starting))
        arguments.choice(f"{where} isolation", self.isolation, ("read_committed", "read_uncommitted"))
        for name in ("key", "value"):
            object.__setattr__(self, name, decoding.decoder(f"{where} {name}", getattr(self, name)))
        if isinstance(self.key, decoding.Debezium):
            raise InvalidError(f"{where} key must not be a Debezium decoder: an event is the value of a message")
        options = arguments.options(f"{where} options", self.options)
        arguments.known_keys(f"{where} options", {name.lower(): value for name, value in options.items()}, OPTIONS)
        object.__setattr__(self, "options", options)

    @property
    def spark_packages(self) -> tuple[str, ...]:
        return ("kafka", *decoding.spark_packages(self.key, self.value))

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return {
            "topics": list(self.topics), "topic_pattern": self.topic_pattern, "conn_id": self.conn_id, "bootstrap_servers": self.bootstrap_servers,
            "starting": dict(self.starting) if isinstance(self.starting, Mapping) else self.starting, "isolation": self.isolation,
            "key": decoding.to_json(self.key), "value": decoding.to_json(self.value), "options": dict(self.options),
        }  # fmt: skip

    def immutable_config(self) -> Json:
        """Return the topic names and the pattern. Topic ids are not included, because the offsets contain them."""
        return {"type": "kafka", "topics": sorted(self.topics), "topic_pattern": self.topic_pattern}

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        return lineage_names(settings_of(self.conn_id, self.bootstrap_servers), {*self.topics}, ranges)

    def cluster(self) -> KafkaCluster:
        """
        Return a :class:`KafkaCluster` with this source's settings and isolation level. Sends no request.

        :raises InvalidError: the connection is not valid
        """
        return KafkaCluster(settings_of(self.conn_id, self.bootstrap_servers), self.isolation)

    def partitions(self, cluster: KafkaCluster) -> list[Partition]:
        """
        Return the current partitions of all topics.

        :raises SourceChangedError: a configured topic does not exist. Nothing was written
        """
        if self.topic_pattern is not None:
            return cluster.partitions(
                name for name in cluster.topic_names() if re.fullmatch(self.topic_pattern or "", name)
            )
        partitions = cluster.partitions(self.topics)
        missing = sorted({*self.topics} - {p.topic for p in partitions})
        if missing:
            raise SourceChangedError("topics do not exist; nothing was written", topics=missing).advising(
                "create the topics, or correct `topics`; then run again."
            )
        return partitions

    def initial_offsets(self) -> Offsets:
        cluster = self.cluster()
        partitions = self.partitions(cluster)
        if self.starting == "latest":
            return {p.name: end.offset for p, end in sorted(cluster.ends(partitions).items())}
        if isinstance(self.starting, str) and self.starting != "earliest":
            return _named(cluster.offsets_for_time(partitions, arguments.time_ms("starting", self.starting)))
        lows = cluster.lows(partitions)
        if isinstance(self.starting, Mapping):
            remaining = dict(self.starting)
            ends = cluster.ends(partitions)
            for p in partitions:
                lows[p] = remaining.pop(f"{p.topic}-{p.number}", lows[p])
                if lows[p] > ends[p].offset:
                    raise InvalidError(
                        "source kafka: starting names an offset above the end offset of the partition",
                        partition=p.name,
                        given=lows[p],
                        end=ends[p].offset,
                    )
            if remaining:
                raise InvalidError("source kafka: starting names partitions that do not exist", given=sorted(remaining))
        return _named(lows)

    def extends(self, before: Json) -> Offsets | None:
        topics, pattern = before.get("topics") or [], before.get("topic_pattern")
        is_extended = pattern == self.topic_pattern if pattern is not None else all(map(self.reads, topics))
        if before.get("type") != "kafka" or not is_extended:
            return None
        return {
            name: offset
            for name, offset in self.initial_offsets().items()
            if pattern is None and parse_partition(name).topic not in topics
        }

    @property
    def reads_intervals(self) -> bool:
        return True

    def offsets_for_time(self, at_ms: int) -> Offsets:
        cluster = self.cluster()
        return _named(cluster.offsets_for_time(self.partitions(cluster), at_ms))

    def expiry(self, start: Offsets, *, within_ms: int | None, now_ms: int) -> Expiry:
        cluster = self.cluster()
        return expiry(cluster, self.partitions(cluster), start, within_ms=within_ms, now_ms=now_ms)

    def open(self, log: CommitLog, hint: Json) -> KafkaPlanner:
        return KafkaPlanner(self)

    def read_pins(self, pins: Json) -> tuple[RangePin, ...]:
        return read_pins(pins, is_read=self.reads)

    def check_pins(self, pins: Sequence[RangePin], *, was_read: bool) -> None:
        """
        Check each range, the id of its topic, and that the partition was not truncated since the plan (D5). After the read, the earliest offsets are not
        checked. Retention may delete the ranges then, and Spark would have failed on a missing offset.
        """
        cluster = self.cluster()
        pinned = {Partition(pin.topic, pin.partition, pin.topic_id): pin for pin in pins}
        existing = {p for p in cluster.partitions(p.topic for p in pinned) if p in pinned}
        lows, ends = {} if was_read else cluster.lows(existing), cluster.ends(existing)
        for p in sorted(existing):
            pin, end = pinned[p], ends[p]
            has_new_leader = end.epoch != pin.epoch >= 0
            if end.offset < pin.end or (has_new_leader and cluster.was_truncated(p, pin.end, pin.epoch)):
                summary = "a partition was truncated below the planned end: Kafka lost records; nothing became visible"
                raise SourceChangedError(
                    summary, partition=p.name, range=(pin.start, pin.end), end=end.offset
                ).advising(_DO_TRUNCATED)
        for p, pin in sorted(pinned.items()):
            if p not in existing:
                summary = "a planned topic was deleted, or deleted and recreated"
                raise RecordsMissingError(summary, partition=p.name)
            if (low := lows.get(p, 0)) > pin.start:
                summary = "Kafka no longer has the planned offsets"
                raise RecordsMissingError(summary, partition=p.name, range=(pin.start, pin.end), first=low)

    def load(self, spark: SparkSession, pins: Sequence[RangePin]) -> KafkaRecords:
        from airflow_provider_streamsem.connectors.kafka.records import COLUMNS, KafkaRecords, read_ranges

        settings = {**self.options, **java_settings(settings_of(self.conn_id, self.bootstrap_servers))}
        if not pins:  # the reader's schema determines the columns, so no writer's schema is requested
            read = spark.createDataFrame([], COLUMNS)
            key, value = decoding.without_registry(self.key), decoding.without_registry(self.value)
            return KafkaRecords(read, key=key, value=value, topics=[])
        read = read_ranges(spark, settings, pins, isolation=self.isolation)
        return KafkaRecords(read, key=self.key, value=self.value, topics=sorted({pin.topic for pin in pins}))

    def explain_failure(self, messages: Sequence[str], ranges: Ranges) -> DataError | None:
        """Return the error for a timestamp that Spark cannot read; ``None`` for other failures."""
        if not any("ArithmeticException: long overflow" in message for message in messages):
            return None
        return DataError(
            "a record in the planned ranges has a timestamp after the year 294246, which Spark cannot read, perhaps in nanoseconds instead of milliseconds; "
            "nothing became visible",
            ranges=dict(ranges),
        ).advising(
            "make the producer send milliseconds, or set message.timestamp.type=LogAppendTime on the topic. To skip the record, delete the records up to "
            'it (kafka-delete-records.sh) and run again with on_data_loss="record_gap".'
        )

    def warnings(self) -> list[str]:
        """Return a warning for each kind of credentials that is sent without encryption: to a broker, a schema registry or a token endpoint."""
        from airflow_provider_streamsem.connectors.parsing import registry

        of_registries = {text for decoder in (self.key, self.value) for text in registry.warnings(decoder)}
        settings = settings_of(self.conn_id, self.bootstrap_servers)
        return [*sorted(of_registries), *authentication.warnings("source kafka", self.conn_id, settings)]

    def reads(self, topic: str) -> bool:
        """Return whether this source reads the topic. A pattern never matches topics that start with ``__``."""
        if self.topic_pattern is None:
            return topic in self.topics
        return not topic.startswith("__") and re.fullmatch(self.topic_pattern, topic) is not None


def _named(offsets: Mapping[Partition, int]) -> Offsets:
    return {p.name: offset for p, offset in sorted(offsets.items())}


def _is_end(pair: Json) -> bool:
    return isinstance(pair, list) and [type(part) for part in pair] == [int, int]


def _known_ends(hint: Json) -> dict[str, End]:
    """A hint of another form is ignored. Then the loss of a partition with unread records is not detected."""
    ends = hint.get("ends") if isinstance(hint, dict) else None
    return {name: End(*pair) for name, pair in ends.items() if _is_end(pair)} if isinstance(ends, dict) else {}


def _hint(ends: Mapping[str, End], targets: Offsets) -> Json:
    """``targets`` are the end offsets of the run. The recorded end of a partition is never below its target."""
    known = dict(ends)
    for name, target in targets.items():
        end = known.get(name, End(0, -1))
        # A partition that is missing now may have a known end below the target. Then the target is recorded, without an epoch, because the known epoch
        # belongs to the lower offset.
        known[name] = end if end.offset >= target else End(target, -1)
    return {"ends": {name: [end.offset, end.epoch] for name, end in sorted(known.items())}}


def _present(
    p: Partition, unread: tuple[int, int], ends: Mapping[Partition, End], lows: Mapping[Partition, int]
) -> tuple[int, int]:
    """Return the part of ``[start, end)`` that Kafka still has. It is empty if the partition is missing."""
    first, last = unread
    if p in ends and ends[p].offset < last:
        # These offsets must not become a gap: future records of the partition will have them, and would be skipped.
        summary = "a partition ends before the end offset of the run: it was truncated, or the isolation level was changed; nothing was written"
        raise SourceChangedError(summary, partition=p.name, range=unread, end=ends[p].offset).advising(_DO_TRUNCATED)
    low = min(max(lows.get(p, first), first), last)
    return low, last if p in ends else low


def _check_pattern(where: str, pattern: object) -> None:
    try:
        re.compile(arguments.text(where, pattern))
    except re.error as error:
        raise InvalidError(f"{where} is not a regular expression", given=pattern) from error


class KafkaPlanner(Planner):
    """The hint has the end offset and leader epoch of each partition when the newest plan was created: ``{"ends": {partition: [offset, epoch]}}``."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source

    @cached_property
    def _cluster(self) -> KafkaCluster:
        # Raises an error for settings that Spark's client cannot use, before anything is written.
        java_settings(settings_of(self._source.conn_id, self._source.bootstrap_servers))
        return self._source.cluster()

    def poll(self, hint: Json) -> SourceEnd:
        """Return the end offset of each partition. For a missing partition it is the last known end, so that its unread records are not skipped silently."""
        partitions = self._source.partitions(self._cluster)
        ends = _named({p: end.offset for p, end in self._cluster.ends(partitions).items()})
        return SourceEnd({**{name: end.offset for name, end in _known_ends(hint).items() if name not in ends}, **ends})

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """``limits.max_rows`` is distributed in proportion to the partitions' lag. Gaps do not count towards it."""
        unread, known = between(start, end.offsets), _known_ends(hint)
        topics = {parse_partition(name).topic for name in {*start, *end.offsets}}
        refuse_other_topics(topics, is_read=self._source.reads)
        existing = self._partitions(topics, {*unread}, waits=on_data_loss != "fail")
        ends = self._cluster.ends(existing)
        lows = self._cluster.lows(existing)
        self._check_recreated_topics(start, existing, on_data_loss)
        self._check_truncation(start, ends, lows, known)
        present = {name: _present(parse_partition(name), range, ends, lows) for name, range in unread.items()}
        shares = shared({name: last - low for name, (low, last) in present.items()}, limits.max_rows)
        ranges, gaps, pins = {}, {}, []
        for p in sorted(map(parse_partition, unread)):
            (first, last), (low, stop) = unread[p.name], present[p.name]
            end_of_pin = low + shares[p.name]
            missing = [(first, low)] if low > first else []
            is_missing = end_of_pin == stop < last  # the partition is missing, and so are [stop, last)
            missing += [(stop, last)] if is_missing else []
            end_of_range = last if is_missing else end_of_pin
            if end_of_range > first:
                ranges[p.name] = (first, end_of_range)
            if missing:
                gaps[p.name] = joined(missing)
            if shares[p.name]:
                pins.append(RangePin(p.topic, p.topic_id, p.number, low, end_of_pin, ends[p].epoch))
        if gaps and on_data_loss == "fail":
            raise SourceChangedError("unread offsets are missing in Kafka; nothing was written", lost=gaps).advising(
                OR_RECORD_GAP
            )
        if gaps:
            logger.warning("recording offsets as gaps, because Kafka no longer has them: %s", gaps)
        if not ranges:
            return None
        next_hint = _hint({**known, **{p.name: partition_end for p, partition_end in ends.items()}}, end.offsets)
        # Offsets are an upper bound of the number of records.
        return SourceSlice(ranges=ranges, gaps=gaps, pins=pins, hint=next_hint, rows=length(ranges))

    def _partitions(self, topics: set[str], unread: set[str], *, waits: bool) -> list[Partition]:
        """With ``waits``, the request is repeated if an unread partition is missing: brokers may not know a partition for a short time."""
        existing: list[Partition] = []
        for _ in tries(_BEFORE_A_GAP_S if waits else ()):
            existing = self._cluster.partitions(topics)
            if unread <= {p.name for p in existing}:
                break
        return existing

    def _check_recreated_topics(self, start: Offsets, existing: Sequence[Partition], on_data_loss: str) -> None:
        """The unread records of a recreated topic are lost. With ``"record_gap"``, this is logged as a warning instead."""
        current_ids = {p.topic: p.topic_id for p in existing}
        read = {(p.topic, p.topic_id) for p in map(parse_partition, start)}
        for topic, topic_id in sorted(read):
            current_id = current_ids.get(topic)
            if current_id is None or (topic, current_id) in read:
                continue
            # Without an id, it may be the same topic in a cluster that started or stopped assigning topic ids. Then its records would be read twice.
            if on_data_loss == "fail" or not topic_id or not current_id:
                summary = (
                    "a topic has another id than in the committed offsets. It was deleted and recreated, and its unread records are lost; or the cluster "
                    "started or stopped assigning topic ids; nothing was written"
                )
                raise SourceChangedError(summary, topic=topic, committed=topic_id, found=current_id).advising(
                    OR_RECORD_GAP
                    if topic_id and current_id
                    else "start a new pipeline with a new log. Without both topic ids, it is unknown which records were read."
                )
            logger.warning("topic %s was deleted and recreated; reading the new topic from its beginning", topic)

    def _check_truncation(
        self, start: Offsets, ends: Mapping[Partition, End], lows: Mapping[Partition, int], known: Mapping[str, End]
    ) -> None:
        """Check that no partition was truncated below its committed offset. :meth:`slice` handles offsets that retention has deleted."""
        for p, end in sorted(ends.items()):
            committed, known_end = position(start, p.name), known.get(p.name)
            is_shorter = p.name in start and end.offset < committed
            is_truncated = is_shorter or (
                known_end is not None
                and end.epoch != known_end.epoch >= 0
                and committed > 0
                and committed >= lows[p]
                and self._cluster.was_truncated(p, committed, known_end.epoch)
            )
            if is_truncated:
                summary = (
                    "a partition was truncated below the committed offset: Kafka lost records; nothing was written"
                )
                raise SourceChangedError(summary, partition=p.name, committed=committed, end=end.offset).advising(
                    _DO_TRUNCATED
                )

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """In a partition, records after the first one with a timestamp at or after ``at_ms`` do not count, even if their timestamp is older."""
        partitions = self._source.partitions(self._cluster)
        return length(between(start, _named(self._cluster.offsets_for_time(partitions, at_ms))))

    def minimum_clock(self, start: Offsets) -> int | None:
        """
        Kafka finds offsets for times, but not times for offsets. So this method searches: first backwards from now, in steps that double, then by bisection
        until the interval is a second or less.
        """
        if self.lag(start, None) == 0:
            return None
        read, unread, step = SYSTEM_CLOCK.now_ms(), None, 1_000
        while read > 0 and self.unread_before(start, read):
            read, unread, step = max(0, read - step), read, 2 * step
        while unread is not None and unread - read > 1_000:
            middle = (read + unread) // 2
            read, unread = (read, middle) if self.unread_before(start, middle) else (middle, unread)
        return read
