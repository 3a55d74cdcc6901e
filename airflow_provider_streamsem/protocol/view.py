"""The state of a log: the head, from which writers continue, and the view, which readers compute from the entries (R1, R4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from airflow_provider_streamsem.errors import LogDamagedError, LogMovedError
from airflow_provider_streamsem.protocol import invariants, offsets
from airflow_provider_streamsem.protocol.entries import (
    SEGMENT_WIDTH,
    Committable,
    Json,
    Marker,
    Outcome,
    Plan,
    Receipts,
    Segment,
    SegmentFile,
    SegmentRewrite,
)
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedHead:
    """
    The head of a log in which every version is closed. It contains the state on which the next plan depends.

    * ``initial_offsets``: offsets at which version 0 starts: those of Plan(0) if it exists, else those of the caller's source. Empty without a source.
    * ``initial_hint``: the source's hint before version 0, which only a fork has.
    * ``outcome`` and ``outcome_sha``: the newest version; ``None`` and ``""`` before the first.
    * ``has_pending_publishes``: whether the newest version is a commit that requires receipts, and they do not exist yet.
    * ``markers``: sink → the newest commit that set its marker according to the receipts. The next outcome has these markers.
    """

    initial_offsets: Offsets = field(default_factory=dict)
    initial_hint: Json = None
    outcome: Outcome | None = None
    outcome_sha: str = ""
    has_pending_publishes: bool = False
    markers: Mapping[str, Marker] = field(default_factory=dict)

    @property
    def closed(self) -> int:
        """The newest closed version; -1 before the first."""
        return -1 if self.outcome is None else self.outcome.version

    @property
    def time_ms(self) -> int:
        """The clock reading of the newest outcome, in milliseconds since the epoch; 0 before the first."""
        return 0 if self.outcome is None else self.outcome.decided_at_ms

    @property
    def next(self) -> Offsets:
        """The offsets at which the next plan starts."""
        return (
            self.initial_offsets if self.outcome is None else offsets.advance(self.initial_offsets, self.outcome.next)
        )

    @property
    def hint(self) -> Json:
        """The source hint of the newest outcome; before the first, that of a fork, or ``None``."""
        return self.initial_hint if self.outcome is None else self.outcome.hint

    @property
    def spec(self) -> str | None:
        """sha256 of the spec that the newest version ran with; ``None`` before the first."""
        return None if self.outcome is None else self.outcome.spec

    @property
    def binding_spec(self) -> str | None:
        """sha256 of the spec whose immutable fields a writer must have (W35); ``None`` before the first version."""
        return self.spec

    def with_plan(self, plan: Plan, sha256: str) -> OpenHead:
        """
        Return the head after Plan(closed + 1) was stored. Checks I2, I3, I4, I20, I21, I22, I23 and I24.

        :raises LogMovedError: the plan is of kind ``move``
        """
        if plan.kind == "move":
            summary = "the log was moved to another location"
            raise LogMovedError(summary, moved_to=plan.moved_to, version=plan.version)
        initial_offsets = self.initial_offsets if plan.initial_offsets is None else plan.initial_offsets
        invariants.check_i2_receipts(plan, has_pending_publishes=self.has_pending_publishes)
        invariants.check_i3_plan(plan, after=self.outcome_sha)
        invariants.check_i4(plan, closed=self.closed, next=self.next if self.outcome is not None else initial_offsets)
        invariants.check_i21_plan(plan, next=self.next)
        invariants.check_i22_plan(plan, next=self.next)
        invariants.check_i23_plan(plan)
        invariants.check_i24_plan(plan, before=self.outcome)
        return OpenHead(before=replace(self, initial_offsets=initial_offsets), plan=plan, plan_sha=sha256)

    def with_receipts(self, receipts: Receipts) -> ClosedHead:
        """Return the head after the receipts of its newest commit were stored. Checks I15 and I18."""
        if self.outcome is None:
            raise LogDamagedError("receipts exist before the first outcome", invariant="I18", version=receipts.version)
        invariants.check_i18(receipts, self.outcome, outcome_sha=self.outcome_sha)
        invariants.check_i15_receipts(receipts, self.outcome)
        return replace(self, has_pending_publishes=False, markers=receipts.markers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHead:
    """The head of a log whose newest version has a plan and no outcome. ``before`` is the head before this plan; its versions are closed and published."""

    before: ClosedHead
    plan: Plan
    plan_sha: str

    @property
    def outcome(self) -> Outcome | None:
        """The newest outcome; ``None`` if version 0 is open."""
        return self.before.outcome

    @property
    def closed(self) -> int:
        """The newest closed version; -1 if version 0 is open."""
        return self.before.closed

    @property
    def has_pending_publishes(self) -> bool:
        """Always ``False``: a plan follows only commits that were published (I2)."""
        return False

    @property
    def time_ms(self) -> int:
        """The clock reading of the open plan, in milliseconds since the epoch."""
        return self.plan.planned_at_ms

    @property
    def next(self) -> Offsets:
        """The offsets at which the open plan starts."""
        return self.before.next

    @property
    def hint(self) -> Json:
        """The source hint before the open plan; before version 0 that of a fork, or ``None``."""
        return self.before.hint

    @property
    def spec(self) -> str:
        """sha256 of the spec that the newest closed version ran with, or that planned version 0."""
        return self.before.spec or self.plan.spec

    @property
    def binding_spec(self) -> str:
        """sha256 of the spec whose immutable fields a writer must have (W35)."""
        return self.plan.spec

    def with_outcome(self, outcome: Outcome, sha256: str) -> ClosedHead:
        """Return the head after the outcome of the open plan was stored. Checks I2, I3, I4, I5, I14, I15, I20 to I24."""
        before = self.before
        invariants.check_i2(self.plan, outcome)
        invariants.check_i3_outcome(outcome, plan_sha=self.plan_sha)
        invariants.check_carried(self.plan, outcome)
        invariants.check_next(self.plan, outcome, before=self.next)
        invariants.check_newest_rollback(self.plan, outcome, before=before.outcome)
        invariants.check_i22(self.plan, outcome, before=before.outcome)
        invariants.check_i23(self.plan, outcome, before=before.outcome)
        invariants.check_i24(self.plan, outcome, before=before.outcome)
        invariants.check_i14(outcome)
        invariants.check_i15(outcome, before=before.markers)
        return ClosedHead(
            initial_offsets=before.initial_offsets,
            outcome=outcome,
            outcome_sha=sha256,
            has_pending_publishes=outcome.requires_receipts,
            markers=outcome.markers,
        )


Head: TypeAlias = ClosedHead | OpenHead


def without_pending(head: Head) -> ClosedHead:
    """
    Return the head without its open version and pending publishes.

    A reader locates a run with it. With the original head, a complete run would look incomplete while another run has an open version.
    """
    closed = head.before if isinstance(head, OpenHead) else head
    return replace(closed, has_pending_publishes=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """
    The state of the log as of one version, inclusive: the visible files and the totals.

    ``version`` is -1 for an empty log. ``files`` is in order of versions. ``counts`` exclude commits that reprocessing runs have replaced. ``rewrites`` are
    those whose files are in ``files``, in place of the files of the commits that they rewrote (R8).
    """

    version: int = -1
    next: Offsets = field(default_factory=dict)
    commits: int = 0
    aborts: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    files: tuple[SegmentFile, ...] = ()
    rewrites: tuple[SegmentRewrite, ...] = ()

    def sink(self, name: str) -> tuple[SegmentFile, ...]:
        """Return the visible files of one sink."""
        return tuple(f for f in self.files if f.sink == name)


def visible(outcome: Outcome) -> list[SegmentFile]:
    """Return the files of the rows that an outcome makes visible. An abort makes none visible, and neither does a rewrite: its rows are visible already."""
    if not outcome.committed:
        return []
    return [
        SegmentFile(version=outcome.version, sink=name, file=file)
        for name, committable in sorted(outcome.sinks.items())
        for file in committable.files
    ]


def stored_output(outcome: Outcome) -> Mapping[str, Committable]:
    """Return sink → the files that the attempt of an outcome wrote: the rows of a batch, or the rows of other commits that a rewrite stores again."""
    rewritten = outcome.rewritten
    return outcome.sinks if rewritten is None or rewritten.output is None else {rewritten.sink: rewritten.output}


def not_visible(outcomes: Iterable[Outcome]) -> set[int]:
    """
    Return the versions whose rows a later one of these outcomes has replaced or rolled back.

    :param outcomes: in ascending order of versions
    """
    outcomes = list(outcomes)
    replaced = {outcome.replaces.version for outcome in outcomes if outcome.replaces is not None}
    return replaced | removed_by_rollbacks(outcomes)


def hidden_sinks(outcomes: Iterable[Outcome]) -> dict[int, set[str]]:
    """
    Return version → the sinks whose rows of this version a later one of these outcomes hides, because it is an alter that removes the sinks (W36).

    :param outcomes: in ascending order of versions
    """
    outcomes = list(outcomes)
    hidden: dict[int, set[str]] = {}
    removed: set[str] = set()
    for outcome in reversed(outcomes):
        hidden[outcome.version] = set(removed)
        removed |= {*outcome.altered.removed} if outcome.altered is not None else set()
    return hidden


def removed_by_rollbacks(outcomes: Iterable[Outcome]) -> set[int]:
    """
    Return the versions of these outcomes that a later one of them has rolled back.

    :param outcomes: in ascending order of versions
    """
    earlier: list[int] = []
    removed: set[int] = set()
    for outcome in outcomes:
        if outcome.rolled_back is not None:
            removed |= {version for version in earlier if version > outcome.rolled_back.to}
        earlier.append(outcome.version)
    return removed


def remains(version: int, kept: Iterable[range]) -> bool:
    """Return whether no rollback has removed a version. ``kept`` has the versions that remain, as :func:`procedures.remaining_versions` returns them."""
    return any(version in versions for versions in kept)


def newest_kept_before(version: int, kept: Iterable[range]) -> int:
    """Return the newest version that remains before a version that a rollback has removed; ``kept`` is as in :func:`remains`."""
    return max(versions.stop - 1 for versions in kept if versions.start < version)


def net_counts(outcome: Outcome) -> dict[str, int]:
    """Return the counts that an outcome adds to the totals: its own counts minus those of the commits that it replaces or rolls back."""
    if not outcome.committed:
        return {}
    removed = outcome.replaces or outcome.rolled_back
    return subtract_counts(outcome.counts, {} if removed is None else removed.counts)


def add_counts(total: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Add two mappings of counts by name."""
    return {name: total.get(name, 0) + more.get(name, 0) for name in sorted({*total, *more})}


