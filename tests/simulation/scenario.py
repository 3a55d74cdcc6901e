"""One simulation: a pipeline, concurrent processes on its log, and checks of all results."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from airflow_provider_streamsem import Limits, Pipeline, RunResult, alter, compact, reprocess, rollback, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import (
    ConflictError,
    InvalidError,
    OpenVersionError,
    PublishError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance import vacuum
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess_run
from airflow_provider_streamsem.pipeline.versions import announcement
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.kinds.registry import KINDS
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.readers.verify import verify
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.model import writes
from tests.simulation import checks
from tests.simulation.alters import AltersPipeline
from tests.simulation.checks import RawLog, require
from tests.simulation.disk import simulated_directories
from tests.simulation.effects import EffectsPipeline
from tests.simulation.rewrites import RewritesPipeline
from tests.simulation.rollback import RollbackPipeline, StatefulRollbackPipeline, TablesRollbackPipeline
from tests.simulation.scheduler import NAMES, Process, Scheduler, Violation
from tests.simulation.simulated_pipeline import DedupPipeline, PipelineFixture
from tests.simulation.stateful import StatefulPipeline
from tests.simulation.tables import TablesPipeline
from tests.small_nodes import small_nodes

SINGLES, DRAINS, REPROCESSES = ("single-a", "single-b"), ("drain-a", "drain-b"), ("reprocess-a", "reprocess-b")
FIXTURES: tuple[type[PipelineFixture], ...] = (
    *(
        PipelineFixture,
        TablesPipeline,
        PipelineFixture,
        EffectsPipeline,
        PipelineFixture,
        DedupPipeline,
        StatefulPipeline,
        RollbackPipeline,
    ),
    *(
        PipelineFixture,
        PipelineFixture,
        TablesRollbackPipeline,
        EffectsPipeline,
        PipelineFixture,
        DedupPipeline,
        StatefulPipeline,
        StatefulRollbackPipeline,
    ),
)
"""The pipelines of consecutive seeds, in a cycle. Slow ones occur less often."""


MODELLED = writes.stored()
REWRITE_SEEDS, ALTER_SEEDS = 2**50, 2**51
"""Seeds from here on simulate the pipeline that is compacted, or altered, and seeds below all others. So the traces of known seeds stay the same."""


def fixture_of(seed: int) -> type[PipelineFixture]:
    if seed >= ALTER_SEEDS:
        return AltersPipeline
    return FIXTURES[seed % len(FIXTURES)] if seed < REWRITE_SEEDS else RewritesPipeline


@dataclass
class Simulation:
    """
    A simulation of one seed. Two simulations of a seed have the same trace.

    :attr results: the results of runs in order, as (run key, result)
    :attr announced: the versions that a result announced
    :attr rolled_back_to: run key of a rollback → the version to which it returns
    :attr reads: version → files and ids that the first reader found
    """

    seed: int
    root: Path
    results: list[tuple[str, RunResult]] = field(default_factory=list)
    announced: set[int] = field(default_factory=set)
    rolled_back_to: dict[str, int] = field(default_factory=dict)
    reads: dict[int, tuple[list[str], Counter[int]]] = field(default_factory=dict)
    reprocessed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.scheduler = Scheduler(self.rng)
        self.store = self.scheduler.store
        self.count = self.scheduler.count
        self.fixture = fixture_of(self.seed)(self.root, self.scheduler)
        pipeline = self.fixture.pipeline()
        self.fixed = (pipeline, pipeline.replace(limits=Limits(max_files=1)))
        self.pending = [self.rng.choice(self.fixture.kinds) for _ in range(self.rng.randrange(*self.fixture.processes))]
        self.pending[0] = self.rng.choice(("single", "drain"))
        self.restarts: list[tuple[str, str]] = []
        self.failed: list[tuple[str, str]] = []

    # --- files and processes

    def add_file(self) -> None:
        """Write one more file. Some files have an mtime before that of earlier files, and some have a bad line."""
        n = self.fixture.files_added
        name = f"{n:03d}.json"
        bad = "{not json\n" if self.rng.random() < 0.2 else ""
        path = self.root / "in" / name
        path.write_text("".join(json.dumps({"id": i}) + "\n" for i in self.fixture.next_ids()) + bad)
        files_back = self.rng.choice((0, 0, 0, 3))
        mtime_ns = 1_700_000_000_000_000_000 + (n - files_back) * 1_000_000
        os.utime(path, ns=(mtime_ns, mtime_ns))
        self.count["files arrived"] += 1
        self.scheduler.record("(setup)", f"{name} arrives" + (" with a bad line" if bad else ""))

    @property
    def pipelines(self) -> tuple[Pipeline, Pipeline]:
        """The specs that processes have: those that fit the log, or in a few cases, those of another deployment."""
        if not isinstance(self.fixture, AltersPipeline):
            return self.fixed
        log = self.raw_log()
        is_other = log.outcomes and not self.scheduler.faults.stopped and self.rng.random() < 0.1
        return (self.fixture.other(log),) * 2 if is_other else self.fixture.current(log)

    def raw_log(self) -> RawLog:
        return checks.parse_log(self.store.snapshot())

    def has_pending(self) -> bool:
        """Whether more processes will start."""
        return bool(self.pending or self.restarts)

    def before_turn(self) -> None:
        """Start pending processes, and kill a running one at random."""
        scheduler = self.scheduler
        idle = not any(p.paused_until <= scheduler.turns for p in scheduler.live)
        if self.pending and (idle or self.rng.random() < 0.06):
            self.start(self.pending.pop(0))
        if self.restarts and (not self.pending or self.rng.random() < 0.03):
            self.start_run(*self.restarts.pop(0))
        if scheduler.live and not scheduler.faults.stopped and self.rng.random() < 0.002:
            scheduler.kill(self.rng.choice(scheduler.live))

    def start(self, kind: str) -> None:
        if (
            kind in ("reprocess", "named reprocess", "reader", "vacuum", "rollback", "compact", "alter")
            and self.store.closed < (2 if kind in ("rollback", "compact", "alter") else 0)
            and (self.rng.random() < 0.9 or kind in ("rollback", "compact", "alter"))
        ):
            # Too few versions exist yet, so this process starts later. A few start anyway.
            if self.store.closed < 0 or self.scheduler.live:
                self.pending.append(kind)
            if self.scheduler.live:
                return
            if self.store.closed < 0:
                kind = "drain"
        complete = sorted({key for key, _ in self.results if key in (*SINGLES, *DRAINS)})
        if kind == "clear to reprocess" and not complete:
            kind = "single"
        if kind == "arrival":
            self.add_file()
        elif kind in ("single", "drain"):
            if self.rng.random() < 0.5:
                self.add_file()
            self.start_run("run", self.rng.choice(SINGLES if kind == "single" else DRAINS))
        elif kind == "named reprocess":
            self.start_run("reprocess", self.rng.choice(REPROCESSES))
        elif kind == "clear to reprocess":
            self.count["requests"] += 1
            self.start_run("clear", f"{self.rng.choice(complete)}#{self.count['requests']}")
        else:
            body: Callable[[Process], Any] = {
                "reprocess": self.reprocess_without_run_key,
                "abort": self.abort,
                "vacuum": self.vacuum,
                "reader": self.read,
                "rollback": self.roll_back,
                "compact": self.compact,
                "alter": self.alter,
                "skip": self.skip,
            }[kind]
            self.scheduler.start(kind, body)

    def start_run(self, operation: str, run_key: str) -> None:
        if operation == "reprocess":
            self.scheduler.start("named reprocess", lambda process: self.reprocess_with_run_key(process, run_key))
        elif operation == "clear":
            self.scheduler.start("clear to reprocess", lambda process: self.clear(process, run_key))
        else:
            kind = "drain" if run_key in DRAINS else "single"
            self.scheduler.start(kind, lambda process: self.run(process, run_key))

    # --- bodies of processes

    def engine(self, process: Process) -> RowsEngine:
        return self.fixture.engine(process.step)

    def run(self, process: Process, run_key: str) -> str:
        process.retry = ("run", run_key)
        self.fixture.run_keys[process.name] = run_key
        drain = run_key in DRAINS
        result = run_batch(
            self.rng.choice(self.pipelines), run_key=run_key, drain=drain, engine=self.engine(process), log=process.log
        )
        self.check_completed(process, result, run_key)
        return run_key

    def clear(self, process: Process, request: str) -> None:
        """
        Reprocess all versions of a complete run.

        If the process dies, its task is retried, or cleared once more, which is another request.

        :param request: the run key and the number of the request, such as ``single-a#1``
        """
        run_key, _, number = request.partition("#")
        self.count["requests"] += 1
        process.retry = ("clear", request if self.rng.random() < 0.5 else f"{run_key}#{self.count['requests']}")
        before = self.raw_log()
        result = self.request(run_key, number, self.engine(process), process.log)
        log = self.raw_log()
        self.scheduler.record(process.name, f"result {result.status} {result.version} {dict(result.ranges)}")
        checks.check_published(log, result.version)
        self.deliver(result, run_key, log)
        kept = log.kept(len(log.outcomes) - 1)
        # A run of which a version was rolled back may be incomplete. The request then completes it, and reprocesses nothing.
        was_complete = all(version in kept for version in log.versions_of_run(run_key) if version in log.outcomes)
        for version in before.versions_of_run(run_key):
            if was_complete and version in before.committed:
                requests = [v for v in log.committed if log.plans[v]["run_key"] == f"{run_key}#{number}:{version}"]
                require(requests, "a request has not reprocessed a version of its run", request, version)

    def request(self, run_key: str, number: str, engine: RowsEngine, log: CommitLog) -> RunResult:
        """Perform a request to reprocess all versions of a run."""
        return reprocess_run(
            self.pipelines[0], run_key=run_key, request=number, drain=run_key in DRAINS, engine=engine, log=log
        )

    def reprocess_with_run_key(self, process: Process, run_key: str) -> None:
        process.retry = ("reprocess", run_key)
        committed = self.raw_log().committed
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
        self.check_completed(process, result, run_key)

    def reprocess_without_run_key(self, process: Process) -> None:
        """Reprocess without a run key. The run always makes a new version, even if other runs reprocessed the commit."""
        before = self.raw_log()
        if not before.committed:
            return
        version = self.rng.choice(before.committed)
        result = reprocess(self.pipelines[0], version, engine=self.engine(process), log=process.log)
        self.check_completed(process, result, result.run_key)
        newest = before.newest_of_chain(version)
        require(result.version > newest, "a reprocessing run made no new version", process.name, result.version, newest)

    def abort(self, process: Process) -> None:
        for _ in range(40):  # an operator aborts a version that stays open
            if self.store.planned == self.store.closed:
                process.turn()
        record = process.log.read_pipeline()
        version = self.raw_log().open
        if record is not None and version is not None:
            outcome = abort(process.log, record, version, reason="requested")
            stored = self.raw_log().outcomes[version]
            require(stored["result"] == outcome.result, "abort result differs from the stored outcome", version)

    def vacuum(self, process: Process) -> None:
        for _ in range(self.fixture.vacuum_waits):
            if self.store.closed < self.fixture.vacuum_from:
                process.turn()
        if process.log.read_pipeline() is None:
            return
        for _ in range(8):  # its task is retried while a run has an open version
            with suppress(OpenVersionError):
                report = vacuum.vacuum(self.pipelines[0], log=process.log, **self.fixture.vacuum_arguments)
                self.count["attempts vacuumed"] += len(report.attempts)
                self.scheduler.record(process.name, f"vacuumed {[attempt for _, *attempt in report.attempts]}")
                self.pending[:0] = self.fixture.follow_a_vacuum if report.attempts else ()
                return
            self.wait_for_open_version(process)

    def wait_for_open_version(self, process: Process) -> None:
        """Wait a while until no version is open."""
        for _ in range(100):
            if self.store.planned > self.store.closed:
                process.turn()

    def compact(self, process: Process) -> None:
        """Rewrite the visible files. The rows do not change, and neither do the offsets."""
        for _ in range(8):  # its task is retried while a run has an open version
            self.wait_for_open_version(process)
            with suppress(OpenVersionError):
                for rewrite in compact(
                    self.pipelines[0], target_file_bytes=65_536, engine=self.engine(process), log=process.log
                ):
                    self.scheduler.record(process.name, f"rewrote {rewrite.files} files as version {rewrite.version}")
                    self.count["rewrites"] += 1
                return

    def alter(self, process: Process) -> None:
        """Add the second sink, or remove it. The offsets do not change."""
        assert isinstance(self.fixture, AltersPipeline)
        altered = alter(self.fixture.other(self.raw_log()), log=process.log)
        self.scheduler.record(process.name, f"altered as version {altered.version}")
        self.count["alters"] += altered.version is not None
        if altered.version is not None:
            log = self.raw_log()
            before, after = log.outcomes[altered.version - 1], log.outcomes[altered.version]
            require(after["next"] == before["next"], "an alter has other offsets", altered.version)

    def roll_back(self, process: Process) -> None:
        """Roll back to a closed version. The log then shows the files of that version, and continues at its offsets."""
        if self.store.closed < 0:
            return
        to = self.rng.choice(self.raw_log().kept(self.store.closed)[-5:])
        run_key = None if int(process.name[1:3]) % 2 else "rollback-a"  # some processes perform one request
        if run_key is not None:
            to = self.rolled_back_to.setdefault(run_key, to)
        for _ in range(8):  # a user waits until no version is open
            try:
                result = rollback(self.pipelines[0], to, run_key=run_key, log=process.log)
                break
            except (ConflictError, InvalidError) as error:
                if not any(reason in error.summary for reason in ("is open", "at the same time")):
                    raise
            self.wait_for_open_version(process)
        else:
            return
        self.scheduler.record(process.name, f"rolled back to {to} as {result.version}")
        if result.version is not None:
            self.count["rollbacks"] += 1
            self.count["rollbacks of tables"] += bool(self.raw_log().outcomes[result.version].get("publish"))
            log = self.raw_log()
            same_rows = log.visible_commits(result.version) == log.visible_commits(to)
            require(same_rows, "a rollback shows other rows", result, to)
            require(
                log.outcomes[result.version]["next"] == log.outcomes[to]["next"], "a rollback has other offsets", to
            )

    def skip(self, process: Process) -> None:
        """Skip the pending publish for one sink."""
        for _ in range(60):  # an operator skips when a commit has pending publishes
            if self.store.closed > self.store.published and (version := self.raw_log().pending_publish) is not None:
                break
            process.turn()
        else:
            return
        sink = self.rng.choice(self.fixture.external_sinks)
        receipts = skip(self.pipelines[0], version, sink=sink, reason="requested", log=process.log)
        stored = self.raw_log().receipts[version]
        require(plain(receipts)["sinks"] == stored["sinks"], "skip result differs from the stored receipts", version)

    def read(self, process: Process) -> None:
        """Read the head, then a fixed version twice. A version reads the same for every reader."""
        closed = self.store.closed
        if process.log.read_pipeline() is None:
            return
        opened = open_log(process.log)
        view = opened.view()
        is_possible = view.version <= self.store.closed and (process.saw_stale or closed <= view.version)
        require(is_possible, "a reader found a head that does not exist", view.version, closed, self.store.closed)
        self.check_read(view.version, [file.file.key for file in view.sink("out")])
        version = self.rng.choice([view.version, *self.reads])
        for _ in range(2):
            files = opened.files(version=version)
            self.check_read(version, [os.path.relpath(f.path, self.root / "out") for f in files if f.sink == "out"])
            self.count["versions read"] += 1

    def check_read(self, version: int, files: list[str]) -> None:
        if self.is_expired(version):  # while the reader was waiting for a turn
            return
        content = (files, self.fixture.ids(files))
        twice = content[1] and max(content[1].values()) > 1
        require(not (twice and self.fixture.unique_ids), "a reader found an id twice", version)
        require(
            self.reads.setdefault(version, content) == content, "a version reads differently than before (I7)", version
        )

    def is_expired(self, version: int) -> bool:
        """Whether vacuum may have deleted files of a version."""
        return version < max(
            (o.get("newest", {}).get("expire", 0) for o in self.raw_log().outcomes.values()), default=0
        )

    def check_completed(self, process: Process, result: RunResult, run_key: str) -> None:
        self.scheduler.record(process.name, f"result {result.status} {result.version} {dict(result.ranges)}")
        log = self.raw_log()
        if result.batches:
            checks.check_result(log, result, run_key)
            checks.check_published(log, result.version)
            self.results.append((run_key, result))
        else:  # another process of the same run may have committed after this one polled the source, but not before this one started
            known = [v for v in log.versions_of_run(run_key) if v <= process.head_at_start and v in log.committed]
            require(not known, "run result is empty but the run committed", result, known)
        checks.check_announced(log, result, run_key)
        self.deliver(result, run_key, log)
        self.fixture.check(log)

    def deliver(self, result: RunResult, run_key: str, log: RawLog) -> None:
        """Record the versions that a result names: those of its own run, and those of other runs."""
        start, end = result.versions
        keys = [log.plans[version]["run_key"].partition("#")[0] for version in sorted(log.plans)]
        own = [version for version, key in enumerate(keys) if key == run_key and start <= version < end]
        self.announced.update(own, (other.version for other in result.completed))

    # --- ends of processes

    def ended(self, process: Process) -> None:
        if process.ended == "failed":
            self.check_failure(process)
        if process.ended == "died":
            self.lose_files(process)
        is_final = isinstance(process.error, StreamsemError) and not process.error.retryable
        if process.retry is not None and process.ended != "completed":
            (self.failed if is_final else self.restarts).append(process.retry)
        if (
            process.ended != "completed"
            and process.name.endswith(".skip")
            and self.only_an_operator_can_publish(process)
        ):
            self.pending.append("skip")

    def check_failure(self, process: Process) -> None:
        """Check that a process failed only for a reason that the fixture allows."""
        error = process.error
        if not self.fixture.allows_failure(process, error, self.raw_log()):
            raise Violation(f"{process.name} failed: {type(error).__name__}: {error}") from error
        if isinstance(error, PublishError) and self.rng.random() < 0.5:
            self.pending.insert(0, "skip")
        if (
            isinstance(error, UnavailableError)
            and self.scheduler.faults.stopped
            and self.only_an_operator_can_publish(process)
        ):
            self.pending.append("skip")

    def only_an_operator_can_publish(self, process: Process) -> bool:
        """Whether a commit has pending publishes whose own run will not be retried. Another run may have claimed effects and died, and then waits (P5)."""
        log = self.raw_log()
        if self.pending or log.pending_publish is None:
            return False
        owner = log.plans[log.pending_publish]["run_key"]
        retries = [*self.restarts, process.retry, *(other.retry for other in self.scheduler.live)]
        return owner not in {retry[1] for retry in retries if retry is not None}

    def lose_files(self, process: Process) -> None:
        """Lose staged files of a process that died, as if its machine was lost, unless a live process has read the manifest."""
        version = self.raw_log().open
        if version is None or self.scheduler.faults.stopped or self.scheduler.in_flight(keys.outcome(version)):
            return
        prefix = keys.attempts(version) + next(ids for ids, name in NAMES.items() if name == process.name)
        known = {key for other in self.scheduler.live for key in other.manifests}
        unread = [s.key for s in self.store.list(prefix) if s.key not in known]
        for key in unread:
            attempt_id = key.split("/")[-1].removesuffix(".json")
            if self.fixture.loses_state(attempt_id, self.store):
                continue
            prefix = keys.data_prefix(version, attempt_id)
            staged = [path for location in self.fixture.locations() for path in sorted((location / prefix).glob("*"))]
            for path in self.rng.sample(staged, self.rng.randrange(1, len(staged))) if len(staged) > 1 else staged:
                if self.rng.random() < 0.5:
                    path.unlink()
                else:
                    path.write_bytes(path.read_bytes()[:-1])
                self.count["staged files lost with their machine"] += 1
                self.scheduler.record("(setup)", f"{process.name} lost staged files of version {version}")

    # --- the simulation

    def play(self) -> None:
        """Run the simulation and its checks."""
        with simulated_directories(self.scheduler, str(self.root / "log")), self.fixture.intercepted():
            try:
                for _ in range(self.rng.randrange(1, 4)):
                    self.add_file()
                self.scheduler.run(self.before_turn, self.ended, self.has_pending)
                self.settle()
                self.check()
            finally:
                self.scheduler.stop()

    def settle(self) -> None:
        """Stop the faults, apply late requests, drain the source, and repeat every run."""
        self.scheduler.faults.stopped = True
        self.scheduler.apply_late(also_future=True)
        self.add_file()
        self.scheduler.record("(setup)", "faults stop")
        last = run_batch(
            self.pipelines[0],
            run_key="last",
            drain=True,
            engine=self.fixture.engine(),
            log=self.log_without_faults("last"),
        )
        self.results.append(("last", last))
        self.deliver(last, "last", self.raw_log())
        for n, (operation, run_key) in enumerate(dict.fromkeys(self.failed)):
            # An operator clears the tasks that failed permanently. A task may have failed after it stored its announcement (A5).
            with suppress(
                InvalidError
            ):  # the state before the version was vacuumed, so the reprocessing run is refused again
                result = self.call(operation, run_key, self.fixture.engine(), self.log_without_faults(f"cleared{n}"))
                self.deliver(result, run_key.partition("#")[0], self.raw_log())
        for n, (run_key, result) in enumerate(dict(self.results).items()):
            if run_key in (*SINGLES, *DRAINS, *REPROCESSES, "last"):
                self.repeat(n, run_key, result)

    def repeat(self, n: int, run_key: str, result: RunResult) -> None:
        """Repeat a run with the same run key. It must return the same result without work."""
        raw = self.raw_log()
        if run_key in DRAINS and raw.is_below_target(run_key):
            return  # the process may have returned the result from before the rollback, and the run continues now
        engine, log = self.fixture.engine(), self.log_without_faults(f"repeat{n}")
        stored = len(self.store.history)
        repeated = self.call("reprocess" if run_key in REPROCESSES else "run", run_key, engine, log)
        require(repeated == result, "run result changed when the run was repeated", repeated, result)
        did_no_work = (engine.staged, len(self.store.history)) == (0, stored)
        require(did_no_work, "run result existed, but the repeated run did work", run_key)

    def call(self, operation: str, run_key: str, engine: RowsEngine, log: CommitLog) -> RunResult:
        if operation == "clear":
            return self.request(*run_key.split("#"), engine, log)
        if operation == "run":
            return run_batch(self.pipelines[0], run_key=run_key, drain=run_key not in SINGLES, engine=engine, log=log)
        return reprocess(self.pipelines[0], self.reprocessed[run_key], run_key=run_key, engine=engine, log=log)

    def log_without_faults(self, name: str) -> CommitLog:
        return CommitLog(self.store, ManualClock(self.scheduler.now_ms, name))

    def check(self) -> None:
        log = self.log_without_faults("check")
        raw = self.raw_log()
        require(raw.open is None, "a version is still open")
        # The next run announces what a rollback, a reprocessing run without run key, or a request that failed has committed after the last result.
        committed = [version for version in raw.committed if KINDS[raw.kind(version)].is_announced]
        keys = {version: raw.plans[version]["run_key"] for version in committed}
        of_others = {v for v, key in keys.items() if "#" in key or key.startswith(("reprocess:", "rollback"))}
        exempt = {version for version in of_others if version > max(self.announced, default=-1)}
        missing = {*committed} - self.announced - exempt
        require(not missing, "no run result announces these commits (A5)", missing)
        checks.check_runs(raw)
        checks.check_published(raw, len(raw.outcomes))
        for run_key, result in self.results:
            checks.check_result(raw, result, run_key)
        vacuum.vacuum(self.pipelines[0], log=log, **self.fixture.vacuum_arguments)
        raw = self.raw_log()  # vacuum may have let versions expire
        opened = open_log(log, pipeline=self.pipelines[0])
        verdict = verify(opened)
        require(verdict.clean, "verify", *verdict.violations)
        require(verdict.orphans == 0, "vacuum left orphans", verdict.orphans)
        head = len(raw.outcomes) - 1
        self.fixture.check(raw)
        self.fixture.check_end(raw)
        for version in sorted({version for version in self.reads if not self.is_expired(version)} | {head}):
            found = [file for file in opened.files(version=version) if file.sink == "out"]
            files = [os.path.relpath(file.path, self.root / "out") for file in found]
            require(files == raw.visible(version), "the reader and the raw log differ", version)
            self.check_read(version, files)
        unknown = writes.of_history(self.store.history) - MODELLED
        require(not unknown, "the model has no such write", *sorted(unknown))


def scratch() -> Path:
    """A temporary directory for simulations, in memory if the machine has ``/dev/shm``."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="streamsem-simulation-", dir=memory if os.access(memory, os.W_OK) else None))


def simulate(seed: int, root: Path, before: Callable[[Simulation], None] = lambda simulation: None) -> Simulation:
    """
    Simulate one seed in a directory. The directory is recreated first.

    :param before: called with the simulation before it starts
    :raises Violation: the protocol was violated. The message names the command that repeats the simulation
    """
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    simulation = Simulation(seed, root)
    before(simulation)
    logger = logging.getLogger("airflow_provider_streamsem")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        # Results list every version that they announce, so that the check of A5 can find a version that no result names.
        with small_nodes(), mock.patch.object(announcement, "LISTED", 10_000):
            simulation.play()
    except Exception as error:
        violation = Violation(f"{error}\nTo repeat: python -m tests.simulation {seed} -v")
        violation.trace = simulation.scheduler.trace
        raise violation from error
    finally:
        logger.setLevel(level)  # other tests in this process check log records
    return simulation
