"""
Procedures that read and create announcements (PROTOCOL.md, 4.8).

An announcement records which versions the result of a run reports as newly committed.
"""

from __future__ import annotations

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Announcement, RunPointer
from airflow_provider_streamsem.protocol.machine import Procedure, list_keys
from airflow_provider_streamsem.protocol.procedures import create_entry, read_entry, read_spilled


def newest_announced() -> Procedure[int]:
    """Return the ``upto`` of the newest listed announcement, or -1 if there is none. The value is a hint: it may be too low (W8)."""
    listed = yield from list_keys(keys.ANNOUNCED, 1)
    newest = max((n for n in map(keys.parse_newest_first, listed) if n is not None), default=None)
    entry = None if newest is None else (yield from read_entry(Announcement, keys.announced(newest)))
    return -1 if entry is None else entry[0].upto


def put_announcement(key: str, announcement: Announcement) -> Procedure[Announcement]:
    """Create an announcement if it is absent, and return the stored one. Another process of the same run may have created it."""
    written = yield from create_entry(key, announcement)
    return announcement if written.mine else (yield from read_spilled(Announcement, key, written.data))[0]


def others_between(run_key: str, first: tuple[int, int], last: tuple[int, int]) -> Procedure[list[int]]:
    """
    Return the versions that other runs planned between two versions of a run, in ascending order.

    Bisects the run's pointers. Reads about log2(n) pointers for each such version, where n is the number of pointers of the run in between.

    :param first: ``(j, version)`` of one of the run's pointers, exclusive
    :param last: ``(j, version)`` of a later pointer of the same run, exclusive
    :raises LogDamagedError: a pointer between the two is missing
    """
    (low, low_version), (high, high_version) = first, last
    if high_version - low_version == high - low:
        return []
    if high - low == 1:
        return [*range(low_version + 1, high_version)]
    middle = (low + high) // 2
    pointer = yield from read_entry(RunPointer, keys.pointer(run_key, middle))
    if pointer is None:
        raise LogDamagedError(
            "a run pointer is missing although a newer one exists", invariant="I16", version=high_version
        )
    at = (middle, pointer[0].version)
    before = yield from others_between(run_key, first, at)
    return before + (yield from others_between(run_key, at, last))
