"""
The product itself under a scheduler and a store that are drawn by a seed: every interleaving, every answer that a store may give.

``STREAMSEM_SIMULATION_BASE`` sets the first of the fresh seeds that ``make prove`` plays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_streamsem.testing.stores import Crash
from tests.simulation.faults import Fate
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.mutations_publish import PUBLISH_MUTATIONS
from tests.simulation.scenario import WORLDS, Simulation, scratch, simulate
from tests.simulation.scheduler import Process, Violation

SEEDS = 500
SEARCHED = 2_000
SEEDS_PER_TEST = 125
FRESH_SEEDS = 20_000
ROOT = Path(__file__).parents[2]

KINDS = {kind for fixture in WORLDS for kind in fixture.kinds if kind != "arrival"}
ENOUGH = {
    **{fate.name: 500 for fate in Fate if fate is not Fate.GOOD},
    **{f"started: {kind}": 300 for kind in KINDS},
    **{f"answered: {kind}": 200 for kind in KINDS},
    **{f"died: {kind}": 20 for kind in KINDS},
    "KILLED": 500,
    "adoptions": 100,
    "outcomes: commit": 2_000,
    "outcomes: abort": 100,
    "outcomes of reprocessing runs": 500,
    "lost creates of plans": 1_000,
    "lost creates of outcomes": 1_000,
    "quarantined rows": 500,
    "attempts vacuumed": 100,
    "deleted manifests": 50,
    "staged files lost with their machine": 50,
    "gave up: no answer": 500,
    "readings": 1_000,
    "files arrived": 5_000,
    "transactions applied": 500,
    "transactions refused": 100,
    "transactions that came too late": 30,
    "late transactions applied": 3,
    "tables: skipped": 10,
    "tables: nothing to apply": 50,
    "calls performed: once": 500,
    "calls performed: keyed": 500,
    "calls refused": 100,
    "calls deferred": 100,
    "rounds that left records": 50,
    "gave up: the rate is limited": 20,
    "calls whose key was known": 100,
    "effects: skipped": 3,
    "effects: unknown": 50,
    "gave up: claimed by another run": 20,
    "repeats dropped": 500,
    "ids forgotten after their time": 100,
}
"""event → how often it must occur in 2,000 seeds: without these events the seeds prove little"""


@pytest.fixture
def root() -> Iterator[Path]:
    location = scratch()
    yield location
    shutil.rmtree(location, ignore_errors=True)


def play(root: Path, first: int, seeds: int) -> Counter[str]:
    count: Counter[str] = Counter()
    for seed in range(first, first + seeds):
        count.update(simulate(seed, root / "world").count)
    print("\n".join(f"{n:9,} {what}" for what, n in sorted(count.items())))
    return count


def too_rare(count: Counter[str], seeds: int) -> dict[str, int]:
    """The events that occurred less than half as often as 2,000 seeds need, scaled to the seeds that were played."""
    return {what: count[what] for what, least in ENOUGH.items() if count[what] < least * seeds // 4_000}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_no_seed_violates_the_protocol(root: Path, first: int) -> None:
    count = play(root, first, SEEDS_PER_TEST)
    assert not too_rare(count, SEEDS_PER_TEST), "the simulation no longer reaches these events"


@pytest.mark.prove
@pytest.mark.timeout(7_200)
def test_no_fresh_seed_violates_the_protocol(root: Path) -> None:
    first = int(os.environ.get("STREAMSEM_SIMULATION_BASE") or int.from_bytes(os.urandom(5), "big"))
    print(f"STREAMSEM_SIMULATION_BASE={first}")
    count = play(root, first, FRESH_SEEDS)
    assert not too_rare(count, FRESH_SEEDS), "the simulation no longer reaches these events"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", [*MUTATIONS, *PUBLISH_MUTATIONS], ids=lambda mutation: mutation.apply.__name__)
def test_simulation_catches(root: Path, monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    mutation.apply(monkeypatch)
    assert any(sees(seed, root, mutation) for seed in mutation.seeds(SEARCHED)), "no seed saw it"


def sees(seed: int, root: Path, mutation: Mutation) -> bool:
    try:
        simulate(seed, root / "world")
    except Violation as violation:
        told = f"python -m tests.simulation {seed} -v" in str(violation)
        return told and re.search(mutation.seen, str(violation)) is not None
    return False


@pytest.mark.parametrize("seed", range(20))
def test_the_same_seed_does_the_same(root: Path, seed: int) -> None:
    first = simulate(seed, root / "world").scheduler.trace
    assert len(first) > 50
    assert simulate(seed, root / "elsewhere").scheduler.trace == first


def test_a_seed_is_played_again_from_the_command_line_whatever_the_hash_seed() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "3", "-v"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(told) == 1
    assert "all is as it must be" in told.pop()


def test_the_dead_do_nothing_more(root: Path) -> None:
    """A process that is killed unwinds, and whatever it tries on the way has no effect."""
    tried: list[str] = []

    def body(process: Process) -> None:
        try:
            process.log.create("a", b"{}")
        finally:
            for key in ("b", "c"):
                try:
                    process.log.create(key, b"{}")
                except Crash:
                    tried.append(key)

    simulation = Simulation(0, root)
    process = simulation.scheduler.start("single", body)
    process.greenlet.switch()
    simulation.scheduler.kill(process)
    assert (process.ended, tried) == ("died", ["b", "c"])
    assert simulation.summary.everything() == {}