def subtract_counts(total: Mapping[str, int], less: Mapping[str, int]) -> dict[str, int]:
    """Subtract the counts of the second mapping from those of the first, by name."""
    return add_counts(total, {name: -count for name, count in less.items()})


Part: TypeAlias = Segment | Outcome
"""What a view is computed from."""


class VisibleFiles:
    """
    The visible files and the rewrites that apply, after each part of a log (R4, R8). Readers, vacuum and :func:`verify` check rewrites with it.

    :param since: only files of versions above this one are known
    :attr files: version → the visible files of its commit
    :attr rewrites: those that apply, in ascending order of versions. A rewrite that ceases to apply never applies again
    """

    def __init__(self, since: int = -1) -> None:
        self._since = since
        self.files: dict[int, list[SegmentFile]] = {}
        self.rewrites: list[SegmentRewrite] = []

    def add(self, part: Part) -> None:
        """Continue with the next part. Does not check it; see :meth:`faults`."""
        if isinstance(part, Segment):
            self._remove(part.replaced, part.rolled_back_to, part.removed_sinks)
            for file in part.files:
                if file.version > self._since:
                    self.files.setdefault(file.version, []).append(file)
            self._apply(part.rewrites)
            return
        replaced = () if part.replaces is None else (part.replaces.version,)
        rolled_back_to = None if part.rolled_back is None else part.rolled_back.to
        self._remove(replaced, rolled_back_to, () if part.altered is None else part.altered.removed)
        if part.version > self._since:
            self.files[part.version] = visible(part)
        if part.rewritten is not None:
            self._apply([SegmentRewrite(version=part.version, rewritten=part.rewritten)])

    def faults(self, part: Part) -> Iterator[tuple[str, str]]:
        """
        Yield the rules of rewrites that the next part breaks: invariant and description (I23, I24).

        A segment does not say which files were visible before each of its rewrites, so those are checked that still apply at its end.
        """
        if isinstance(part, Outcome):
            yield from self._faults_of_outcome(part)
        elif part.rewrites:
            later = VisibleFiles(self._since)
            later.files, later.rewrites = dict(self.files), [*self.rewrites]
            later.add(replace(part, rewrites=()))
            for rewrite in part.rewrites:
                yield from later._faults_of(rewrite, 0, is_exact=False)
                later._apply([rewrite])

    def _faults_of_outcome(self, outcome: Outcome) -> Iterator[tuple[str, str]]:
        oldest = outcome.oldest_readable or 0
        replaced = -1 if outcome.replaces is None else outcome.replaces.version
        if outcome.rewritten is not None:
            rewrite = SegmentRewrite(version=outcome.version, rewritten=outcome.rewritten)
            yield from self._faults_of(rewrite, oldest, is_exact=True)
        elif outcome.rolled_back is not None and outcome.rolled_back.to < oldest:
            yield "I24", "a rollback returns to an expired version"
        elif any(replaced in each.rewritten.commits and is_bound(each, oldest) for each in self.rewrites):
            yield "I24", "a reprocessing run replaces a commit of a bound rewrite"

    def _faults_of(self, rewrite: SegmentRewrite, oldest: int, *, is_exact: bool) -> Iterator[tuple[str, str]]:
        """
        Yield the rules that a rewrite breaks.

        :param oldest: the oldest readable version
        :param is_exact: whether :attr:`files` are those that were visible before it
        """
        rewritten, named = rewrite.rewritten, _named(rewrite)
        if not (invariants.names_earlier_commits(rewritten, rewrite.version) and invariants.has_its_rows(rewritten)):
            yield (
                "I23",
                "a rewrite names no earlier commits in ascending order, or its files have another number of rows",
            )
            return
        are_known = rewritten.commits[0] > self._since and (is_exact or self._are_visible(rewrite))
        files = [file for at in rewritten.commits for file in self.files.get(at, ()) if file.sink == rewritten.sink]
        rows = sum(file.file.rows for file in files)
        if are_known and (not self._are_visible(rewrite) or rows != rewritten.rows):
            yield "I23", "a rewrite names rows that are not visible before it, or has another number of rows"
        bound = [each for each in self.rewrites if _named(each) & named and is_bound(each, oldest)]
        if bound and rewritten.commits[-1] >= oldest:
            yield "I24", "a rewrite names commits of a bound rewrite, and commits that have not expired"
        if not all(_named(each) <= named for each in bound):
            yield "I24", "a rewrite names some commits of a bound rewrite, and not all of them"

    def with_rewrites(self, rewrites: Sequence[SegmentRewrite]) -> tuple[SegmentFile, ...]:
        """Return the files in order of versions, with those of some rewrites that apply in place of those of the commits that were rewritten."""
        kept = {version: [*found] for version, found in self.files.items()}
        for rewritten, version in ((each.rewritten, each.version) for each in rewrites):
            for commit in rewritten.commits:
                kept[commit] = [file for file in kept[commit] if file.sink != rewritten.sink]
            output = () if rewritten.output is None else rewritten.output.files
            new = [SegmentFile(version=version, sink=rewritten.sink, file=file) for file in output]
            kept.setdefault(version, []).extend(new)
        return tuple(file for _, found in sorted(kept.items()) for file in found)

    def _remove(self, replaced: Sequence[int], rolled_back_to: int | None, removed: Sequence[str]) -> None:
        """Remove the files that are no longer visible; see :func:`_remaining`."""
        if replaced or rolled_back_to is not None or removed:
            self.files = _remaining(self.files, replaced, rolled_back_to, removed)
            self.rewrites = [each for each in self.rewrites if self._are_visible(each)]

    def _apply(self, rewrites: Sequence[SegmentRewrite]) -> None:
        """Add rewrites. One that names a commit of an earlier one takes its place."""
        for rewrite in rewrites:
            self.rewrites = [each for each in self.rewrites if not _named(each) & _named(rewrite)]
            if self._are_visible(rewrite):
                self.rewrites.append(rewrite)

    def _are_visible(self, rewrite: SegmentRewrite) -> bool:
        sink, commits = rewrite.rewritten.sink, rewrite.rewritten.commits
        return all(any(file.sink == sink for file in self.files.get(commit, ())) for commit in commits)


