"""A store for dry runs, on top of another store. It keeps created objects in memory, and reads return them as if they were stored."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from airflow_provider_streamsem.stores.contract import ObjectStat, Store
from airflow_provider_streamsem.stores.memory import MemoryStore


class OverlayStore:
    """
    A store that reads from another store and writes to memory. It never changes the other store.

    :param store: the underlying store, which is only read
    """

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self._under = store
        self._over = MemoryStore()

    def create(self, key: str, data: bytes) -> bool:
        """Keep the object in memory if the key is absent from both stores."""
        return self._under.stat(key) is None and self._over.create(key, data)

    def read(self, key: str) -> bytes | None:
        over = self._over.read(key)
        return self._under.read(key) if over is None else over

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        stores = (self._over, self._under)
        merged = merge(
            *(store.list(prefix, limit, start_after) for store in stores), key=lambda stat: stat.key.encode()
        )
        return islice(merged, limit)

    def stat(self, key: str) -> ObjectStat | None:
        return self._over.stat(key) or self._under.stat(key)

    def delete(self, key: str) -> None:
        """Delete an object in memory. Objects of the underlying store stay."""
        self._over.delete(key)
