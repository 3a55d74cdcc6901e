"""The state of a log: the head, from which writers continue, and the view, which readers compute from the entries (R1, R4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    :raises LogDamagedError: a version is missing or duplicated (R1)
    """
    version, commits, aborts = first - 1, 0, 0
    counts: dict[str, int] = {}
    next_offsets: Offsets = dict(initial_offsets)
    files: dict[int, list[SegmentFile]] = {}
    rewrites: list[SegmentRewrite] = []
    for part in parts:
        if isinstance(part, Segment):
            invariants.check_follows(part.index * SEGMENT_WIDTH, version)
            version = (part.index + 1) * SEGMENT_WIDTH - 1
            commits, aborts = commits + part.commits, aborts + part.aborts
            counts = add_counts(counts, part.counts)
            files = _remaining(files, part.replaced, part.rolled_back_to, part.removed_sinks)
            for file in part.files:
                if file.version > since:
                    files.setdefault(file.version, []).append(file)
            rewrites += part.rewrites
        else:
            invariants.check_follows(part.version, version)
            version = part.version
            commits, aborts = commits + part.committed, aborts + (not part.committed)
            counts = add_counts(counts, net_counts(part))
            replaced = () if part.replaces is None else (part.replaces.version,)
            rolled_back_to = None if part.rolled_back is None else part.rolled_back.to
            files = _remaining(files, replaced, rolled_back_to, () if part.altered is None else part.altered.removed)
            if version > since:
                files[version] = visible(part)
            if part.rewritten is not None:
                rewrites.append(SegmentRewrite(version=version, rewritten=part.rewritten))
        next_offsets = offsets.advance(next_offsets, part.next)
    applied = [each for each in _applied(rewrites, files) if with_rewrites or is_bound(each, oldest_readable)]
    for rewrite in applied:
        _replace_files(files, rewrite)
    return LogView(
        version=version,
        next=next_offsets,
        commits=commits,
        aborts=aborts,
        counts=counts,
        files=tuple(file for _, kept in sorted(files.items()) for file in kept),
        rewrites=tuple(applied),
    )


def _applied(rewrites: Sequence[SegmentRewrite], files: Mapping[int, Sequence[SegmentFile]]) -> list[SegmentRewrite]:
    """
    Return the rewrites whose files replace those of the commits that they rewrote (R8).

    A rewrite applies if the rows of all these commits are visible, and if no later rewrite has rewritten one of them. A rewrite that no longer applies never
    applies again.

    :param rewrites: all rewrites, in ascending order of versions
    :param files: version → the visible files of its commit
    """
    found: list[SegmentRewrite] = []
    rewritten_later: set[tuple[str, int]] = set()
    for rewrite in reversed(rewrites):
        commits = {(rewrite.rewritten.sink, commit) for commit in rewrite.rewritten.commits}
        are_visible = all(any(file.sink == sink for file in files.get(commit, ())) for sink, commit in commits)
        if are_visible and not commits & rewritten_later:
            found.append(rewrite)
        rewritten_later |= commits
    return found[::-1]


def is_bound(rewrite: SegmentRewrite, oldest_readable: int) -> bool:
    """
    Return whether all commits of a rewrite have expired. Their rows may be only in its files, because vacuum may have deleted those of the commits (W44).

    :param rewrite: a rewrite that applies
    :param oldest_readable: the oldest readable version of the log
    """
    return rewrite.rewritten.commits[-1] < oldest_readable


def _replace_files(files: dict[int, list[SegmentFile]], rewrite: SegmentRewrite) -> None:
    """Replace the files of the commits that were rewritten by those of the rewrite."""
    rewritten = rewrite.rewritten
    for commit in rewritten.commits:
        files[commit] = [file for file in files[commit] if file.sink != rewritten.sink]
    files.setdefault(rewrite.version, []).extend(
        SegmentFile(version=rewrite.version, sink=rewritten.sink, file=file)
        for file in (rewritten.output.files if rewritten.output is not None else ())
    )


def _remaining(
    files: dict[int, list[SegmentFile]], replaced: Sequence[int], rolled_back_to: int | None, removed: Sequence[str]
) -> dict[int, list[SegmentFile]]:
    """
    Return the files that stay visible (R4).

    :param replaced: the versions that are reprocessed
    :param rolled_back_to: the version to which a rollback returns
    :param removed: the sinks that an alter removes
    """
    if not replaced and rolled_back_to is None and not removed:
        return files
    return {
        version: [file for file in found if file.sink not in removed]
        for version, found in files.items()
        if version not in replaced and (rolled_back_to is None or version <= rolled_back_to)
    }
