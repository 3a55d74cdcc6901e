"""
Crashes and faults at every step and request of a run.

The matrix is every step × a crash × the run that continues, and every request × every other fault. Steps and requests
are counted first. A run that does not reach the chosen one fails the test.

Checks after each case: each version has one outcome, ``verify`` has no violations, every row is visible once, and the
same run key returns the same result again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Pipeline, RunResult
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import StepReportingStore, Steps
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture, TableSink
from tests.pipeline_fixture import PipelineFixture
from tests.prepared_directory import PreparedDirectory

BAD_REPLIES = (Fault.LOST_REPLY, Fault.CONFLICT, Fault.APPLIED_LATE)
NEVER = 10**9


def first_batch(fixture: PipelineFixture) -> dict[str, Any]:
    """The run creates the log."""
    fixture.arrive(2)
    return {}


def later_batch(fixture: PipelineFixture) -> dict[str, Any]:
    """The run commits a single batch on an existing log."""
    fixture.arrive(2, bad_lines=1)
    fixture.run("earlier")
    fixture.arrive(2, bad_lines=1)
    return {}


def drain(fixture: PipelineFixture) -> dict[str, Any]:
    """The run drains two batches."""
    fixture.arrive(1)
    fixture.run("earlier")
    fixture.arrive(3)
    return {"drain": True}


def resumed_drain(fixture: PipelineFixture) -> dict[str, Any]:
    """The run retries a drain that died in its second batch."""
    fixture.arrive(4)

    fixture.dies("run", drain=True, batch=2)
    fixture.arrive(1)
    return {"drain": True}


def open_version_of_another_run(fixture: PipelineFixture) -> dict[str, Any]:
    """The run must first complete the open version of another run."""
    fixture.arrive(3)

    fixture.dies("other")
    return {}


def reprocessed(fixture: PipelineFixture) -> dict[str, Any]:
    """The run reprocesses a version that was reprocessed before."""
    fixture.arrive(4)
    fixture.run("earlier", drain=True)
    fixture.run("first reprocessing run", reprocessed=0)
    fixture.arrive(1)
    return {"reprocessed": 0}


def open_reprocessing_run(fixture: PipelineFixture) -> dict[str, Any]:
    """The run first completes an open reprocessing run of the same version and then replaces it."""
    fixture.arrive(2)
    fixture.run("earlier")
    fixture.dies("other", reprocessed=0)
    fixture.arrive(1)
    return {"reprocessed": 0}


def pending_publish_of_another_run(fixture: PipelineFixture) -> dict[str, Any]:
    """Another run committed its version and died before it published to the table."""
    fixture.arrive(3)
    with TableSink.dying("before publish table"):
        fixture.run("other")
    return {}


class GapRecordingFixture(PipelineFixture):
    """Records missing files as gaps."""

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"on_data_loss": "record_gap", **changes})


def moved_file_of_an_open_version(fixture: PipelineFixture) -> dict[str, Any]:
    """A file of another run's open version was moved. The run aborts the version and plans its range again."""
    fixture.arrive(3)
    fixture.dies("other")
    (fixture.root / "in" / "00000.json").rename(fixture.root / "in" / "moved.json")
    return {}


@dataclass(frozen=True)
class Scenario:
    """The state of the pipeline before the run, and the arguments of the run."""

    prepare: Callable[[PipelineFixture], dict[str, Any]]
    fixture: type[PipelineFixture] = PipelineFixture

    def __str__(self) -> str:
        return self.prepare.__name__ + ("_publishing" if self.fixture is PublishingFixture else "")


SCENARIOS = [
    Scenario(first_batch),
    Scenario(later_batch),
    Scenario(drain),
    Scenario(resumed_drain),
    Scenario(open_version_of_another_run),
    Scenario(reprocessed),
    Scenario(open_reprocessing_run),
    Scenario(moved_file_of_an_open_version, GapRecordingFixture),
    Scenario(first_batch, PublishingFixture),
    Scenario(drain, PublishingFixture),
    Scenario(open_version_of_another_run, PublishingFixture),
    Scenario(pending_publish_of_another_run, PublishingFixture),
    pytest.param(Scenario(open_reprocessing_run, PublishingFixture), marks=pytest.mark.prove),
]


