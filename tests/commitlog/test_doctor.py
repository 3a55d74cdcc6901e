"""The store probe detects stores that violate the store contract. No pipeline starts on such a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import StoreRefusedError, UnsafeStoreError
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownResultError
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.pipeline_fixture import PipelineFixture


class Overwrites(MemoryStore):
    """Ignores the condition: every create overwrites the object and returns true."""

    def create(self, key: str, data: bytes) -> bool:
        self.objects[key] = data
        return True


class AcknowledgesEveryCreate(MemoryStore):
    """Keeps the first bytes, but returns true for every create."""

    def create(self, key: str, data: bytes) -> bool:
        super().create(key, data)
        return True


class ReturnsOtherBytes(MemoryStore):
    def read(self, key: str) -> bytes | None:
        return b"x" if "probe" in key else super().read(key)


class ListsInReverse(MemoryStore):
    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        return reversed(list(super().list(prefix, None, start_after)))  # type: ignore[return-value]


class ListsHalf(MemoryStore):
    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        return iter(list(super().list(prefix, limit, start_after))[::2])


class ListsTheLastKeys(MemoryStore):
    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        stats = list(super().list(prefix, None, start_after))
        return iter(stats if limit is None else stats[-limit:])


class NeverReportsAResult(MemoryStore):
    def create(self, key: str, data: bytes) -> bool:
        if "probe" in key:
            raise UnknownResultError(key)
        return super().create(key, data)


class IgnoresDeletes(MemoryStore):
    def delete(self, key: str) -> None:
        return


class RefusesDeletes(MemoryStore):
    def delete(self, key: str) -> None:
        raise StoreRefusedError("not allowed", key=key)


@pytest.mark.parametrize(
    "store",
    [
        Overwrites,
        AcknowledgesEveryCreate,
        ReturnsOtherBytes,
        ListsInReverse,
        ListsHalf,
        ListsTheLastKeys,
        NeverReportsAResult,
        IgnoresDeletes,
    ],
)
def test_store_that_violates_the_contract_is_refused_with_the_observed_behavior(
    store: type[MemoryStore], tmp_path: Path
) -> None:
    log = CommitLog(store("memory://broken"), ManualClock())
    report = doctor.examine(log)
    assert not report.passed
    assert all(check.observed for check in report.checks)
    fixture = PipelineFixture(tmp_path, store=store(f"memory://broken-{store.__name__}"))
    fixture.arrive(1)
    with pytest.raises(UnsafeStoreError, match="doctor"):
        fixture.run("a")
    assert MemoryStore.read(fixture.store, "pipeline.json") is None  # type: ignore[arg-type]


def test_store_that_refuses_deletes_is_safe() -> None:
    log = CommitLog(RefusesDeletes(), ManualClock())
    assert doctor.require_safe(log).passed
