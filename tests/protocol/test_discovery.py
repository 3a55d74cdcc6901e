"""Every file gets one ordinal, for ever, whatever order files come, go, and come back in; and the log is asked for little."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.protocol import codec, discovery, keys
from airflow_provider_streamsem.protocol.entries import Discovery, FoundFile
from airflow_provider_streamsem.sources.ledger import Ledger
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore


def found(path: str, time: int, *, etag: str = "", size: int = 1) -> FoundFile:
    return FoundFile(path=path, bytes=size, identity=f"etag:{etag}" if etag else f"mtime:{time}", mtime_ns=time)


class Place(RuleBasedStateMachine):
    """
    A place where files come, vanish, come back and are replaced, beside a naive set of all identities ever seen.

    Edges and entries are a few files long, so that a few files reach every case; listings may be old; a discoverer may die between two entries.
    """

    SMALL: ClassVar = {"EDGE_FILES": 3, "LONGEST_EDGE": 8, "FILES_PER_ENTRY": 3}

    def __init__(self) -> None:
        super().__init__()
        self.kept = {name: getattr(discovery, name) for name in self.SMALL}
        for name, value in self.SMALL.items():
            setattr(discovery, name, value)
        self.store = MemoryStore()
        self.old: list[FoundFile] = []
        self.there: dict[str, FoundFile] = {}
        self.gone: list[FoundFile] = []
        self.seen: list[FoundFile] = []
        self.hint = -1

    @rule(name=st.integers(0, 40), time=st.integers(0, 50), etag=st.sampled_from(["", "a", "b"]))
    def put(self, name: int, time: int, etag: str) -> None:
        old = self.there.get(f"f{name}")
        self.gone += [old] if old else []
        self.there[f"f{name}"] = found(f"f{name}", time, etag=etag)

    @rule(time=st.integers(0, 50))
    def burst(self, time: int) -> None:
        """More files of one moment than an edge may name."""
        for name in range(100, 110):
            self.put(name, time, "")

    @rule(first=st.integers(100, 109))
    def take_burst_away(self, first: int) -> None:
        for name in range(first, 110):
            if f"f{name}" in self.there:
                self.gone.append(self.there.pop(f"f{name}"))

    @rule(at=st.integers(0, 100))
    def take_away(self, at: int) -> None:
        if self.there:
            self.gone.append(self.there.pop(sorted(self.there)[at % len(self.there)]))

    @rule(at=st.integers(0, 100), later=st.integers(0, 60))
    def bring_back(self, at: int, later: int) -> None:
        if self.gone:
            file = self.gone[at % len(self.gone)]
            # An object store gives a new time to the same bytes; a file system keeps the time as part of the identity.
            again = dataclasses.replace(file, mtime_ns=later) if file.identity.startswith("etag:") else file
            self.there[file.path] = again

    def teardown(self) -> None:
        for name, value in self.kept.items():
            setattr(discovery, name, value)

    def naive(self, listed: list[FoundFile]) -> list[FoundFile]:
        known = {discovery.fingerprint(f) for f in self.seen}
        return sorted((f for f in listed if discovery.fingerprint(f) not in known), key=lambda f: (f.mtime_ns, f.path))

    @rule()
    def look(self) -> None:
        """A slow discoverer lists now and goes on later."""
        self.old = list(self.there.values())

    @rule(cold=st.booleans(), slow=st.booleans())
    def discover(self, cold: bool, slow: bool) -> None:
        ledger = Ledger(CommitLog(self.store), newest_hint=-1 if cold else self.hint)
        listed = self.old if slow else list(self.there.values())
        while (end := ledger.add(listed)) is None:
            continue
        self.seen += self.naive(listed)
        # A hint may be older than the log: then what vanished since may be overlooked, but nothing that was listed.
        assert end == len(self.seen) if cold else end <= len(self.seen)
        assert {discovery.fingerprint(f) for f in listed} <= {discovery.fingerprint(f) for f in self.seen[:end]}
        newest = ledger.newest()
        self.hint = -1 if newest is None else newest.i

    @rule(after=st.integers(1, 3))
    def die_between_entries(self, after: int) -> None:
        listed = list(self.there.values())
        store = FaultyStore(self.store, after, Fault.CRASH_AFTER)
        try:
            Ledger(CommitLog(store)).add(listed)
        except Crash:
            count = sum(len(e.files) for e in self.stored())
            self.seen += self.naive(listed)[: count - len(self.seen)]
        else:
            self.seen += self.naive(listed)

    def stored(self) -> list[Discovery]:
        return [
            codec.decode(Discovery, stat.key, self.store.read(stat.key) or b"")
            for stat in self.store.list(keys.DISCOVERED)
        ]

    @invariant()
    def ordinals_are_those_of_the_naive_list(self) -> None:
        ledger = Ledger(CommitLog(self.store))
        marks = [discovery.fingerprint(f) for f in ledger.files(0, len(self.seen))] if self.seen else []
        assert marks == [discovery.fingerprint(f) for f in self.seen]


TestPlace = Place.TestCase
TestPlace.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def synthesised(count: int) -> tuple[MemoryStore, list[FoundFile], int]:
    """A log that has seen ``count`` files, as discoveries of 1,000 would have left it."""
    files = [found(f"dt={n // 1000}/{n:07d}.json", n * 1_000_000) for n in range(count)]
    made = discovery.entries(None, files, discovery.news(None, files), "n")
    store = MemoryStore(objects={keys.discovered(e.i): codec.encode(e).data for e in made})
    return store, files, made[-1].i


def test_requests_and_bytes_of_the_log_depend_only_on_the_new_files() -> None:
    costs = []
    for seen in (1_000, 20_000):
        store, files, newest = synthesised(seen)
        counting = CountingStore(store)
        new = [found(f"new/{n}.json", (seen + n) * 1_000_000) for n in range(5)]
        assert Ledger(CommitLog(counting), newest_hint=newest).add(files + new) == seen + 5
        costs.append((dict(counting.requests), counting.sent_bytes // 1000))
        assert counting.read_bytes < 250_000
    assert costs[0] == costs[1]
    assert costs[0][0] == {"read": 1, "create": 1}


def test_place_from_which_everything_was_moved_away_still_costs_little() -> None:
    store, _, newest = synthesised(20_000)
    ledger = Ledger(CommitLog(store), newest_hint=newest)
    assert ledger.add([]) == 20_000
    counting = CountingStore(store)
    after = ledger.newest()
    assert after is not None
    assert Ledger(CommitLog(counting), newest_hint=after.i).add([found("new", 10**18)]) == 20_001
    assert counting.requests == {"read": 1, "create": 1}


def test_late_file_with_an_old_time_is_found() -> None:
    store, files, newest = synthesised(5_000)
    assert Ledger(CommitLog(store), newest_hint=newest).add([*files, found("late", 7)]) == 5_001


def test_object_that_vanished_and_came_back_as_it_was_is_not_new() -> None:
    store = MemoryStore()
    first, second = found("a", 1, etag="x"), found("b", 2, etag="y")
    for listed in ([first, second], [second]):
        assert Ledger(CommitLog(store)).add(listed) == 2
    assert Ledger(CommitLog(store)).add([found("a", 9, etag="x"), second, found("c", 9, etag="z")]) == 3


def test_D2_discoverer_that_was_second_lists_again() -> None:
    store = MemoryStore()
    first, second = Ledger(CommitLog(store)), Ledger(CommitLog(store))
    a, b, c = found("a", 1), found("b", 2), found("c", 3)
    assert (first.add([a]), second.add([a])) == (1, 1)
    assert first.add([a, b]) == 2
    assert second.add([a, c]) is None
    assert second.add([a, b, c]) == 3
    assert [f.path for f in Ledger(CommitLog(store)).files(0, 3)] == ["a", "b", "c"]


def test_discovery_that_died_between_its_entries_is_taken_up() -> None:
    files = [found(f"{n:05d}", n) for n in range(2_500)]
    made = discovery.entries(None, files, discovery.news(None, files), "n")
    assert [len(e.files) for e in made] == [1000, 1000, 500]
    store = MemoryStore(objects={keys.discovered(0): codec.encode(made[0]).data})
    ledger = Ledger(CommitLog(store))
    assert ledger.add(files) == 2_500
    assert ledger.files(999, 1002) == files[999:1002]
    assert ledger.index_of(2_500) == 2


def test_bound_never_goes_back_over_files_that_vanished_from_a_crowded_moment() -> None:
    store = MemoryStore()
    crowd = [found(f"{n:05d}", 7) for n in range(discovery.LONGEST_EDGE + 10)]
    few = crowd[: discovery.EDGE_FILES - 2]
    for listed in (crowd, few, [*few, found("later", 9)], [*crowd, found("later", 9)]):
        end = Ledger(CommitLog(store)).add(listed)
    assert end == len(crowd) + 1


def test_many_files_of_one_moment_keep_the_edge_short() -> None:
    files = [found(f"{n:05d}", 7) for n in range(5_000)]
    (last,) = discovery.entries(None, files, discovery.news(None, files), "n")[-1:]
    assert (last.settled_ns, last.edge) == (8, {})
    again = discovery.news(last, files)
    assert again is not None
    assert again.new == ()


@given(st.lists(st.text(max_size=4)))
def test_digest_does_not_depend_on_order(marks: list[str]) -> None:
    assert discovery.digest(marks) == discovery.digest(reversed(marks))


def test_unchanged_listing_writes_nothing() -> None:
    files = [found("a", 1)]
    (entry,) = discovery.entries(None, files, discovery.news(None, files), "n")
    assert isinstance(entry, Discovery)
    again = discovery.news(entry, files)
    assert again is not None
    assert discovery.entries(entry, files, again, "n") == []
