"""The public conformance suite for every store. The S3 store runs on moto's server behind a lock (see testing/s3.py)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.stores.overlay import OverlayStore
from airflow_provider_streamsem.testing.conformance import StoreContract

_NAMES = count()


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()

    @pytest.fixture
    def fresh(self) -> Callable[[], Store]:
        return MemoryStore


class TestOverlayStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return OverlayStore(MemoryStore())

    @pytest.fixture
    def fresh(self) -> Callable[[], Store]:
        return lambda: OverlayStore(MemoryStore())

    def test_objects_of_the_lower_store_are_visible_and_unchanged(self) -> None:
        lower = MemoryStore(objects={"p/b": b"under", "p/d": b"under"})
        store = OverlayStore(lower)
        assert not store.create("p/b", b"over")
        assert store.create("p/c", b"over")
        store.delete("p/b")
        assert [(s.key, store.read(s.key)) for s in store.list("p/")] == [
            ("p/b", b"under"),
            ("p/c", b"over"),
            ("p/d", b"under"),
        ]
        assert [s.key for s in store.list("p/", 2)] == ["p/b", "p/c"]
        assert store.stat("p/d") == lower.stat("p/d")
        assert [s.key for s in lower.list("")] == ["p/b", "p/d"]


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(str(tmp_path / "root"))

    @pytest.fixture
    def fresh(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: LocalStore(str(tmp_path / f"root{next(_NAMES)}"))


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, streamsem_log: str) -> Store:
        return open_store(f"{streamsem_log}/{next(_NAMES)}")

    @pytest.fixture
    def fresh(self, streamsem_log: str) -> Callable[[], Store]:
        return lambda: open_store(f"{streamsem_log}/{next(_NAMES)}")
