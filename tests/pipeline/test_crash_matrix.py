"""
Every step of a run × a death × who goes on afterwards, and every request × every other fault. Enumerated: steps and requests are counted first, and a run in
which the chosen one is not reached fails the test.

Afterwards, always: one outcome a version, ``verify`` clean, every row visible once, and the same run key answers the same again.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Pipeline, RunResult
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import SteppedStore, Steps
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture, TableSink
from tests.pipeline_fixture import PipelineFixture

ANSWERS = (Fault.LOST_REPLY, Fault.CONFLICT, Fault.APPLIED_LATE)
PAUSES = (Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)
NEVER = 10**9


def first_batch(fixture: PipelineFixture) -> dict[str, Any]:
    """The pipeline itself is created in this run."""
    fixture.arrive(2)
    return {}


def later_batch(fixture: PipelineFixture) -> dict[str, Any]:
    """A single batch on a log that exists."""
    fixture.arrive(2, bad_lines=1)
    fixture.run("earlier")
    fixture.arrive(2, bad_lines=1)
    return {}


def drain(fixture: PipelineFixture) -> dict[str, Any]:
    """Two batches towards a target."""
    fixture.arrive(1)
    fixture.run("earlier")
    fixture.arrive(3)
    return {"drain": True}


def resumed_drain(fixture: PipelineFixture) -> dict[str, Any]:
    """A drain that died in its second batch, run again."""
    fixture.arrive(4)

    fixture.dies("run", drain=True, batch=2)
    fixture.arrive(1)
    return {"drain": True}


def behind_another_run(fixture: PipelineFixture) -> dict[str, Any]:
    """Another run's version is open and must be finished first."""
    fixture.arrive(3)

    fixture.dies("other")
    return {}


def reprocessed(fixture: PipelineFixture) -> dict[str, Any]:
    """A committed version reprocessed."""
    fixture.arrive(4)
    fixture.run("earlier", drain=True)
    fixture.run("first reprocessing run", reprocessed=0)
    fixture.arrive(1)
    return {"reprocessed": 0}


def reprocessed_behind_another_reprocess(fixture: PipelineFixture) -> dict[str, Any]:
    """A reprocessing run of the same version is open: it is finished first, and then itself replaced."""
    fixture.arrive(2)
    fixture.run("earlier")
    fixture.dies("other", reprocessed=0)
    fixture.arrive(1)
    return {"reprocessed": 0}


def behind_an_owing_commit(fixture: PipelineFixture) -> dict[str, Any]:
    """Another run has decided its version and died before a table got it."""
    fixture.arrive(3)
    with TableSink.dying("before publish table"):
        fixture.run("other")
    return {}


class ForgivingFixture(PipelineFixture):
    """What is gone becomes a gap."""

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"on_data_loss": "record_gap", **changes})


def behind_a_file_that_was_moved(fixture: PipelineFixture) -> dict[str, Any]:
    """Another run's version is open, and a file of it lies elsewhere now: the version is aborted, and its range planned anew."""
    fixture.arrive(3)
    fixture.dies("other")
    (fixture.root / "in" / "00000.json").rename(fixture.root / "in" / "moved.json")
    return {}


@dataclass(frozen=True)
class Scene:
    """What stands there before the run, and what the run is asked."""

    prepare: Callable[[PipelineFixture], dict[str, Any]]
    fixture: type[PipelineFixture] = PipelineFixture

    def __str__(self) -> str:
        return self.prepare.__name__ + ("_publishing" if self.fixture is PublishingFixture else "")


SCENES = [
    Scene(first_batch),
    Scene(later_batch),
    Scene(drain),
    Scene(resumed_drain),
    Scene(behind_another_run),
    Scene(reprocessed),
    Scene(reprocessed_behind_another_reprocess),
    Scene(behind_a_file_that_was_moved, ForgivingFixture),
    Scene(first_batch, PublishingFixture),
    Scene(drain, PublishingFixture),
    Scene(behind_another_run, PublishingFixture),
    Scene(behind_an_owing_commit, PublishingFixture),
    Scene(reprocessed_behind_another_reprocess, PublishingFixture),
]


