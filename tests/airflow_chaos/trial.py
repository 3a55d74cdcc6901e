"""One trial on one database: faults for so many minutes, then the end of production, the rest drained, and the end held against the truth."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.airflow_chaos.faults import FAULTS, ORPHAN
from tests.airflow_chaos.world import SCHEDULERS, Overlap, World
from tests.chaos.faults import drawn
from tests.chaos.trial import Trial, inject, judge, kept
from tests.chaos.truth import truth

_ORPHANS = 3  # the most that a trial begins with, until one of them lives


@dataclass
class AirflowTrial(Trial):
    """
    The outcome, and what of it two attempts at once had a part in.

    :param overlaps: every meeting of two processes in one open version
    :param both_wrote: versions of such a meeting for which more than one attempt wrote files
    """

    minutes: float = 0
    schedulers: int = 1
    overlaps: list[Overlap] = field(default_factory=list)
    both_wrote: int = 0

    @property
    def orphans(self) -> int:
        """Supervisors that were killed, and whose tasks lived on."""
        return sum(i.kind == ORPHAN and i.injected for i in self.injections)

    @property
    def orphan_overlaps(self) -> int:
        return sum(o.orphaned for o in self.overlaps)

    @property
    def is_clean(self) -> bool:
        """A trial without an orphan beside its retry proves nothing."""
        return super().is_clean and self.orphan_overlaps > 0


def run(database: str, minutes: float, seed: int, say: Callable[[str], None]) -> AirflowTrial:
    """One trial in a directory of its own, which is kept where the outcome is not clean."""
    home = Path(tempfile.mkdtemp(prefix=f"chaos-airflow-{database}-"))
    home.chmod(0o755)  # the database runs as another user
    trial = AirflowTrial(database, "", seed, minutes=minutes, schedulers=SCHEDULERS[database])
    chance = random.Random(seed)
    world = World(database, home, seed)
    with world.running():
        if not world.until(lambda: world.subject.commits() > 0, 240):
            raise RuntimeError(f"nothing was committed in four minutes without any fault; see {home}")
        deadline = time.monotonic() + 60 * minutes
        kinds = rounds(chance)
        kind = next(kinds)
        while True:
            trial.injections.append(inject(world, kind, FAULTS[kind], chance))
            say(f"{database} {len(trial.injections)} {trial.injections[-1].in_words}")
            if kind == ORPHAN and trial.orphans == 0 and len(trial.injections) < _ORPHANS:
                continue  # a task in the midst of a request to its supervisor dies with it
            if time.monotonic() > deadline:
                break
            kind = next(kinds)
        world.end_production()
        trial.drained = world.drain_rest()
        world.airflow.end()  # whatever an orphan would still have done is done or never will be
        trial.overlaps = world.overlaps
        trial.both_wrote = sum(world.attempts_of(v) > 1 for v in {o.version for o in world.overlaps})
        judge(trial, world.subject.visible(), truth(world.setting), world)
    return kept(trial, home)


def rounds(chance: random.Random) -> Iterator[str]:
    """The orphan first, so that the shortest trial has one; then every kind once in an order of chance, and again in another."""
    yield ORPHAN
    yield from drawn([kind for kind in FAULTS if kind != ORPHAN], len(FAULTS) - 1, chance)
    while True:
        yield from drawn(list(FAULTS), len(FAULTS), chance)
