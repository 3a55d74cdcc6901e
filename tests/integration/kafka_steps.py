"""The Kafka calls of a sink as steps, at which a test kills the sink, pauses it, or loses a reply."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pytest

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
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
    client, marker = WatchedClient(), ControlTopic.marker

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

        def abort_transaction(self, *args: Any) -> None:
            if not isinstance(sys.exc_info()[1], Crash):  # a dead process cannot abort
                super().abort_transaction(*args)

        def purge(self, *args: Any, **named: Any) -> None:
            if not isinstance(sys.exc_info()[1], Crash):
                super().purge(*args, **named)

        def _stepped(self, name: str, call: Callable[..., object], *args: Any) -> None:
            client.step(f"before {name}")
            call(*args)
            client.step(f"after {name}")

    def read(self: ControlTopic, *args: Any, **named: Any) -> Any:
        client.step("before marker")
        found = marker(self, *args, **named)
        client.step("after marker")
        return found

    monkeypatch.setattr(confluent_kafka, "Producer", Producer)
    monkeypatch.setattr(ControlTopic, "marker", read)
    monkeypatch.setattr(SYSTEM_CLOCK, "sleep", lambda seconds: time.sleep(min(seconds, 0.1)))
    yield client
    client.producers.clear()
