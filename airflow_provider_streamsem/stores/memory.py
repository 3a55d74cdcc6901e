"""A store in the memory of this process, for tests. ``memory://name`` opens the same store everywhere in the process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from threading import Lock

from airflow_provider_streamsem.stores.contract import ObjectStat


class MemoryStore:
    """
    A store whose objects are in memory. Each call is atomic. A listing reads all keys.

    :param url: the URL that the store reports
    :param objects: key → bytes of the initial objects
    :attr objects: key → bytes. A test may change them, as no writer can
    """

    def __init__(self, url: str = "memory://", objects: Mapping[str, bytes] | None = None) -> None:
        self.url = url
        self.objects = dict(objects or {})
        self._lock = Lock()

    def create(self, key: str, data: bytes) -> bool:
        with self._lock:
            if key in self.objects:
                return False
            self.objects[key] = bytes(data)
            return True

    def read(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        with self._lock:
            keys = sorted(key for key in self.objects if key.startswith(prefix) and key > start_after)
            return iter([self._stat(key) for key in keys[:limit]])

    def stat(self, key: str) -> ObjectStat | None:
        return self._stat(key) if key in self.objects else None

    def delete(self, key: str) -> None:
        with self._lock:
            self.objects.pop(key, None)

    def _stat(self, key: str) -> ObjectStat:
        data = self.objects[key]
        return ObjectStat(
            key=key, bytes=len(data), etag=hashlib.md5(data, usedforsecurity=False).hexdigest(), mtime_ns=0
        )


_OPENED: dict[str, MemoryStore] = {}


def open_memory_store(name: str) -> MemoryStore:
    """Return the store with this name in this process. The first call creates it."""
    return _OPENED.setdefault(name, MemoryStore(f"memory://{name}"))
