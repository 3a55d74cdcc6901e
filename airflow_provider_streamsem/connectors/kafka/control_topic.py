"""The control topic: stores the marker of each pipeline and sink, the newest version that is in Kafka. Compaction keeps the newest marker of each key."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import repeat
from typing import Any

from airflow_provider_streamsem.clock import tries
from airflow_provider_streamsem.connectors.kafka.authentication import client_settings
from airflow_provider_streamsem.connectors.kafka.client import QUIET, TIMEOUT_S, admin_client, call
from airflow_provider_streamsem.connectors.kafka.starting import TOPIC
from airflow_provider_streamsem.connectors.sink import SinkMarker
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.protocol.codec import read_json

_RETRY_DELAYS_S = (0.5, 1.0, 2.0)  # A new topic becomes known to the brokers at different times.
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}


class ControlTopic:
    """Reads markers of a control topic, which has one partition and is compacted, and topic metadata that the sink needs."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        self._settings, self.topic = dict(settings), topic

    @cached_property
    def _admin(self) -> Any:
        return admin_client(self._settings)

    def _call(self, request: Any, *, missing: str = "") -> Any:
        return call(request, missing=missing, settings=self._settings)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Missing topics and invalid names are left out, and the request does not create topics."""
        from confluent_kafka import TopicCollection

        names = sorted(name for name in set(topics) if re.fullmatch(TOPIC, name) and name not in (".", ".."))
        if not names:
            return {}
        futures = self._call(lambda: self._admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S))
        descriptions = {
            name: self._call(future.result, missing="UNKNOWN_TOPIC_OR_PART") for name, future in futures.items()
        }
        return {name: len(topic.partitions) for name, topic in descriptions.items() if topic is not None}

    def config(self, topics: Iterable[str], name: str) -> dict[str, str]:
        """Topic → value of the topic configuration ``name``."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        requested = {ConfigResource(ResourceType.TOPIC, topic): topic for topic in sorted(set(topics))}
        if not requested:
            return {}
        futures = self._call(lambda: self._admin.describe_configs(list(requested), request_timeout=TIMEOUT_S))
        return {requested[resource]: str(self._call(future.result)[name].value) for resource, future in futures.items()}

    def ensure(self) -> None:
        """Create the control topic if it is missing. Then :meth:`check` its configuration."""
        from confluent_kafka.admin import NewTopic

        if not self.partitions([self.topic]):
            new = NewTopic(self.topic, num_partitions=1, replication_factor=-1, config=_CONFIG)
            futures = self._call(lambda: self._admin.create_topics([new], request_timeout=TIMEOUT_S))
            self._call(futures[self.topic].result, missing="TOPIC_ALREADY_EXISTS")
            for _ in tries(repeat(0.1, int(TIMEOUT_S * 10))):
                if self.partitions([self.topic]):
                    break
        self.check()

    def is_missing(self) -> bool:
        """Sends several requests before it returns ``True``. The requests do not create the topic."""
        return not any(self.partitions([self.topic]) for _ in tries(_RETRY_DELAYS_S))

    def check(self) -> None:
        """Refuse an existing control topic in which Kafka could delete markers, or with more than one partition."""
        partitions = self.partitions([self.topic]).get(self.topic)
        policy = self.config([self.topic], "cleanup.policy")[self.topic]
        if partitions != 1 or policy != "compact":
            raise InvalidError(
                "the control topic must have one partition and cleanup.policy=compact; otherwise Kafka can delete markers, and batches would be sent twice",
                control_topic=self.topic,
                partitions=partitions,
                cleanup_policy=policy,
            )

    def marker(self, key: str, *, within_s: float) -> SinkMarker | None:
        """
        Return the newest committed marker of a key (``<pipeline uuid>/<sink>``), among all records that were sent to the topic before this call.

        A ``read_committed`` consumer stops at the first open transaction, which may be that of another pipeline. So this method requests the
        ``read_uncommitted`` end offset, and waits until a ``read_committed`` consumer reaches that offset (else ``UnavailableError``).
        """
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        if not self.partitions([self.topic]):
            return None
        end, newest = self._end(), None
        deadline = time.monotonic() + within_s
        consumer = Consumer(
            {
                **client_settings(self._settings), "group.id": "streamsem-markers", "enable.auto.commit": False, "auto.offset.reset": "earliest",
                "enable.partition.eof": True, "fetch.wait.max.ms": 50, "isolation.level": "read_committed", "logger": QUIET,
            }
        )  # fmt: skip
        try:
            # Without this request for metadata, the consumer takes half a second longer to find the leader.
            self._call(lambda: consumer.list_topics(self.topic, timeout=TIMEOUT_S))
            consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
            while time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is None:
                    continue
                if message.error() is None:
                    if message.key() == key.encode() and message.value() is not None:
                        newest = read_json(message.value(), f"{self.topic}: {key}")
                elif message.error().code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                    return newest and SinkMarker(newest["version"], newest["state"], newest.get("outcome", ""))
        finally:
            consumer.close()
        raise UnavailableError(
            "the control topic could not be read to its end: another publisher has an open transaction in it, or Kafka does not answer; nothing was sent",
            control_topic=self.topic,
            seconds=within_s,
        )

    def _end(self) -> int:
        """The ``read_uncommitted`` end offset: one past the last record, committed or not."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        partition = TopicPartition(self.topic, 0)
        futures = self._call(
            lambda: self._admin.list_offsets(
                {partition: OffsetSpec.latest()},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=TIMEOUT_S,
            )
        )
        return int(self._call(futures[partition].result).offset)
