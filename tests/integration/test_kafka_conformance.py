"""The Kafka source passes the conformance suite on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from airflow_provider_streamsem import Json, KafkaSource
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem
from tests.integration.parts.kafka import Broker
from tests.integration.topics import Topics

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("spark")]


class Topic(SourceSystem):
    """A topic with one partition. Retention deletes its first record."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        name = topics.create("orders", partitions=1)
        self.source = KafkaSource(
            topics=[name], bootstrap_servers=topics.broker.bootstrap, value=Json(schema="id long")
        )

    def add(self, ids: Iterable[int]) -> None:
        self.topics.put("orders", [json.dumps({"id": id}) for id in ids])

    def expire(self) -> list[int]:
        self.topics.delete_below("orders", 0, 1)
        return [0]


class TestKafkaSource(SourceContract):
    @pytest.fixture
    def system(self, broker: Broker, tmp_path: Path) -> Topic:
        return Topic(Topics(broker, tmp_path))
