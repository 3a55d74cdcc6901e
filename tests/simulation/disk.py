"""The directories of the source and of the datasets. They have real files, but every request to them waits for a turn of the scheduler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownResultError, split_url
from airflow_provider_streamsem.stores.dataset import LocalDataset
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.simulation.faults import Fate
from tests.simulation.scheduler import Scheduler
from tests.simulation.store import URL

_OPENERS = [
    f"airflow_provider_streamsem.{name}"
    for name in (
        "connectors.files.sink.open_dataset",
        "connectors.staged_parquet.sink.open_dataset",
        "connectors.files.source.open_store",
        "deduplication.layers.open_dataset",
        "testing.rows.open_store",
    )
]


class Directory(LocalDataset):
    """A directory that the current process accesses in turns. A listing of the source may miss the newest files."""

    def __init__(self, root: str, scheduler: Scheduler) -> None:
        super().__init__(root)
        self._scheduler = scheduler
        self._name = os.path.basename(root)

    def create(self, key: str, data: bytes) -> bool:
        self._turn("create", key)
        return super().create(key, data)

    def read(self, key: str) -> bytes | None:
        self._turn("read", key)
        return super().read(key)

    def stat(self, key: str) -> ObjectStat | None:
        if self._name != "in":
            self._turn("stat", key)
        return super().stat(key)

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        fate = self._turn("list", prefix, listing=self._name == "in")
        # The store's own listing calls stat for each file. These calls are not requests of the process.
        stats = list(LocalStore(self.root).list(prefix, limit, start_after))
        if fate is Fate.STALE:
            newest = sorted(stats, key=lambda stat: stat.mtime_ns)[-self._scheduler.rng.randrange(1, 3) :]
            stats = [stat for stat in stats if stat not in newest]
        return iter(stats)

    def _turn(self, method: str, key: str, *, listing: bool = False) -> Fate:
        process = self._scheduler.current
        if process is None or process.holds_locks:
            return Fate.GOOD
        request = f"{self._name}: {method} {key}"
        fate = process.begin_request(request, listing=listing, on_disk=True)
        self._scheduler.record(process.name, request)
        if fate is Fate.NEVER:
            raise UnknownResultError(key)
        if fate is Fate.CRASH_AFTER:
            process.die()
        return fate


class SimulatedEngine(RowsEngine):
    """An engine that writes each file in two halves and waits for a turn at every step."""

    def _write(self, location: str, rows: list[dict[str, Any]], format: str) -> None:
        super()._write(location, rows, format)
        path = os.path.join(split_url(location)[1], f"part-00000.{format}")
        if not os.path.exists(path):  # without rows no Parquet file is written
            return
        with open(path, "rb") as file:
            content = file.read()
        for written in (content[: len(content) // 2], content):
            with open(path, "wb") as file:
                file.write(written)
            self._step("wrote part of a file")


@contextmanager
def simulated_directories(scheduler: Scheduler, beside_log: str) -> Iterator[None]:
    """
    Within the block, the product opens directories of this simulation.

    :param beside_log: the directory for data files below the log's root. The log itself is in memory
    """

    def opened(url: str) -> Directory:
        root = url.replace(URL, beside_log, 1) if url.startswith(URL) else split_url(url)[1]
        return Directory(root, scheduler)

    with ExitStack() as stack:
        for name in _OPENERS:
            stack.enter_context(patch(name, opened))
        in_turn = lambda call, items: [call(item) for item in items]  # noqa: E731  threads have no turns
        stack.enter_context(patch("airflow_provider_streamsem.deduplication.layers.in_threads", in_turn))
        # The store probes use threads and are not part of the protocol.
        stack.enter_context(patch("airflow_provider_streamsem.commitlog.doctor.require_safe", lambda log: None))
        yield
