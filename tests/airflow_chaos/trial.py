"""Runs one trial on one database: injects faults for some minutes, drains the topic, and compares the visible rows with the expected rows."""

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
from tests.chaos.faults import draw
from tests.chaos.trial import Trial, compare, inject, keep_evidence

_MAX_FIRST_ORPHANS = 3  # orphan faults at the start of a trial, until one orphan survives


@dataclass
class AirflowTrial(Trial):
    """
    The result of a trial, with the effects of concurrent attempts.

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
        """Whether the trial is clean. A trial without an orphan concurrent with its retry proves nothing."""
        return super().is_clean and self.orphan_overlaps > 0


def run(database: str, minutes: float, seed: int, emit: Callable[[str], None]) -> AirflowTrial:
    """Run one trial in a new directory, which is kept if the trial is not clean."""
    home = Path(tempfile.mkdtemp(prefix=f"chaos-airflow-{database}-"))
    home.chmod(0o755)  # the database runs as another user
    trial = AirflowTrial(database, "", seed, minutes=minutes, schedulers=SCHEDULERS[database])
    rng = random.Random(seed)
    fixture = PipelineFixture(database, home, seed)
    with fixture.running():
        if not fixture.until(lambda: fixture.subject.commits() > 0, 240):
            raise RuntimeError(f"nothing was committed in four minutes without any fault; see {home}")
        deadline = time.monotonic() + 60 * minutes
        kinds = rounds(rng)
        kind = next(kinds)
        while True:
            trial.injections.append(inject(fixture, kind, FAULTS[kind], rng))
            emit(f"{database} {len(trial.injections)} {trial.injections[-1].summary}")
            if kind == ORPHAN and trial.orphans == 0 and len(trial.injections) < _MAX_FIRST_ORPHANS:
                continue  # a task that is sending a request to its supervisor dies with it
            if time.monotonic() > deadline:
                break
            kind = next(kinds)
        fixture.end_production()
        trial.drained = fixture.drain_rest()
        fixture.airflow.end()  # kill orphans, so that nothing is written after the comparison
        trial.overlaps = fixture.overlaps
        trial.both_wrote = sum(fixture.attempts_of(v) > 1 for v in {o.version for o in fixture.overlaps})
        compare(trial, fixture.subject.visible(), expected_rows(fixture.setting), fixture)
    return keep_evidence(trial, home)


def rounds(rng: random.Random) -> Iterator[str]:
    """Yield an orphan first, so that the shortest trial has one. Then repeat all kinds, each time in a new random order."""
    yield ORPHAN
    yield from draw([kind for kind in FAULTS if kind != ORPHAN], len(FAULTS) - 1, rng)
    while True:
        yield from draw(list(FAULTS), len(FAULTS), rng)
