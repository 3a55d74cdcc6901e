"""
Topics of a Kafka cluster: bounded reads over ``[start, end)`` of each partition.

Ranges are fixed on the planner and pinned with the topic's id and the leader's epoch. Records are counted, never computed from offsets: markers of
transactions, aborted records and compacted ones leave offsets without records, which is no loss.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError, RecordsGoneError, SourceChangedError
from airflow_provider_streamsem.kafka_client import settings_of
from airflow_provider_streamsem.protocol.entries import Json, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, between, length, position
from airflow_provider_streamsem.sources import decoding
from airflow_provider_streamsem.sources.contract import Cut, Expiry, Limits
from airflow_provider_streamsem.sources.decoding import Decoder
from airflow_provider_streamsem.sources.kafka_cluster import (
    End,
    KafkaCluster,
    Partition,
    java_settings,
    lineage_names,
    parse_partition,
)
from airflow_provider_streamsem.sources.kafka_expiry import expiry
from airflow_provider_streamsem.sources.kafka_starting import TOPIC, starting, time_ms
from airflow_provider_streamsem.sources.pins import pinned_ranges, refuse_other_topics
from airflow_provider_streamsem.sources.sharing import joined, shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.sources.kafka_records import KafkaRecords

logger = logging.getLogger(__name__)

_BEFORE_A_GAP_S = (1.0, 2.0, 4.0)  # before records of partitions that brokers seem not to know are given up
OPTIONS = (
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "kafkaconsumer.polltimeoutms",
    "minpartitions",
    "maxrecordsperpartition",
)


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """
    Records of Kafka topics.

    Without a ``value`` decoder the columns are Kafka's: ``topic string, partition int, offset long, timestamp timestamp, headers
    array<struct<key string, value binary>>, key binary, value binary``. With one, the value's fields are the columns, and Kafka's own stand beside them as
    ``kafka_topic``, ``kafka_partition``, ``kafka_offset``, ``kafka_timestamp``, ``kafka_headers``, ``kafka_key``. A null value (a tombstone) gives null
    fields. A record that cannot be decoded is quarantined with topic, partition and offset.

    :param topics: their names; either these or ``topic_pattern``
    :param topic_pattern: a regular expression that matches whole names; topics that appear later are read from their beginning
    :param conn_id: an Airflow connection of type ``kafka``; either this or ``bootstrap_servers``
    :param bootstrap_servers: ``host:port,…`` of a cluster without security
    :param starting: where a new pipeline starts: ``earliest``, ``latest``, a time such as ``2026-01-31T00:00:00Z``, or ``{"orders-0": 42, …}`` (partitions
        that it does not name: earliest). Partitions that appear later are read from their beginning
    :param isolation: ``read_committed`` or ``read_uncommitted``: of the reading, and of finding the end
    :param key: :class:`Json` or :class:`Avro`, or absent: binary
    :param value: the same
    :param options: of Spark's Kafka reader, as far as they do not change which records are read: ``minPartitions``, ``kafkaConsumer.pollTimeoutMs``, …
    """

    delivery: ClassVar[str] = "exactly_once"
    terms: ClassVar[str] = ""
    extra: ClassVar[str] = "kafka"
    unit: ClassVar[str] = "offsets"
    limits: ClassVar[tuple[str, ...]] = ("max_rows", "min_rows")
    compacts: ClassVar[bool] = True
    place: ClassVar[None] = None  # a cluster is no place that a dataset could overlap
    reasons: ClassVar[tuple[str, ...]] = (
        "ranges of offsets are fixed in the plan with the topic's id, and every attempt reads exactly them",
        "offsets that are gone and topics that were made again fail the run, or are recorded as gaps; a log that was cut short fails it",
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
        object.__setattr__(self, "topics", arguments.words(f"{where} topics", self.topics))
        for topic in self.topics:
            arguments.text(f"{where} topics", topic, pattern=TOPIC, accepted=TOPIC)
        if bool(self.topics) == (self.topic_pattern is not None):
            raise InvalidError(
                f"{where} exactly one of topics and topic_pattern must be given",
                topics=list(self.topics),
                topic_pattern=self.topic_pattern,
            )
        if self.topic_pattern is not None:
            _check_pattern(f"{where} topic_pattern", self.topic_pattern)
        if (self.conn_id is None) == (self.bootstrap_servers is None):
            raise InvalidError(f"{where} exactly one of conn_id and bootstrap_servers must be given")
        for name in ("conn_id", "bootstrap_servers"):
            if getattr(self, name) is not None:
                arguments.text(
                    f"{where} {name}", getattr(self, name), pattern=r"[^\s@]+", accepted="text without spaces and '@'"
                )
        object.__setattr__(self, "starting", starting(f"{where} starting", self.starting))
        arguments.choice(f"{where} isolation", self.isolation, ("read_committed", "read_uncommitted"))
        for name in ("key", "value"):
            object.__setattr__(self, name, decoding.decoder(f"{where} {name}", getattr(self, name)))
        given = arguments.options(f"{where} options", self.options)
        arguments.known_keys(f"{where} options", {name.lower(): value for name, value in given.items()}, OPTIONS)
        object.__setattr__(self, "options", given)

    @property
    def spark_packages(self) -> tuple[str, ...]:
        """Spark's Kafka source, and its Avro module where a decoder needs it."""
        return (
            ("kafka", "avro") if any(isinstance(part, decoding.Avro) for part in (self.key, self.value)) else ("kafka",)
        )

    def to_json(self) -> Json:
        """The arguments, as TOML has them."""
        return {
            "topics": list(self.topics), "topic_pattern": self.topic_pattern, "conn_id": self.conn_id, "bootstrap_servers": self.bootstrap_servers,
            "starting": dict(self.starting) if isinstance(self.starting, Mapping) else self.starting, "isolation": self.isolation,
            "key": decoding.to_json(self.key), "value": decoding.to_json(self.value), "options": dict(self.options),
        }  # fmt: skip

    def guarded(self) -> Json:
        """The topics. Which incarnation of them stands in the offsets."""
        return {"type": "kafka", "topics": sorted(self.topics), "topic_pattern": self.topic_pattern}

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """The topics."""
        return lineage_names(settings_of(self.conn_id, self.bootstrap_servers), {*self.topics}, ranges)

    def cluster(self) -> KafkaCluster:
        """The cluster, at this source's isolation level. Nothing is asked yet."""
        return KafkaCluster(settings_of(self.conn_id, self.bootstrap_servers), self.isolation)

    def partitions(self, cluster: KafkaCluster) -> list[Partition]:
        """
        Every partition of the topics as they are now.

        :raises SourceChangedError: a topic that is named does not exist
        """
        if self.topic_pattern is not None:
            return cluster.partitions(
                name for name in cluster.topic_names() if re.fullmatch(self.topic_pattern or "", name)
            )
        found = cluster.partitions(self.topics)
        missing = sorted({*self.topics} - {p.topic for p in found})
        if missing:
            raise SourceChangedError("topics do not exist; nothing was written", topics=missing)
        return found

    def genesis(self) -> Offsets:
        """Where each partition that exists now starts."""
        cluster = self.cluster()
        partitions = self.partitions(cluster)
        if self.starting == "latest":
            return {p.name: end.offset for p, end in sorted(cluster.ends(partitions).items())}
        if isinstance(self.starting, str) and self.starting != "earliest":
            return _named(cluster.offsets_for_time(partitions, time_ms(self.starting)))
        lows = cluster.lows(partitions)
        if isinstance(self.starting, Mapping):
            given = dict(self.starting)
            ends = cluster.ends(partitions)
            for p in partitions:
                lows[p] = given.pop(f"{p.topic}-{p.number}", lows[p])
                if lows[p] > ends[p].offset:
                    raise InvalidError(
                        "source kafka: starting names an offset beyond the end",
                        partition=p.name,
                        given=lows[p],
                        end=ends[p].offset,
                    )
            if given:
                raise InvalidError("source kafka: starting names partitions that do not exist", given=sorted(given))
        return _named(lows)

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """Partition → the first offset at or after a time (milliseconds UTC); the end where there is none."""
        cluster = self.cluster()
        return _named(cluster.offsets_for_time(self.partitions(cluster), at_ms))

    def expiry(self, start: Offsets, *, within_ms: int | None, now_ms: int) -> Expiry:
        """How near the topics' retention is to what is not below ``start``."""
        cluster = self.cluster()
        return expiry(cluster, self.partitions(cluster), start, within_ms=within_ms, now_ms=now_ms)

    def open(self, log: CommitLog, last: Outcome | None) -> KafkaPlanner:
        """Bind to a log."""
        return KafkaPlanner(self, last)

    def check_pins(self, pins: Json, *, was_read: bool) -> None:
        """
        Each pinned range is still there, in the topic and the history that were planned.

        After the reading, retention may have passed it: Spark would have failed on an offset that was gone.
        """
        cluster = self.cluster()
        pinned = {
            Partition(topic, number, topic_id): (start, end, epoch)
            for topic, topic_id, number, start, end, epoch in self.pinned(pins)
        }
        there = {p for p in cluster.partitions(p.topic for p in pinned) if p in pinned}
        lows, ends = {} if was_read else cluster.lows(there), cluster.ends(there)
        for p in sorted(there):
            start, end, epoch = pinned[p]
            if ends[p].offset < end or (ends[p].epoch != epoch >= 0 and cluster.was_cut_short(p, end, epoch)):
                what = "a partition's log was cut short below what was planned: records were lost in Kafka. Nothing became visible"
                raise SourceChangedError(what, partition=p.name, range=(start, end), end=ends[p].offset)
        for p, (start, end, _) in sorted(pinned.items()):
            if p not in there:
                what = "a planned topic was deleted, or deleted and made again; nothing became visible"
                raise RecordsGoneError(what, partition=p.name)
            if (low := lows.get(p, 0)) > start:
                what = "planned offsets are no longer there; nothing became visible"
                raise RecordsGoneError(what, partition=p.name, range=(start, end), first=low)

    def load(self, spark: SparkSession, pins: Json) -> KafkaRecords:
        """The pinned ranges on Spark."""
        from airflow_provider_streamsem.sources.kafka_records import KafkaRecords, read_ranges

        settings = java_settings(settings_of(self.conn_id, self.bootstrap_servers))
        pinned = self.pinned(pins)
        return KafkaRecords(self, read_ranges(spark, self, settings, pinned), sorted({pin[0] for pin in pinned}))

    def pinned(self, pins: Json) -> list[tuple[str, str, int, int, int, int]]:
        """Topic, its id, partition, start, end and leader's epoch of each range that a plan pinned."""
        return pinned_ranges(pins, is_read=self.reads)

    def reads(self, topic: str) -> bool:
        """Whether a topic is one of this source's."""
        if self.topic_pattern is None:
            return topic in self.topics
        return not topic.startswith("__") and re.fullmatch(self.topic_pattern, topic) is not None


