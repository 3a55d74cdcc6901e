"""Stores that wrap a store: one counts requests, one fails at a selected request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_streamsem.stores.contract import ObjectStat, Store, UnknownAnswerError


class CountingStore:
    """
    Forwards every request and counts it.

    :attr requests: ``create``, ``read``, ``list`` … → number of requests
    :attr keys: each request as ``(method, key or prefix)``, in order
    :attr sent_bytes: total bytes of creates
    :attr read_bytes: total bytes of reads
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.url = store.url
        self.requests: Counter[str] = Counter()
        self.keys: list[tuple[str, str]] = []
        self.sent_bytes = 0
        self.read_bytes = 0

    def _count(self, method: str, key: str) -> None:
        self.requests[method] += 1
        self.keys.append((method, key))

    def create(self, key: str, data: bytes) -> bool:
        """Count and forward."""
        self._count("create", key)
        self.sent_bytes += len(data)
        return self.store.create(key, data)

    def read(self, key: str) -> bytes | None:
        """Count and forward."""
        self._count("read", key)
        data = self.store.read(key)
        self.read_bytes += len(data or b"")
        return data

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Count and forward."""
        self._count("list", prefix)
        return self.store.list(prefix, limit, start_after)

    def stat(self, key: str) -> ObjectStat | None:
        """Count and forward."""
        self._count("stat", key)
        return self.store.stat(key)

    def delete(self, key: str) -> None:
        """Count and forward."""
        self._count("delete", key)
        self.store.delete(key)


class Fault(Enum):
    """The fault at the selected request."""

    CRASH_BEFORE = "the process dies; the request was not applied"
    CRASH_AFTER = "the request was applied; the process dies before it sees the answer"
    LOST_REPLY = "the request was applied; the answer is lost"
    CONFLICT = "409: not applied"
    ERROR_AFTER = "500, though the request was applied"
    APPLIED_LATE = "no answer; the request is applied just before the process's next one"
    PAUSE_BEFORE = "the process stops before the request while others go on, then sends it"
    PAUSE_AFTER = "the process stops after the request was applied while others go on, then sees the answer"


class Crash(BaseException):
    """The process dies here. It is not an ``Exception``, so that ``except Exception`` does not catch it."""


@dataclass
class FaultyStore:
    """
    Forwards requests, and injects a fault at request number ``at`` (from 0).

    :param fault: the fault
    :param meanwhile: called once: while the process is paused, or before a request fails with :class:`UnknownAnswerError`
    :param unless: requests for keys with this prefix are forwarded and not numbered
    """

    store: Store
    at: int
    fault: Fault
    meanwhile: Callable[[], object] | None = None
    unless: str = "doctor/"
    seen: int = field(default=0, init=False)
    url: str = field(default="", init=False)
    _late: tuple[str, bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.url = self.store.url

    @property
    def reached(self) -> bool:
        """Whether the selected request was sent."""
        return self.seen > self.at

    def create(self, key: str, data: bytes) -> bool:
        """Forward the request, or inject the fault."""
        fault = self._next(key)
        if fault in (Fault.CONFLICT, Fault.APPLIED_LATE):
            self._late = (key, data) if fault is Fault.APPLIED_LATE else None
            self._others()
            raise UnknownAnswerError(key)
        if fault is Fault.PAUSE_BEFORE:
            self._others()
        answer = self.store.create(key, data)
        self._after(fault, key)
        return answer

    def read(self, key: str) -> bytes | None:
        """Forward the request, or inject the fault."""
        fault = self._next(key)
        if fault in (Fault.CONFLICT, Fault.APPLIED_LATE):
            raise UnknownAnswerError(key)
        if fault is Fault.PAUSE_BEFORE:
            self._others()
        answer = self.store.read(key)
        self._after(fault, key)
        return answer

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Forward the request, or inject the fault."""
        fault = self._next(prefix)
        if fault in (Fault.CONFLICT, Fault.APPLIED_LATE):
            raise UnknownAnswerError(prefix)
        if fault is Fault.PAUSE_BEFORE:
            self._others()
        answer = list(self.store.list(prefix, limit, start_after))
        self._after(fault, prefix)
        return iter(answer)

    def stat(self, key: str) -> ObjectStat | None:
        """Forward the request."""
        return self.store.stat(key)

    def delete(self, key: str) -> None:
        """Forward the request."""
        self.store.delete(key)

    def _next(self, key: str) -> Fault | None:
        if key.startswith(self.unless):
            return None
        if self._late is not None:
            late, self._late = self._late, None
            self.store.create(*late)
        fault = self.fault if self.seen == self.at else None
        self.seen += 1
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        return fault

    def _after(self, fault: Fault | None, key: str) -> None:
        if fault is Fault.CRASH_AFTER:
            raise Crash
        if fault in (Fault.LOST_REPLY, Fault.ERROR_AFTER):
            self._others()
            raise UnknownAnswerError(key)
        if fault is Fault.PAUSE_AFTER:
            self._others()

    def _others(self) -> None:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
