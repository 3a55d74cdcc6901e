"""Every file gets one ordinal, whatever order files come, vanish and come back in; and the log's cost depends on what changed only."""

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
    """All keys of a tree; each node is checked against what the range above it says."""
    marks: list[tuple[str, str]] = []
    for one in ranges:
        node = CommitLog(store).perform(known.read(one))
        marks += [*node.files, *tree(store, node.ranges)]
    return sorted(marks)


class Location(RuleBasedStateMachine):
    """
    A path where files come, vanish, come back and are replaced, beside a naive list of all identities ever seen.

    Listings may be old, start after a path, or show names of one kind only; a discoverer may be late, or die between two objects.
    """

    bursts: ClassVar = range(100, 125)

    def __init__(self) -> None:
        super().__init__()
        self.small = small_nodes()
        self.small.__enter__()
        self.store = MemoryStore()
        self.old: list[FoundFile] = []
        self.there: dict[str, FoundFile] = {}
        self.gone: list[FoundFile] = []
        self.seen: list[FoundFile] = []
        self.hint = -1

    def teardown(self) -> None:
        self.small.__exit__(None, None, None)

    @rule(name=st.integers(0, 60), time=st.integers(0, 50), etag=st.sampled_from(["", "a", "b"]))
    def put(self, name: int, time: int, etag: str) -> None:
        old = self.there.get(f"f{name:03d}")
        self.gone += [old] if old else []
        self.there[f"f{name:03d}"] = found(f"f{name:03d}", time, etag=etag)

    @rule(time=st.integers(0, 50), etag=st.sampled_from(["", "a"]), step=st.integers(1, 3))
    def burst(self, time: int, etag: str, step: int) -> None:
        """More files of one moment than a node may hold."""
        for name in self.bursts[::step]:
            self.put(name, time, etag)

    @rule(first=st.integers(0, 130), step=st.integers(1, 3))
    def take_many_away(self, first: int, step: int) -> None:
        for path in sorted(self.there)[first::step]:
            self.gone.append(self.there.pop(path))

    @rule(at=st.integers(0, 100))
    def take_away(self, at: int) -> None:
        if self.there:
            self.gone.append(self.there.pop(sorted(self.there)[at % len(self.there)]))

    @rule(at=st.integers(0, 100), count=st.integers(1, 20), later=st.integers(0, 60))
    def bring_back(self, at: int, count: int, later: int) -> None:
        for n in range(min(count, len(self.gone))):
            file = self.gone[(at + n) % len(self.gone)]
            # An object store gives a new time to the same bytes; a file system keeps the time as part of the identity.
            again = dataclasses.replace(file, mtime_ns=later) if file.identity.startswith("etag:") else file
            self.there[file.path] = again

    def listing(self, after: int, odd: bool) -> list[FoundFile]:
        return [f for f in self.there.values() if f.path > f"f{after:03d}" and (not odd or int(f.path[1:]) % 2)]

    def naive(self, listed: list[FoundFile]) -> list[FoundFile]:
        marks = {known.fingerprint(f) for f in self.seen}
        return sorted((f for f in listed if known.fingerprint(f) not in marks), key=lambda f: (f.mtime_ns, f.path))

    @rule(after=st.integers(-1, 110))
    def peek(self, after: int) -> None:
        """A slow discoverer lists now and goes on later."""
        self.old = self.listing(after, odd=False)

    @rule(cold=st.booleans(), slow=st.booleans(), after=st.sampled_from([-1, -1, 30, 60, 105, 115]), odd=st.booleans())
    def discover(self, cold: bool, slow: bool, after: int, odd: bool) -> None:
        ledger = Ledger(CommitLog(self.store), newest_hint=-1 if cold else self.hint)
        listed = self.old if slow else self.listing(after, odd)
        while (end := ledger.add(listed)) is None:
            continue
        self.seen += self.naive(listed)
        # A hint may be older than the log: then files that vanished since may be overlooked, but none that was listed.
        assert end == len(self.seen) if cold else end <= len(self.seen)
        assert {known.fingerprint(f) for f in listed} <= {known.fingerprint(f) for f in self.seen[:end]}
        assert ledger.unseen(listed) == ()
        newest = ledger.newest()
        self.hint = -1 if newest is None else newest.i

    @rule(first=st.integers(-1, 110), second=st.integers(-1, 110), odd=st.booleans())
    def race(self, first: int, second: int, odd: bool) -> None:
        """Both compare their listings with the same discovery; the second lists again where it was late."""
        one, other = Ledger(CommitLog(self.store)), Ledger(CommitLog(self.store))
        other.newest()
        assert one.add(self.listing(first, odd)) is not None
        self.seen += self.naive(self.listing(first, odd))
        listed = self.listing(second, odd=False)
        while other.add(listed) is None:
            continue
        self.seen += self.naive(listed)

    @rule(after=st.integers(0, 12), fault=st.sampled_from([Fault.CRASH_BEFORE, Fault.CRASH_AFTER]))
    def die(self, after: int, fault: Fault) -> None:
        listed = list(self.there.values())
        try:
            Ledger(CommitLog(FaultyStore(self.store, after, fault))).add(listed)
        except Crash:
            newest = Ledger(CommitLog(self.store)).newest()
            added = self.naive(listed) if newest is not None and newest.end > len(self.seen) else []
            self.seen += added
        else:
            self.seen += self.naive(listed)

    @invariant()
    def ordinals_are_those_of_the_naive_list_and_the_tree_holds_the_paged_files(self) -> None:
        ledger = Ledger(CommitLog(self.store))
        assert list(map(known.fingerprint, ledger.files(0, len(self.seen)))) == list(map(known.fingerprint, self.seen))
        newest = ledger.newest()
        if newest is not None:
            assert tree(self.store, newest.known) == sorted(map(known.key, self.seen[: newest.paged]))
            assert newest.end == len(self.seen)


