"""Runs one trial of a subject: injects faults, drains the topic, and compares the visible rows with the expected rows."""

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
from tests.chaos.faults import FAULTS, NotInjectedError, draw, kinds
from tests.chaos.setup import PipelineFixture, SupervisedTrial
from tests.chaos.subjects import subject_class
from tests.chaos.subjects.contract import VisibleRows

W = TypeVar("W", bound=SupervisedTrial)
T = TypeVar("T", bound="Trial")


@dataclass
class Injection:
    """
    One fault and its effects until the next one.

    :param state: the state of the subject at the time of the fault
    :param attempts: tries of runners that started between this fault and the check after it
    :param duplicates: additional duplicates in the check after the fault
    :param losses: records that are missing at the end, and that the dataset was past in the check after the fault and not before
    """

    kind: str
    state: str
    action: str = ""
    injected: bool = False
    attempts: int = 0
    duplicates: int = 0
    losses: int = 0
    reached: dict[int, int] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        return f"{self.kind} at {self.state}: {self.action}; duplicates {self.duplicates}"


@dataclass
class Trial:
    """The result of a trial. `losses` and `duplicates` are those at the end. `foreign` rows are visible and not expected."""

    subject: str
    title: str
    seed: int
    injections: list[Injection] = field(default_factory=list)
    records: int = 0
    aborted: int = 0
    unknown: int = 0
    commits: int = 0
    tries: int = 0
    completed: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    hung: int = 0
    drained: bool = False
    duplicates: int = 0
    losses: int = 0
    foreign: int = 0
    unreadable: int = 0
    violations: list[str] = field(default_factory=list)
    evidence: str = ""

    @property
    def is_clean(self) -> bool:
        wrong = self.duplicates or self.losses or self.foreign or self.unreadable or self.violations
        return self.drained and not wrong


def run(name: str, faults: int, seed: int, emit: Callable[[str], None], *, only: Sequence[str] = ()) -> Trial:
    """
    Run one trial in a new directory, which is kept if the trial is not clean.

    :param only: kinds of faults; empty for all that are possible for the subject
    """
    home = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    cls = subject_class(name)
    trial = Trial(name, cls.title, seed)
    rng = random.Random(seed)
    fixture = PipelineFixture(name, home, seed)
    with fixture.running():
        if not fixture.until(lambda: fixture.subject.commits() > 0, 240):
            raise RuntimeError(f"{name} committed nothing in four minutes without any fault; see {home}")
        for kind in draw(list(only) or kinds(cls.needs), faults, rng):
            trial.injections.append(inject(fixture, kind, FAULTS[kind], rng))
            emit(f"{name} {len(trial.injections)}/{faults} {trial.injections[-1].summary}")
        fixture.until(lambda: False, 3)
        fixture.end_production()
        trial.drained = fixture.drain_rest()
        compare(trial, fixture.subject.visible(), expected_rows(fixture.setting), fixture)
    return keep_evidence(trial, home)


def keep_evidence(trial: T, home: Path) -> T:
    """Delete the directory of a clean trial. Record the directory of any other as evidence."""
    if trial.is_clean:
        shutil.rmtree(home, ignore_errors=True)
    else:
        trial.evidence = str(home)
    return trial


def inject(fixture: W, kind: str, fault: Callable[[W, random.Random], str], rng: random.Random) -> Injection:
    """Inject a fault while the subject is processing a batch, and check the visible rows after the next commit."""
    fixture.pass_time(rng.uniform(0, 3))
    duplicates_before = count_duplicates(fixture.subject.visible())
    fixture.until(fixture.is_busy, 60)
    if rng.random() < 0.5:
        fixture.until(fixture.subject.fault_condition(), 20, every_s=0.01)
    injection = Injection(kind, fixture.subject.state())
    started_before = count_started(fixture)
    try:
        injection.action = fault(fixture, rng)
        injection.injected = True
    except NotInjectedError as error:
        injection.action = f"not injected: {error}"
    commits = fixture.subject.commits()
    fixture.until(lambda: fixture.subject.commits() > commits, 90)
    visible = fixture.subject.visible()
    injection.attempts = count_started(fixture) - started_before
    injection.duplicates = count_duplicates(visible) - duplicates_before
    injection.reached = visible.reached
    return injection


def count_started(fixture: SupervisedTrial) -> int:
    return sum(event["event"] == "started" for event in fixture.setting.read_events())


def count_duplicates(visible: VisibleRows) -> int:
    return sum(count - 1 for count in visible.counts.values())


def compare(trial: Trial, visible: VisibleRows, expected: Expected, fixture: SupervisedTrial) -> None:
    """Compare with the expected rows. A loss is attributed to the first fault after which the dataset was past the record."""
    locations = fixture.subject.expected(expected.locations)
    lost = [n for n in locations if n not in visible.counts]
    trial.records, trial.aborted, trial.unknown = len(locations), expected.aborted, expected.unknown
    trial.violations = expected.violations + visible.violations
    trial.duplicates, trial.losses = count_duplicates(visible), len(lost)
    trial.foreign = sum(n not in locations for n in visible.counts)
    trial.unreadable = len(visible.unreadable)
    for number in lost:
        ((partition, offset), *_) = locations[number]
        for injection in trial.injections:
            if injection.reached.get(partition, -1) > offset:
                injection.losses += 1
                break
    events = fixture.setting.read_events()
    trial.commits, trial.hung, trial.tries = fixture.subject.commits(), fixture.hung, count_started(fixture)
    trial.completed = sum(e["event"] == "done" for e in events)
    trial.failed = Counter(str(e["error"]) for e in events if e["event"] == "failed")
