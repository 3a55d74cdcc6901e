"""A small world for tests: a location with JSON files, a log, a dataset, and an independent reading of what is visible."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, RunResult, reprocess, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.readers.files import CommittedLog, open_log
from airflow_provider_streamsem.readers.verify import Verdict, verify
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash

_NAMES = count()


@dataclass
class PipelineFixture:
    """
    ``root/in`` holds files ``00000.json`` … with rows ``{"id": n}``, ids never repeated; the log is in memory, the dataset in ``root/out``.
    """

    root: Path
    rows_per_file: int = 3
    store: Store = field(default_factory=lambda: MemoryStore(f"memory://world-{next(_NAMES)}"))
    made: int = 0
    clocks: Any = field(default_factory=count)
    returned: list[RunResult] = field(default_factory=list)
    ran: Pipeline | None = None

    def __post_init__(self) -> None:
        (self.root / "in").mkdir(parents=True, exist_ok=True)

    def arrive(self, files: int, *, bad_lines: int = 0) -> None:
        """Put more files into the source, one millisecond apart."""
        import os

        for _ in range(files):
            path = self.root / "in" / f"{self.made:05d}.json"
            first = self.made * self.rows_per_file
            lines = [json.dumps({"id": first + i}) for i in range(self.rows_per_file)] + ["{not json"] * bad_lines
            path.write_text("".join(line + "\n" for line in lines))
            stamp = 1_700_000_000_000_000_000 + self.made * 1_000_000
            os.utime(path, ns=(stamp, stamp))
            self.made += 1

    @property
    def expected(self) -> Counter[int]:
        """Every id that arrived, once."""
        return Counter(range(self.made * self.rows_per_file))

    def pipeline(self, **changes: Any) -> Pipeline:
        """The pipeline of this world."""
        spec = Pipeline(
            name="world",
            log=self.store.url,
            source=FilesSource(path=str(self.root / "in"), format="json", schema="id long"),
            sinks={"out": FilesSink(path=str(self.root / "out"), format="json")},
            limits=Limits(max_files=2),
        )
        return spec.replace(**changes) if changes else spec

    def log(self, store: Store | None = None) -> CommitLog:
        """A log as a process of its own would open it."""
        return CommitLog(store or self.store, ManualClock(name=f"p{next(self.clocks)}"), RetryPolicy(tries=6))

    def run(
        self,
        run_key: str = "run",
        *,
        drain: bool = False,
        store: Store | None = None,
        engine: RowsEngine | None = None,
        pipeline: Pipeline | None = None,
        reprocessed: int | None = None,
    ) -> RunResult:
        """Run as a process of its own would, or reprocess the version ``reprocessed``. What it returns is kept in ``returned``."""
        spec, log, engine = pipeline or self.pipeline(), self.log(store), engine or RowsEngine()
        self.ran = pipeline
        if reprocessed is not None:
            result = reprocess(spec, reprocessed, run_key=run_key, log=log, engine=engine)
        else:
            result = run_batch(spec, run_key=run_key, drain=drain, log=log, engine=engine)
        self.returned.append(result)
        return result

    def planner(self, pipeline: Pipeline | None = None) -> Any:
        """The source's planner on the log, as a process of its own would bind it before the first version."""
        source = (pipeline or self.pipeline()).source
        return source.open(self.log().of_source(source.immutable_config()), None)

    def opened(self) -> CommittedLog:
        """The log to read."""
        return open_log(self.log())

    def dies(self, *arguments: Any, at: str = "read", batch: int = 1, **named: Any) -> None:
        """Run as a process of its own would that dies in the midst of staging, in the first batch or a later one."""

        def die(step: str) -> None:
            if step == at and engine.staged == batch:
                raise Crash

        engine = RowsEngine(die)
        with suppress(Crash):
            self.run(*arguments, engine=engine, **named)
            raise AssertionError("it did not die")

    def visible(self) -> Counter[int]:
        """The visible ids, read by ``json`` from the files that the log names."""
        ids: Counter[int] = Counter()
        for file in self.opened().files():
            ids.update(json.loads(line)["id"] for line in Path(file.path).read_text().splitlines())
        return ids

    def verdict(self) -> Verdict:
        """What verify says of the pipeline that ran last."""
        return verify(open_log(self.log(), pipeline=self.ran or self.pipeline()))

    def unannounced(self) -> list[int]:
        """The committed versions that no result names which a run has returned."""
        return [
            v.version
            for v in self.opened().versions(newest_first=False)
            if v.outcome is not None and v.outcome.committed
            and not any(
                r.versions[0] <= v.version < r.versions[1]
                and (r.run_key == v.plan.run_key or v.version in [one.version for one in r.completed])
                for r in self.returned
            )
        ]  # fmt: skip

    def check(self, seen: Callable[[], Counter[int]] | None = None) -> None:
        """The log is clean and shows every id that arrived exactly once."""
        verdict = self.verdict()
        assert verdict.findings == []
        visible = (seen or self.visible)()
        assert visible - self.expected == Counter(), "duplicated"
        assert self.expected - visible == Counter(), "lost"


class BeforeOutcome(CountingStore):
    """Calls ``first`` once, before the first outcome is created."""

    def __init__(self, store: Store, first: Callable[[], object]) -> None:
        super().__init__(store)
        self._first: Callable[[], object] | None = first

    def create(self, key: str, data: bytes) -> bool:
        if key.endswith(".c.json") and self._first is not None:
            first, self._first = self._first, None
            first()
        return super().create(key, data)


def die() -> None:
    raise Crash
