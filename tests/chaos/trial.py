"""One trial of a subject: inject faults, let it recover, read the visible rows, and compare the end with the expected rows."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.chaos.expected import Expected, expected_rows
from tests.chaos.faults import FAULTS, NotInjectedError, drawn, kinds
from tests.chaos.setup import PipelineFixture, Tended
from tests.chaos.subjects import subject_class
from tests.chaos.subjects.contract import VisibleRows

W = TypeVar("W", bound=Tended)
T = TypeVar("T", bound="Trial")


@dataclass
class Injection:
    """
    One fault and its effects until the next one.

    :param moment: the state of the subject at the time of the fault
    :param attempts: tries of runners that started between this fault and the next reading
    :param duplicates: additional duplicates in the reading after the fault
    :param losses: records that are missing at the end, and that the dataset had passed in the reading after the fault and not before
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
    """The outcome. `losses` and `duplicates` are those at the end. `foreign` rows are visible and not expected."""

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
    Run one trial in a new directory, which is kept if the outcome is not clean.

    :param only: kinds of faults; empty for all that are possible for the subject
    """
    home = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    cls = subject_class(name)
    trial = Trial(name, cls.title, seed)
    chance = random.Random(seed)
    fixture = PipelineFixture(name, home, seed)
    with fixture.running():
        if not fixture.until(lambda: fixture.subject.commits() > 0, 240):
            raise RuntimeError(f"{name} committed nothing in four minutes without any fault; see {home}")
        for kind in drawn(list(only) or kinds(cls.needs), faults, chance):
            trial.injections.append(inject(fixture, kind, FAULTS[kind], chance))
            say(f"{name} {len(trial.injections)}/{faults} {trial.injections[-1].in_words}")
        fixture.until(lambda: False, 3)
        fixture.end_production()
        trial.drained = fixture.drain_rest()
        judge(trial, fixture.subject.visible(), expected_rows(fixture.setting), fixture)
    return kept(trial, home)


def kept(trial: T, home: Path) -> T:
    """Delete the directory of a clean trial, and keep that of any other."""
    if trial.is_clean:
        shutil.rmtree(home, ignore_errors=True)
    else:
        trial.evidence = str(home)
    return trial


def inject(fixture: W, kind: str, fault: Callable[[W, random.Random], str], chance: random.Random) -> Injection:
    """Inject a fault while the subject works. Read again after the next commit."""
    fixture.pass_time(chance.uniform(0, 3))
    doubled = excess(fixture.subject.visible())
    fixture.until(fixture.is_busy, 60)
    if chance.random() < 0.5:
        fixture.until(fixture.subject.exposed(), 20, every_s=0.01)
    injection = Injection(kind, fixture.subject.moment())
    began = started(fixture)
    try:
        injection.done = fault(fixture, chance)
        injection.injected = True
    except NotInjectedError as error:
        injection.done = f"not injected: {error}"
    commits = fixture.subject.commits()
    fixture.until(lambda: fixture.subject.commits() > commits, 90)
    seen = fixture.subject.visible()
    injection.attempts = started(fixture) - began
    injection.duplicates = excess(seen) - doubled
    injection.reached = seen.reached
    return injection


def started(fixture: Tended) -> int:
    return sum(event["event"] == "started" for event in fixture.setting.read_events())


def excess(seen: VisibleRows) -> int:
    return sum(count - 1 for count in seen.counts.values())


def judge(trial: Trial, seen: VisibleRows, known: Expected, fixture: Tended) -> None:
    """Compare with the expected rows. A loss is attributed to the first fault after which the dataset had passed the record."""
    lost = [n for n in known.locations if n not in seen.counts]
    trial.records, trial.aborted, trial.unknown = len(known.locations), known.aborted, known.unknown
    trial.findings = known.findings + seen.findings
    trial.duplicates, trial.losses = excess(seen), len(lost)
    trial.foreign = sum(n not in known.locations for n in seen.counts)
    trial.unreadable = len(seen.unreadable)
    for number in lost:
        ((partition, offset), *_) = known.locations[number]
        for injection in trial.injections:
            if injection.reached.get(partition, -1) > offset:
                injection.losses += 1
                break
    events = fixture.setting.read_events()
    trial.commits, trial.hung, trial.tries = fixture.subject.commits(), fixture.hung, started(fixture)
    trial.done = sum(e["event"] == "done" for e in events)
    trial.failed = Counter(str(e["error"]) for e in events if e["event"] == "failed")
