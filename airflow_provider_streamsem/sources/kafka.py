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
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError, SourceChangedError
from airflow_provider_streamsem.protocol.entries import Json, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets, between, position
from airflow_provider_streamsem.sources import decoding
from airflow_provider_streamsem.sources.contract import Cut, Limits
from airflow_provider_streamsem.sources.decoding import Decoder
from airflow_provider_streamsem.sources.kafka_cluster import (
    End,
    KafkaCluster,
    Partition,
    java_settings,
    parse_partition,
    settings_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_streamsem.sources.kafka_records import KafkaRecords

logger = logging.getLogger(__name__)
TOPIC = r"[A-Za-z0-9._-]{1,249}"
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

    replayable: ClassVar[bool] = True
    unit: ClassVar[str] = "offsets"
    reasons: ClassVar[tuple[str, ...]] = (
        "ranges of offsets are fixed in the plan with the topic's id, and every attempt reads exactly them",
        "offsets that are gone, a topic that was made again and a log that was cut short fail the run, or are recorded as gaps",
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
        object.__setattr__(self, "starting", _starting(f"{where} starting", self.starting))
        arguments.choice(f"{where} isolation", self.isolation, ("read_committed", "read_uncommitted"))
        for name in ("key", "value"):
            object.__setattr__(self, name, decoding.decoder(f"{where} {name}", getattr(self, name)))
        given = arguments.options(f"{where} options", self.options)
        arguments.known_keys(f"{where} options", {name.lower(): value for name, value in given.items()}, OPTIONS)
        object.__setattr__(self, "options", given)

    @property
    def place(self) -> None:
        """A cluster is no place that a dataset could overlap."""
        return None

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
            return _named(cluster.offsets_for_time(partitions, _time_ms(self.starting)))
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

    def open(self, log: CommitLog, last: Outcome | None) -> KafkaPlanner:
        """Bind to a log."""
        return KafkaPlanner(self, last)

    def check_pins(self, pins: Json) -> None:
        """Each pinned range is still there, in the topic that was planned."""
        cluster = self.cluster()
        pinned = {Partition(topic, number, topic_id): (start, end) for topic, topic_id, number, start, end, _ in pins}
        there = set(cluster.partitions(p.topic for p in pinned))
        for p in sorted(pinned):
            if p not in there:
                raise SourceChangedError(
                    "a planned topic was deleted, or deleted and made again; nothing became visible", partition=p.name
                )
        lows, ends = cluster.lows(pinned), cluster.ends(pinned)
        for p, (start, end) in sorted(pinned.items()):
            if lows[p] > start or ends[p].offset < end:
                what = "planned offsets are no longer there; nothing became visible"
                raise SourceChangedError(what, partition=p.name, range=(start, end), first=lows[p], end=ends[p].offset)

    def load(self, spark: SparkSession, pins: Json) -> KafkaRecords:
        """The pinned ranges on Spark."""
        from airflow_provider_streamsem.sources.kafka_records import KafkaRecords

        return KafkaRecords(spark, self, java_settings(settings_of(self.conn_id, self.bootstrap_servers)), pins)


def _named(offsets: Mapping[Partition, int]) -> Offsets:
    return {p.name: offset for p, offset in sorted(offsets.items())}


def _check_pattern(where: str, pattern: object) -> None:
    try:
        re.compile(arguments.text(where, pattern))
    except re.error as error:
        raise InvalidError(f"{where} is not a regular expression", given=pattern) from error


def _starting(where: str, given: object) -> str | Mapping[str, int]:
    if isinstance(given, Mapping):
        if not given or not all(
            re.fullmatch(rf"{TOPIC}-\d+", str(k)) and type(v) is int and v >= 0 for k, v in given.items()
        ):
            raise InvalidError(
                f"{where} must map partitions to offsets", given=dict(given), accepted='{"orders-0": 42}'
            )
        return dict(given)
    if given not in ("earliest", "latest"):
        try:
            _time_ms(arguments.text(where, given))
        except ValueError as error:
            raise InvalidError(
                f"{where} is not acceptable",
                given=given,
                accepted=["earliest", "latest", "2026-01-31T00:00:00Z", '{"orders-0": 42}'],
            ) from error
    return str(given)


def _time_ms(text: str) -> int:
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if at.tzinfo is None:
        raise ValueError("a time needs a zone")
    return int(at.timestamp() * 1000)


class KafkaPlanner:
    """A Kafka source bound to a log."""

    def __init__(self, source: KafkaSource, last: Outcome | None) -> None:
        self._source = source
        self._cluster = source.cluster()
        hint = last.source if last is not None and isinstance(last.source, dict) else {}
        epochs = hint.get("epochs")
        self._epochs: dict[str, int] = dict(epochs) if isinstance(epochs, dict) else {}

    def latest_offsets(self) -> Offsets:
        """The end of each partition."""
        partitions = self._source.partitions(self._cluster)
        return _named({p: end.offset for p, end in self._cluster.ends(partitions).items()})

    def cut(self, start: Offsets, end: Offsets, limits: Limits, *, on_data_loss: str) -> Cut | None:
        """Ranges within ``limits``, shared over the partitions in proportion to their lag. What is gone fails, or becomes a gap."""
        there = self._cluster.partitions({parse_partition(name).topic for name in {*start, *end}})
        self._check_incarnations(start, there, on_data_loss)
        ends = self._cluster.ends(there)
        self._check_ends(start, ends)
        wanted = {name: pair for name, pair in between(start, end).items() if parse_partition(name) in ends}
        if not wanted:
            return None
        taken = shared({name: last - first for name, (first, last) in wanted.items()}, limits.max_rows)
        ranges = {name: (first, first + taken[name]) for name, (first, _) in wanted.items() if taken[name]}
        lows = self._cluster.lows(parse_partition(name) for name in ranges)
        gaps, pins = {}, []
        for p in sorted(parse_partition(name) for name in ranges):
            first, last = ranges[p.name]
            low = min(max(lows[p], first), last)
            if low > first:
                gaps[p.name] = ((first, low),)
            if low < last:
                pins.append([p.topic, p.topic_id, p.number, low, last, ends[p].epoch])
        if gaps and on_data_loss == "fail":
            raise SourceChangedError("offsets that wait to be read are gone from Kafka; nothing was written", lost=gaps)
        if gaps:
            logger.warning("recording offsets as gaps, since Kafka no longer has them: %s", gaps)
        return Cut(ranges=ranges, gaps=gaps, pins=pins)

    def _check_incarnations(self, start: Offsets, there: Sequence[Partition], on_data_loss: str) -> None:
        """A topic that was deleted and made again is another topic: what was unread of the old one is gone."""
        known = {(p.topic, p.number): p for p in there}
        for p in map(parse_partition, start):
            now = known.get((p.topic, p.number))
            if now is None or now.topic_id == p.topic_id or now.name in start:
                continue
            if on_data_loss == "fail":
                what = "a topic was deleted and made again; what was not yet read of the old one is gone. Nothing was written"
                raise SourceChangedError(what, topic=p.topic, committed=p.name, found=now.name)
            logger.warning("topic %s was deleted and made again: reading the new one from its beginning", p.topic)

    def _check_ends(self, start: Offsets, ends: Mapping[Partition, End]) -> None:
        """Offsets that were committed are still below the end, in the same history."""
        for p, end in sorted(ends.items()):
            committed = position(start, p.name)
            went_back = p.name in start and end.offset < committed
            epoch = self._epochs.get(p.name, -1)
            changed = epoch >= 0 and end.epoch != epoch and committed > 0
            if went_back or (changed and self._cluster.was_cut_short(p, committed, epoch)):
                what = "a partition's log was cut short below what is committed: records were lost in Kafka. Nothing was written"
                raise SourceChangedError(what, partition=p.name, committed=committed, end=end.offset)

    def hint(self, plan: Plan, counts: Mapping[str, int]) -> Json:
        """The leaders' epochs at the ends of this plan."""
        pinned: Any = plan.pins or []
        epochs = {Partition(topic, number, topic_id).name: epoch for topic, topic_id, number, _, _, epoch in pinned}
        self._epochs = dict(sorted({**self._epochs, **epochs}.items()))
        return {"epochs": self._epochs}

    def rows(self, cut: Cut) -> int:
        """Offsets in a cut: at least as many as records."""
        return sum(end - start for start, end in cut.ranges.values())

    def lag(self, start: Offsets) -> int:
        """Offsets that are not below ``start``."""
        return sum(last - first for first, last in between(start, self.latest_offsets()).values())


def shared(lags: Mapping[str, int], most: int | None) -> dict[str, int]:
    """
    How much each partition gives to a batch of ``most`` offsets: in proportion to its lag, and at least one, so that none starves.

    So a batch may exceed ``most`` by as many offsets as there are partitions that lag.
    """
    total = sum(lags.values())
    if most is None or total <= most:
        return dict(lags)
    return {name: max(1, lag * most // total) if lag else 0 for name, lag in lags.items()}
