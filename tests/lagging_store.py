"""A store whose listings do not show the newest versions."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import ObjectStat, Store
from airflow_provider_streamsem.testing.stores import CountingStore


class LaggingStore(CountingStore):
    """
    Hides versions from listings. Reads find them.

    :param first: the first version that is hidden
    """

    def __init__(self, store: Store, first: int) -> None:
        super().__init__(store)
        self._hidden = {key(version) for version in range(first, first + 100) for key in (keys.plan, keys.outcome)}

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """List the objects that are not hidden."""
        found = [stat for stat in super().list(prefix, start_after=start_after) if stat.key not in self._hidden]
        return iter(found[:limit])
