"""One subject, some faults: inject, let it recover, look at what is visible, and hold the end against the truth."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.chaos.faults import FAULTS, NotInjectedError, drawn, kinds
from tests.chaos.subjects import subject_class
from tests.chaos.subjects.contract import Seen
from tests.chaos.truth import Truth, truth
from tests.chaos.world import Tended, World

W = TypeVar("W", bound=Tended)
T = TypeVar("T", bound="Trial")


@dataclass
class Injection:
    """
    One fault and what came of it until the next.

    :param moment: what the subject was about when it struck
    :param attempts: runners' tries that began from this fault to the look after it
    :param duplicates: visible once too often at the look after it, and not at the look before
    :param losses: records that the dataset had passed at the look after it, and not before, and that are not in it at the end
    """

    kind: str
    moment: str
    done: str = ""
    injected: bool = False
    attempts: int = 0
    duplicates: int = 0
    losses: int = 0
    reached: dict[int, int] = field(default_factory=dict)

    @property
    def in_words(self) -> str:
        return f"{self.kind} at {self.moment}: {self.done}; duplicates {self.duplicates}"


@dataclass
class Trial:
    """The outcome. `losses` and `duplicates` are those of the end; `foreign` rows are visible and not in the truth."""

    subject: str
    title: str
    seed: int
    injections: list[Injection] = field(default_factory=list)
    records: int = 0
    aborted: int = 0
    unknown: int = 0
    commits: int = 0
    tries: int = 0
    done: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    hung: int = 0
    drained: bool = False
    duplicates: int = 0
    losses: int = 0
    foreign: int = 0
    unreadable: int = 0
    findings: list[str] = field(default_factory=list)
    evidence: str = ""

    @property
    def is_clean(self) -> bool:
        wrong = self.duplicates or self.losses or self.foreign or self.unreadable or self.findings
        return self.drained and not wrong


def run(name: str, faults: int, seed: int, say: Callable[[str], None], *, only: Sequence[str] = ()) -> Trial:
    """
    One trial in a directory of its own, which is kept where the outcome is not clean.

    :param only: kinds of faults; empty for all that can happen to the subject
    """
    home = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    cls = subject_class(name)
    trial = Trial(name, cls.title, seed)
    chance = random.Random(seed)
    world = World(name, home, seed)
    with world.running():
        if not world.until(lambda: world.subject.commits() > 0, 240):
            raise RuntimeError(f"{name} committed nothing in four minutes without any fault; see {home}")
        for kind in drawn(list(only) or kinds(cls.needs), faults, chance):
            trial.injections.append(inject(world, kind, FAULTS[kind], chance))
            say(f"{name} {len(trial.injections)}/{faults} {trial.injections[-1].in_words}")
        world.until(lambda: False, 3)
        world.end_production()
        trial.drained = world.drain_rest()
        judge(trial, world.subject.visible(), truth(world.setting), world)
    return kept(trial, home)


def kept(trial: T, home: Path) -> T:
    """The trial, whose directory is kept where the outcome is not clean."""
    if trial.is_clean:
        shutil.rmtree(home, ignore_errors=True)
    else:
        trial.evidence = str(home)
    return trial


def inject(world: W, kind: str, fault: Callable[[W, random.Random], str], chance: random.Random) -> Injection:
    """Strike while the subject works, and look again when it has committed since."""
    world.pass_time(chance.uniform(0, 3))
    doubled = excess(world.subject.visible())
    world.until(world.is_busy, 60)
    if chance.random() < 0.5:
        world.until(world.subject.exposed(), 20, every_s=0.01)
    injection = Injection(kind, world.subject.moment())
    began = started(world)
    try:
        injection.done = fault(world, chance)
        injection.injected = True
    except NotInjectedError as error:
        injection.done = f"not injected: {error}"
    commits = world.subject.commits()
    world.until(lambda: world.subject.commits() > commits, 90)
    seen = world.subject.visible()
    injection.attempts = started(world) - began
    injection.duplicates = excess(seen) - doubled
    injection.reached = seen.reached
    return injection


def started(world: Tended) -> int:
    return sum(event["event"] == "started" for event in world.setting.said())


def excess(seen: Seen) -> int:
    return sum(count - 1 for count in seen.counts.values())


def judge(trial: Trial, seen: Seen, known: Truth, world: Tended) -> None:
    """Count against the truth; a loss belongs to the first fault after which the dataset had passed the record."""
    lost = [n for n in known.places if n not in seen.counts]
    trial.records, trial.aborted, trial.unknown = len(known.places), known.aborted, known.unknown
    trial.findings = known.findings + seen.findings
    trial.duplicates, trial.losses = excess(seen), len(lost)
    trial.foreign = sum(n not in known.places for n in seen.counts)
    trial.unreadable = len(seen.unreadable)
    for number in lost:
        ((partition, offset), *_) = known.places[number]
        for injection in trial.injections:
            if injection.reached.get(partition, -1) > offset:
                injection.losses += 1
                break
    said = world.setting.said()
    trial.commits, trial.hung, trial.tries = world.subject.commits(), world.hung, started(world)
    trial.done = sum(e["event"] == "done" for e in said)
    trial.failed = Counter(str(e["error"]) for e in said if e["event"] == "failed")