def _named(offsets: Mapping[Partition, int]) -> Offsets:
    return {p.name: offset for p, offset in sorted(offsets.items())}


def _is_end(pair: Json) -> bool:
    return isinstance(pair, list) and [type(part) for part in pair] == [int, int]


def _check_pattern(where: str, pattern: object) -> None:
    try:
        re.compile(arguments.text(where, pattern))
    except re.error as error:
        raise InvalidError(f"{where} is not a regular expression", given=pattern) from error


class KafkaPlanner:
    """
    A Kafka source bound to a log.

    The newest outcome's hint tells where each partition ended when the last plan was cut, and under which leader: ``{"ends": {partition: [offset, epoch]}}``.
    """

    def __init__(self, source: KafkaSource, last: Outcome | None) -> None:
        self._source = source
        self._seen: dict[str, End] = {}
        self._planned: dict[str, End] = {}
        self._pins: Json = None
        self.follow(last)

    @cached_property
    def _cluster(self) -> KafkaCluster:
        # What Spark's client cannot be given is refused here, before anything is written.
        java_settings(settings_of(self._source.conn_id, self._source.bootstrap_servers))
        return self._source.cluster()

    def follow(self, last: Outcome | None) -> None:
        """Take the ends that the newest outcome tells of."""
        hint = last.source if last is not None and isinstance(last.source, dict) else {}
        ends = hint.get("ends")
        self._seen = (
            {name: End(*pair) for name, pair in ends.items() if _is_end(pair)} if isinstance(ends, dict) else {}
        )

    def latest_offsets(self) -> Offsets:
        """The end of each partition; of one that is gone, the end that was seen last, so that what was unread of it is not passed over in silence."""
        partitions = self._source.partitions(self._cluster)
        ends = _named({p: end.offset for p, end in self._cluster.ends(partitions).items()})
        return {**{name: end.offset for name, end in self._seen.items() if name not in ends}, **ends}

    def cut(self, start: Offsets, end: Offsets, limits: Limits, *, on_data_loss: str) -> Cut | None:
        """Ranges within ``limits``, shared over the partitions in proportion to their lag. What is gone fails, or becomes a gap that counts for nothing."""
        waiting = between(start, end)
        topics = {parse_partition(name).topic for name in {*start, *end}}
        refuse_other_topics(topics, is_read=self._source.reads)
        there = self._cluster.partitions(topics)
        for wait_s in _BEFORE_A_GAP_S if on_data_loss != "fail" else ():
            if {*waiting} <= {p.name for p in there}:
                break
            SYSTEM_CLOCK.sleep(wait_s)
            there = self._cluster.partitions(topics)
        ends = self._cluster.ends(there)
        lows = self._cluster.lows(there)
        self._check_incarnations(start, there, on_data_loss)
        self._check_history(start, ends, lows)
        whole: dict[str, tuple[int, int]] = {}
        for name, (first, last) in waiting.items():
            p = parse_partition(name)
            if p in ends and ends[p].offset < last:
                # Not a gap: what the partition is given next stands under these offsets, and would be taken for read.
                what = "a partition ends below what the run was to read: its log was cut short, or is read at another isolation level. Nothing was written"
                raise SourceChangedError(what, partition=name, range=(first, last), end=ends[p].offset)
            low = min(max(lows.get(p, first), first), last)
            whole[name] = (low, last if p in ends else low)  # a partition that is gone has nothing
        taken = shared({name: last - low for name, (low, last) in whole.items()}, limits.max_rows)
        ranges, gaps, pins = {}, {}, []
        for p in sorted(map(parse_partition, waiting)):
            (first, last), (low, present) = waiting[p.name], whole[p.name]
            stop = low + taken[p.name]
            lost = [(first, low)] if low > first else []
            if stop == present < last:  # it is gone
                lost, stop = [*lost, (present, last)], last
            if stop > first:
                ranges[p.name] = (first, stop)
            if lost:
                gaps[p.name] = joined(lost)
            if taken[p.name]:
                pins.append([p.topic, p.topic_id, p.number, low, low + taken[p.name], ends[p].epoch])
        if gaps and on_data_loss == "fail":
            raise SourceChangedError("offsets that wait to be read are gone from Kafka; nothing was written", lost=gaps)
        if gaps:
            logger.warning("recording offsets as gaps, since Kafka no longer has them: %s", gaps)
        self._planned, self._pins = {p.name: at for p, at in ends.items()}, pins
        return Cut(ranges=ranges, gaps=gaps, pins=pins) if ranges else None

    def _check_incarnations(self, start: Offsets, there: Sequence[Partition], on_data_loss: str) -> None:
        """A topic that was deleted and made again is another topic: what was unread of the old one is gone."""
        known = {p.topic: p.topic_id for p in there}
        read = {(p.topic, p.topic_id) for p in map(parse_partition, start)}
        for topic, topic_id in sorted(read):
            now = known.get(topic)
            if now is None or (topic, now) in read:
                continue
            # Without an id it may be the same topic in a cluster that began, or ceased, to give ids: the same records under another name.
            if on_data_loss == "fail" or not topic_id or not now:
                what = "a topic was deleted and made again; what was not yet read of the old one is gone. Nothing was written"
                raise SourceChangedError(what, topic=topic, committed=topic_id, found=now)
            logger.warning("topic %s was deleted and made again: reading the new one from its beginning", topic)

    def _check_history(self, start: Offsets, ends: Mapping[Partition, End], lows: Mapping[Partition, int]) -> None:
        """Offsets that were committed are still below the end, in the same history. Retention may have passed them: that is the cut's to say."""
        for p, end in sorted(ends.items()):
            committed, seen = position(start, p.name), self._seen.get(p.name)
            went_back = p.name in start and end.offset < committed
            changed = seen is not None and end.epoch != seen.epoch >= 0 and committed > 0 and committed >= lows[p]
            if went_back or (changed and seen is not None and self._cluster.was_cut_short(p, committed, seen.epoch)):
                what = "a partition's log was cut short below what is committed: records were lost in Kafka. Nothing was written"
                raise SourceChangedError(what, partition=p.name, committed=committed, end=end.offset)

    def hint(self, plan: Plan, counts: Mapping[str, int]) -> Json:
        """Where each partition ended when this plan was cut, as far as this process or the outcome before it knows."""
        pinned: Any = plan.pins or []
        planned = self._planned if pinned == self._pins else {}  # else somebody else's plan
        ends = {**self._seen, **planned}
        for topic, topic_id, number, _, end, epoch in pinned:
            # The epoch must be one under which the plan's records were there: an older one ended before them.
            name = Partition(topic, number, topic_id).name
            ends[name] = End(max(end, ends.get(name, End(0, -1)).offset), epoch)
        for name, target in (plan.target or {}).items():
            at = ends.get(name, End(0, -1))
            ends[name] = End(max(target, at.offset), at.epoch)
        return {"ends": {name: [end.offset, end.epoch] for name, end in sorted(ends.items())}}

    def rows(self, cut: Cut) -> int:
        """Offsets in a cut: at least as many as records."""
        return length(cut.ranges)

    def lag(self, start: Offsets) -> int:
        """Offsets that are not below ``start``."""
        return length(between(start, self.latest_offsets()))

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        """By the records' timestamps; one that is older than a record before it in its partition counts as that young."""
        partitions = self._source.partitions(self._cluster)
        return length(between(start, _named(self._cluster.offsets_for_time(partitions, at_ms))))
