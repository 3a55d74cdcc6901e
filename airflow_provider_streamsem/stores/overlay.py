"""A store over another, for a dry run: what is created stays in this process, and is read back as if it had been stored."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from airflow_provider_streamsem.stores.contract import ObjectStat, Store
from airflow_provider_streamsem.stores.memory import MemoryStore


class OverlayStore:
    """
    Never writes to the store under it, and deletes nothing there.

    :param store: is read, listed and asked, nothing else
    """

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self._under = store
        self._over = MemoryStore()

    def create(self, key: str, data: bytes) -> bool:
        """Keep the object here, if there is none under the key in either store."""
        return self._under.stat(key) is None and self._over.create(key, data)

    def read(self, key: str) -> bytes | None:
        """The bytes from either, or ``None``."""
        over = self._over.read(key)
        return self._under.read(key) if over is None else over

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """The objects of both, in order of their keys."""
        stores = (self._over, self._under)
        found = merge(*(store.list(prefix, limit, start_after) for store in stores), key=lambda stat: stat.key.encode())
        return islice(found, limit)

    def stat(self, key: str) -> ObjectStat | None:
        """Size and identity from either, or ``None``."""
        return self._over.stat(key) or self._under.stat(key)

    def delete(self, key: str) -> None:
        """Remove what was kept here; what lies in the store under it stays."""
        self._over.delete(key)
