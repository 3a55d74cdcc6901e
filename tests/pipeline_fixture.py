"""A small pipeline for tests: input files, a log and a dataset, with a reader of the visible rows that is independent of the package."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from tests.prepared_directory import PreparedDirectory

_NAMES = count()


@dataclass
class PipelineFixture:
    """
    A pipeline that reads JSON files from ``root/in`` and writes to ``root/out``. Its log is in memory.

    The files ``00000.json`` … have rows ``{"id": n}`` with unique ids.

    :attr made: the number of files that arrived
    :attr returned: the results of all runs
    :attr ran: the pipeline of the last run, if the run was given one
    """

    root: Path
    rows_per_file: int = 3
    store: Any = field(default_factory=lambda: MemoryStore(f"memory://world-{next(_NAMES)}"))
    made: int = 0
    clocks: Any = field(default_factory=count)
    returned: list[RunResult] = field(default_factory=list)
    ran: Pipeline | None = None

    def __post_init__(self) -> None:
        (self.root / "in").mkdir(parents=True, exist_ok=True)

    def arrive(self, files: int, *, bad_lines: int = 0) -> None:
        """Add files to the source, with modification times one millisecond apart."""
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
        """The ids of all files that arrived, each once."""
        return Counter(range(self.made * self.rows_per_file))

    def pipeline(self, **changes: Any) -> Pipeline:
        """Return the pipeline."""
        spec = Pipeline(
            name="world",
            log=self.store.url,
            source=FilesSource(path=str(self.root / "in"), format="json", schema="id long"),
            sinks={"out": FilesSink(path=str(self.root / "out"), format="json")},
            limits=Limits(max_files=2),
        )
        return spec.replace(**changes) if changes else spec

    def log(self, store: Store | None = None) -> CommitLog:
        """Open the log as a new process does."""
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
        """Run a batch as a new process does, or reprocess the version ``reprocessed``. Append the result to ``returned``."""
        spec, log, engine = pipeline or self.pipeline(), self.log(store), engine or RowsEngine()
        self.ran = pipeline
        if reprocessed is not None:
            result = reprocess(spec, reprocessed, run_key=run_key, log=log, engine=engine)
        else:
            result = run_batch(spec, run_key=run_key, drain=drain, log=log, engine=engine)
        self.returned.append(result)
        return result

    def planner(self, pipeline: Pipeline | None = None) -> Any:
        """Open the source's planner on the log, as a new process does before the first version."""
        source = (pipeline or self.pipeline()).source
        return source.open(self.log().of_source(source.immutable_config()), None)

    def opened(self) -> CommittedLog:
        """Open the log for reading."""
        return open_log(self.log())

    def dies(self, *arguments: Any, at: str = "read", batch: int = 1, **named: Any) -> None:
        """Run a batch in a process that dies at a step of staging, in the first batch or a later one."""

        def die(step: str) -> None:
            if step == at and engine.staged == batch:
                raise Crash

        engine = RowsEngine(die)
        with suppress(Crash):
            self.run(*arguments, engine=engine, **named)
            raise AssertionError("the process did not die")

    def visible(self) -> Counter[int]:
        """Return the visible ids, read with ``json`` from the files that the log names."""
        ids: Counter[int] = Counter()
        for file in self.opened().files():
            ids.update(json.loads(line)["id"] for line in Path(file.path).read_text().splitlines())
        return ids

    def verdict(self) -> Verdict:
        """Verify the log of the pipeline that ran last."""
        return verify(open_log(self.log(), pipeline=self.ran or self.pipeline()))

    def unannounced(self) -> list[int]:
        """Return the committed versions that the result of no run names."""
        return [
            v.version
            for v in self.opened().versions(newest_first=False)
            if v.outcome is not None and v.outcome.committed
            and not any(
                r.versions[0] <= v.version < r.versions[1]
                and (r.run_key == v.plan.run_key or v.version in [other.version for other in r.completed])
                for r in self.returned
            )
        ]  # fmt: skip

    def check(self, visible_ids: Callable[[], Counter[int]] | None = None) -> None:
        """Check that the log is clean and that every id that arrived is visible exactly once."""
        verdict = self.verdict()
        assert verdict.violations == [], verdict.violations
        visible = (visible_ids or self.visible)()
        assert visible - self.expected == Counter(), "duplicated"
        assert self.expected - visible == Counter(), "lost"


class PreparedFixture:
    """Gives each round of a test the same pipeline, without running its batches again."""

    def __init__(self, fixture: PipelineFixture) -> None:
        assert isinstance(fixture.store, MemoryStore)
        self._fixture, self._directory = fixture, PreparedDirectory(fixture.root)
        self._store, self.objects = fixture.store, dict(fixture.store.objects)

    def restore(self) -> PipelineFixture:
        """Return the pipeline in its prepared state."""
        self._directory.restore()
        self._store.objects.clear()
        self._store.objects.update(self.objects)
        return replace(self._fixture, store=self._store, returned=[*self._fixture.returned], ran=None)


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