def _named(rewrite: SegmentRewrite) -> set[tuple[str, int]]:
    return {(rewrite.rewritten.sink, commit) for commit in rewrite.rewritten.commits}


def fold(
    parts: Iterable[Part],
    *,
    initial_offsets: Offsets,
    first: int = 0,
    since: int = -1,
    with_rewrites: bool = True,
    oldest_readable: int = 0,
) -> LogView:
    """
    Compute a view from level-1 segments and outcomes, which must cover the versions from ``first`` on, in order.

    :param first: the version with which the parts begin. If it is above 0, the files are those of a reader of the versions from ``first`` on (R8), and the
        totals are those of these versions
    :param since: keep only files of versions above this one; the totals cover all versions of the parts
    :param with_rewrites: whether to return the files of the rewrites that apply (R8) in place of the original files; if not, still those of bound rewrites
    :param oldest_readable: the oldest readable version of the log, by which a rewrite is bound (W44)
    :raises LogDamagedError: a version is missing or duplicated (R1), or a rewrite breaks a rule (I23, I24)
    """
    version, commits, aborts = first - 1, 0, 0
    counts: dict[str, int] = {}
    next_offsets: Offsets = dict(initial_offsets)
    found = VisibleFiles(max(since, first - 1))
    for part in parts:
        if isinstance(part, Segment):
            invariants.check_follows(part.index * SEGMENT_WIDTH, version)
            version = (part.index + 1) * SEGMENT_WIDTH - 1
            commits, aborts = commits + part.commits, aborts + part.aborts
            counts = add_counts(counts, part.counts)
        else:
            invariants.check_follows(part.version, version)
            version = part.version
            commits, aborts = commits + part.committed, aborts + (not part.committed)
            counts = add_counts(counts, net_counts(part))
        for invariant, summary in found.faults(part):
            raise LogDamagedError(summary, invariant=invariant, version=version)
        found.add(part)
        next_offsets = offsets.advance(next_offsets, part.next)
    applied = [each for each in found.rewrites if with_rewrites or is_bound(each, oldest_readable)]
    return LogView(
        version=version,
        next=next_offsets,
        commits=commits,
        aborts=aborts,
        counts=counts,
        files=found.with_rewrites(applied),
        rewrites=tuple(applied),
    )


def is_bound(rewrite: SegmentRewrite, oldest_readable: int) -> bool:
    """
    Return whether all commits of a rewrite have expired. Their rows may be only in its files, because vacuum may have deleted those of the commits (W44).

    :param rewrite: a rewrite that applies
    :param oldest_readable: the oldest readable version of the log
    """
    return rewrite.rewritten.commits[-1] < oldest_readable


def _remaining(
    files: dict[int, list[SegmentFile]], replaced: Sequence[int], rolled_back_to: int | None, removed: Sequence[str]
) -> dict[int, list[SegmentFile]]:
    """
    Return the files that stay visible (R4).

    :param replaced: the versions that are reprocessed
    :param rolled_back_to: the version to which a rollback returns
    :param removed: the sinks that an alter removes
    """
    return {
        version: [file for file in found if file.sink not in removed]
        for version, found in files.items()
        if version not in replaced and (rolled_back_to is None or version <= rolled_back_to)
    }
