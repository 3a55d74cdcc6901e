"""Vacuum and drop on a store that often does not report a result: they repeat the request, and a vacuum that fails does not begin again at version 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from airflow_provider_streamsem import drop
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import Vacuumed, vacuum
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import ObjectStat, Store, UnknownResultError
from airflow_provider_streamsem.stores.dataset import LocalDataset
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import CountingStore, Crash
from tests.pipeline.compactions import compacted
from tests.pipeline.fork_fixture import ForkFixture
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture, PreparedFixture, die

LATER = 1_700_000_000_000 + 30 * 86_400_000


class FlakyStore(CountingStore):
    """Reports no result of a third of the requests. Half of these were applied."""

    def __init__(self, store: Store, seed: int) -> None:
        super().__init__(store)
        self._random = Random(seed)

    def _unknown(self, key: str) -> bool:
        if self._random.random() < 1 / 6:
            raise UnknownResultError(key)
        return self._random.random() < 1 / 6

    def read(self, key: str) -> bytes | None:
        self._unknown(key)
        return super().read(key)

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        stats = [*super().list(prefix, limit, start_after)]
        yield from stats[: len(stats) // 2]
        self._unknown(prefix)
        yield from stats[len(stats) // 2 :]

    def create(self, key: str, data: bytes) -> bool:
        is_lost = self._unknown(key)
        created = super().create(key, data)
        if is_lost:
            raise UnknownResultError(key)
        return created

    def delete(self, key: str) -> None:
        is_lost = self._unknown(key)
        super().delete(key)
        if is_lost:
            raise UnknownResultError(key)


@pytest.fixture(scope="module")
def aborted(tmp_path_factory: pytest.TempPathFactory) -> PreparedFixture:
    """In each of four versions an attempt has lost, and another version has their records. One version has the rows of all of them."""
    fixture = PipelineFixture(tmp_path_factory.mktemp("faults"))
    for number in range(4):
        fixture.arrive(1, bad_lines=1)
        with suppress(Crash):
            fixture.run(f"dies {number}", store=BeforeOutcome(fixture.store, die))
        abort(fixture.log(), fixture.opened().record, 2 * number, reason="for the test")
        fixture.run(f"run {number}")
    compacted(fixture)
    return PreparedFixture(fixture)


def vacuumed(fixture: PipelineFixture, store: Store | None = None, **arguments: Any) -> Vacuumed:
    log = CommitLog(store or fixture.store, ManualClock(LATER))
    return vacuum(fixture.pipeline(), log=log, **arguments)


def left(fixture: PipelineFixture) -> set[str]:
    """Return the keys of the log without specs and entries, which vacuum adds and never deletes, and the files of the dataset."""
    files = {str(path) for path in (fixture.root / "out").rglob("*") if path.is_file()}
    return files | {stat.key for stat in fixture.store.list("") if not stat.key.startswith(("log/", "runs/", "specs/"))}


@pytest.mark.parametrize("seed", range(20))
def test_vacuum_repeats_requests_whose_result_is_unknown(aborted: PreparedFixture, seed: int) -> None:
    arguments = {"keep_versions": 1, "keep_days": 0}
    expected = vacuumed(fixture := aborted.restore(), **arguments)
    kept, rows = left(fixture), fixture.visible()
    assert expected.attempts
    assert expected.keys
    found = vacuumed(fixture := aborted.restore(), FlakyStore(fixture.store, seed), **arguments)
    assert (found.attempts, found.keys, found.oldest_readable) == (expected.attempts, expected.keys, 8)
    assert (left(fixture), fixture.visible()) == (kept, rows)
    assert fixture.verdict().violations == []


@pytest.mark.parametrize("method", ["list", "directories", "remove_tree"])
def test_vacuum_repeats_requests_to_a_dataset(
    aborted: PreparedFixture, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fixture, random, real = aborted.restore(), Random(1), getattr(LocalDataset, method)

    def flaky(self: LocalDataset, *arguments: Any, **named: Any) -> Any:
        if random.random() < 0.25:
            raise UnknownResultError(str(arguments))
        return real(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(LocalDataset, method, flaky)
        vacuumed(fixture, keep_versions=1, keep_days=0)
    assert len([*(fixture.root / "out" / "data").rglob("*.json")]) == 1
    assert fixture.verdict().violations == []


def test_vacuum_that_failed_continues_after_the_versions_that_it_has_inspected(aborted: PreparedFixture) -> None:
    class Unreachable(CountingStore):
        """Does not respond to listings of one version."""

        def __init__(self, store: Store) -> None:
            super().__init__(store)
            self.listed: list[str] = []
            self.refused = keys.quarantined(5)

        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
            self.listed.append(prefix)
            if prefix == self.refused:
                raise UnknownResultError(prefix)
            return super().list(prefix, limit, start_after)

    fixture = aborted.restore()
    store = Unreachable(fixture.store)
    with pytest.raises(UnavailableError, match="did not report the result") as raised:
        vacuumed(fixture, store)
    assert not isinstance(raised.value, UnknownResultError)
    assert keys.quarantined(0) in store.listed
    store.listed.clear()
    store.refused = ""
    assert {version for _, version, _ in vacuumed(fixture, store).attempts} == {6}
    assert {int(prefix.split("/")[1]) for prefix in store.listed if prefix.startswith(keys.QUARANTINE)} == {5, 6, 7, 8}


def test_drop_repeats_requests_whose_result_is_unknown(tmp_path: Path) -> None:
    for seed in range(5):
        forking = ForkFixture(tmp_path / str(seed))
        forking.fork(1)
        forking.run()
        drop(forking.pipeline(), log=forking.log(FlakyStore(forking.store, seed)))
        assert list(forking.store.list("")) == []
