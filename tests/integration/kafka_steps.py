"""The Kafka calls of a sink as steps, at which a test kills the sink, pauses it, or loses a reply."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pytest

from airflow_provider_streamsem.connectors.kafka import sink as kafka
from airflow_provider_streamsem.connectors.kafka.control_topic import ControlTopic
from airflow_provider_streamsem.testing.stores import Crash


@dataclass
class WatchedClient:
    """
    Reports the Kafka calls of one thread as steps while it publishes.

    It keeps the producers alive, because records of a dead process may still be in flight.
    """

    watched: Callable[[str], object] | None = None
    thread: int = 0
    producers: list[Any] = field(default_factory=list)

    def step(self, name: str) -> None:
        if self.watched is not None and threading.get_ident() == self.thread:
            self.watched(name)

    @contextmanager
    def watching(self, watched: Callable[[str], object]) -> Iterator[None]:
        """Call ``watched`` with each step that this thread takes within the block."""
        self.watched, self.thread = watched, threading.get_ident()
        try:
            yield
        finally:
            self.watched = None

    def run(self, call: Callable[[], Any], watched: Callable[[str], object]) -> Any:
        with self.watching(watched):
            return call()


@pytest.fixture
def watched_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedClient]:
    client, abort_quietly, marker = WatchedClient(), kafka._abort_quietly, ControlTopic.marker

    class Producer(confluent_kafka.Producer):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            client.producers.append(self)

        def init_transactions(self, *args: Any) -> None:
            self._stepped("init", super().init_transactions, *args)

        def begin_transaction(self) -> None:
            self._stepped("begin", super().begin_transaction)

        def produce(self, **record: Any) -> None:
            client.step(f"before produce {record['topic']}")
            super().produce(**record)
            super().flush()
            client.step(f"after produce {record['topic']}")

        def commit_transaction(self, *args: Any) -> None:
            self._stepped("commit", super().commit_transaction, *args)

        def _stepped(self, name: str, call: Callable[..., object], *args: Any) -> None:
            client.step(f"before {name}")
            call(*args)
            client.step(f"after {name}")

    def read(self: ControlTopic, *args: Any, **named: Any) -> Any:
        client.step("before marker")
        found = marker(self, *args, **named)
        client.step("after marker")
        return found

    def abort_unless_crashed(producer: Any) -> None:
        """Abort the transaction, except after a simulated crash: a dead process cannot abort."""
        if not isinstance(sys.exc_info()[1], Crash):
            abort_quietly(producer)

    monkeypatch.setattr(confluent_kafka, "Producer", Producer)
    monkeypatch.setattr(ControlTopic, "marker", read)
    monkeypatch.setattr(kafka, "_abort_quietly", abort_unless_crashed)
    monkeypatch.setattr(kafka, "_POLL_S", 0.1)
    yield client
    client.producers.clear()
