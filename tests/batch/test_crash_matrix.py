"""
Every step of a run × a death × who goes on afterwards, and every request × every other fault. Enumerated: steps and requests are counted first, and a run in
which the chosen one is not reached fails the test.

Afterwards, always: one outcome a version, ``verify`` clean, every row visible once, and the same run key answers the same again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Pipeline, RunResult
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import SteppedStore, Steps
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.outside import PublishingWorld, TableSink
from tests.worlds import World

ANSWERS = (Fault.LOST_REPLY, Fault.CONFLICT, Fault.ERROR_AFTER, Fault.APPLIED_LATE)
PAUSES = (Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)
NEVER = 10**9


def first_batch(world: World) -> dict[str, Any]:
    """The pipeline itself is created in this run."""
    world.arrive(2)
    return {}


def later_batch(world: World) -> dict[str, Any]:
    """A single batch on a log that exists."""
    world.arrive(2, bad_lines=1)
    world.run("earlier")
    world.arrive(2, bad_lines=1)
    return {}


def drain(world: World) -> dict[str, Any]:
    """Two batches towards a target."""
    world.arrive(1)
    world.run("earlier")
    world.arrive(3)
    return {"drain": True}


def resumed_drain(world: World) -> dict[str, Any]:
    """A drain that died in its second batch, run again."""
    world.arrive(4)

    world.dies("run", drain=True, batch=2)
    world.arrive(1)
    return {"drain": True}


def behind_another_run(world: World) -> dict[str, Any]:
    """Another run's version is open and must be finished first."""
    world.arrive(3)

    world.dies("other")
    return {}


def redone(world: World) -> dict[str, Any]:
    """A committed version made anew."""
    world.arrive(4)
    world.run("earlier", drain=True)
    world.run("first redo", redone=0)
    world.arrive(1)
    return {"redone": 0}


def redone_behind_another_redo(world: World) -> dict[str, Any]:
    """A redo of the same version is open: it is finished first, and then itself replaced."""
    world.arrive(2)
    world.run("earlier")
    world.dies("other", redone=0)
    world.arrive(1)
    return {"redone": 0}


def behind_an_owing_commit(world: World) -> dict[str, Any]:
    """Another run has decided its version and died before a table got it."""
    world.arrive(3)
    with TableSink.dying("before publish table"):
        world.run("other")
    return {}


class ForgivingWorld(World):
    """What is gone becomes a gap."""

    def pipeline(self, **changes: Any) -> Pipeline:
        return super().pipeline(**{"on_data_loss": "record_gap", **changes})


def behind_a_file_that_was_moved(world: World) -> dict[str, Any]:
    """Another run's version is open, and a file of it lies elsewhere now: the version is aborted, and its range planned anew."""
    world.arrive(3)
    world.dies("other")
    (world.root / "in" / "00000.json").rename(world.root / "in" / "moved.json")
    return {}


@dataclass(frozen=True)
class Scene:
    """What stands there before the run, and what the run is asked."""

    prepare: Callable[[World], dict[str, Any]]
    world: type[World] = World

    def __str__(self) -> str:
        return self.prepare.__name__ + ("_publishing" if self.world is PublishingWorld else "")


SCENES = [
    Scene(first_batch),
    Scene(later_batch),
    Scene(drain),
    Scene(resumed_drain),
    Scene(behind_another_run),
    Scene(redone),
    Scene(redone_behind_another_redo),
    Scene(behind_a_file_that_was_moved, ForgivingWorld),
    Scene(first_batch, PublishingWorld),
    Scene(drain, PublishingWorld),
    Scene(behind_another_run, PublishingWorld),
    Scene(behind_an_owing_commit, PublishingWorld),
    Scene(redone_behind_another_redo, PublishingWorld),
]


