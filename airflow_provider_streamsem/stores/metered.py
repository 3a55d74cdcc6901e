"""
Limits the memory that a request of a server needs for the objects of a store, whatever the objects contain.

A request has a :class:`Meter`. A :class:`MeteredStore` charges it for each object that the request reads, before the bytes are parsed. Without a meter, nothing
is charged.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from threading import Lock, RLock

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.stores.contract import ObjectStat, Store

_PER_BYTE = 5
"""Bytes of memory for each byte of an object: the bytes, their text, and the same again while the checksum is computed."""
_PER_VALUE = 128
"""Bytes of memory for each value of a JSON object, parsed and converted."""
_PER_LISTED = 500
_meter: ContextVar[Meter | None] = ContextVar("streamsem_meter", default=None)
_charged: ContextVar[list[int] | None] = ContextVar("streamsem_charged", default=None)


class Meter:
    """
    The memory of one request. Several threads may charge it.

    :param most: the maximum number of bytes
    :param is_serial: whether only one thread at a time works in a block of :func:`working`, so that the request needs the least memory
    :attr is_exceeded: whether the request needed more than ``most``
    """

    def __init__(self, most: int, *, is_serial: bool = False) -> None:
        self.most = most
        self.is_exceeded = False
        self.serial = RLock() if is_serial else nullcontext()
        self._used = 0
        self._lock = Lock()

    def charge(self, size: int) -> None:
        """
        Add a number of bytes, which may be negative.

        :raises InvalidError: the request needs more memory than it may use
        """
        with self._lock:
            if size > 0 and (self.is_exceeded or self._used + size > self.most):
                self.is_exceeded = True
                raise InvalidError("the request needs more memory than it may use", bytes=self._used + size)
            self._used += size


@contextmanager
def metered(meter: Meter) -> Iterator[None]:
    """Charge ``meter`` for what the block reads, also in threads that have the context variables of the block."""
    token = _meter.set(meter)
    try:
        yield
    finally:
        _meter.reset(token)


def is_exceeded() -> bool:
    """Return whether the request has needed more memory than it may use, so that its result is not used."""
    meter = _meter.get()
    return meter is not None and meter.is_exceeded


def charge(size: int) -> None:
    """
    Charge the meter of the request, if it has one.

    :raises InvalidError: the request needs more memory than it may use
    """
    meter, charged = _meter.get(), _charged.get()
    if meter is not None:
        meter.charge(size)
        if charged is not None:
            charged[0] += size


@contextmanager
def working() -> Iterator[None]:
    """Give back at the end of the block what the block has charged, because its objects are no longer in use. The caller charges its result."""
    meter = _meter.get()
    if meter is None:
        yield
        return
    with meter.serial:
        charged = [0]
        token = _charged.set(charged)
        try:
            yield
        finally:
            _charged.reset(token)
            meter.charge(-charged[0])


def memory_of(value: object) -> int:
    """Return the bytes of memory of dataclasses, collections, texts and numbers. An object that is in the value twice counts twice."""
    found, rest = 0, [value]
    while rest:
        each = rest.pop()
        found += sys.getsizeof(each)
        if isinstance(each, Mapping):
            rest += [*each.keys(), *each.values()]
        elif isinstance(each, (list, tuple)):
            rest += each
        elif dataclasses.is_dataclass(each) and not isinstance(each, type):
            rest += [getattr(each, field.name) for field in dataclasses.fields(each)]
    return found


class MeteredStore:
    """
    A store that charges the meter of the request for each object that is read and each key that is listed.

    :param store: the other store
    """

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self._store = store

    def create(self, key: str, data: bytes) -> bool:
        return self._store.create(key, data)

    def read(self, key: str) -> bytes | None:
        """Requests the size first. Raises ``InvalidError`` if the request needs more memory than it may use."""
        if _meter.get() is None:
            return self._store.read(key)
        stat = self._store.stat(key)
        if stat is None:
            return None
        charge(_PER_BYTE * stat.bytes)
        data = self._store.read(key)
        if data is not None:
            charge(_PER_BYTE * max(0, len(data) - stat.bytes) + _PER_VALUE * _values(data))
        return data

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        for stat in self._store.list(prefix, limit, start_after):
            charge(_PER_LISTED + len(stat.key))
            yield stat

    def stat(self, key: str) -> ObjectStat | None:
        return self._store.stat(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)


def _values(data: bytes) -> int:
    """Return at least the number of values in JSON: each one follows a bracket, a comma or a colon."""
    return 1 + sum(data.count(mark) for mark in (b",", b"[", b"{", b":"))
