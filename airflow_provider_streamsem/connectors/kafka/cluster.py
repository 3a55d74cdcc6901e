"""
Metadata requests to a Kafka cluster: topics and their ids, offsets, retention, log truncation. confluent-kafka is imported on first use.

End offsets are requested at the isolation level of the read. Under ``read_committed`` the end is the last stable offset. A batch therefore never ends inside an
open transaction (Kafka protocol, ListOffsets).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_streamsem.clock import tries
from airflow_provider_streamsem.connectors.kafka.authentication import client_settings, java_login
from airflow_provider_streamsem.connectors.kafka.client import QUIET, TIMEOUT_S, admin_client, call
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, UnavailableError
from airflow_provider_streamsem.protocol.offsets import Ranges

_ELECTING = ("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION")
_ELECTION_WAITS_S = (0.2, 0.5, 1.0)
"""
Seconds between retries of a request for a partition without a leader.

Kafka returns the errors in ``_ELECTING`` for a short time after a partition was created or has lost its leader. The client does not retry them.
"""

_RETRY_DELAYS_S = (0.2, 0.5)
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """
    A partition of a topic, identified by topic name, partition number and topic id.

    A topic that was deleted and recreated has a new topic id. So the offsets of the old and of the new topic are distinct (KIP-516).

    :param topic_id: ``""`` if the cluster has no topic ids
    """

    topic: str
    number: int
    topic_id: str = ""

    @property
    def name(self) -> str:
        """The key in offsets and ranges: ``orders-0@<topic id>``, or ``orders-0`` if the cluster has no topic ids."""
        return f"{self.topic}-{self.number}" + (f"@{self.topic_id}" if self.topic_id else "")


def parse_partition(name: str) -> Partition:
    """Parse a text of the form of :attr:`Partition.name`. Raises ``LogDamagedError`` if it has another form."""
    location, _, topic_id = name.partition("@")
    topic, _, number = location.rpartition("-")
    if not re.fullmatch(r"[0-9]{1,9}", number):
        raise LogDamagedError("the log contains an invalid name of a Kafka partition", invariant="R6", partition=name)
    return Partition(topic=topic, number=int(number), topic_id=topic_id)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a partition: the end offset, exclusive, and the leader epoch at that time; -1 if it is unknown."""

    offset: int
    epoch: int


def lineage_names(settings: Mapping[str, str], topics: set[str], ranges: Ranges) -> list[tuple[str, str]]:
    """Return OpenLineage datasets ``(namespace, name)`` of ``topics`` and those in ``ranges``. As in Spark, the namespace has the first bootstrap server."""
    server = settings["bootstrap.servers"].split(",")[0].split("://")[-1].strip()
    namespace = f"kafka://{server}" if ":" in server else f"kafka://{server}:9092"
    return [(namespace, topic) for topic in sorted(topics | {parse_partition(name).topic for name in ranges})]


