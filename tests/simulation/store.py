"""The one true store of a simulation, and the store as one process sees it: late, silent, stale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownAnswerError
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.simulation.faults import Fate

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process

URL = "memory://simulation"
_ENTRIES = {"p": "plan", "c": "outcome", "d": "receipt"}


class Truth(MemoryStore):
    """
    What is stored, and in which order it came and went, so that a listing can show any earlier state.

    :attr closed: the newest version with an outcome; ``planned`` the newest with a plan, ``published`` the newest with receipts
    """

    def __init__(self) -> None:
        super().__init__(URL)
        self.history: list[tuple[str, bytes | None]] = []
        self.closed = self.planned = self.published = -1

    def overwrites(self, key: str) -> bool:
        """Whether a create of this key replaces what is there: never. Mutations change this."""
        return False

    def create(self, key: str, data: bytes) -> bool:
        if self.overwrites(key):
            self._objects.pop(key, None)
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

    def as_of(self, age: int) -> MemoryStore:
        """The store as it was ``age`` changes ago."""
        past = MemoryStore(URL)
        for key, data in self.history[: len(self.history) - age]:
            if data is None:
                past.delete(key)
            else:
                past.create(key, data)
        return past

    def everything(self) -> dict[str, bytes]:
        return dict(self._objects)


class View:
    """The store as one process sees it. Every request is a turn of the scheduler, and meets a fate there."""

    def __init__(self, process: Process, summary: Truth) -> None:
        self.url = summary.url
        self._process = process
        self._truth = summary

    def create(self, key: str, data: bytes) -> bool:
        fate = self._sent("create", key)
        if fate is Fate.LATE:
            self._process.scheduler.later(f"create {shown(key)}", lambda: self._apply(key, data))
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownAnswerError(key)
        created = self._apply(key, data)
        self._process.answered(fate, key, f"create {shown(key)}: {'created' if created else 'exists'}")
        return created

    def read(self, key: str) -> bytes | None:
        fate = self._sent("read", key)
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownAnswerError(key)
        data = self._truth.read(key)
        if key.startswith("attempts/"):
            self._process.manifests.add(key)
        self._process.answered(fate, key, f"read {shown(key)}: {'missing' if data is None else 'found'}")
        return data

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        fate = self._sent("list", prefix, listing=True)
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownAnswerError(prefix)
        store: MemoryStore = self._truth
        if fate is Fate.STALE:
            store = self._truth.as_of(self._process.scheduler.age(len(self._truth.history)))
            self._process.saw_stale = True
        found = list(store.list(prefix, limit, start_after))
        self._process.answered(fate, prefix, f"list {shown(prefix)}: {len(found)}")
        return iter(found)

    def stat(self, key: str) -> ObjectStat | None:
        fate = self._sent("stat", key)
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownAnswerError(key)
        found = self._truth.stat(key)
        self._process.answered(fate, key, f"stat {shown(key)}")
        return found

    def delete(self, key: str) -> None:
        fate = self._sent("delete", key)
        if fate is Fate.LATE:
            self._process.scheduler.later(f"delete {shown(key)}", lambda: self._truth.delete(key))
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            raise UnknownAnswerError(key)
        self._truth.delete(key)
        self._process.scheduler.count["deleted manifests"] += 1
        self._process.answered(fate, key, f"delete {shown(key)}")

    def _sent(self, method: str, key: str, *, listing: bool = False) -> Fate:
        return self._process.sends(f"{method} {shown(key)}", listing=listing)

    def _apply(self, key: str, data: bytes) -> bool:
        created = self._truth.create(key, data)
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
            count["outcomes of reprocessing runs"] += entry.get("replaces") is not None
            count["quarantined rows"] += entry["quarantine"]["rows"]
            if entry["attempt_id"] is not None and not entry["attempt_id"].startswith(self._process.name + "-"):
                count["adoptions"] += 1


def shown(key: str) -> str:
    """A key in the trace: without what depends on where the files lie (a spec's sha256), and short."""
    parsed = keys.parse_entry(key)
    if parsed is not None:
        return f"{_ENTRIES[parsed[1]]}({parsed[0]})"
    directory, _, rest = key.partition("/")
    if directory in ("specs", "initial_offsets"):
        return f"{directory}/…"
    if directory == "sources":
        return f"sources/…/{shown(rest.partition('/')[2])}"
    return "/".join(part[:6] + "…" if len(part) == 64 else part for part in key.split("/"))