class PreparedScenario:
    """Prepares a scenario once. Each case starts from a copy of it."""

    def __init__(self, scenario: Scenario, root: Path) -> None:
        self._prepared = scenario.fixture(root / "pipeline")
        self.arguments = scenario.prepare(self._prepared)
        assert isinstance(self._prepared.store, MemoryStore)
        self.objects = {stat.key: self._prepared.store.read(stat.key) or b"" for stat in self._prepared.store.list("")}
        self._returned = [*self._prepared.returned]
        self._processes = next(self._prepared.clocks)
        self._crashed: set[str] = set()
        self._checked: set[str] = set()
        self._directory = PreparedDirectory(root / "pipeline")

    def fixture(self) -> PipelineFixture:
        self._directory.restore()
        assert isinstance(self._prepared.store, MemoryStore)
        self._prepared.store.objects.clear()
        self._prepared.store.objects.update(self.objects)
        self._prepared.returned = [*self._returned]
        self._prepared.clocks = count(self._processes)
        return self._prepared

    def digest(self, fixture: PipelineFixture) -> str:
        """
        A digest of all objects, files, tables and results. The rest of the case depends on nothing else, so each digest is checked once.

        Most steps and requests only read. A process that dies there leaves the same state as one that dies at the step before.
        """
        digest = hashlib.sha256()
        for stat in fixture.store.list(""):
            digest.update(stat.key.encode() + b"\0" + (fixture.store.read(stat.key) or b"") + b"\0")
        for path in sorted(path for path in fixture.root.rglob("*") if path.is_file()):
            digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
        digest.update(repr(fixture.returned).encode())
        return digest.hexdigest()

    def run(self, fixture: PipelineFixture, **changes: Any) -> RunResult:
        return fixture.run(**{"run_key": "run", **self.arguments, **changes})

    def request_indexes(self, fault: Fault) -> list[int]:
        """The indexes of the requests at which the fault has a distinct effect."""
        fixture = self.fixture()
        store = FaultyStore(fixture.store, NEVER, fault)
        self.run(fixture, store=store)
        return store.indexes(fault)

    def run_step_by_step(self, fixture: PipelineFixture, steps: Steps) -> RunResult:
        with TableSink.step_by_step(steps):
            return self.run(fixture, store=StepReportingStore(fixture.store, steps), engine=RowsEngine(steps))

    def distinct_crashes(self) -> Iterator[PipelineFixture]:
        """The distinct states that a crash at any step leaves."""
        for _, fixture in self.every_crash():
            if (digest := self.digest(fixture)) not in self._crashed:
                self._crashed.add(digest)
                yield fixture

    def every_crash(self) -> Iterator[tuple[int, PipelineFixture]]:
        """For each step, its number and the state that a crash at this step leaves."""
        complete_run = Steps()
        self.run_step_by_step(self.fixture(), complete_run)
        for at in range(len(complete_run.taken)):
            fixture = self.fixture()
            with pytest.raises(Crash):
                self.run_step_by_step(fixture, Steps(at))
            yield at, fixture

    def retry_and_check(self, fixture: PipelineFixture) -> None:
        """Retry the run until it completes, and check that further retries change nothing and the log is correct."""
        if (digest := self.digest(fixture)) in self._checked:
            return
        self._checked.add(digest)
        first = self.run(fixture)
        head = fixture.opened().head
        engine = RowsEngine()
        assert self.run(fixture, engine=engine) == first
        assert (engine.staged, fixture.opened().head) == (0, head)
        fixture.run("rest", drain=True)
        fixture.check()
        assert fixture.unannounced() == []


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
class TestEveryRequest:
    @pytest.fixture
    def prepared(self, scenario: Scenario, tmp_path: Path) -> PreparedScenario:
        return PreparedScenario(scenario, tmp_path)

    def test_retry_after_a_crash_commits_each_row_once(self, prepared: PreparedScenario) -> None:
        for fixture in prepared.distinct_crashes():
            prepared.retry_and_check(fixture)

    def test_another_run_and_then_a_retry_after_a_crash_commit_each_row_once(self, prepared: PreparedScenario) -> None:
        for fixture in prepared.distinct_crashes():
            fixture.run("another")
            prepared.retry_and_check(fixture)

    def test_next_run_announces_the_versions_of_a_crashed_run_that_is_not_retried(
        self, prepared: PreparedScenario
    ) -> None:
        before = {stat.key for stat in prepared.fixture().store.list("announced/")}
        for fixture in prepared.distinct_crashes():
            # Once the announcement exists, only a retry of the same run can announce these versions.
            if {stat.key for stat in fixture.store.list("announced/")} != before:
                prepared.run(fixture)
            fixture.run("rest", drain=True)
            fixture.check()
            assert fixture.unannounced() == []

    @pytest.mark.parametrize("fault", BAD_REPLIES, ids=lambda fault: fault.name)
    def test_process_that_continues_after_a_bad_reply_commits_each_row_once(
        self, prepared: PreparedScenario, fault: Fault
    ) -> None:
        for at in prepared.request_indexes(fault):
            fixture = prepared.fixture()
            store = FaultyStore(fixture.store, at, fault)
            prepared.run(fixture, store=store)
            assert store.reached
            prepared.retry_and_check(fixture)

    @pytest.mark.parametrize("other", ["run", "another"])
    @pytest.mark.parametrize("fault", [*BAD_REPLIES, Fault.PAUSE_BEFORE], ids=lambda fault: fault.name)
    def test_two_concurrent_processes_commit_each_row_once(
        self, prepared: PreparedScenario, fault: Fault, other: str
    ) -> None:
        """
        While one process waits at a request, a second one (a retry of the same run, or another run) runs to its end.

        A process that pauses after a request leaves the same state as one that pauses before its next request.
        """
        for at in prepared.request_indexes(fault):
            fixture = prepared.fixture()
            store = FaultyStore(
                fixture.store, at, fault, other_processes=lambda fixture=fixture: prepared.run(fixture, run_key=other)
            )
            prepared.run(fixture, store=store)
            assert store.reached
            prepared.retry_and_check(fixture)

    def test_retry_that_crashes_at_the_same_step_number_commits_each_row_once(self, prepared: PreparedScenario) -> None:
        for at, fixture in prepared.every_crash():
            retry = Steps(at)
            try:
                prepared.run_step_by_step(fixture, retry)
            except Crash:
                assert retry.died
            prepared.retry_and_check(fixture)


@pytest.mark.parametrize("step", ["read", "transform", "write out", "collect out", "staged"])
@pytest.mark.parametrize("other", ["run", "another"])
def test_zombie_that_continues_at_a_step_of_staging_commits_nothing_twice(
    tmp_path: Path, step: str, other: str
) -> None:
    """
    A process pauses during staging, and another process runs to its end before the first continues.

    There is one outcome, and the files of the losing attempt are orphans.
    """
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(3)

    def run_other_process(name: str) -> None:
        if name == step and zombie.staged == 1:
            fixture.run(other, drain=True)

    zombie = RowsEngine(run_other_process)
    result = fixture.run("run", engine=zombie)
    assert (result.status, result.counts["read"]) == ("committed", 6)
    fixture.run("rest", drain=True)
    fixture.check()


@pytest.mark.parametrize("step", ["read", "transform", "write out", "collect out", "staged"])
def test_crash_at_every_step_of_staging_loses_no_records(tmp_path: Path, step: str) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(3)

    for _ in range(3):
        fixture.dies("run", drain=True, at=step)
    assert fixture.opened().head == -1
    assert fixture.run("run", drain=True).ranges == {"files": (0, 3)}
    fixture.check()
