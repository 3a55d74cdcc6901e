"""Stores that forward to another store. One counts the requests, the other injects a fault at a selected request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_streamsem.stores.contract import ObjectStat, Store, UnknownResultError


class CountingStore:
    """
    A store that forwards every request to another store, and counts it.

    :param store: the other store
    :attr requests: method → number of its requests
    :attr keys: each request as ``(method, key or prefix)``, in order
    :attr sent_bytes: number of bytes that creates sent
    :attr read_bytes: number of bytes that reads returned
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
        self._count("create", key)
        self.sent_bytes += len(data)
        return self.store.create(key, data)

    def read(self, key: str) -> bytes | None:
        self._count("read", key)
        data = self.store.read(key)
        self.read_bytes += len(data or b"")
        return data

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        self._count("list", prefix)
        return self.store.list(prefix, limit, start_after)

    def stat(self, key: str) -> ObjectStat | None:
        self._count("stat", key)
        return self.store.stat(key)

    def delete(self, key: str) -> None:
        self._count("delete", key)
        self.store.delete(key)


class Fault(Enum):
    """A fault at one request of a process."""

    CRASH_BEFORE = "the process ends before it sends the request"
    CRASH_AFTER = "the request is applied, and the process ends before it receives the response"
    LOST_REPLY = "the request is applied, and the response is lost, or is an error such as 500"
    CONFLICT = "the response is 409, and the request is not applied"
    APPLIED_LATE = "there is no response, and the request is applied just before the next request of the process"
    PAUSE_BEFORE = "the process pauses before it sends the request, while other processes continue"
    PAUSE_AFTER = (
        "the request is applied, and the process pauses before it receives the response, while other processes continue"
    )


class Crash(BaseException):
    """Simulates the end of the process. It is not an ``Exception``, so that ``except Exception`` does not catch it."""


@dataclass
class FaultyStore:
    """
    A store that forwards requests to another store, and injects a fault at one of them.

    :param store: the other store
    :param at: index of the request with the fault, from 0. ``stat`` and ``delete`` are not counted
    :param fault: the fault
    :param other_processes: called once, to simulate other processes: while the process is paused, or before a create fails with :class:`UnknownResultError`
    :param unless: requests for keys with this prefix are forwarded and not counted
    :attr kinds: the kind of each request so far: ``create``, ``read`` or ``list``
    """

    store: Store
    at: int
    fault: Fault
    other_processes: Callable[[], object] | None = None
    unless: str = "doctor/"
    kinds: list[str] = field(default_factory=list, init=False)
    url: str = field(default="", init=False)
    _late: tuple[str, bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.url = self.store.url

    @property
    def reached(self) -> bool:
        """Whether the process has reached the request with the fault."""
        return len(self.kinds) > self.at

    def indexes(self, fault: Fault) -> list[int]:
        """
        Return the indexes, from 0, of the requests so far at which injecting this fault is worthwhile.

        A read or a listing without a response is sent again, so a conflict or a late application has the effect of a lost reply.
        """
        affects_every_request = fault not in (Fault.CONFLICT, Fault.APPLIED_LATE)
        return [index for index, kind in enumerate(self.kinds) if affects_every_request or kind == "create"]

    def create(self, key: str, data: bytes) -> bool:
        fault = self._next("create", key)
        if fault in (Fault.CONFLICT, Fault.APPLIED_LATE):
            self._late = (key, data) if fault is Fault.APPLIED_LATE else None
            self._others()
            raise UnknownResultError(key)
        if fault is Fault.PAUSE_BEFORE:
            self._others()
        response = self.store.create(key, data)
        self._after(fault, key)
        return response

    def read(self, key: str) -> bytes | None:
        fault = self._next("read", key)
        if fault in (Fault.CONFLICT, Fault.APPLIED_LATE):
            raise UnknownResultError(key)
        if fault is Fault.PAUSE_BEFORE:
            self._others()
        response = self.store.read(key)
        self._after(fault, key)
        return response

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        fault = self._next("list", prefix)
        if fault in (Fault.CONFLICT, Fault.APPLIED_LATE):
            raise UnknownResultError(prefix)
        if fault is Fault.PAUSE_BEFORE:
            self._others()
        response = list(self.store.list(prefix, limit, start_after))
        self._after(fault, prefix)
        return iter(response)

    def stat(self, key: str) -> ObjectStat | None:
        return self.store.stat(key)

    def delete(self, key: str) -> None:
        self.store.delete(key)

    def _next(self, kind: str, key: str) -> Fault | None:
        if key.startswith(self.unless):
            return None
        if self._late is not None:
            late, self._late = self._late, None
            self.store.create(*late)
        fault = self.fault if len(self.kinds) == self.at else None
        self.kinds.append(kind)
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        return fault

    def _after(self, fault: Fault | None, key: str) -> None:
        if fault is Fault.CRASH_AFTER:
            raise Crash
        if fault is Fault.LOST_REPLY:
            self._others()
            raise UnknownResultError(key)
        if fault is Fault.PAUSE_AFTER:
            self._others()

    def _others(self) -> None:
        if self.other_processes is not None:
            other_processes, self.other_processes = self.other_processes, None
            other_processes()
