"""One simulation: a small world, the processes that meet in it, and what must be true of all they saw."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from airflow_provider_streamsem import Limits, RunResult, reprocess, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import PublishError
from airflow_provider_streamsem.pipeline import maintenance
from airflow_provider_streamsem.pipeline.publish import skip
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.readers.verify import verify
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.simulation import checks
from tests.simulation.checks import RawLog, require
from tests.simulation.disk import TurningEngine, turning_directories
from tests.simulation.effects import Effects
from tests.simulation.scheduler import Process, Scheduler, Violation
from tests.simulation.simulated_pipeline import PipelineFixture, Repeats
from tests.simulation.tables import Tables
from tests.small_nodes import small_nodes

SINGLES, DRAINS, REDOS = ("single-a", "single-b"), ("drain-a", "drain-b"), ("reprocess-a", "reprocess-b")
WORLDS: tuple[type[PipelineFixture], ...] = (
    *(PipelineFixture, Tables, PipelineFixture, Effects, PipelineFixture, Repeats, PipelineFixture, PipelineFixture),
    *(
        PipelineFixture,
        PipelineFixture,
        PipelineFixture,
        Effects,
        PipelineFixture,
        Repeats,
        PipelineFixture,
        PipelineFixture,
    ),
)
"""The kinds of world, seed by seed, over and over: the costly ones come more seldom"""


def world_of(seed: int) -> type[PipelineFixture]:
    return WORLDS[seed % len(WORLDS)]


@dataclass
class Simulation:
    """
    A simulation of one seed. The same seed does the same, byte for byte.

    :attr answers: what runs were answered: (run key, result), in order
    :attr announced: the versions that some answer announced
    :attr readings: version → files and ids as the first reader saw them
    """

    seed: int
    root: Path
    answers: list[tuple[str, RunResult]] = field(default_factory=list)
    announced: set[int] = field(default_factory=set)
    readings: dict[int, tuple[list[str], Counter[int]]] = field(default_factory=dict)
    reprocessed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.scheduler = Scheduler(self.rng)
        self.summary = self.scheduler.summary
        self.count = self.scheduler.count
        self.fixture = world_of(self.seed)(self.root, self.scheduler)
        wide = self.fixture.pipeline()
        self.pipelines = (wide, wide.replace(limits=Limits(max_files=1)))
        self.waiting = [self.rng.choice(self.fixture.kinds) for _ in range(self.rng.randrange(5, 10))]
        self.waiting[0] = self.rng.choice(("single", "drain"))
        self.restarts: list[tuple[str, str]] = []

    # --- the world

    def arrive(self) -> None:
        """One more file, mostly newer than all others; sometimes it was written earlier than it shows; sometimes with a bad line."""
        n = self.fixture.made
        name = f"{n:03d}.json"
        bad = "{not json\n" if self.rng.random() < 0.2 else ""
        path = self.root / "in" / name
        path.write_text("".join(json.dumps({"id": i}) + "\n" for i in self.fixture.next_ids()) + bad)
        back = self.rng.choice((0, 0, 0, 3))
        stamp = 1_700_000_000_000_000_000 + (n - back) * 1_000_000
        os.utime(path, ns=(stamp, stamp))
        self.count["files arrived"] += 1
        self.scheduler.says("(world)", f"{name} arrives" + (" with a bad line" if bad else ""))

    def raw(self) -> RawLog:
        return checks.raw_log(self.summary.everything())

    def more(self) -> bool:
        """Whether anybody is still to come."""
        return bool(self.waiting or self.restarts)

    def tick(self) -> None:
        """Before a turn: perhaps somebody new, or an end."""
        scheduler = self.scheduler
        idle = not any(p.wakes <= scheduler.turns for p in scheduler.live)
        if self.waiting and (idle or self.rng.random() < 0.06):
            self.begin(self.waiting.pop(0))
        if self.restarts and (not self.waiting or self.rng.random() < 0.03):
            self.run_again(*self.restarts.pop(0))
        if scheduler.live and not scheduler.weather.calm and self.rng.random() < 0.002:
            scheduler.kill(self.rng.choice(scheduler.live))

    def begin(self, kind: str) -> None:
        if (
            kind in ("reprocess", "named reprocess", "reader", "vacuum")
            and self.summary.closed < 0
            and self.rng.random() < 0.9
        ):
            # There is nothing for it yet; sometimes it comes nevertheless.
            self.waiting.append(kind)
            kind = "drain" if not self.scheduler.live else "nobody"
        if kind == "nobody":
            return
        if kind == "arrival":
            self.arrive()
        elif kind in ("single", "drain"):
            if self.rng.random() < 0.5:
                self.arrive()
            self.run_again("run", self.rng.choice(SINGLES if kind == "single" else DRAINS))
        elif kind == "named reprocess":
            self.run_again("reprocess", self.rng.choice(REDOS))
        else:
            body: Callable[[Process], Any] = {
                "reprocess": self.reprocess_anew,
                "abort": self.abort,
                "vacuum": self.vacuum,
                "reader": self.read,
                "skip": self.skip,
            }[kind]
            self.scheduler.start(kind, body)

    def run_again(self, what: str, run_key: str) -> None:
        if what == "reprocess":
            self.scheduler.start("named reprocess", lambda process: self.reprocess_named(process, run_key))
        else:
            kind = "drain" if run_key in DRAINS else "single"
            self.scheduler.start(kind, lambda process: self.run(process, run_key))

    # --- what processes do

    def engine(self, process: Process) -> RowsEngine:
        return TurningEngine(process.step)

    def run(self, process: Process, run_key: str) -> str:
        process.retry = ("run", run_key)
        self.fixture.run_keys[process.name] = run_key
        drain = run_key in DRAINS
        result = run_batch(
            self.rng.choice(self.pipelines), run_key=run_key, drain=drain, engine=self.engine(process), log=process.log
        )
        self.answered(process, result, run_key)
        return run_key

    def reprocess_named(self, process: Process, run_key: str) -> None:
        process.retry = ("reprocess", run_key)
        committed = self.raw().committed
        if run_key not in self.reprocessed:
            if not committed:
                return
            self.reprocessed[run_key] = self.rng.choice(committed)
        result = reprocess(
            self.pipelines[0],
            self.reprocessed[run_key],
            run_key=run_key,
            engine=self.engine(process),
            log=process.log,
        )
        self.answered(process, result, run_key)

    def reprocess_anew(self, process: Process) -> None:
        """A reprocessing run without a run key: whatever reprocessing runs there were, the rows are reprocessed, after it was asked for."""
        before = self.raw()
        if not before.committed:
            return
        version = self.rng.choice(before.committed)
        result = reprocess(self.pipelines[0], version, engine=self.engine(process), log=process.log)
        self.answered(process, result, result.run_key)
        held = before.newest_of_chain(version)
        require(result.version > held, "a reprocessing run made nothing anew", process.name, result.version, held)

    def abort(self, process: Process) -> None:
        for _ in range(40):  # a person comes when a version hangs
            if self.summary.planned == self.summary.closed:
                process.turn()
        record = process.log.read_pipeline()
        version = self.raw().open
        if record is not None and version is not None:
            outcome = maintenance.abort(process.log, record, version, reason="asked for")
            stored = self.raw().outcomes[version]
            require(stored["result"] == outcome.result, "an abort was answered by what is not stored", version)

    def vacuum(self, process: Process) -> None:
        record = process.log.read_pipeline()
        if record is not None:
            done = maintenance.vacuum(self.pipelines[0], log=process.log)
            self.count["attempts vacuumed"] += len(done.attempts)
            self.scheduler.says(process.name, f"vacuumed {[attempt for _, *attempt in done.attempts]}")

    def skip(self, process: Process) -> None:
        """A person gives up what waits for one of the sinks."""
        for _ in range(60):  # and comes when something waits
            if self.summary.closed > self.summary.published and (version := self.raw().owing) is not None:
                break
            process.turn()
        else:
            return
        sink = self.rng.choice(self.fixture.outside)
        receipts = skip(self.pipelines[0], version, sink=sink, reason="asked for", log=process.log)
        stored = self.raw().receipts[version]
        require(plain(receipts)["sinks"] == stored["sinks"], "a skip was answered by what is not stored", version)

    def read(self, process: Process) -> None:
        """The head, then a version that is fixed: it reads as it did to everybody before."""
        closed = self.summary.closed
        if process.log.read_pipeline() is None:
            return
        opened = open_log(process.log)
        view = opened.view()
        within = view.version <= self.summary.closed and (process.saw_stale or closed <= view.version)
        require(within, "a reader saw a head that is not there", view.version, closed, self.summary.closed)
        self.reading(view.version, [file.file.key for file in view.sink("out")])
        version = self.rng.choice([view.version, *self.readings])
        for _ in range(2):
            files = opened.files(version=version)
            self.reading(version, [os.path.relpath(file.path, self.root / "out") for file in files])
            self.count["readings"] += 1

    def reading(self, version: int, files: list[str]) -> None:
        seen = (files, self.fixture.ids(files))
        twice = seen[1] and max(seen[1].values()) > 1
        require(not (twice and self.fixture.once), "a reader saw an id twice", version)
        require(self.readings.setdefault(version, seen) == seen, "a version reads in another way (I7)", version)

    def answered(self, process: Process, result: RunResult, run_key: str) -> None:
        self.scheduler.says(process.name, f"answer {result.status} {result.version} {dict(result.ranges)}")
        log = self.raw()
        if result.batches:
            checks.check_answer(log, result, run_key)
            checks.check_published(log, result.version)
            self.answers.append((run_key, result))
        else:  # another process of the same run may have found something since this one looked, but not before it began
            known = [v for v in log.of_run(run_key) if v <= process.began_at and v in log.committed]
            require(not known, "an empty answer of a run that committed", result, known)
        checks.check_announced(log, result, run_key)
        self.announced.update(range(*result.versions))
        self.fixture.check(log)

    # --- how processes end

    def ended(self, process: Process) -> None:
        if process.ended == "failed":
            self.excuse(process)
        if process.ended == "died":
            self.lose_files(process)
        if process.retry is not None and process.ended != "answered":
            self.restarts.append(process.retry)

    def excuse(self, process: Process) -> None:
        """A process may fail for want of an answer, or because what a person asked for is not so (any more); for nothing else."""
        error = process.error
        if not self.fixture.excuses(process, error, self.raw()):
            raise Violation(f"{process.name} failed: {type(error).__name__}: {error}") from error
        if isinstance(error, PublishError) and self.rng.random() < 0.5:
            self.waiting.insert(0, "skip")

    def lose_files(self, process: Process) -> None:
        """A machine died, and a file of its undecided attempt with it, if nobody who lives has seen the manifest."""
        version = self.raw().open
        if version is None or self.scheduler.weather.calm or self.scheduler.under_way(keys.outcome(version)):
            return
        prefix = keys.attempts(version) + process.name
        seen = {key for other in self.scheduler.live for key in other.manifests}
        mine = [s.key for s in self.summary.list(prefix) if s.key not in seen]
        for key in mine:
            prefix = keys.data_prefix(version, key.split("/")[-1].removesuffix(".json"))
            staged = [path for location in self.fixture.locations() for path in sorted((location / prefix).glob("*"))]
            for path in self.rng.sample(staged, self.rng.randrange(1, len(staged))) if len(staged) > 1 else staged:
                if self.rng.random() < 0.5:
                    path.unlink()
                else:
                    path.write_bytes(path.read_bytes()[:-1])
                self.count["staged files lost with their machine"] += 1
                self.scheduler.says("(world)", f"{process.name} lost what it had staged of {version}")

    # --- from start to end

    def play(self) -> None:
        """The whole simulation, and all that must be true afterwards."""
        with turning_directories(self.scheduler, str(self.root / "log")), self.fixture.turning():
            for _ in range(self.rng.randrange(1, 4)):
                self.arrive()
            self.scheduler.run(self.tick, self.ended, self.more)
            self.settle()
            self.check()

    def settle(self) -> None:
        """The faults stop, what is under way lands, and a last drain reads all there is."""
        self.scheduler.weather.calm = True
        self.scheduler.land(everything=True)
        self.arrive()
        self.scheduler.says("(world)", "calm")
        last = run_batch(self.pipelines[0], run_key="last", drain=True, engine=RowsEngine(), log=self.by_hand("last"))
        self.answers.append(("last", last))
        self.announced.update(range(*last.versions))
        for n, (run_key, result) in enumerate(dict(self.answers).items()):
            if run_key in (*SINGLES, *DRAINS, *REDOS, "last"):
                self.repeat(n, run_key, result)

    def repeat(self, n: int, run_key: str, result: RunResult) -> None:
        """A run again under the key that it was given: the same answer, and no work."""
        engine, log = RowsEngine(), self.by_hand(f"again{n}")
        stored = len(self.summary.history)
        if run_key in (*SINGLES, *DRAINS, "last"):
            again = run_batch(self.pipelines[0], run_key=run_key, drain=run_key not in SINGLES, engine=engine, log=log)
        else:
            again = reprocess(self.pipelines[0], self.raw().committed[0], run_key=run_key, engine=engine, log=log)
        require(again == result, "the same run was answered otherwise", again, result)
        require((engine.staged, len(self.summary.history)) == (0, stored), "an answered run did work again", run_key)

    def by_hand(self, name: str) -> CommitLog:
        return CommitLog(self.summary, ManualClock(self.scheduler.now_ms, name))

    def check(self) -> None:
        log = self.by_hand("check")
        raw = self.raw()
        require(raw.open is None, "a version stayed open")
        unnamed = {v for v in raw.committed if raw.plans[v]["run_key"].startswith("reprocess:")}
        silent = {*raw.committed} - self.announced - {v for v in unnamed if v > max(self.announced, default=-1)}
        require(not silent, "no answer announced these commits (A5)", silent)
        checks.check_runs(raw)
        checks.check_published(raw, len(raw.outcomes))
        for run_key, result in self.answers:
            checks.check_answer(raw, result, run_key)
        maintenance.vacuum(self.pipelines[0], log=log)
        opened = open_log(log, pipeline=self.pipelines[0])
        verdict = verify(opened)
        require(verdict.clean, "verify", *verdict.findings)
        require(verdict.orphans == 0, "vacuum left orphans", verdict.orphans)
        head = len(raw.outcomes) - 1
        self.fixture.check(raw)
        self.fixture.check_end(raw)
        for version in sorted({*self.readings, head}):
            files = [os.path.relpath(file.path, self.root / "out") for file in opened.files(version=version)]
            require(files == raw.visible(version), "the reader and the raw log differ", version)
            self.reading(version, files)


def scratch() -> Path:
    """A directory for the files of many simulations: in memory where the machine offers that."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="streamsem-simulation-", dir=memory if os.access(memory, os.W_OK) else None))


def simulate(seed: int, root: Path, before: Callable[[Simulation], None] = lambda simulation: None) -> Simulation:
    """
    Play one seed in a directory that is emptied first.

    :param before: may change the simulation before it starts
    :raises Violation: something that the protocol excludes was seen; names the seed and how to play it again
    """
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    simulation = Simulation(seed, root)
    before(simulation)
    logger = logging.getLogger("airflow_provider_streamsem")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with small_nodes():
            simulation.play()
    except Exception as error:
        violation = Violation(f"{error}\nAgain: python -m tests.simulation {seed} -v")
        violation.trace = simulation.scheduler.trace
        raise violation from error
    finally:
        logger.setLevel(level)  # tests of what is logged share this process
    return simulation
