"""The simulated pipelines: files into files, and files into files with dedup. Pipelines with sinks outside the log are in other modules."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.errors import InvalidError, StreamsemError, UnavailableError
from tests.simulation import checks
from tests.simulation.checks import RawLog, require
from tests.simulation.disk import SimulatedEngine
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.store import URL, SimulatedStore


class PipelineFixture:
    """
    A pipeline from files into files.

    :cvar kinds: the kinds of processes from which the simulation draws. A kind that occurs more often is drawn more often
    :cvar processes: the number of processes: at least the first, and less than the second
    :cvar external_sinks: the names of the sinks outside the log
    :cvar vacuum_from: vacuum waits until this version is closed, for at most ``vacuum_waits`` turns
    :cvar vacuum_arguments: the arguments of vacuum
    :cvar follow_a_vacuum: kinds of processes that start after a vacuum that has deleted something
    :attr unique_ids: whether each id is visible at most once
    :attr run_keys: the run key of each process that has one, by the process's name
    """

    name: ClassVar[str] = "files"
    kinds: ClassVar[tuple[str, ...]] = (
        "single",
        "single",
        "drain",
        "drain",
        "reprocess",
        "reprocess",
        "named reprocess",
        "clear to reprocess",
        "clear to reprocess",
        "abort",
        "vacuum",
        "reader",
        "reader",
        "arrival",
    )
    processes: ClassVar[tuple[int, int]] = (5, 10)
    external_sinks: ClassVar[tuple[str, ...]] = ()
    vacuum_from: ClassVar[int] = 0
    vacuum_waits: ClassVar[int] = 0
    follow_a_vacuum: ClassVar[tuple[str, ...]] = ()
    vacuum_arguments: ClassVar[dict[str, Any]] = {}
    unique_ids: bool = True

    def __init__(self, root: Path, scheduler: Scheduler) -> None:
        self.root = root
        self.scheduler = scheduler
        self.rng = scheduler.rng
        self.files_added = 0
        self.run_keys: dict[str, str] = {}
        (root / "in").mkdir()

    def pipeline(self, **changes: Any) -> Pipeline:
        return Pipeline(
            **{
                "name": "simulation",
                "log": URL,
                "source": FilesSource(path=str(self.root / "in"), format="json", schema="id long"),
                "sinks": {"out": FilesSink(path=str(self.root / "out"), format="json")},
                "limits": Limits(max_files=2),
                "rows": "filter",
                **changes,
            }
        )

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """Within the block, every request to a sink outside the log waits for a turn of the scheduler."""
        yield

    def next_ids(self) -> list[int]:
        """The ids in the next file: a new one, and those that a subclass adds."""
        self.files_added += 1
        return [self.files_added - 1]

    def refused_until(self) -> int:
        """The turn before which a sink outside the log refuses something. It is mostly the current turn."""
        long = self.rng.choice((20, 60, 300)) if self.rng.random() < 0.1 else 0
        return self.scheduler.turns + long

    def engine(self, step: Callable[[str], object] | None = None) -> SimulatedEngine:
        """
        The engine of a process.

        :param step: as in :class:`RowsEngine`
        """
        return SimulatedEngine(step)

    def loses_state(self, attempt_id: str, store: SimulatedStore) -> bool:
        """Lose the operators' state of an attempt whose machine was lost, in place of its other files. Returns whether it was lost."""
        return False

    def locations(self) -> list[Path]:
        """The directories to which an attempt writes files."""
        return [self.root / "out", *(self.root / name for name in self.external_sinks)]

    def ids(self, files: list[str]) -> Counter[int]:
        """The ids in some files of the dataset."""
        return checks.ids(self.root / "out", files)

    def allows_failure(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        """Whether a process may end with this error: after unknown results, or if the request of an operator was outdated."""
        if isinstance(error, UnavailableError) and error.fields.get("version") in log.receipts:
            self.scheduler.count["gave up: staged files were deleted"] += 1
            return True
        if isinstance(error, StreamsemError) and error.retryable and process.had_fault:
            self.scheduler.count["gave up: no answer"] += 1
            return True
        may_be_outdated = process.kind in ("abort", "skip") or (process.kind == "reader" and process.saw_stale)
        if isinstance(error, InvalidError) and may_be_outdated:
            self.scheduler.count["refused: the request was outdated"] += 1
            return True
        return False

    def check(self, log: RawLog) -> None:
        """Check the sinks outside the log. Called whenever a run returned its result."""

    def check_end(self, log: RawLog) -> None:
        """Check the final state. Called once, after the last run."""
        visible_ids = self.ids(log.visible(len(log.outcomes) - 1))
        require(visible_ids == Counter(range(self.files_added)), "ids are missing or duplicated", visible_ids)


class DedupPipeline(PipelineFixture):
    """A pipeline with dedup. Its files repeat ids. Ids expire after some seconds, or never."""

    name = "dedup"

    def __init__(self, root: Path, scheduler: Scheduler) -> None:
        super().__init__(root, scheduler)
        self.ttl_s = self.rng.choice((3, 10, 1_000_000))
        self.unique_ids = self.ttl_s == 1_000_000

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(dedup=Dedup(keys=["id"], ttl_s=self.ttl_s), **changes)

    def next_ids(self) -> list[int]:
        new = super().next_ids()
        repeated = [self.rng.randrange(self.files_added) for _ in range(self.rng.choice((0, 1, 2)))]
        return sorted(new + repeated, key=lambda _: self.rng.random())

    def locations(self) -> list[Path]:
        return [*super().locations(), self.root / "log" / "state"]

    def check_end(self, log: RawLog) -> None:
        """Check that each id passes once within its TTL, by the times in the plans. A reprocessing run must pass the ids of its root."""
        passed: dict[int, int] = {}
        newest_ms = 0
        for version in log.committed:
            plan, written_ids = log.plans[version], self.ids(log.files(version))
            require(not written_ids or max(written_ids.values()) == 1, "an id passed twice in one batch", version)
            if log.kind(version) == "reprocess":
                root = self.ids(log.files(log.root(version)))
                require(
                    written_ids == root, "a reprocessing run passed other ids than its root", version, written_ids, root
                )
                continue
            now_ms = plan["planned_at_ms"]
            # If the clock goes back between plans, either reading is allowed.
            newest_ms = max(newest_ms, now_ms)
            read = self._read(plan["pins"])
            require(written_ids.keys() <= read.keys(), "ids passed that the batch did not read", version)
            for id in read:
                at_ms = passed.get(id)
                if at_ms is None or at_ms < now_ms - self.ttl_s * 1000:
                    require(id in written_ids, "a new or expired id was dropped as a duplicate", version, id, at_ms)
                elif at_ms >= newest_ms - self.ttl_s * 1000:
                    require(id not in written_ids, "a duplicate id passed within its TTL", version, id, at_ms)
            self.scheduler.count["duplicates dropped"] += sum(read.values()) - len(written_ids)
            self.scheduler.count["expired ids"] += len(written_ids.keys() & passed.keys())
            passed.update(dict.fromkeys(written_ids, now_ms))
        if self.unique_ids:
            super().check_end(log)

    def _read(self, pins: list[dict[str, Any]]) -> Counter[int]:
        """The ids in the files of a plan, without bad lines."""
        lines = [
            line
            for path in (pin["path"] for pin in pins)
            for line in (self.root / "in" / path).read_text().splitlines()
        ]
        return Counter(json.loads(line)["id"] for line in lines if line.endswith("}"))
