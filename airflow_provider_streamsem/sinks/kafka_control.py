"""The control topic: for each pipeline and sink the newest version that is in Kafka, kept for ever by compaction."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.kafka_client import QUIET, TIMEOUT_S, admin_client, answer
from airflow_provider_streamsem.protocol.codec import read_json
from airflow_provider_streamsem.sinks.contract import SinkMarker

_LOOK_AGAIN_S = (0.5, 1.0, 2.0)  # a broker may know of a topic later than others
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}


class Control:
    """
    The markers of a control topic, and what else is asked of the cluster.

    :param settings: librdkafka's
    :param topic: of one partition, compacted
    """

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        self._settings, self.topic = dict(settings), topic

    @cached_property
    def _admin(self) -> Any:
        return admin_client(os.getpid(), tuple(sorted(self._settings.items())))

    def _answer(self, ask: Any, *, missing: str = "") -> Any:
        return answer(ask, missing=missing, settings=self._settings)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Topic → how many partitions it has; topics that do not exist are left out. Asking makes none."""
        from confluent_kafka import TopicCollection

        names = sorted(set(topics))
        if not names:
            return {}
        asked = self._answer(lambda: self._admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S))
        found = {name: self._answer(future.result, missing="UNKNOWN_TOPIC_OR_PART") for name, future in asked.items()}
        return {name: len(topic.partitions) for name, topic in found.items() if topic is not None}

    def config(self, topics: Iterable[str], name: str) -> dict[str, str]:
        """Topic → one of its settings."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        asked = {ConfigResource(ResourceType.TOPIC, topic): topic for topic in sorted(set(topics))}
        if not asked:
            return {}
        futures = self._answer(lambda: self._admin.describe_configs(list(asked), request_timeout=TIMEOUT_S))
        return {asked[resource]: str(self._answer(future.result)[name].value) for resource, future in futures.items()}

    def ensure(self) -> None:
        """
        Make the control topic where it is missing.

        :raises InvalidError: as :meth:`check`
        """
        from confluent_kafka.admin import NewTopic

        if not self.partitions([self.topic]):
            new = NewTopic(self.topic, num_partitions=1, replication_factor=-1, config=_CONFIG)
            made = self._answer(lambda: self._admin.create_topics([new], request_timeout=TIMEOUT_S))
            self._answer(made[self.topic].result, missing="TOPIC_ALREADY_EXISTS")
            deadline = time.monotonic() + TIMEOUT_S
            while not self.partitions([self.topic]) and time.monotonic() < deadline:
                time.sleep(0.1)
        self.check()

    def is_gone(self) -> bool:
        """Whether no broker knows of the control topic, though it was asked for several times. Asking makes none."""
        for wait_s in (*_LOOK_AGAIN_S, 0.0):
            if self.partitions([self.topic]):
                return False
            time.sleep(wait_s)
        return True

    def check(self) -> None:
        """
        Look whether the control topic, which must be there, keeps its markers.

        :raises InvalidError: it has several partitions, or would forget markers
        """
        found = self.partitions([self.topic]).get(self.topic)
        policy = self.config([self.topic], "cleanup.policy")[self.topic]
        if found != 1 or policy != "compact":
            raise InvalidError(
                "the control topic must have one partition and cleanup.policy=compact: else markers are lost, and batches repeated",
                control_topic=self.topic,
                partitions=found,
                cleanup_policy=policy,
            )

    def marker(self, key: str, *, within_s: float) -> SinkMarker | None:
        """
        The newest marker of a key among everything that was sent to the topic before this call, as far as it was committed.

        Another pipeline's transaction that is open there hides what lies behind it, so its end is waited for: the end that is asked for is that of all records,
        and the reading is done when a read_committed consumer has come so far.

        :param key: ``<pipeline uuid>/<sink>``
        :param within_s: seconds to wait
        :returns: ``None`` where there is none, or no such topic
        :raises UnavailableError: it took longer
        """
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        if not self.partitions([self.topic]):
            return None
        end, newest = self._end(), None
        deadline = time.monotonic() + within_s
        consumer = Consumer(
            {
                **self._settings, "group.id": "streamsem-markers", "enable.auto.commit": False, "auto.offset.reset": "earliest",
                "enable.partition.eof": True, "fetch.wait.max.ms": 50, "isolation.level": "read_committed", "logger": QUIET,
            }
        )  # fmt: skip
        try:
            # A consumer that is told nothing of a topic finds its leader half a second later.
            self._answer(lambda: consumer.list_topics(self.topic, timeout=TIMEOUT_S))
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
            "the control topic could not be read to its end: a transaction of another publisher is open there, or Kafka does not answer",
            control_topic=self.topic,
            seconds=within_s,
        )

    def _end(self) -> int:
        """One past the last record, whether or not it is committed."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        at = TopicPartition(self.topic, 0)
        futures = self._answer(
            lambda: self._admin.list_offsets(
                {at: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=TIMEOUT_S
            )
        )
        return int(self._answer(futures[at].result).offset)