class Stage:
    """A scene prepared once; each case starts from a copy of it."""

    def __init__(self, scene: Scene, root: Path) -> None:
        self._prepared = scene.world(root / "world")
        self.work = scene.prepare(self._prepared)
        assert isinstance(self._prepared.store, MemoryStore)
        self._objects = {stat.key: self._prepared.store.read(stat.key) or b"" for stat in self._prepared.store.list("")}
        self._returned = [*self._prepared.returned]
        self._saved = root / "saved"
        shutil.copytree(root / "world", self._saved)

    def world(self) -> World:
        shutil.rmtree(self._prepared.root)
        shutil.copytree(self._saved, self._prepared.root)  # keeps times of modification
        assert isinstance(self._prepared.store, MemoryStore)
        self._prepared.store._objects.clear()
        self._prepared.store._objects.update(self._objects)
        self._prepared.returned = [*self._returned]
        return self._prepared

    def run(self, world: World, **changes: Any) -> RunResult:
        return world.run(**{"run_key": "run", **self.work, **changes})

    def requests(self) -> int:
        world = self.world()
        store = FaultyStore(world.store, NEVER, Fault.CONFLICT)
        self.run(world, store=store)
        return store.seen

    def step(self, world: World, steps: Steps) -> RunResult:
        with TableSink.stepped(steps):
            return self.run(world, store=SteppedStore(world.store, steps), engine=RowsEngine(steps))

    def deaths(self) -> Iterator[tuple[int, World]]:
        """For each step, its number and a world in which the run died there."""
        alone = Steps()
        self.step(self.world(), alone)
        for at in range(len(alone.taken)):
            world = self.world()
            with pytest.raises(Crash):
                self.step(world, Steps(at))
            yield at, world

    def settle(self, world: World) -> None:
        """Whoever died is started again; then nothing changes any more and all is right."""
        first = self.run(world)
        head = world.opened().head
        engine = RowsEngine()
        assert self.run(world, engine=engine) == first
        assert (engine.staged, world.opened().head) == (0, head)
        world.run("rest", drain=True)
        world.check()
        assert world.unannounced() == []


@pytest.mark.parametrize("scene", SCENES, ids=str)
class TestEveryRequest:
    @pytest.fixture
    def stage(self, scene: Scene, tmp_path: Path) -> Stage:
        return Stage(scene, tmp_path)

    def test_crash_then_a_new_process(self, stage: Stage) -> None:
        for _, world in stage.deaths():
            stage.settle(world)

    def test_crash_then_another_run_first(self, stage: Stage) -> None:
        for _, world in stage.deaths():
            world.run("another")
            stage.settle(world)

    def test_crash_of_a_run_that_never_comes_back_leaves_no_version_unannounced(self, stage: Stage) -> None:
        before = {stat.key for stat in stage.world().store.list("announced/")}
        for _, world in stage.deaths():
            # From here to Airflow's own record of the success, only the run's retry can announce.
            if {stat.key for stat in world.store.list("announced/")} != before:
                stage.run(world)
            world.run("rest", drain=True)
            world.check()
            assert world.unannounced() == []

    @pytest.mark.parametrize("fault", ANSWERS, ids=lambda fault: fault.name)
    def test_bad_answer_then_the_same_process_goes_on(self, stage: Stage, fault: Fault) -> None:
        for at in range(stage.requests()):
            world = stage.world()
            store = FaultyStore(world.store, at, fault)
            stage.run(world, store=store)
            assert store.reached
            stage.settle(world)

    @pytest.mark.parametrize("other", ["run", "another"])
    @pytest.mark.parametrize("fault", [*ANSWERS, *PAUSES], ids=lambda fault: fault.name)
    def test_both_at_once(self, stage: Stage, fault: Fault, other: str) -> None:
        """While one process waits at a request, a second one (a retry of the same run, or another run) goes all the way."""
        for at in range(stage.requests()):
            world = stage.world()
            store = FaultyStore(world.store, at, fault, meanwhile=lambda world=world: stage.run(world, run_key=other))
            stage.run(world, store=store)
            assert store.reached
            stage.settle(world)

    def test_crash_of_a_retry_of_a_crash(self, stage: Stage) -> None:
        for at, world in stage.deaths():
            again = Steps(at)
            try:
                stage.step(world, again)
            except Crash:
                assert again.died
            stage.settle(world)


@pytest.mark.parametrize("step", ["read", "transform", "write out", "collect out", "staged"])
@pytest.mark.parametrize("other", ["run", "another"])
def test_zombie_at_every_step_of_staging(tmp_path: Path, step: str, other: str) -> None:
    """A process stops in the middle of staging, another goes all the way, then the first goes on: one outcome, its own files are orphans."""
    world = World(tmp_path)
    world.arrive(3)

    def pauses(name: str) -> None:
        if name == step and zombie.staged == 1:
            world.run(other, drain=True)

    zombie = RowsEngine(pauses)
    result = world.run("run", engine=zombie)
    assert result.status == ("committed" if other == "run" else "empty") or result.version >= 0
    world.run("rest", drain=True)
    world.check()


@pytest.mark.parametrize("step", ["read", "transform", "write out", "collect out", "staged"])
def test_crash_at_every_step_of_staging(tmp_path: Path, step: str) -> None:
    world = World(tmp_path)
    world.arrive(3)

    for _ in range(3):
        world.dies("run", drain=True, at=step)
    assert world.opened().head == -1
    assert world.run("run", drain=True).ranges == {"files": (0, 3)}
    world.check()
