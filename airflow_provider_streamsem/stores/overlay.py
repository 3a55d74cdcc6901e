"""A store for dry runs on top of another store: it keeps created objects in memory and reads them back as if they were stored."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from airflow_provider_streamsem.stores.contract import ObjectStat, Store
from airflow_provider_streamsem.stores.memory import MemoryStore


class OverlayStore:
    """
    A store that never writes to the underlying store and deletes nothing there.

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
        """Return the bytes from either store, or ``None``."""
        over = self._over.read(key)
        return self._under.read(key) if over is None else over

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """List the objects of both stores in the order of their keys."""
        stores = (self._over, self._under)
        found = merge(*(store.list(prefix, limit, start_after) for store in stores), key=lambda stat: stat.key.encode())
        return islice(found, limit)

    def stat(self, key: str) -> ObjectStat | None:
        """Return size and identity from either store, or ``None``."""
        return self._over.stat(key) or self._under.stat(key)

    def delete(self, key: str) -> None:
        """Delete an object that this store keeps in memory. Objects of the underlying store stay."""
        self._over.delete(key)