TestPlace = Location.TestCase
TestPlace.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def name(n: int) -> str:
    return f"dt={n // 1000:04d}/{n:07d}.json"


@functools.cache
def _seen(count: int, etags: bool) -> tuple[dict[str, bytes], list[FoundFile]]:
    store = MemoryStore()
    files = [found(name(n), n, etag=f"e{n}" if etags else "") for n in range(count)]
    assert Ledger(CommitLog(store)).add(files) == count
    return store._objects, files


def seen(count: int, *, etags: bool = False) -> tuple[MemoryStore, list[FoundFile]]:
    """A log that has discovered ``count`` files."""
    objects, files = _seen(count, etags)
    return MemoryStore(objects=dict(objects)), list(files)


def cost(store: MemoryStore, listed: list[FoundFile], *, hint: int | None = None) -> tuple[int, int, int, int]:
    """The end, and GETs, PUTs and bytes read, of one discovery by a new process that has a hint."""
    at = newest_of(store).i if hint is None else hint
    counting = CountingStore(store)
    end = Ledger(CommitLog(counting), newest_hint=at).add(listed)
    assert end is not None
    return end, counting.requests["read"], counting.requests["create"], counting.read_bytes


@pytest.mark.parametrize("etags", [False, True])
def test_new_files_cost_one_read_and_one_write_however_many_were_discovered(etags: bool) -> None:
    for count in (1_000, 20_000):
        store, files = seen(count, etags=etags)
        new = [found(f"{name(n)}.new", 10**9, etag=f"n{n}" if etags else "") for n in range(0, count, count // 5)]
        end, reads, writes, read_bytes = cost(store, files + new)
        assert (end, reads, writes) == (count + 5, 1, 1)
        assert read_bytes < 30_000


def test_path_from_which_all_files_were_deleted_costs_one_read() -> None:
    store, _ = seen(20_000, etags=True)
    assert cost(store, [])[:3] == (20_000, 1, 0)
    assert cost(store, [found("new", 10**9, etag="n")])[:3] == (20_001, 1, 1)


def test_moving_window_reads_only_the_nodes_at_its_start() -> None:
    store, files = seen(20_000, etags=True)
    for first in range(5_000, 15_000, 777):
        end, reads, writes, read_bytes = cost(store, files[first:])
        assert (end, writes) == (20_000, 0)
        assert reads <= 4
        assert read_bytes < 200_000
    new = found(name(20_001), 10**9, etag="n")
    assert cost(store, [*files[15_555:], new])[2] == 1


def test_deleted_object_costs_one_path_of_the_tree_and_many_are_recorded_once() -> None:
    store, files = seen(20_000, etags=True)
    end, reads, writes, _ = cost(store, files[:7_000] + files[7_001:])
    assert (end, reads <= 4, writes) == (20_000, True, 0)
    every_hundredth_is_gone = [file for n, file in enumerate(files) if n % 100]
    end, reads, writes, _ = cost(store, every_hundredth_is_gone)
    assert (end, reads > 30, writes > 1) == (20_000, True, True)
    assert cost(store, every_hundredth_is_gone)[:3] == (20_000, 1, 0)
    assert cost(store, files)[0] == 20_000


def test_new_objects_among_deleted_ones_are_looked_up_and_nothing_else_is_recorded() -> None:
    store, _ = seen(20_000, etags=True)
    new = [found(f"{name(n)}.new", 10**9, etag=f"n{n}") for n in range(500, 20_000, 2_000)]
    end, reads, writes, _ = cost(store, new)
    assert (end, 10 < reads < 30, writes) == (20_010, True, 1)
    assert cost(store, new)[:3] == (20_010, 1, 0)


def test_one_file_a_discovery_costs_one_write_and_a_bounded_share_of_the_trees() -> None:
    store, files = seen(4_000, etags=True)
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


def test_recent_files_are_read_by_ordinal_without_the_pages_before_them() -> None:
    store, files = seen(1_500)
    new = [found(name(n), n) for n in range(1_500, 1_505)]
    assert Ledger(CommitLog(store)).add(files + new) == 1_505
    counting = CountingStore(store)
    ledger = Ledger(CommitLog(counting), newest_hint=1)
    assert list(ledger.files(1_500, 1_505)) == new
    assert counting.requests == {"read": 1}
    assert list(ledger.files(0, 1_505)) == files + new


def test_few_files_of_a_long_backlog_are_read_without_the_rest() -> None:
    store, files = seen(20_000)
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


def test_discovery_that_a_listing_does_not_show_yet_is_found_by_its_key() -> None:
    class Lagging(MemoryStore):
        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Any:
            return (s for s in MemoryStore.list(self, prefix, None, start_after) if s.key == keys.discovered(0))

    store = Lagging()
    files = [found(name(n), n) for n in range(3)]
    ledger = Ledger(CommitLog(store))
    assert [ledger.add(files[: n + 1]) for n in range(3)] == [1, 2, 3]
    assert list(Ledger(CommitLog(store)).files(0, 3)) == files
    with pytest.raises(LogDamagedError, match="a discovery is missing"):
        list(Ledger(CommitLog(store)).files(0, 4))


def test_D2_first_discovery_of_another_process_is_not_extended_by_a_listing_that_was_not_compared_with_it() -> None:
    other = MemoryStore()
    files = [found(name(n), n) for n in range(5)]

    class Behind(MemoryStore):
        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Any:
            before = list(super().list(prefix, limit, start_after))
            self._objects.update(other._objects)
            return iter(before)

    store = Behind()
    assert Ledger(CommitLog(other)).add(files) == 5
    ledger = Ledger(CommitLog(store))
    assert ledger.add(files) is None
    assert ledger.add(files) == 5


def test_late_file_with_an_old_time_is_found() -> None:
    store, files = seen(5_000)
    assert cost(store, [*files, found(f"{name(2_000)}.late", 7)])[0] == 5_001


def test_object_that_vanished_and_came_back_with_a_later_time_is_not_new() -> None:
    store, files = seen(5_000, etags=True)
    gone, rest = files[2_000], files[:2_000] + files[2_001:]
    back = dataclasses.replace(gone, mtime_ns=10**9)
    fresh = found(f"{name(2_000)}.new", 10**9, etag="n")
    for listed, end in ((rest, 5_000), ([*rest, back], 5_000), ([*rest, back, fresh], 5_001)):
        assert cost(store, listed)[0] == end
    assert cost(store, [back, found(f"{name(2_001)}.new", 10**9, etag="m")])[0] == 5_002


def test_object_that_came_back_after_its_absence_was_recorded_is_not_new() -> None:
    """No file of the range is missing but this one, so its time alone would make it new."""
    with small_nodes():
        store = MemoryStore()
        files = [found(name(n), n, etag=f"e{n}") for n in range(30)]
        assert Ledger(CommitLog(store)).add(files) == 30
        rest = [file for n, file in enumerate(files) if n % 3]
        assert cost(store, rest)[2] > 1
        assert cost(store, rest)[:3] == (30, 1, 0)
        back = [dataclasses.replace(file, mtime_ns=10**9) for file in files[::3]]
        assert cost(store, rest + back)[0] == 30


def test_D2_discoverer_that_was_second_lists_again() -> None:
    store = MemoryStore()
    first, second = Ledger(CommitLog(store)), Ledger(CommitLog(store))
    a, b, c = found("a", 1), found("b", 2), found("c", 3)
    assert (first.add([a]), second.add([a])) == (1, 1)
    assert first.add([a, b]) == 2
    assert second.add([a, c]) is None
    assert second.add([a, b, c]) == 3
    assert [f.path for f in Ledger(CommitLog(store)).files(0, 3)] == ["a", "b", "c"]


def test_path_that_is_overwritten_again_and_again_keeps_every_identity() -> None:
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
    kept = dict(store._objects)
    assert Ledger(CommitLog(store)).add([found("a", 1)]) == 1
    assert store._objects == kept


@given(st.lists(st.integers(0, 2**256)))
def test_digest_does_not_depend_on_order(numbers: list[int]) -> None:
    assert known.digest(numbers) == known.digest(reversed(numbers))


class TestDamage:
    """A node or a page that is missing, swapped or sealed again with other contents is named, and no file is taken for known by it."""

    def late(self, store: MemoryStore) -> Any:
        return Ledger(CommitLog(store)).add([found(f"{name(1)}.late", 1)])

    def node(self, store: MemoryStore) -> tuple[str, KnownRange]:
        one = newest_of(store).known[0]
        return keys.known(one.sha256), one

    @pytest.mark.parametrize("data", [None, codec.encode(KnownNode(files=(("a", "b"),))).data])
    def test_missing_or_swapped_node(self, data: bytes | None) -> None:
        store, _ = seen(1_000)
        at, _ = self.node(store)
        store._objects.pop(at)
        if data is not None:
            store._objects[at] = data
        with pytest.raises(LogDamagedError, match="differs from its name"):
            self.late(store)

    def test_missing_page(self) -> None:
        store, _ = seen(1_000)
        store._objects.pop(keys.page(newest_of(store).pages[0].sha256))
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
    def test_node_that_is_not_in_order_or_not_what_the_range_above_says(self, node: KnownNode) -> None:
        store, _ = seen(1_000)
        encoded = codec.encode(node)
        store._objects[keys.known(encoded.sha256)] = encoded.data
        newest = newest_of(store)
        forged = dataclasses.replace(newest.known[0], sha256=encoded.sha256)
        root = codec.encode(dataclasses.replace(newest, known=(forged, *newest.known[1:])))
        store._objects[keys.discovered(newest.i)] = root.data
        with pytest.raises(LogDamagedError, match="D4"):
            self.late(store)

    @pytest.mark.parametrize("mixed", [False, True])
    def test_page_with_another_number_of_files(self, mixed: bool) -> None:
        store, _ = seen(1_000)
        below = newest_of(store).pages if mixed else ()
        page = codec.encode(FilePage(files=() if mixed else (found("a", 1),), pages=(*below, *below)))
        store._objects[keys.page(page.sha256)] = page.data
        newest = newest_of(store)
        forged = dataclasses.replace(newest.pages[0], sha256=page.sha256)
        root = codec.encode(dataclasses.replace(newest, pages=(forged,)))
        store._objects[keys.discovered(newest.i)] = root.data
        with pytest.raises(LogDamagedError, match="another number of files"):
            list(Ledger(CommitLog(store)).files(0, 1))
