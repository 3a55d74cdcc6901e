"""The queue source passes the conformance suite."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from airflow_provider_streamsem import QueueSource
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.landing.messages import Message
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem
from tests.connectors.queue.memory_broker import Broker, memory_queue


class Queue(SourceSystem):
    """A queue. Before more messages are sent, the waiting ones are landed, so that each call of ``add`` adds to another landing."""

    def __init__(self, landing: Path) -> None:
        landing.mkdir()
        self.broker = Broker()
        self.source = QueueSource(queue=memory_queue(self.broker), landing=str(landing), schema="id long")

    def add(self, ids: Iterable[int]) -> None:
        if self.broker.waiting():
            self.source.open(CommitLog(MemoryStore()), None).poll(None)
        self.broker.send(*(Message(id=f"m{id}", body=json.dumps({"id": id}).encode()) for id in ids))


class TestQueueSource(SourceContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> Queue:
        return Queue(tmp_path / "landing")
