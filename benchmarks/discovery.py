"""
The log requests of one poll of a path by the number of known files: ``make bench ARGS=discovery``.

The listing of the path is not counted. Each poll is a new process that knows the newest discovery from the last outcome. The history is created by the code
of the package, with 260 files per discovery instead of 10, to save time. 26 discoveries of 10 files leave the same trees, and a poll reads only the newest
discovery.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import statistics
from collections.abc import Callable, Iterator
from functools import partial

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.ledger import Ledger
from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.protocol.entries import FoundFile
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.stores import CountingStore

PER_DISCOVERY = 10
FLUSH = 260
SIZES = (10_000, 100_000, 1_000_000)
FILES_A_DAY = 10_000
Listings = Iterator[list[FoundFile]]


def file(n: int, path: str = "") -> FoundFile:
    """Return the n-th file of a bucket: an object whose identity contains no time, modified at second n."""
    path = path or f"dt={n // FILES_A_DAY:05d}/hour={n % FILES_A_DAY * 24 // FILES_A_DAY:02d}/{n:08d}.json"
    return FoundFile(path=path, bytes=1_000, identity=f"etag:{n:032x}", mtime_ns=n * 10**9)


def with_random_name(n: int) -> FoundFile:
    """Return the n-th file with a name that does not depend on its time."""
    return file(n, path=f"{hashlib.md5(b'%d' % n, usedforsecurity=False).hexdigest()}.json")


def history(known: int, of: Callable[[int], FoundFile], *, at_once: int = FLUSH) -> MemoryStore:
    """Create a log that has discovered this many files, with ``PER_DISCOVERY`` files per discovery."""
    store = MemoryStore()
    ledger = Ledger(CommitLog(store))
    for first in range(0, known, at_once):
        ledger.add([of(n) for n in range(first, min(first + at_once, known))])
    newest = ledger.newest()
    assert newest is not None
    newest = dataclasses.replace(newest, i=known // PER_DISCOVERY - 1)
    store.create(keys.discovered(newest.i), codec.encode(newest).data)
    return store


def polls(store: MemoryStore, listings: Listings, known: int, warm_up: int) -> list[tuple[int, ...]]:
    """Return GET, PUT, bytes read and bytes written of each poll after the warm-up."""
    hint, measured = known // PER_DISCOVERY - 1, []
    for listed in listings:
        counting = CountingStore(store)
        ledger = Ledger(CommitLog(counting), newest_hint=hint)
        ledger.add(listed)
        newest = ledger.newest()
        assert newest is not None
        hint = newest.i
        counts = (counting.requests[name] for name in ("list", "read", "create"))
        measured.append((*counts, counting.read_bytes, counting.sent_bytes))
    return measured[warm_up:]


def all_files_stay(known: int, count: int, *, without: int = -1) -> Listings:
    """List every file ever discovered and 10 new ones. One file may be missing."""
    files = [file(n) for n in range(known) if n != without]
    for first in range(known, known + count * PER_DISCOVERY, PER_DISCOVERY):
        files += [file(n) for n in range(first, first + PER_DISCOVERY)]
        yield files


def moving_window(known: int, count: int, *, new: int, window: int, late: int = 0) -> Listings:
    """List a window of the newest files, which moves at each poll. Some of the new files have an old name and an old time."""
    rng = random.Random(known)
    extra: list[FoundFile] = []
    for poll in range(1, count + 1):
        end = known + poll * new
        for n in range(late):
            older = file(rng.randrange(end - window, end))
            extra.append(dataclasses.replace(older, path=older.path + f".late{n}", identity=f"etag:late-{poll}-{n}"))
        start = file(end - window).path
        yield [file(n) for n in range(end - window, end)] + [late for late in extra if late.path > start]


def idle_window(known: int, count: int) -> Listings:
    """List a window that moves by a few files at each poll, without new files."""
    for poll in range(1, count + 1):
        yield [file(n) for n in range(known - 2_000 + 7 * poll, known)]


def deleted_daily(known: int, count: int, of: Callable[[int], FoundFile], *, new: int, polls_a_day: int) -> Listings:
    """Delete processed files once a day."""
    first = known
    for poll in range(1, count + 1):
        end = known + poll * new
        if poll % polls_a_day == 0:
            first = end - new
        yield [of(n) for n in range(first, end)]


def rows() -> Iterator[list[str]]:
    """Yield the rows of the table."""
    days = {"new": 10, "window": 2 * FILES_A_DAY}
    scenarios: list[tuple[str, Callable[[int], FoundFile], Callable[[int], Listings], int]] = [
        ("all files stay, 10 new", file, partial(all_files_stay, count=3), 0),
        ("one known object deleted, 10 new", file, partial(all_files_stay, count=4, without=5_000), 1),
        ("window moves each poll, 10 new", file, partial(moving_window, count=90, **days), 10),
        ("window moves each poll, nothing new", file, partial(idle_window, count=60), 2),
        ("window moves each poll, 1 new", file, partial(moving_window, count=300, new=1, window=1_440), 10),
        ("window moves each poll, 10 new, 2 more are late", file, partial(moving_window, count=90, late=2, **days), 10),
        ("processed files deleted daily, 10 new", file, partial(deleted_daily, count=96, of=file, new=10, polls_a_day=24), 24),
        ("the same with random names", with_random_name, partial(deleted_daily, count=96, of=with_random_name, new=10, polls_a_day=24), 24),
    ]  # fmt: skip
    histories: dict[tuple[str, int], MemoryStore] = {}
    for scenario, of, listings, warm_up in scenarios:
        for known in SIZES:
            at_once = FLUSH if of is file else known
            stored = histories.setdefault((of.__name__, known), MemoryStore())
            if not stored.objects:
                stored.objects.update(history(known, of, at_once=at_once).objects)
            measured = polls(MemoryStore(objects=dict(stored.objects)), listings(known), known, warm_up)
            columns = list(zip(*measured, strict=True))
            per_poll = [f"{statistics.mean(column):.2f} / {max(column)}" for column in columns[1:3]]
            kilobytes = [f"{statistics.mean(column) / 1e3:.0f} / {max(column) / 1e3:.0f}" for column in columns[3:]]
            yield [scenario, f"{known:,}", f"{known // PER_DISCOVERY:,}", str(len(measured)), *per_poll, *kilobytes]


COLUMNS = ["poll", "files discovered", "discoveries", "polls", "GET", "PUT", "KB read", "KB written"]

if __name__ == "__main__":
    print("|", " | ".join(COLUMNS), "|", flush=True)
    for row in rows():
        print("|", " | ".join(row), "|", flush=True)
