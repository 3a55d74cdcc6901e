"""The conformance suite of stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.stores.contract import Store

if TYPE_CHECKING:
    pass


_PARTS = st.text("ab-_.~0é", min_size=1, max_size=3).filter(lambda part: part not in (".", ".."))
_KEYS = st.lists(_PARTS, min_size=1, max_size=3).map("/".join)


class StoreContract:
    """Tests of the contract of every store (:class:`airflow_provider_streamsem.stores.contract.Store`)."""

    def test_created_object_is_read_back_whole(self, store: Store) -> None:
        data = bytes(range(256)) * 1000
        assert store.create("a/b/c.json", data)
        assert store.read("a/b/c.json") == data

    def test_absent_object_reads_as_none(self, store: Store) -> None:
        assert store.read("absent") is None
        assert store.stat("absent") is None

    def test_second_create_is_refused_and_changes_nothing(self, store: Store) -> None:
        assert store.create("k", b"first")
        assert not store.create("k", b"second")
        assert not store.create("k", b"first")
        assert store.read("k") == b"first"

    def test_empty_object_exists(self, store: Store) -> None:
        assert store.create("empty", b"")
        assert not store.create("empty", b"x")
        assert store.read("empty") == b""

    @pytest.mark.parametrize("writers", [2, 8])
    def test_of_concurrent_creates_exactly_one_wins_and_is_read_back(self, store: Store, writers: int) -> None:
        with ThreadPoolExecutor(writers) as pool:
            for round_number in range(10):
                barrier = Barrier(writers)

                def race(writer: int, key: str = f"race/{round_number}", barrier: Barrier = barrier) -> bool:
                    barrier.wait()
                    return store.create(key, b"writer %d" % writer)

                won = [writer for writer, created in enumerate(pool.map(race, range(writers))) if created]
                assert len(won) == 1
                assert store.read(f"race/{round_number}") == b"writer %d" % won[0]

    def test_listing_is_in_the_order_of_the_keys_bytes(self, store: Store) -> None:
        names = ["p/a-b", "p/a/b", "p/a0", "p/b", "p/~", "p/é", "q/a"]
        for name in reversed(names):
            store.create(name, name.encode())
        listed = list(store.list("p/"))
        assert [stat.key for stat in listed] == sorted(names[:-1], key=str.encode)
        assert [stat.bytes for stat in listed] == [len(stat.key.encode()) for stat in listed]

    def test_listing_stops_at_its_limit_and_starts_after_a_key(self, store: Store) -> None:
        for name in "abcde":
            store.create(f"p/{name}", b"")
        assert [stat.key for stat in store.list("p/", limit=2)] == ["p/a", "p/b"]
        assert [stat.key for stat in store.list("p/", start_after="p/b")] == ["p/c", "p/d", "p/e"]
        assert [stat.key for stat in store.list("p/", limit=0)] == []

    def test_listing_goes_over_page_borders(self, store: Store) -> None:
        for number in range(1_050):
            store.create(f"many/{number:05d}", b"")
        assert [stat.key for stat in store.list("many/")] == [f"many/{number:05d}" for number in range(1_050)]

    def test_prefix_is_a_prefix_of_text_not_a_directory(self, store: Store) -> None:
        for name in ("log/1", "log/12", "log2/1", "lo"):
            store.create(name, b"")
        assert [stat.key for stat in store.list("log/1")] == ["log/1", "log/12"]
        assert [stat.key for stat in store.list("log")] == ["log/1", "log/12", "log2/1"]

    def test_identity_changes_with_the_content(self, store: Store) -> None:
        store.create("one", b"1")
        stat = store.stat("one")
        assert stat is not None
        assert (stat.bytes, bool(stat.etag) or stat.mtime_ns > 0) == (1, True)

    def test_deleted_object_is_missing_and_a_second_delete_does_nothing(self, store: Store) -> None:
        store.create("d/x", b"1")
        store.delete("d/x")
        store.delete("d/x")
        assert store.read("d/x") is None
        assert list(store.list("d/")) == []

    def test_doctor_finds_nothing_wrong_and_leaves_only_its_report(self, store: Store) -> None:
        report = doctor.examine(CommitLog(store))
        assert report.passed, report
        assert [stat.key for stat in store.list("doctor/")] == [report.key]

    # Hypothesis rejects function-scoped fixtures, because it does not reset them between examples. `fresh` returns a new store for each example instead.
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(
        made=st.lists(_KEYS, max_size=8),
        prefix=_KEYS | st.just(""),
        after=_KEYS | st.just(""),
        limit=st.none() | st.integers(0, 5),
    )
    def test_listing_equals_the_naive_one(
        self, fresh: object, made: list[str], prefix: str, after: str, limit: int | None
    ) -> None:
        store: Store = fresh()  # type: ignore[operator]
        stored: set[str] = set()
        for key in made:
            # A file system cannot store both "a" and "a/b". The log never uses such keys.
            if not any(key.startswith(other + "/") or other.startswith(key + "/") for other in stored):
                assert store.create(key, b"") == (key not in stored)
                stored.add(key)
        expected = sorted((k for k in stored if k.startswith(prefix) and k.encode() > after.encode()), key=str.encode)
        assert [stat.key for stat in store.list(prefix, limit, after)] == expected[:limit]
