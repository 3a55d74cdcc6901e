"""What the log says: the head of a log for its writers, and a pure fold of it for its readers (R1, R4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_streamsem.errors import LogMovedError
from airflow_provider_streamsem.protocol import invariants, offsets
from airflow_provider_streamsem.protocol.entries import Marker, Outcome, Plan, Receipts, Segment, SegmentFile
from airflow_provider_streamsem.protocol.machine import VERSION, VersionState
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """
    The newest version that is known, and what the next plan needs of it.

    ``genesis`` is where version 0 starts: of its plan where that is stored, else of the caller's own source; empty where the caller has none.
    ``outcome`` and ``outcome_sha`` are those of the newest *closed* version (``None`` and ``""`` before the first); ``plan`` and ``plan_sha`` those
    of the open version after it, where there is one. ``owes``: the closed version is a commit whose receipts are not there yet.
    ``markers``: sink → the newest commit that set its marker, as far as receipts say: what the next outcome carries.
    """

    genesis: Offsets = field(default_factory=dict)
    outcome: Outcome | None = None
    outcome_sha: str = ""
    plan: Plan | None = None
    plan_sha: str = ""
    owes: bool = False
    markers: Mapping[str, Marker] = field(default_factory=dict)

    @property
    def closed(self) -> int:
        """The newest closed version; -1 before the first."""
        return -1 if self.outcome is None else self.outcome.version

    @property
    def next(self) -> Offsets:
        """Where the next plan starts."""
        return self.genesis if self.outcome is None else offsets.advance(self.genesis, self.outcome.next)

    @property
    def state(self) -> VersionState:
        """The state of the newest version that has anything stored."""
        state = VersionState.VOID
        for step in self._steps():
            state = VERSION[state, step]
        return state

    def _steps(self) -> tuple[str, ...]:
        if self.plan is not None:
            return ("plan",)
        if self.outcome is None:
            return ()
        return ("plan", self.outcome.result, *(["receipts"] if self.outcome.owes and not self.owes else []))

    def planned(self, plan: Plan, sha256: str) -> Head:
        """
        The head after Plan(closed + 1) was stored. Checks I2, I3 and I4.

        :raises LogMovedError: the plan is of the kind ``move``
        """
        if plan.kind == "move":
            what = "the log was moved to another place"
            raise LogMovedError(what, moved_to=plan.moved_to, version=plan.version)
        genesis = self.genesis if plan.genesis is None else plan.genesis
        invariants.check_i2_receipts(plan, owes=self.owes)
        invariants.check_i3_plan(plan, after=self.outcome_sha)
        invariants.check_i4(plan, closed=self.closed, next=self.next if self.outcome is not None else genesis)
        return replace(self, genesis=genesis, plan=plan, plan_sha=sha256)

    def decided(self, outcome: Outcome, sha256: str) -> Head:
        """The head after the outcome of its open plan was stored. Checks I2, I3, I4, I14 and I15."""
        invariants.check_i2(self.plan, outcome)
        assert self.plan is not None
        invariants.check_i3_outcome(outcome, plan_sha=self.plan_sha)
        invariants.check_carried(self.plan, outcome)
        invariants.check_next(self.plan, outcome, before=self.next)
        invariants.check_i14(outcome)
        invariants.check_i15(outcome, before=self.markers)
        return Head(
            genesis=self.genesis, outcome=outcome, outcome_sha=sha256, owes=outcome.owes, markers=outcome.markers
        )

    def published(self, receipts: Receipts) -> Head:
        """The head after the receipts of its newest commit were stored. Checks I15 and I18."""
        assert self.outcome is not None
        invariants.check_i18(receipts, self.outcome, outcome_sha=self.outcome_sha)
        invariants.check_i15_receipts(receipts, self.outcome)
        return replace(self, plan=None, plan_sha="", owes=False, markers=receipts.markers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """
    The log folded up to one version: which files are visible, and the totals.

    ``version`` is -1 for an empty log. ``files`` is in order of versions. ``counts`` are net of what redos replaced.
    """

    version: int = -1
    next: Offsets = field(default_factory=dict)
    commits: int = 0
    aborts: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    files: tuple[SegmentFile, ...] = ()

    def sink(self, name: str) -> tuple[SegmentFile, ...]:
        """The visible files of one sink."""
        return tuple(f for f in self.files if f.sink == name)


def visible(outcome: Outcome) -> list[SegmentFile]:
    """The files that one outcome makes visible: none for an abort."""
    if not outcome.committed:
        return []
    return [
        SegmentFile(version=outcome.version, sink=name, file=file)
        for name, committable in sorted(outcome.sinks.items())
        for file in committable.files
    ]


def net_counts(outcome: Outcome) -> dict[str, int]:
    """What one outcome adds to the totals: its counts, less those of the commit that it replaces."""
    if not outcome.committed:
        return {}
    return add_counts(
        outcome.counts, {} if outcome.replaces is None else {name: -n for name, n in outcome.replaces.counts.items()}
    )


def add_counts(total: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Counts added name by name."""
    return {name: total.get(name, 0) + more.get(name, 0) for name in sorted({*total, *more})}


def fold(parts: Iterable[Segment | Outcome], *, genesis: Offsets, since: int = -1) -> LogView:
    """
    Fold level-1 segments and outcomes, in order of versions and without a hole, into a view.

    :param since: only files of versions above this one are kept; totals are of the whole log
    :raises LogDamagedError: a version is missing or doubled between the parts (R1)
    """
    version, commits, aborts = -1, 0, 0
    counts: dict[str, int] = {}
    next_offsets: Offsets = dict(genesis)
    files: dict[int, list[SegmentFile]] = {}
    for part in parts:
        if isinstance(part, Segment):
            invariants.check_follows(part.index * 100, version)
            version = part.index * 100 + 99
            commits, aborts = commits + part.commits, aborts + part.aborts
            counts = add_counts(counts, part.counts)
            for replaced in part.replaced:
                files.pop(replaced, None)
            for file in part.files:
                if file.version > since:
                    files.setdefault(file.version, []).append(file)
        else:
            invariants.check_follows(part.version, version)
            version = part.version
            commits, aborts = commits + part.committed, aborts + (not part.committed)
            counts = add_counts(counts, net_counts(part))
            if part.replaces is not None:
                files.pop(part.replaces.version, None)
            if version > since:
                files[version] = visible(part)
        next_offsets = offsets.advance(next_offsets, part.next)
    return LogView(
        version=version,
        next=next_offsets,
        commits=commits,
        aborts=aborts,
        counts=counts,
        files=tuple(file for kept in files.values() for file in kept),
    )
