"""One trial on one database: faults for some minutes, end of production, drain of the rest, and comparison with the expected rows."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.airflow_chaos.faults import FAULTS, ORPHAN
from tests.airflow_chaos.setup import SCHEDULERS, Overlap, PipelineFixture
from tests.chaos.expected import expected_rows
from tests.chaos.faults import drawn
from tests.chaos.trial import Trial, inject, judge, kept

_ORPHANS = 3  # how many orphan faults a trial starts with at most, until one orphan survives


@dataclass
class AirflowTrial(Trial):
    """
    The outcome, with the effects of two concurrent attempts.

    :param overlaps: every overlap of two processes in one open version
    :param both_wrote: versions of such overlaps for which more than one attempt wrote files
    """

    minutes: float = 0
    schedulers: int = 1
    overlaps: list[Overlap] = field(default_factory=list)
    both_wrote: int = 0

    @property
    def orphans(self) -> int:
        """Number of supervisors that were killed and whose tasks survived."""
        return sum(i.kind == ORPHAN and i.injected for i in self.injections)

    @property
    def orphan_overlaps(self) -> int:
        return sum(o.orphaned for o in self.overlaps)

    @property
    def is_clean(self) -> bool:
        """Whether the trial is clean. A trial without an orphan beside its retry proves nothing."""
        return super().is_clean and self.orphan_overlaps > 0


def run(database: str, minutes: float, seed: int, say: Callable[[str], None]) -> AirflowTrial:
    """Run one trial in a new directory, which is kept if the outcome is not clean."""
    home = Path(tempfile.mkdtemp(prefix=f"chaos-airflow-{database}-"))
    home.chmod(0o755)  # the database runs as another user
    trial = AirflowTrial(database, "", seed, minutes=minutes, schedulers=SCHEDULERS[database])
    chance = random.Random(seed)
    fixture = PipelineFixture(database, home, seed)
    with fixture.running():
        if not fixture.until(lambda: fixture.subject.commits() > 0, 240):
            raise RuntimeError(f"nothing was committed in four minutes without any fault; see {home}")
        deadline = time.monotonic() + 60 * minutes
        kinds = rounds(chance)
        kind = next(kinds)
        while True:
            trial.injections.append(inject(fixture, kind, FAULTS[kind], chance))
            say(f"{database} {len(trial.injections)} {trial.injections[-1].in_words}")
            if kind == ORPHAN and trial.orphans == 0 and len(trial.injections) < _ORPHANS:
                continue  # a task that is sending a request to its supervisor dies with it
            if time.monotonic() > deadline:
                break
            kind = next(kinds)
        fixture.end_production()
        trial.drained = fixture.drain_rest()
        fixture.airflow.end()  # kill orphans, so that nothing is written after the comparison
        trial.overlaps = fixture.overlaps
        trial.both_wrote = sum(fixture.attempts_of(v) > 1 for v in {o.version for o in fixture.overlaps})
        judge(trial, fixture.subject.visible(), expected_rows(fixture.setting), fixture)
    return kept(trial, home)


def rounds(chance: random.Random) -> Iterator[str]:
    """Yield an orphan first, so that the shortest trial has one. Then yield every kind once in a random order, and again in another."""
    yield ORPHAN
    yield from drawn([kind for kind in FAULTS if kind != ORPHAN], len(FAULTS) - 1, chance)
    while True:
        yield from drawn(list(FAULTS), len(FAULTS), chance)
