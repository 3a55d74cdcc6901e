"""What a simulation is of: files into files, with dedup by id; what is outside the log has modules of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline
from airflow_provider_streamsem.dedup import Dedup
from airflow_provider_streamsem.errors import InvalidError, StreamsemError, UnavailableError
from tests.simulation import checks
from tests.simulation.checks import RawLog, require
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.store import URL


class PipelineFixture:
    """
    Files into files.

    :cvar kinds: of processes, each as often as it is drawn
    :cvar outside: sinks outside the log
    :attr once: whether each id is visible once
    :attr run_keys: of the processes that run one, by their names
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
        "abort",
        "vacuum",
        "reader",
        "reader",
        "arrival",
    )
    outside: ClassVar[tuple[str, ...]] = ()
    once: bool = True

    def __init__(self, root: Path, scheduler: Scheduler) -> None:
        self.root = root
        self.scheduler = scheduler
        self.rng = scheduler.rng
        self.made = 0
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
    def turning(self) -> Iterator[None]:
        """While the block runs, every request to what is outside the log is a turn of the scheduler."""
        yield

    def next_ids(self) -> list[int]:
        """The ids in the next file: a new one, and what a kind of world adds."""
        self.made += 1
        return [self.made - 1]

    def refused_until(self) -> int:
        """The turn up to which something outside the log is refused: for most things this one."""
        long = self.rng.choice((20, 60, 300)) if self.rng.random() < 0.1 else 0
        return self.scheduler.turns + long

    def locations(self) -> list[Path]:
        """Directories in which an attempt leaves files."""
        return [self.root / "out", *(self.root / name for name in self.outside)]

    def ids(self, files: list[str]) -> Counter[int]:
        """The ids in some files of the dataset."""
        return checks.ids(self.root / "out", files)

    def excuses(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        """Whether a process may end with this error, for want of an answer, or because what a person asked for is not so (any more)."""
        if isinstance(error, UnavailableError) and error.fields.get("version") in log.receipts:
            self.scheduler.count["gave up: staged files were spent"] += 1
            return True
        if isinstance(error, StreamsemError) and error.retryable and process.disturbed:
            self.scheduler.count["gave up: no answer"] += 1
            return True
        asked = process.kind in ("abort", "skip") or (process.kind == "reader" and process.saw_stale)
        if isinstance(error, InvalidError) and asked:
            self.scheduler.count["refused: what it was asked for was not as it saw the log"] += 1
            return True
        return False

    def check(self, log: RawLog) -> None:
        """What must be true of all that is outside the log, whenever a process was answered."""

    def check_end(self, log: RawLog) -> None:
        """What must be true in the end."""
        found = self.ids(log.visible(len(log.outcomes) - 1))
        require(found == Counter(range(self.made)), "ids were lost or doubled", found)


class Repeats(PipelineFixture):
    """Files that repeat ids, into files with dedup. Ids are remembered for some seconds, or forever."""

    name = "dedup"

    def __init__(self, root: Path, scheduler: Scheduler) -> None:
        super().__init__(root, scheduler)
        self.ttl_s = self.rng.choice((3, 10, 1_000_000))
        self.once = self.ttl_s == 1_000_000

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(dedup=Dedup(keys=["id"], ttl_s=self.ttl_s), **changes)

    def next_ids(self) -> list[int]:
        fresh = super().next_ids()
        repeated = [self.rng.randrange(self.made) for _ in range(self.rng.choice((0, 1, 2)))]
        return sorted(fresh + repeated, key=lambda _: self.rng.random())

    def locations(self) -> list[Path]:
        return [*super().locations(), self.root / "log" / "state"]

    def check_end(self, log: RawLog) -> None:
        """Each id passes once within its time, by the readings in the plans; a reprocessing run lets pass what its root let pass."""
        passed: dict[int, int] = {}
        newest_ms = 0
        for version in log.committed:
            plan, found = log.plans[version], self.ids(log.files(version))
            require(not found or max(found.values()) == 1, "an id passed twice in one batch", version)
            if plan["kind"] == "reprocess":
                root = self.ids(log.files(log.root(version)))
                require(found == root, "a reprocessing run lets other ids pass than its root", version, found, root)
                continue
            now_ms = plan["planned_at_ms"]
            # Where a clock goes back, either reading may be taken.
            newest_ms = max(newest_ms, now_ms)
            read = self._read(plan["pins"])
            require(found.keys() <= read.keys(), "ids passed that were not read", version)
            for n in read:
                at_ms = passed.get(n)
                if at_ms is None or at_ms < now_ms - self.ttl_s * 1000:
                    require(n in found, "an id was taken for a repeat that was none", version, n, at_ms)
                elif at_ms >= newest_ms - self.ttl_s * 1000:
                    require(n not in found, "a repeat passed within its time", version, n, at_ms)
            self.scheduler.count["repeats dropped"] += sum(read.values()) - len(found)
            self.scheduler.count["ids forgotten after their time"] += len(found.keys() & passed.keys())
            passed.update(dict.fromkeys(found, now_ms))
        if self.once:
            super().check_end(log)

    def _read(self, pins: list[dict[str, Any]]) -> Counter[int]:
        """The ids in the files of a plan, bad lines apart."""
        lines = [
            line
            for path in (pin["path"] for pin in pins)
            for line in (self.root / "in" / path).read_text().splitlines()
        ]
        return Counter(json.loads(line)["id"] for line in lines if line.endswith("}"))