class KafkaCluster:
    """Requests metadata of one Kafka cluster. ``isolation`` is that of end offsets: ``read_committed`` or ``read_uncommitted``."""

    def __init__(self, settings: Mapping[str, str], isolation: str) -> None:
        self._settings = dict(settings)
        self._isolation = isolation

    @cached_property
    def _admin(self) -> Any:
        return admin_client(self._settings)

    def _call(self, request: Any, *, missing: str = "") -> Any:
        return call(request, missing=missing, settings=self._settings)

    def topic_names(self) -> list[str]:
        """All topics, except those that start with ``__``."""
        topics = self._call(lambda: self._admin.list_topics(timeout=TIMEOUT_S)).topics
        return sorted(name for name in topics if not name.startswith("__"))

    def partitions(self, topics: Iterable[str]) -> list[Partition]:
        """Missing topics are left out, after repeated requests, because brokers learn of a new topic at different times."""
        names = sorted(set(topics))
        partitions: list[Partition] = []
        for _ in tries(_RETRY_DELAYS_S):
            partitions += self._described(sorted(set(names) - {p.topic for p in partitions}))
            if {p.topic for p in partitions} == set(names):
                break
        return sorted(partitions)

    def _described(self, names: list[str]) -> list[Partition]:
        from confluent_kafka import TopicCollection

        if not names:
            return []
        futures = self._call(lambda: self._admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S))
        partitions = []
        for name, future in futures.items():
            topic = self._call(future.result, missing="UNKNOWN_TOPIC_OR_PART")
            if topic is not None:
                topic_id = "" if str(topic.topic_id) in ("", "None", _NO_TOPIC_ID) else str(topic.topic_id)
                partitions += [Partition(name, part.id, topic_id) for part in topic.partitions]
        return partitions

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, End]:
        """One past the last record that is visible at this isolation level."""
        from confluent_kafka.admin import OffsetSpec

        return {
            p: End(r.offset, r.leader_epoch if r.leader_epoch is not None else -1)
            for p, r in self._offsets(partitions, OffsetSpec.latest())
        }

    def lows(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        from confluent_kafka.admin import OffsetSpec

        return {p: r.offset for p, r in self._offsets(partitions, OffsetSpec.earliest())}

    def offsets_for_time(self, partitions: Iterable[Partition], at_ms: int) -> dict[Partition, int]:
        """The first offset whose timestamp is at or after ``at_ms`` (milliseconds UTC), or the end offset if there is none."""
        from confluent_kafka.admin import OffsetSpec

        requested = list(partitions)
        ends = self.ends(requested)
        offsets = dict(self._offsets(requested, OffsetSpec.for_timestamp(at_ms)))
        return {
            p: ends[p].offset if offsets[p].offset < 0 else min(offsets[p].offset, ends[p].offset) for p in requested
        }

    def kept_ms(self, topics: Iterable[str]) -> dict[str, int | None]:
        """Return topic → ``retention.ms``: the age in milliseconds at which Kafka may delete a record; ``None`` if the topic deletes no record by age."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        requested = {ConfigResource(ResourceType.TOPIC, name): name for name in sorted(set(topics))}
        if not requested:
            return {}
        futures = self._call(lambda: self._admin.describe_configs(list(requested), request_timeout=TIMEOUT_S))
        retention_ms: dict[str, int | None] = {}
        for resource, future in futures.items():
            config = self._call(future.result)
            ms = int(config["retention.ms"].value) if "delete" in config["cleanup.policy"].value else -1
            retention_ms[requested[resource]] = ms if ms >= 0 else None
        return retention_ms

    def _offsets(self, partitions: Iterable[Partition], spec: Any) -> list[tuple[Partition, Any]]:
        from confluent_kafka import IsolationLevel, TopicPartition

        requested = {(p.topic, p.number): p for p in partitions}
        if not requested:
            return []
        level = (
            IsolationLevel.READ_COMMITTED if self._isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
        )
        request = {TopicPartition(topic, number): spec for topic, number in requested}
        for number in tries(_ELECTION_WAITS_S):
            futures = self._call(
                lambda: self._admin.list_offsets(request, isolation_level=level, request_timeout=TIMEOUT_S)
            )
            try:
                return [
                    (requested[tp.topic, tp.partition], self._call(future.result)) for tp, future in futures.items()
                ]
            except UnavailableError as error:
                if number == len(_ELECTION_WAITS_S) or error.fields.get("error") not in _ELECTING:
                    raise
        raise AssertionError("the last try returned no result and raised no error")

    def was_truncated(self, partition: Partition, offset: int, epoch: int) -> bool:
        """
        Return whether a leader change after ``epoch`` has lost records below ``offset``, an exclusive end that was recorded with ``epoch`` (KIP-320).

        Requests the end offset of that epoch from the leader. This costs one fetch, so callers call this method only if the epoch has changed.
        """
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                **client_settings(self._settings), "group.id": "streamsem-reader", "enable.auto.commit": False, "auto.offset.reset": "error",
                "enable.partition.eof": True, "isolation.level": self._isolation, "logger": QUIET,
            }
        )  # fmt: skip
        try:
            consumer.assign([TopicPartition(partition.topic, partition.number, offset, leader_epoch=epoch)])
            for _ in range(int(TIMEOUT_S)):
                message = consumer.poll(1.0)
                if message is None:
                    continue
                code = None if message.error() is None else message.error().code()
                if code in (KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    return self.lows([partition])[partition] <= offset  # otherwise retention has deleted the records
                if code in (None, KafkaError._PARTITION_EOF):
                    return False
                if code is not None and message.error().fatal():
                    break
        finally:
            consumer.close()
        raise UnavailableError(
            "Kafka did not report the state of a partition; no rows were committed", partition=partition.name
        )


_SAME_IN_JAVA = {
    "bootstrap.servers": "bootstrap.servers",
    "security.protocol": "security.protocol",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
}
_FILES_IN_JAVA = {
    "ssl.ca.location": ("ssl.truststore.certificates", "ssl.truststore.type"),
    "ssl.certificate.location": ("ssl.keystore.certificate.chain", "ssl.keystore.type"),
    "ssl.key.location": ("ssl.keystore.key", "ssl.keystore.type"),
}


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """
    Translate librdkafka's settings to options of Spark's Kafka source: ``kafka.<property of the Java client>`` → value.

    Settings without a translation in this module are not passed. Raises ``InvalidError`` if a file that a setting names cannot be read as PEM.
    """
    java: dict[str, str] = {}
    for name, value in settings.items():
        if name in _SAME_IN_JAVA:
            java[_SAME_IN_JAVA[name]] = _in_java(name, value)
        elif name in _FILES_IN_JAVA:
            text, kind = _FILES_IN_JAVA[name]
            java |= {text: _pem(name, value), kind: "PEM"}
        elif name == "ssl.key.password":
            java["ssl.key.password"] = value
    return {f"kafka.{name}": value for name, value in {**java, **java_login(settings)}.items()}


def _in_java(name: str, value: str) -> str:
    if name == "security.protocol":
        return value.upper()
    return "" if name.startswith("ssl.endpoint") and value == "none" else value


def _pem(name: str, path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise InvalidError("a file that a kafka connection names cannot be read as PEM", setting=name) from error
