"""The conformance suite of sinks, on the Kafka sink with a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_streamsem import KafkaSink
from airflow_provider_streamsem.testing.conformance import SinkSystem, TransactionalSinkContract
from tests.integration.kafka_steps import WatchedClient
from tests.integration.parts.kafka import Broker
from tests.integration.topics import Topics
from tests.rounds import ROUNDS

pytestmark = pytest.mark.integration


class Topic(SinkSystem):
    """A topic with one partition, and a control topic. The requests are those of the producer, and the reads of the marker."""

    schema = json.dumps(
        {"type": "struct", "fields": [{"name": "value", "type": "string", "nullable": True, "metadata": {}}]}
    )

    def __init__(self, broker: Broker, root: Path, client: WatchedClient) -> None:
        self.root, self.topics, self._client = root, Topics(broker, root), client
        self.topics.create("out", 1)

    def sink(self) -> KafkaSink:
        return KafkaSink(
            str(self.root),
            topic=self.topics.name("out"),
            bootstrap_servers=self.topics.broker.bootstrap,
            control_topic=self.topics.name("markers"),
            transaction_timeout_s=20,
        )

    def table(self, ids: Sequence[int]) -> Any:
        return pyarrow.table({"value": [str(id) for id in ids]})

    def ids(self) -> list[int]:
        return [int(value) for value in self.topics.read("out").elements()]

    def watching(self, step: Callable[[str], object]) -> Any:
        return self._client.watching(step)

    def lose_markers(self) -> None:
        self.topics.delete("markers")

    def lost_reply(self) -> Exception:
        return KafkaException(KafkaError(KafkaError._TIMED_OUT))


class TestKafkaSink(TransactionalSinkContract):
    rounds = ROUNDS

    @pytest.fixture
    def fresh(self, broker: Broker, tmp_path: Path, watched_client: WatchedClient) -> Callable[[], SinkSystem]:
        roots = (tmp_path / str(number) for number in range(1_000))
        return lambda: Topic(broker, next(roots), watched_client)
