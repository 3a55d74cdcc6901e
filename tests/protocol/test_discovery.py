"""
Each discovered file gets one ordinal, for any order in which files appear, disappear and return.

The cost depends only on the files that changed.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.ledger import Ledger
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import codec, keys, known
from airflow_provider_streamsem.protocol.entries import Discovery, FilePage, FoundFile, KnownNode, KnownRange
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.small_nodes import small_nodes


def found(path: str, time: int, *, etag: str = "", size: int = 1) -> FoundFile:
    return FoundFile(path=path, bytes=size, identity=f"etag:{etag}" if etag else f"mtime:{time}", mtime_ns=time)


def newest_of(store: MemoryStore) -> Discovery:
    newest = Ledger(CommitLog(store)).newest()
    assert newest is not None
    return newest


def tree(store: MemoryStore, ranges: tuple[KnownRange, ...]) -> list[tuple[str, str]]:
    """All keys of a tree. Each node is checked against the range that refers to it."""
    marks: list[tuple[str, str]] = []
    for known_range in ranges:
        node = CommitLog(store).perform(known.read(known_range))
        marks += [*node.files, *tree(store, node.ranges)]
    return sorted(marks)


class DiscoveryMachine(RuleBasedStateMachine):
    """
    Compares discoveries of a changing path with a naive list of all identities.

    Files appear, disappear, return and are replaced. Listings may be stale, start after a path, or show only some names. A
    process may be slow, or die between two objects.
    """

    many_names: ClassVar = range(100, 125)

    def __init__(self) -> None:
        super().__init__()
        self.small = small_nodes()
        self.small.__enter__()
        self.store = MemoryStore()
        self.stale_listing: list[FoundFile] = []
        self.present: dict[str, FoundFile] = {}
        self.deleted: list[FoundFile] = []
        self.discovered: list[FoundFile] = []
        self.hint = -1
        self.listed_at_ms: int | None = None

    def teardown(self) -> None:
        self.small.__exit__(None, None, None)

    @rule(name=st.integers(0, 60), time=st.integers(0, 50), etag=st.sampled_from(["", "a", "b"]))
    def put(self, name: int, time: int, etag: str) -> None:
        replaced = self.present.get(f"f{name:03d}")
        self.deleted += [replaced] if replaced else []
        self.present[f"f{name:03d}"] = found(f"f{name:03d}", time, etag=etag)

    @rule(time=st.integers(0, 50), etag=st.sampled_from(["", "a"]), step=st.integers(1, 3))
    def put_many(self, time: int, etag: str, step: int) -> None:
        """Add more files with the same time than a node may hold."""
        for name in self.many_names[::step]:
            self.put(name, time, etag)

    @rule(first=st.integers(0, 130), step=st.integers(1, 3))
    def delete_many(self, first: int, step: int) -> None:
        for path in sorted(self.present)[first::step]:
            self.deleted.append(self.present.pop(path))

    @rule(at=st.integers(0, 100))
    def delete_one(self, at: int) -> None:
        if self.present:
            self.deleted.append(self.present.pop(sorted(self.present)[at % len(self.present)]))

    @rule(at=st.integers(0, 100), count=st.integers(1, 20), later=st.integers(0, 60))
    def restore(self, at: int, count: int, later: int) -> None:
        for n in range(min(count, len(self.deleted))):
            file = self.deleted[(at + n) % len(self.deleted)]
            # In an object store the same bytes get a new time. In a file system the time is part of the identity.
            again = dataclasses.replace(file, mtime_ns=later) if file.identity.startswith("etag:") else file
            self.present[file.path] = again

    def listing(self, after: int, odd_only: bool) -> list[FoundFile]:
        return [f for f in self.present.values() if f.path > f"f{after:03d}" and (not odd_only or int(f.path[1:]) % 2)]

    def naive(self, listed: list[FoundFile]) -> list[FoundFile]:
        marks = {known.fingerprint(f) for f in self.discovered}
        return sorted((f for f in listed if known.fingerprint(f) not in marks), key=lambda f: (f.mtime_ns, f.path))

    @rule(after=st.integers(-1, 110))
    def list_for_later(self, after: int) -> None:
        """List now, for a slow process that continues later."""
        self.stale_listing = self.listing(after, odd_only=False)

    @rule(
        cold=st.booleans(),
        slow=st.booleans(),
        after=st.sampled_from([-1, -1, 30, 60, 105, 115]),
        odd_only=st.booleans(),
    )
    def discover(self, cold: bool, slow: bool, after: int, odd_only: bool) -> None:
        ledger = Ledger(CommitLog(self.store), newest_hint=-1 if cold else self.hint)
        listed = self.stale_listing if slow else self.listing(after, odd_only)
        while (end := ledger.add(listed)) is None:
            continue
        self.discovered += self.naive(listed)
        # With a stale hint, files that were deleted since may be missing, but no listed file.
        assert end == len(self.discovered) if cold else end <= len(self.discovered)
        assert {known.fingerprint(f) for f in listed} <= {known.fingerprint(f) for f in self.discovered[:end]}
        assert ledger.unseen(listed) == ()
        newest = ledger.newest()
        self.hint = -1 if newest is None else newest.i

    @rule(first=st.integers(0, 130), step=st.integers(1, 9), cold=st.booleans())
    def notify(self, first: int, step: int, cold: bool) -> None:
        """Notifications name some of the files. A partial listing has no outdated node to record."""
        listed = [self.present[path] for path in sorted(self.present)[first::step]]
        ledger = Ledger(CommitLog(self.store), newest_hint=-1 if cold else self.hint)
        before = ledger.newest()
        while ledger.add(listed, is_partial=True) is None:
            continue
        new = self.naive(listed)
        self.discovered += new
        assert new or ledger.newest() == before or not cold, "a discovery without new files"

    @rule(listed_at_ms=st.integers(0, 10**6))
    def record_listing(self, listed_at_ms: int) -> None:
        """The time of a complete listing is recorded, even if it has no new files, and later discoveries keep it."""
        listed = list(self.present.values())
        ledger = Ledger(CommitLog(self.store))
        assert ledger.add(listed, listed_at_ms=listed_at_ms) is not None
        self.discovered += self.naive(listed)
        self.listed_at_ms = listed_at_ms

    @rule(first=st.integers(-1, 110), second=st.integers(-1, 110), odd_only=st.booleans())
    def race(self, first: int, second: int, odd_only: bool) -> None:
        """Two processes compare their listings with the same discovery. The slower one lists again."""
        one, other = Ledger(CommitLog(self.store)), Ledger(CommitLog(self.store))
        other.newest()
        assert one.add(self.listing(first, odd_only)) is not None
        self.discovered += self.naive(self.listing(first, odd_only))
        listed = self.listing(second, odd_only=False)
        while other.add(listed) is None:
            continue
        self.discovered += self.naive(listed)

    @rule(after=st.integers(0, 12), fault=st.sampled_from([Fault.CRASH_BEFORE, Fault.CRASH_AFTER]))
    def die(self, after: int, fault: Fault) -> None:
        listed = list(self.present.values())
        try:
            Ledger(CommitLog(FaultyStore(self.store, after, fault))).add(listed)
        except Crash:
            newest = Ledger(CommitLog(self.store)).newest()
            added = self.naive(listed) if newest is not None and newest.end > len(self.discovered) else []
            self.discovered += added
        else:
            self.discovered += self.naive(listed)

    @invariant()
    def ordinals_equal_the_naive_list_and_the_tree_has_the_paged_files(self) -> None:
        ledger = Ledger(CommitLog(self.store))
        assert list(map(known.fingerprint, ledger.files(0, len(self.discovered)))) == list(
            map(known.fingerprint, self.discovered)
        )
        newest = ledger.newest()
        if newest is not None:
            assert tree(self.store, newest.known) == sorted(map(known.key, self.discovered[: newest.paged]))
            assert newest.end == len(self.discovered)
            assert newest.listed_at_ms == self.listed_at_ms


TestDiscovery = DiscoveryMachine.TestCase
TestDiscovery.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def name(n: int) -> str:
    return f"dt={n // 1000:04d}/{n:07d}.json"


@functools.cache
def _discovered(count: int, etags: bool) -> tuple[dict[str, bytes], list[FoundFile]]:
    store = MemoryStore()
    files = [found(name(n), n, etag=f"e{n}" if etags else "") for n in range(count)]
    assert Ledger(CommitLog(store)).add(files) == count
    return store.objects, files


def discovered(count: int, *, etags: bool = False) -> tuple[MemoryStore, list[FoundFile]]:
    """A log with ``count`` discovered files."""
    objects, files = _discovered(count, etags)
    return MemoryStore(objects=dict(objects)), list(files)


def cost(store: MemoryStore, listed: list[FoundFile], *, hint: int | None = None) -> tuple[int, int, int, int]:
    """The end, GETs, PUTs and bytes read of one discovery by a new process with a hint."""
    at = newest_of(store).i if hint is None else hint
    counting = CountingStore(store)
    end = Ledger(CommitLog(counting), newest_hint=at).add(listed)
    assert end is not None
    return end, counting.requests["read"], counting.requests["create"], counting.read_bytes


@pytest.mark.parametrize("etags", [False, True])
def test_new_files_cost_one_read_and_one_write_however_many_were_discovered(etags: bool) -> None:
    for count in (1_000, 20_000):
        store, files = discovered(count, etags=etags)
        new = [found(f"{name(n)}.new", 10**9, etag=f"n{n}" if etags else "") for n in range(0, count, count // 5)]
        end, reads, writes, read_bytes = cost(store, files + new)
        assert (end, reads, writes) == (count + 5, 1, 1)
        assert read_bytes < 30_000


def test_path_from_which_all_files_were_deleted_costs_one_read() -> None:
    store, _ = discovered(20_000, etags=True)
    assert cost(store, [])[:3] == (20_000, 1, 0)
    assert cost(store, [found("new", 10**9, etag="n")])[:3] == (20_001, 1, 1)


def test_moving_window_reads_only_the_nodes_at_its_start() -> None:
    store, files = discovered(20_000, etags=True)
    for first in range(5_000, 15_000, 777):
        end, reads, writes, read_bytes = cost(store, files[first:])
        assert (end, writes) == (20_000, 0)
        assert reads <= 4
        assert read_bytes < 200_000
    new = found(name(20_001), 10**9, etag="n")
    assert cost(store, [*files[15_555:], new])[2] == 1


def test_deleted_object_costs_the_nodes_of_one_tree_path_and_many_are_recorded_once() -> None:
    store, files = discovered(20_000, etags=True)
    end, reads, writes, _ = cost(store, files[:7_000] + files[7_001:])
    assert (end, reads <= 4, writes) == (20_000, True, 0)
    without_every_hundredth = [file for n, file in enumerate(files) if n % 100]
    end, reads, writes, _ = cost(store, without_every_hundredth)
    assert (end, reads > 30, writes > 1) == (20_000, True, True)
    assert cost(store, without_every_hundredth)[:3] == (20_000, 1, 0)
    assert cost(store, files)[0] == 20_000


def test_new_objects_among_deleted_ones_are_found_and_only_they_are_recorded() -> None:
    store, _ = discovered(20_000, etags=True)
    new = [found(f"{name(n)}.new", 10**9, etag=f"n{n}") for n in range(500, 20_000, 2_000)]
    end, reads, writes, _ = cost(store, new)
    assert (end, 10 < reads < 30, writes) == (20_010, True, 1)
    assert cost(store, new)[:3] == (20_010, 1, 0)


@pytest.mark.slow
def test_discovery_of_one_file_costs_one_write_and_few_reads() -> None:
    store, files = discovered(4_000, etags=True)
    reads = writes = 0
    for n in range(4_000, 4_270):
        files.append(found(name(n), n, etag=f"e{n}"))
        end, got, put, read_bytes = cost(store, files[-300:])
        assert end == n + 1
        assert read_bytes < 250_000
        reads, writes = reads + got, writes + put
    assert writes <= 270 * 1.05
    assert reads <= 270 * 4
    counting = CountingStore(store)
    assert list(Ledger(CommitLog(counting)).files(3_900, 4_270)) == files[3_900:]
    assert counting.requests["read"] <= 8
    assert list(Ledger(CommitLog(store)).files(999, 4_002)) == files[999:4_002]


def test_recent_files_are_read_by_ordinal_without_earlier_pages() -> None:
    store, files = discovered(1_500)
    new = [found(name(n), n) for n in range(1_500, 1_505)]
    assert Ledger(CommitLog(store)).add(files + new) == 1_505
    counting = CountingStore(store)
    ledger = Ledger(CommitLog(counting), newest_hint=1)
    assert list(ledger.files(1_500, 1_505)) == new
    assert counting.requests == {"read": 1}
    assert list(ledger.files(0, 1_505)) == files + new


def test_few_files_of_a_long_backlog_are_read_with_few_requests() -> None:
    store, files = discovered(20_000)
    counting = CountingStore(store)
    ledger = Ledger(CommitLog(counting), newest_hint=0)
    assert [next(ledger.files(n, 20_000)) for n in (3_000, 3_001, 3_002)] == files[3_000:3_003]
    assert counting.requests["read"] <= 3


def test_process_with_an_old_hint_reaches_the_newest_discovery_in_one_step() -> None:
    store = MemoryStore()
    files = [found(name(n), n) for n in range(100)]
    for n in range(100):
        Ledger(CommitLog(store)).add(files[: n + 1])
    counting = CountingStore(store)
    late = Ledger(CommitLog(counting), newest_hint=3)
    assert late.add(files) is None
    assert late.add(files) == 100
    assert sum(counting.requests.values()) <= 5
    assert list(Ledger(CommitLog(store), newest_hint=3).files(50, 100)) == files[50:]


def test_discovery_missing_from_a_stale_listing_is_found_by_its_key() -> None:
    class LaggingStore(MemoryStore):
        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Any:
            return (s for s in MemoryStore.list(self, prefix, None, start_after) if s.key == keys.discovered(0))

    store = LaggingStore()
    files = [found(name(n), n) for n in range(3)]
    ledger = Ledger(CommitLog(store))
    assert [ledger.add(files[: n + 1]) for n in range(3)] == [1, 2, 3]
    assert list(Ledger(CommitLog(store)).files(0, 3)) == files
    with pytest.raises(LogDamagedError, match="a discovery is missing"):
        list(Ledger(CommitLog(store)).files(0, 4))


def test_D2_concurrent_first_discovery_is_only_extended_by_a_listing_compared_with_it() -> None:
    other = MemoryStore()
    files = [found(name(n), n) for n in range(5)]

    class ConcurrentlyExtendedStore(MemoryStore):
        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Any:
            before = list(super().list(prefix, limit, start_after))
            self.objects.update(other.objects)
            return iter(before)

    store = ConcurrentlyExtendedStore()
    assert Ledger(CommitLog(other)).add(files) == 5
    ledger = Ledger(CommitLog(store))
    assert ledger.add(files) is None
    assert ledger.add(files) == 5


def test_notified_file_costs_the_nodes_of_its_path_and_the_other_files_stay_listed() -> None:
    store, files = discovered(5_000, etags=True)
    late = found("dt=0002/0002500x.json", 2_500, etag="late")
    before = newest_of(store)
    at = before.i
    counting = CountingStore(store)
    ledger = Ledger(CommitLog(counting), newest_hint=at)
    assert ledger.add([late, files[2_500]], is_partial=True) == 5_001
    assert counting.requests["read"] <= 4
    assert counting.requests["create"] == 1
    assert newest_of(store).known == before.known, "the digests of the ranges are those of the complete listing"
    _, reads, _, _ = cost(store, [*files, late, found(name(9_999), 9_999, etag="new")])
    assert reads == 1, "the complete listing is as expected"


def test_late_file_with_an_old_time_is_discovered() -> None:
    store, files = discovered(5_000)
    assert cost(store, [*files, found(f"{name(2_000)}.late", 7)])[0] == 5_001


def test_object_restored_with_a_later_time_is_not_new() -> None:
    store, files = discovered(5_000, etags=True)
    deleted, rest = files[2_000], files[:2_000] + files[2_001:]
    restored = dataclasses.replace(deleted, mtime_ns=10**9)
    fresh = found(f"{name(2_000)}.new", 10**9, etag="n")
    for listed, end in ((rest, 5_000), ([*rest, restored], 5_000), ([*rest, restored, fresh], 5_001)):
        assert cost(store, listed)[0] == end
    assert cost(store, [restored, found(f"{name(2_001)}.new", 10**9, etag="m")])[0] == 5_002


def test_object_restored_after_its_absence_was_recorded_is_not_new() -> None:
    """No other file of the range is missing, so its time alone would make it new."""
    with small_nodes():
        store = MemoryStore()
        files = [found(name(n), n, etag=f"e{n}") for n in range(30)]
        assert Ledger(CommitLog(store)).add(files) == 30
        rest = [file for n, file in enumerate(files) if n % 3]
        assert cost(store, rest)[2] > 1
        assert cost(store, rest)[:3] == (30, 1, 0)
        restored = [dataclasses.replace(file, mtime_ns=10**9) for file in files[::3]]
        assert cost(store, rest + restored)[0] == 30


def test_D2_process_that_lost_the_race_lists_again() -> None:
    store = MemoryStore()
    first, second = Ledger(CommitLog(store)), Ledger(CommitLog(store))
    a, b, c = found("a", 1), found("b", 2), found("c", 3)
    assert (first.add([a]), second.add([a])) == (1, 1)
    assert first.add([a, b]) == 2
    assert second.add([a, c]) is None
    assert second.add([a, b, c]) == 3
    assert [f.path for f in Ledger(CommitLog(store)).files(0, 3)] == ["a", "b", "c"]


def test_all_identities_of_a_repeatedly_overwritten_path_are_known() -> None:
    with small_nodes():
        store = MemoryStore()
        versions = [found("latest.json", n, etag=f"e{n}") for n in range(100)]
        for n, version in enumerate(versions):
            assert Ledger(CommitLog(store)).add([version]) == n + 1
        for version in versions:
            assert cost(store, [dataclasses.replace(version, mtime_ns=10**9)])[0] == 100


def test_unchanged_listing_writes_nothing() -> None:
    store = MemoryStore()
    assert Ledger(CommitLog(store)).add([]) == 0
    assert Ledger(CommitLog(store)).add([found("a", 1)]) == 1
    before = dict(store.objects)
    assert Ledger(CommitLog(store)).add([found("a", 1)]) == 1
    assert store.objects == before


@given(st.lists(st.integers(0, 2**256)))
def test_digest_does_not_depend_on_order(numbers: list[int]) -> None:
    assert known.digest(numbers) == known.digest(reversed(numbers))


class TestDamage:
    """A node or page that is missing, swapped or resealed with other contents is reported, and no file counts as known because of it."""

    def add_late_file(self, store: MemoryStore) -> Any:
        return Ledger(CommitLog(store)).add([found(f"{name(1)}.late", 1)])

    def node(self, store: MemoryStore) -> tuple[str, KnownRange]:
        one = newest_of(store).known[0]
        return keys.known(one.sha256), one

    @pytest.mark.parametrize("data", [None, codec.encode(KnownNode(files=(("a", "b"),))).data])
    def test_missing_or_swapped_node_is_damage(self, data: bytes | None) -> None:
        store, _ = discovered(1_000)
        at, _ = self.node(store)
        store.objects.pop(at)
        if data is not None:
            store.objects[at] = data
        with pytest.raises(LogDamagedError, match="differs from its name"):
            self.add_late_file(store)

    def test_missing_page_is_damage(self) -> None:
        store, _ = discovered(1_000)
        store.objects.pop(keys.page(newest_of(store).pages[0].sha256))
        with pytest.raises(LogDamagedError, match="page of discovered files is missing"):
            list(Ledger(CommitLog(store)).files(0, 1))

    @pytest.mark.parametrize(
        "node",
        [
            KnownNode(),
            KnownNode(files=(("b", ""), ("a", ""))),
            KnownNode(files=(("a", ""), ("a", ""))),
            KnownNode(
                ranges=(KnownRange(sha256="", first=("a", ""), last=("c", ""), files=0, listed=0, digest=0),) * 2
            ),
            KnownNode(files=(("a", ""),)),
        ],
    )
    def test_node_that_is_unordered_or_differs_from_its_range_is_damage(self, node: KnownNode) -> None:
        store, _ = discovered(1_000)
        encoded = codec.encode(node)
        store.objects[keys.known(encoded.sha256)] = encoded.data
        newest = newest_of(store)
        forged = dataclasses.replace(newest.known[0], sha256=encoded.sha256)
        root = codec.encode(dataclasses.replace(newest, known=(forged, *newest.known[1:])))
        store.objects[keys.discovered(newest.i)] = root.data
        with pytest.raises(LogDamagedError, match="D4"):
            self.add_late_file(store)

    @pytest.mark.parametrize("mixed", [False, True])
    def test_page_with_a_wrong_number_of_files_is_damage(self, mixed: bool) -> None:
        store, _ = discovered(1_000)
        below = newest_of(store).pages if mixed else ()
        page = codec.encode(FilePage(files=() if mixed else (found("a", 1),), pages=(*below, *below)))
        store.objects[keys.page(page.sha256)] = page.data
        newest = newest_of(store)
        forged = dataclasses.replace(newest.pages[0], sha256=page.sha256)
        root = codec.encode(dataclasses.replace(newest, pages=(forged,)))
        store.objects[keys.discovered(newest.i)] = root.data
        with pytest.raises(LogDamagedError, match="another number of files"):
            list(Ledger(CommitLog(store)).files(0, 1))
