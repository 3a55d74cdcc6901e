"""A store that contains the objects of another store below one prefix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airflow_provider_streamsem.stores.contract import ObjectStat, Store


class PrefixStore:
    """
    The objects of another store below a prefix. Keys are relative to the prefix.

    :param store: the other store
    :param prefix: must end with ``/``
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self.url = f"{store.url}/{prefix.rstrip('/')}"
        self._store = store
        self._prefix = prefix

    def create(self, key: str, data: bytes) -> bool:
        return self._store.create(self._prefix + key, data)

    def read(self, key: str) -> bytes | None:
        return self._store.read(self._prefix + key)

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        after = self._prefix + start_after if start_after else ""
        for stat in self._store.list(self._prefix + prefix, limit, after):
            yield replace(stat, key=stat.key.removeprefix(self._prefix))

    def stat(self, key: str) -> ObjectStat | None:
        stat = self._store.stat(self._prefix + key)
        return None if stat is None else replace(stat, key=key)

    def delete(self, key: str) -> None:
        self._store.delete(self._prefix + key)
