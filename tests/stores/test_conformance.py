"""Every store against the public suite, moto's server included (with a lock before it: testing/s3.py says why)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.conformance import StoreContract

_NAMES = count()


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()

    @pytest.fixture
    def fresh(self) -> Callable[[], Store]:
        return MemoryStore


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(str(tmp_path / "root"))

    @pytest.fixture
    def fresh(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: LocalStore(str(tmp_path / f"root{next(_NAMES)}"))


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, s3: str) -> Store:
        return open_store(f"{s3}/conformance-{next(_NAMES)}/log")

    @pytest.fixture
    def fresh(self, s3: str) -> Callable[[], Store]:
        return lambda: open_store(f"{s3}/conformance-{next(_NAMES)}/log")
