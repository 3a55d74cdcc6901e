"""An in-memory queue with the behavior of SQS standard queues. The calling process can die at any of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from airflow_provider_streamsem.connectors.landing.messages import Message
from airflow_provider_streamsem.connectors.sqs.client import SqsQueue
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.testing.stores import Crash

_NAMES = count()


@dataclass
class Waiting:
    message: Message
    hidden_until: int = 0
    handle: str = ""


@dataclass
class Broker:
    """
    A queue that delivers up to three messages at once, hides them for ``timeout``, and deletes one by the handle of its newest delivery.

    :attr now: the queue's clock, which tests advance
    """

    timeout: int = 30
    now: int = 0
    queue: list[Waiting] = field(default_factory=list)
    deliveries: int = 0

    def send(self, *messages: Message) -> None:
        self.queue += [Waiting(message) for message in messages]

    def receive(self, most: int) -> Sequence[Message]:
        delivered = [waiting for waiting in self.queue if waiting.hidden_until <= self.now][: min(most, 3)]
        for waiting in delivered:
            self.deliveries += 1
            waiting.hidden_until, waiting.handle = self.now + self.timeout, f"{waiting.message.id}/{self.deliveries}"
        return [
            Message(
                id=waiting.message.id, body=waiting.message.body, headers=waiting.message.headers, handle=waiting.handle
            )
            for waiting in delivered
        ]

    def acknowledge(self, handles: Sequence[Any]) -> None:
        self.queue = [waiting for waiting in self.queue if waiting.handle not in handles]

    def waiting(self) -> int:
        return sum(waiting.hidden_until <= self.now for waiting in self.queue)

    def later(self) -> None:
        """Make all delivered and unacknowledged messages visible again."""
        self.now += self.timeout


class Calls:
    """
    Numbers the calls of one process to queue and store, and runs an action before or after one of them.

    :param at: number of the call, from 0
    :param do: the action; by default the process dies
    """

    def __init__(self, at: int = -1, *, after: bool = False, do: Callable[[], object] | None = None) -> None:
        self.at, self.after, self.do = at, after, do
        self.names: list[str] = []

    @property
    def reached(self) -> bool:
        return len(self.names) > self.at

    def call(self, name: str, make: Callable[[], Any]) -> Any:
        is_target = len(self.names) == self.at
        self.names.append(name)
        if is_target and not self.after:
            self._now()
        result = make()
        if is_target and self.after:
            self._now()
        return result

    def _now(self) -> None:
        if self.do is None:
            raise Crash
        self.do()


class CalledBroker:
    """A broker as one process sees it. Its calls are numbered."""

    def __init__(self, broker: Broker, calls: Calls) -> None:
        self._broker, self._calls = broker, calls

    def receive(self, most: int) -> Sequence[Message]:
        messages: Sequence[Message] = self._calls.call("receive", lambda: self._broker.receive(most))
        return messages

    def acknowledge(self, handles: Sequence[Any]) -> None:
        self._calls.call("acknowledge", lambda: self._broker.acknowledge(handles))

    def waiting(self) -> int:
        return self._broker.waiting()


class CalledStore:
    """A store as one process sees it. Its calls are numbered."""

    def __init__(self, store: Store, calls: Calls, name: str = "") -> None:
        self.url = store.url
        self._store, self._calls, self._name = store, calls, name

    def create(self, key: str, data: bytes) -> bool:
        return bool(self._calls.call(f"{self._name}create", lambda: self._store.create(key, data)))

    def read(self, key: str) -> bytes | None:
        data: bytes | None = self._calls.call(f"{self._name}read", lambda: self._store.read(key))
        return data

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[Any]:
        return iter(self._calls.call(f"{self._name}list", lambda: [*self._store.list(prefix, limit, start_after)]))

    def stat(self, key: str) -> Any:
        return self._store.stat(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)


_BROKERS: dict[str, Any] = {}


class MemoryQueue(SqsQueue):
    """A queue for specs that connects to a :class:`Broker`."""

    __slots__ = ()

    @contextmanager
    def connect(self) -> Iterator[Any]:
        yield _BROKERS[self.url]


def memory_queue(broker: Any) -> MemoryQueue:
    queue = MemoryQueue(url=f"https://memory/{next(_NAMES)}")
    _BROKERS[queue.url] = broker
    return queue


def connected(queue: SqsQueue, broker: Any) -> None:
    """Set the broker that the queue connects to next."""
    _BROKERS[queue.url] = broker
