"""The store of a simulation, and the access of one process to it: with delays, lost answers and stale listings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownResultError
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.simulation.faults import Fate

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process

URL = "memory://simulation"
_ENTRIES = {"p": "plan", "c": "outcome", "d": "receipt"}


class SimulatedStore(MemoryStore):
    """
    The stored objects, and the history of all changes, so that a listing can show any earlier state.

    :attr closed: the newest version with an outcome
    :attr planned: the newest version with a plan
    :attr published: the newest version with receipts
    """

    def __init__(self) -> None:
        super().__init__(URL)
        self.history: list[tuple[str, bytes | None]] = []
        self.closed = self.planned = self.published = -1

    def overwrites(self, key: str) -> bool:
        """Whether a create overwrites an existing key. Only mutations return true."""
        return False

    def create(self, key: str, data: bytes) -> bool:
        if self.overwrites(key):
            self.objects.pop(key, None)
        created = super().create(key, data)
        if created:
            self.history.append((key, data))
            parsed = keys.parse_entry(key)
            if parsed is not None and parsed[1] == "c":
                self.closed = max(self.closed, parsed[0])
            elif parsed is not None and parsed[1] == "p":
                self.planned = max(self.planned, parsed[0])
            elif parsed is not None:
                self.published = max(self.published, parsed[0])
        return created

    def delete(self, key: str) -> None:
        self.history.append((key, None))
        super().delete(key)

    def lose(self, key: str) -> None:
        """Lose an object, as if it had never been written. Unlike a deleted object, it is in no stale listing."""
        self.objects.pop(key)
        self.history = [change for change in self.history if change[0] != key]

    def earlier(self, changes: int) -> MemoryStore:
        """The store before the newest ``changes`` changes."""
        earlier = MemoryStore(URL)
        for key, data in self.history[: len(self.history) - changes]:
            if data is None:
                earlier.delete(key)
            else:
                earlier.create(key, data)
        return earlier

    def snapshot(self) -> dict[str, bytes]:
        return dict(self.objects)


class ProcessStore:
    """The store as one process accesses it. Before every request the process waits for a turn, and the scheduler draws the request's fate."""

    def __init__(self, process: Process, store: SimulatedStore) -> None:
        self.url = store.url
        self._process = process
        self._store = store

    def create(self, key: str, data: bytes) -> bool:
        fate = self._begin("create", key)
        if fate is Fate.LATE:
            self._process.scheduler.schedule_late(f"create {shown(key)}", lambda: self._apply(key, data))
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownResultError(key)
        created = self._apply(key, data)
        self._process.end_request(fate, key, f"create {shown(key)}: {'created' if created else 'exists'}")
        return created

    def read(self, key: str) -> bytes | None:
        fate = self._begin("read", key)
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownResultError(key)
        data = self._store.read(key)
        if key.startswith("attempts/"):
            self._process.manifests.add(key)
        self._process.end_request(fate, key, f"read {shown(key)}: {'missing' if data is None else 'found'}")
        return data

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        fate = self._begin("list", prefix, listing=True)
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownResultError(prefix)
        store: MemoryStore = self._store
        if fate is Fate.STALE:
            store = self._store.earlier(self._process.scheduler.changes_missed(len(self._store.history)))
            self._process.saw_stale = True
        stats = list(store.list(prefix, limit, start_after))
        self._process.end_request(fate, prefix, f"list {shown(prefix)}: {len(stats)}")
        return iter(stats)

    def stat(self, key: str) -> ObjectStat | None:
        fate = self._begin("stat", key)
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownResultError(key)
        stat = self._store.stat(key)
        self._process.end_request(fate, key, f"stat {shown(key)}")
        return stat

    def delete(self, key: str) -> None:
        fate = self._begin("delete", key)
        if fate is Fate.LATE:
            self._process.scheduler.schedule_late(f"delete {shown(key)}", lambda: self._store.delete(key))
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownResultError(key)
        self._store.delete(key)
        self._process.scheduler.count["deleted manifests"] += 1
        self._process.end_request(fate, key, f"delete {shown(key)}")

    def _begin(self, method: str, key: str, *, listing: bool = False) -> Fate:
        return self._process.begin_request(f"{method} {shown(key)}", listing=listing)

    def _apply(self, key: str, data: bytes) -> bool:
        created = self._store.create(key, data)
        parsed = keys.parse_entry(key)
        if parsed is not None:
            self._count(parsed[1], data, created=created)
        return created

    def _count(self, letter: str, data: bytes, *, created: bool) -> None:
        count = self._process.scheduler.count
        if not created:
            count[f"lost creates of {_ENTRIES[letter]}s"] += 1
        elif letter == "c":
            entry = json.loads(data)
            count[f"outcomes: {entry['result']}"] += 1
            count["outcomes of reprocessing runs"] += entry.get("work", {}).get("kind") == "reprocess"
            count["quarantined rows"] += entry["quarantine"]["rows"]
            if entry["attempt_id"] is not None and not entry["attempt_id"].startswith(self._process.name + "-"):
                count["adoptions"] += 1


def shown(key: str) -> str:
    """A key as the trace shows it: short, and without hashes that depend on the simulation's directory."""
    parsed = keys.parse_entry(key)
    if parsed is not None:
        return f"{_ENTRIES[parsed[1]]}({parsed[0]})"
    directory, _, rest = key.partition("/")
    if directory in ("specs", "initial_offsets"):
        return f"{directory}/…"
    if directory == "sources":
        return f"sources/…/{shown(rest.partition('/')[2])}"
    return "/".join(name[:6] + "…" if len(name) == 64 else name for name in key.split("/"))
