"""Announcements as procedures (PROTOCOL.md, 4.8): what a run's result announces, and which versions other runs planned between its own."""

from __future__ import annotations

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Announcement, RunPointer
from airflow_provider_streamsem.protocol.machine import Procedure, list_keys
from airflow_provider_streamsem.protocol.procedures import create_entry, read_entry, read_parts


def newest_announced() -> Procedure[int]:
    """Up to which version the newest announcement reaches; -1 where there is none. A hint: it may be too low (W8)."""
    listed = yield from list_keys(keys.ANNOUNCED, 1)
    newest = max((n for n in map(keys.parse_newest_first, listed) if n is not None), default=None)
    found = None if newest is None else (yield from read_entry(Announcement, keys.announced(newest)))
    return -1 if found is None else found[0].upto


def put_announcement(key: str, announcement: Announcement) -> Procedure[Announcement]:
    """Create an announcement; returns what is stored, ours or that of another process of the run."""
    written = yield from create_entry(key, announcement)
    return announcement if written.mine else (yield from read_parts(Announcement, key, written.data))[0]


def others_between(run_key: str, first: tuple[int, int], last: tuple[int, int]) -> Procedure[list[int]]:
    """
    The versions between two of a run that other runs planned, in order. Reads about log2(n) pointers for each place where another run came between.

    :param first: number and version of one of the run's pointers; ``last``: of a later one
    """
    (low, low_version), (high, high_version) = first, last
    if high_version - low_version == high - low:
        return []
    if high - low == 1:
        return [*range(low_version + 1, high_version)]
    middle = (low + high) // 2
    pointer = yield from read_entry(RunPointer, keys.pointer(run_key, middle))
    if pointer is None:
        raise LogDamagedError("a run's pointer is missing below a newer one", invariant="I16", version=high_version)
    at = (middle, pointer[0].version)
    before = yield from others_between(run_key, first, at)
    return before + (yield from others_between(run_key, at, last))
