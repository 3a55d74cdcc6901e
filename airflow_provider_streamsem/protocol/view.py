"""The state of a log: the head, from which writers continue, and the view, which readers compute from the entries (R1, R4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import invariants, offsets
from airflow_provider_streamsem.protocol.entries import (
    SEGMENT_WIDTH,
    Committable,
    Hidden,
    Json,
    Marker,
    Outcome,
    Plan,
    Receipts,
    Segment,
    SegmentFile,
    SegmentRewrite,
)
from airflow_provider_streamsem.protocol.kinds.rewrite import has_its_rows, names_earlier_commits
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
    def read_until(self) -> Offsets:
        """The offsets up to which the source was read. With intervals, those at the end of the latest interval."""
        intervals = () if self.outcome is None else self.outcome.intervals
        return offsets.ends(intervals[-1].bounds) if intervals else self.next

    @property
    def hint(self) -> Json:
        """The source hint of the newest outcome; before the first, that of a fork, or ``None``."""
        return self.initial_hint if self.outcome is None else self.outcome.hint

    @property
    def spec(self) -> str | None:
        """sha256 of the spec that the newest version ran with; ``None`` before the first."""
        return None if self.outcome is None else self.outcome.spec

    @property
    def oldest_readable(self) -> int:
        """The oldest readable version; 0 if no version has expired."""
        return 0 if self.outcome is None else self.outcome.oldest_readable

    @property
    def binding_spec(self) -> str | None:
        """sha256 of the spec whose immutable fields a writer must have (W35); ``None`` before the first version."""
        return self.spec

    def with_plan(self, plan: Plan, sha256: str, *, is_new: bool = False) -> OpenHead:
        """
        Return the head after Plan(closed + 1) was stored. Checks I2, I3, I4 and the invariants of the plan's kind.

        :param is_new: as in :class:`OpenHead`
        :raises LogMovedError: the plan is of kind ``move``
        """
        before = self if plan.initial_offsets is None else replace(self, initial_offsets=plan.initial_offsets)
        if not plan.work.ends_log:
            invariants.check_i2_receipts(plan, has_pending_publishes=self.has_pending_publishes)
            invariants.check_i3_plan(plan, after=self.outcome_sha)
            invariants.check_i4(plan, closed=self.closed)
        plan.work.check_plan(plan, before=self.outcome, next=before.next if self.outcome is None else self.next)
        return OpenHead(before=before, plan=plan, plan_sha=sha256, is_new=is_new)

    def with_receipts(self, receipts: Receipts) -> ClosedHead:
        """Return the head after the receipts of its newest commit were stored. Checks I15 and I18."""
        if self.outcome is None:
            raise LogDamagedError("receipts exist before the first outcome", invariant="I18", version=receipts.version)
        invariants.check_i18(receipts, self.outcome, outcome_sha=self.outcome_sha)
        invariants.check_i15_receipts(receipts, self.outcome)
        return replace(self, has_pending_publishes=False, markers=receipts.markers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHead:
    """
    The head of a log whose newest version has a plan and no outcome.

    :param before: the head before this plan; its versions are closed and published
    :param is_new: whether the store reported to this process that it created the plan. No other process had staged an attempt by then (W17)
    """

    before: ClosedHead
    plan: Plan
    plan_sha: str
    is_new: bool = field(default=False, compare=False)

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
    def read_until(self) -> Offsets:
        """The offsets up to which the source was read before the open plan."""
        return self.before.read_until

    @property
    def hint(self) -> Json:
        """The source hint before the open plan; before version 0 that of a fork, or ``None``."""
        return self.before.hint

    @property
    def spec(self) -> str:
        """sha256 of the spec that the newest closed version ran with, or that planned version 0."""
        return self.before.spec or self.plan.spec

    @property
    def oldest_readable(self) -> int:
        """The oldest readable version; 0 if no version has expired."""
        return self.before.oldest_readable

    @property
    def binding_spec(self) -> str:
        """sha256 of the spec whose immutable fields a writer must have (W35)."""
        return self.plan.spec

    def with_outcome(self, outcome: Outcome, sha256: str) -> ClosedHead:
        """Return the head after the outcome of the open plan was stored. Checks I2, I3, I4, I5, I14, I15, I27, I28 and the invariants of the plan's kind."""
        before = self.before
        invariants.check_i2(self.plan, outcome)
        invariants.check_i3_outcome(outcome, plan_sha=self.plan_sha)
        invariants.check_commit(self.plan, outcome, before=before.outcome)
        invariants.check_next(self.plan, outcome, before=self.next)
        invariants.check_i14(outcome)
        invariants.check_i15(outcome, before=before.markers)
        invariants.check_i27(outcome, before.outcome)
        invariants.check_i28(outcome, before.outcome)
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
    return {**outcome.sinks, **{rewrite.sink: rewrite.output for rewrite in outcome.rewrites}}