class Stage:
    """A scene prepared once; each case starts from a copy of it."""

    def __init__(self, scene: Scene, root: Path) -> None:
        self._prepared = scene.fixture(root / "world")
        self.work = scene.prepare(self._prepared)
        assert isinstance(self._prepared.store, MemoryStore)
        self._objects = {stat.key: self._prepared.store.read(stat.key) or b"" for stat in self._prepared.store.list("")}
        self._returned = [*self._prepared.returned]
        self._processes = next(self._prepared.clocks)
        self._died: set[str] = set()
        self._settled: set[str] = set()
        self._saved = root / "saved"
        shutil.copytree(root / "world", self._saved)

    def fixture(self) -> PipelineFixture:
        shutil.rmtree(self._prepared.root)
        shutil.copytree(self._saved, self._prepared.root)  # keeps times of modification
        assert isinstance(self._prepared.store, MemoryStore)
        self._prepared.store._objects.clear()
        self._prepared.store._objects.update(self._objects)
        self._prepared.returned = [*self._returned]
        self._prepared.clocks = count(self._processes)
        return self._prepared

    def world(self, fixture: PipelineFixture) -> str:
        """
        A digest of all objects, files, tables and results. What follows depends on nothing else, so it is tested once for each world.

        Most steps and requests read. A process that dies there leaves the same world as one that dies at the step before.
        """
        digest = hashlib.sha256()
        for stat in fixture.store.list(""):
            digest.update(stat.key.encode() + b"\0" + (fixture.store.read(stat.key) or b"") + b"\0")
        for path in sorted(path for path in fixture.root.rglob("*") if path.is_file()):
            digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
        digest.update(repr(fixture.returned).encode())
        return digest.hexdigest()

    def run(self, fixture: PipelineFixture, **changes: Any) -> RunResult:
        return fixture.run(**{"run_key": "run", **self.work, **changes})

    def requests(self, fault: Fault) -> list[int]:
        """The indexes of the requests of a run at which the fault has an effect of its own."""
        fixture = self.fixture()
        store = FaultyStore(fixture.store, NEVER, fault)
        self.run(fixture, store=store)
        return store.indexes(fault)

    def step(self, fixture: PipelineFixture, steps: Steps) -> RunResult:
        with TableSink.step_by_step(steps):
            return self.run(fixture, store=SteppedStore(fixture.store, steps), engine=RowsEngine(steps))

    def deaths(self) -> Iterator[PipelineFixture]:
        """The different worlds in which the run died, at any step."""
        for _, fixture in self.every_death():
            if (world := self.world(fixture)) not in self._died:
                self._died.add(world)
                yield fixture

    def every_death(self) -> Iterator[tuple[int, PipelineFixture]]:
        """For each step, its number and a world in which the run died there."""
        alone = Steps()
        self.step(self.fixture(), alone)
        for at in range(len(alone.taken)):
            fixture = self.fixture()
            with pytest.raises(Crash):
                self.step(fixture, Steps(at))
            yield at, fixture

    def settle(self, fixture: PipelineFixture) -> None:
        """Whoever died is started again; then nothing changes any more and all is right."""
        if (world := self.world(fixture)) in self._settled:
            return
        self._settled.add(world)
        first = self.run(fixture)
        head = fixture.opened().head
        engine = RowsEngine()
        assert self.run(fixture, engine=engine) == first
        assert (engine.staged, fixture.opened().head) == (0, head)
        fixture.run("rest", drain=True)
        fixture.check()
        assert fixture.unannounced() == []


@pytest.mark.parametrize("scene", SCENES, ids=str)
class TestEveryRequest:
    @pytest.fixture
    def stage(self, scene: Scene, tmp_path: Path) -> Stage:
        return Stage(scene, tmp_path)

    def test_crash_then_a_new_process(self, stage: Stage) -> None:
        for fixture in stage.deaths():
            stage.settle(fixture)

    def test_crash_then_another_run_first(self, stage: Stage) -> None:
        for fixture in stage.deaths():
            fixture.run("another")
            stage.settle(fixture)

    def test_crash_of_a_run_that_never_comes_back_leaves_no_version_unannounced(self, stage: Stage) -> None:
        before = {stat.key for stat in stage.fixture().store.list("announced/")}
        for fixture in stage.deaths():
            # From here to Airflow's own record of the success, only the run's retry can announce.
            if {stat.key for stat in fixture.store.list("announced/")} != before:
                stage.run(fixture)
            fixture.run("rest", drain=True)
            fixture.check()
            assert fixture.unannounced() == []

    @pytest.mark.parametrize("fault", ANSWERS, ids=lambda fault: fault.name)
    def test_bad_answer_then_the_same_process_goes_on(self, stage: Stage, fault: Fault) -> None:
        for at in stage.requests(fault):
            fixture = stage.fixture()
            store = FaultyStore(fixture.store, at, fault)
            stage.run(fixture, store=store)
            assert store.reached
            stage.settle(fixture)

    @pytest.mark.parametrize("other", ["run", "another"])
    @pytest.mark.parametrize("fault", [*ANSWERS, *PAUSES], ids=lambda fault: fault.name)
    def test_both_at_once(self, stage: Stage, fault: Fault, other: str) -> None:
        """While one process waits at a request, a second one (a retry of the same run, or another run) goes all the way."""
        for at in stage.requests(fault):
            fixture = stage.fixture()
            store = FaultyStore(
                fixture.store, at, fault, other_processes=lambda fixture=fixture: stage.run(fixture, run_key=other)
            )
            stage.run(fixture, store=store)
            assert store.reached
            stage.settle(fixture)

    def test_crash_of_a_retry_of_a_crash(self, stage: Stage) -> None:
        for at, fixture in stage.every_death():
            again = Steps(at)
            try:
                stage.step(fixture, again)
            except Crash:
                assert again.died
            stage.settle(fixture)


@pytest.mark.parametrize("step", ["read", "transform", "write out", "collect out", "staged"])
@pytest.mark.parametrize("other", ["run", "another"])
def test_zombie_at_every_step_of_staging(tmp_path: Path, step: str, other: str) -> None:
    """A process stops in the middle of staging, another goes all the way, then the first goes on: one outcome, its own files are orphans."""
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(3)

    def pauses(name: str) -> None:
        if name == step and zombie.staged == 1:
            fixture.run(other, drain=True)

    zombie = RowsEngine(pauses)
    result = fixture.run("run", engine=zombie)
    assert result.status == ("committed" if other == "run" else "empty") or result.version >= 0
    fixture.run("rest", drain=True)
    fixture.check()


@pytest.mark.parametrize("step", ["read", "transform", "write out", "collect out", "staged"])
def test_crash_at_every_step_of_staging(tmp_path: Path, step: str) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(3)

    for _ in range(3):
        fixture.dies("run", drain=True, at=step)
    assert fixture.opened().head == -1
    assert fixture.run("run", drain=True).ranges == {"files": (0, 3)}
    fixture.check()
