"""
Reads the entries of a Delta table's log, ``_delta_log/<version>.json`` (Delta protocol, *Delta Log Entries*).

deltalake returns the state of a table at a version, but not the files of one entry. So this module reads the entries themselves: one request for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from airflow_provider_streamsem.errors import SourceChangedError, UnavailableError
from airflow_provider_streamsem.protocol.codec import sha256
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.contract import UnknownResultError
from airflow_provider_streamsem.stores.dataset import open_dataset

_ENTRY = re.compile(r"_delta_log/([0-9]{20})\.json")
_AT_ONCE = 64
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One entry of the table's log.

    :param digest: sha256 of the bytes of the entry
    :param in_commit_ms: milliseconds UTC; ``None`` unless the table has in-commit timestamps
    :param defines_table: whether the entry sets columns, properties or the protocol of the table
    :param added: ``add`` actions that change data; ``removed`` likewise
    """

    version: int
    digest: str
    operation: str
    in_commit_ms: int | None
    defines_table: bool
    added: Sequence[dict[str, Any]]
    removed: Sequence[dict[str, Any]]
    feed: Sequence[dict[str, Any]]

    @property
    def changes_rows(self) -> bool:
        """Whether the entry removes rows or restores an older state. An entry that only adds new rows does not."""
        return bool(self.removed) or (self.operation == "RESTORE" and bool(self.added))


def key_of(version: int) -> str:
    """Return the key of an entry below the table."""
    return f"_delta_log/{version:020d}.json"


def encoded(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of an entry with these actions."""
    return "".join(f"{json.dumps(action, separators=(',', ':'))}\n" for action in actions).encode()


def parse(version: int, data: bytes, location: str) -> Entry:
    """Bytes that are not an entry are refused (``SourceChangedError``)."""
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        actions_by_kind = {
            kind: [a[kind] for a in actions if kind in a] for kind in ("add", "remove", "cdc", "commitInfo")
        }
        commit_info = actions_by_kind["commitInfo"][0] if actions_by_kind["commitInfo"] else {}
        return Entry(
            version=version,
            digest=sha256(data),
            operation=str(commit_info.get("operation", "")),
            in_commit_ms=commit_info.get("inCommitTimestamp"),
            defines_table=any("metaData" in action or "protocol" in action for action in actions),
            added=[add for add in actions_by_kind["add"] if add["dataChange"]],
            removed=[remove for remove in actions_by_kind["remove"] if remove["dataChange"]],
            feed=actions_by_kind["cdc"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        summary = "an entry of the Delta table's log is damaged; nothing was written"
        raise SourceChangedError(summary, table=location, version=version) from error


class History:
    """The entries of the log of the table at a location."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._store = open_dataset(location)

    def entry(self, version: int) -> Entry | None:
        """Read one entry; ``None`` if it does not exist."""
        data = self._request(lambda: self._store.read(key_of(version)))
        return None if data is None else parse(version, data, self._location)

    def actions(self, version: int) -> list[dict[str, Any]] | None:
        """Return all actions of one entry, also those that change no data; ``None`` if the entry does not exist."""
        data = self._request(lambda: self._store.read(key_of(version)))
        return None if data is None else [json.loads(line) for line in data.splitlines() if line.strip()]

    def entries(self, start: int, end: int) -> Iterator[tuple[int, Entry | None]]:
        """Yield each version of ``[start, end)``; ``None`` if it has no entry. Reads up to 64 entries ahead, 16 at a time."""
        for first in range(start, end, _AT_ONCE):
            versions = range(first, min(end, first + _AT_ONCE))
            yield from zip(versions, in_threads(self.entry, versions), strict=True)

    def oldest(self) -> int:
        """0 if there is no entry."""
        return next((version for version, _ in self._list_entries(0, _PAGE)), 0)

    def times(self, start: int) -> list[tuple[int, int]]:
        """Return ``(version, time)`` of the entries at or above ``start``, in milliseconds UTC. As in Delta's own readers, times never decrease."""
        listed = list(self._list_entries(start))
        return [*zip((v for v, _ in listed), accumulate((ms for _, ms in listed), max), strict=True)]

    def first_at(self, at_ms: int, *, in_commit: bool) -> tuple[int, bool]:
        """
        Return the first version that was committed at or after a time (one past the newest if all are older), and whether it is the oldest entry.

        With ``in_commit``, the entries have their own timestamps, and the search reads some of the entries.
        """
        times = self.times(0)
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(times[middle][0]) if in_commit else None
            committed_ms = times[middle][1]
            if entry is not None and entry.in_commit_ms is not None:
                committed_ms = entry.in_commit_ms
            if committed_ms >= at_ms:
                high = middle
            else:
                low = middle + 1
        if low < len(times):
            return times[low][0], low == 0
        return (times[-1][0] + 1 if times else 0), low == 0

    def _list_entries(self, start: int, limit: int | None = None) -> Iterator[tuple[int, int]]:
        after = f"{key_of(start - 1)}~" if start else ""
        for stat in self._request(lambda: list(self._store.list("_delta_log/", limit, after))):
            if match := _ENTRY.fullmatch(stat.key):
                yield int(match[1]), stat.mtime_ns // 1_000_000

    def _request(self, request: Any) -> Any:
        try:
            return request()
        except UnknownResultError as error:
            summary = "the location of the Delta table did not report the result of a request; nothing was written"
            raise UnavailableError(summary, table=self._location) from error
