"""A JetStream server in memory, as a client sees it: one stream with deletions, a replica that lags, and deliveries that are lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.nats import reading, source
from airflow_provider_streamsem.connectors.nats.client import Delivered, Stored

CREATED = "2026-01-01T00:00:00.5Z"


@dataclass
class MemoryStream:
    """
    The stream ``ORDERS``. Message ``n`` was stored ``n`` seconds after midnight.

    :attr lags: the replica of the consumers lacks messages at and above this sequence
    :attr before_pull: called before each pull
    """

    messages: dict[int, str] = field(default_factory=dict)
    first: int = 1
    end: int = 1
    created: str = CREATED
    retention: str = "limits"
    lags: int = 2**62
    before_pull: Callable[[], object] = lambda: None
    requests: list[str] = field(default_factory=list)
    second: int = 0

    def put(self, count: int, subject: str = "a") -> None:
        for _ in range(count):
            self.messages[self.end] = subject
            self.end += 1

    def expire(self, first: int) -> None:
        """Delete the messages below ``first``, as retention does."""
        self.messages = {n: subject for n, subject in self.messages.items() if n >= first}
        self.first = first

    def lose(self, end: int) -> None:
        """Lose the messages at and above ``end``, as a server does that is restored from an older copy. Later messages have other times."""
        self.messages = {n: subject for n, subject in self.messages.items() if n < end}
        self.end, self.second = end, self.second + 1

    # --- as NatsClient

    def stream(self, name: str) -> dict[str, Any] | None:
        self.requests.append("info")
        if name != "ORDERS":
            return None
        first = min(self.messages, default=self.end)
        state = {"messages": len(self.messages), "first_seq": first, "last_seq": self.end - 1}
        return {"created": self.created, "config": {"retention": self.retention}, "state": state}

    def _stored(self, n: int) -> Stored:
        return Stored(n, f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}.{self.second}Z")

    def message(self, stream: str, sequence: int) -> Stored | None:
        self.requests.append("message")
        return self._stored(sequence) if sequence in self.messages else None

    def next(self, stream: str, sequence: int, subject: str) -> Stored | None:
        self.requests.append("next")
        matching = min((n for n in self._matching(subject) if n >= sequence), default=None)
        return None if matching is None else self._stored(matching)

    def last(self, stream: str, subject: str) -> Stored | None:
        self.requests.append("last")
        newest = max(self._matching(subject), default=None)
        return None if newest is None else self._stored(newest)

    def _matching(self, subject: str) -> list[int]:
        pattern = re.escape(subject).replace(r"\*", "[^.]+").replace(r">", ".+")
        return [n for n, message_subject in self.messages.items() if re.fullmatch(pattern, message_subject)]

    @contextmanager
    def consumer(self, stream: str, start: int, subject: str | None) -> Iterator[str]:
        self._at, self._number, self._filter = start, 0, subject or ">"
        yield "c"

    def pull(self, stream: str, consumer: str, *, max_messages: int, max_bytes: int) -> list[Delivered]:
        self.before_pull()
        sequences = [n for n in sorted(self._matching(self._filter)) if self._at <= n < self.lags][
            : min(max_messages, 3)
        ]
        delivered = []
        for n in sequences:
            self._number += 1
            delivered.append(Delivered(self.messages[n], n, self._number, n * 10**9, None, b"x"))
            self._at = n + 1
        return delivered


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch, short_waits: None) -> MemoryStream:
    """Return a stream without messages, to which clients connect."""
    stream = MemoryStream()

    @contextmanager
    def connected(*_: object) -> Iterator[MemoryStream]:
        yield stream

    for module in (source, reading):
        monkeypatch.setattr(module, "connected", connected)
    return stream