def not_visible(outcomes: Iterable[Outcome]) -> set[int]:
    """
    Return the versions whose rows a later one of these outcomes has replaced or rolled back.

    :param outcomes: in ascending order of versions
    """
    outcomes = list(outcomes)
    replaced = {commit for outcome in outcomes for commit in outcome.hidden.commits}
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
        removed |= {*outcome.hidden.sinks}
    return hidden


def removed_by_rollbacks(outcomes: Iterable[Outcome]) -> set[int]:
    """
    Return the versions of these outcomes that a later one of them has rolled back.

    :param outcomes: in ascending order of versions
    """
    earlier: list[int] = []
    removed: set[int] = set()
    for outcome in outcomes:
        if (after := outcome.hidden.after) is not None:
            removed |= {version for version in earlier if version > after}
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
    return {} if outcome.work is None else subtract_counts(outcome.counts, outcome.work.removed_counts)


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
        if part.hidden != Hidden():
            self.files = _remaining(self.files, part.hidden)
            self.rewrites = [each for each in self.rewrites if self._are_visible(each)]
        for file in part.files if isinstance(part, Segment) else visible(part):
            if file.version > self._since:
                self.files.setdefault(file.version, []).append(file)
        self._apply(part.rewrites)

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
        oldest, hidden = outcome.oldest_readable, outcome.hidden
        for rewrite in outcome.rewrites:
            yield from self._faults_of(rewrite, oldest, is_exact=True)
        if hidden.after is not None and hidden.after < oldest:
            yield "I24", "a rollback returns to an expired version"
        if any({*hidden.commits} & {*each.commits} and is_bound(each, oldest) for each in self.rewrites):
            yield "I24", "a reprocessing run replaces a commit of a bound rewrite"

    def _faults_of(self, rewrite: SegmentRewrite, oldest: int, *, is_exact: bool) -> Iterator[tuple[str, str]]:
        """Yield the rules that a rewrite breaks. ``is_exact`` says whether :attr:`files` are those that were visible before it."""
        if not (names_earlier_commits(rewrite, rewrite.version) and has_its_rows(rewrite)):
            yield (
                "I23",
                "a rewrite names no earlier commits in ascending order, or its files have another number of rows",
            )
            return
        are_known = rewrite.commits[0] > self._since and (is_exact or self._are_visible(rewrite))
        files = [file for at in rewrite.commits for file in self.files.get(at, ()) if file.sink == rewrite.sink]
        rows = sum(file.file.rows for file in files)
        if are_known and (not self._are_visible(rewrite) or rows != rewrite.rows):
            yield "I23", "a rewrite names rows that are not visible before it, or has another number of rows"
        earlier = [each for each in self.rewrites if each.named & rewrite.named]
        if are_known and rewrite.erased < sum(each.erased for each in earlier):
            yield "I26", "a rewrite has rows that an earlier version has erased"
        bound = [each for each in earlier if is_bound(each, oldest)]
        if bound and rewrite.commits[-1] >= oldest:
            yield "I24", "a rewrite names commits of a bound rewrite, and commits that have not expired"
        if not all(each.named <= rewrite.named for each in bound):
            yield "I24", "a rewrite names some commits of a bound rewrite, and not all of them"

    def with_rewrites(self, rewrites: Sequence[SegmentRewrite]) -> tuple[SegmentFile, ...]:
        """Return the files in order of versions, with those of some rewrites that apply in place of those of the commits that were rewritten."""
        kept = {version: [*found] for version, found in self.files.items()}
        for rewrite in rewrites:
            for commit in rewrite.commits:
                kept[commit] = [file for file in kept[commit] if file.sink != rewrite.sink]
            new = [SegmentFile(version=rewrite.version, sink=rewrite.sink, file=file) for file in rewrite.output.files]
            kept.setdefault(rewrite.version, []).extend(new)
        return tuple(file for _, found in sorted(kept.items()) for file in found)

    def _apply(self, rewrites: Sequence[SegmentRewrite]) -> None:
        """Add rewrites. One that names a commit of an earlier one takes its place."""
        for rewrite in rewrites:
            self.rewrites = [each for each in self.rewrites if not each.named & rewrite.named]
            if self._are_visible(rewrite):
                self.rewrites.append(rewrite)

    def _are_visible(self, rewrite: SegmentRewrite) -> bool:
        return all(any(file.sink == rewrite.sink for file in self.files.get(commit, ())) for commit in rewrite.commits)


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
    """Return whether all commits of a rewrite have expired. Their rows may be only in its files, because vacuum may have deleted those of the commits (W44)."""
    return rewrite.commits[-1] < oldest_readable


def _remaining(files: dict[int, list[SegmentFile]], hidden: Hidden) -> dict[int, list[SegmentFile]]:
    """Return the files that stay visible (R4)."""
    return {
        version: [file for file in found if file.sink not in hidden.sinks]
        for version, found in files.items()
        if version not in hidden.commits and (hidden.after is None or version <= hidden.after)
    }
