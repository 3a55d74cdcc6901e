"""A pipeline and its fork."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import FilesSink, Pipeline, fork
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.pipeline.run.run import run_batch
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture

_NAMES = count()


def new_memory_store() -> Store:
    return open_memory_store(f"fork-{next(_NAMES)}")


class ForkFixture:
    """An original pipeline with three versions of two files each, and the store of its fork."""

    def __init__(self, root: Path, **changes: Any) -> None:
        # Deduplication keeps its layers in directories.
        stores = (
            [open_store(str(root / name)) for name in ("log", "fork-log")]
            if changes
            else [new_memory_store(), new_memory_store()]
        )
        self.original = PipelineFixture(root, store=stores[0])
        self.original.arrive(5)
        self.changes = changes
        self.store: Store = stores[1]
        self.run_original("run")

    def run_original(self, key: str) -> None:
        self.original.run(key, drain=True, pipeline=self.original.pipeline(**self.changes))

    def pipeline(self, **changes: Any) -> Pipeline:
        sinks = {"out": FilesSink(path=str(self.original.root / "forked"), format="json")}
        given = {"name": "fork", "log": self.store.url, "sinks": sinks}
        return self.original.pipeline(**{**self.changes, **given, **changes})

    def log(self, store: Store | None = None) -> CommitLog:
        return self.original.log(store or self.store)

    def fork(
        self,
        version: int | None = None,
        *,
        from_ms: int | None = None,
        until_ms: int | None = None,
        store: Store | None = None,
        **changes: Any,
    ) -> Any:
        log, original = self.log(store), self.original.log()
        return fork(self.pipeline(**changes), original, version=version, until_ms=until_ms, from_ms=from_ms, log=log)

    def run(self, key: str = "run", **changes: Any) -> Any:
        return run_batch(self.pipeline(**changes), run_key=key, drain=True, log=self.log(), engine=RowsEngine())

    def ids(self) -> Counter[int]:
        from json import loads

        files = open_log(self.log()).files()
        return Counter(loads(line)["id"] for file in files for line in Path(file.path).read_text().splitlines())


def rows(first: int, files: int) -> Counter[int]:
    """The ids of consecutive files."""
    return Counter(range(first * 3, files * 3))
