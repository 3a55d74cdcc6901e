"""
Procedures of writers and readers (PROTOCOL.md, 4 and 5). Each yields requests, receives events and returns its result (:mod:`machine`).

A crash may stop a procedure at any ``yield``. Any process can then run the procedure again from its start, and no data is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import codec, invariants, keys, offsets, segments
from airflow_provider_streamsem.protocol.entries import (
    SEGMENT_WIDTH,
    Claim,
    Effects,
    Entry,
    Kind,
    Outcome,
    Plan,
    Receipts,
    RunPointer,
    Segment,
    SegmentRewrite,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback
from airflow_provider_streamsem.protocol.machine import (
    RECOVERY,
    Creation,
    Procedure,
    Step,
    create,
    get,
    list_keys,
)
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.protocol.view import ClosedHead, Head, OpenHead, remains

E = TypeVar("E", bound=Entry)
K = TypeVar("K", bound=Kind)
HEAD_KEYS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComplete:
    """
    Position of a run that is complete. ``plan`` and ``outcome`` are those of its last version.

    The outcome is an abort if other runs have committed the offsets up to the run's target (W11).
    """

    head: ClosedHead
    plan: Plan
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVersion:
    """Position: the newest version has no outcome. The run must close this version first, even if another run planned it (W9)."""

    head: OpenHead


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPublish:
    """Position: the newest version is a commit with pending publishes. The run must publish it first, even if another run committed it (P1)."""

    head: ClosedHead
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """
    Position: every version is closed and published. The run plans the version after the head as its ``j``-th version; j starts at 0.

    ``target`` is the target of a drain; ``None`` before the run's first plan and for a single batch. ``before`` is the plan and the outcome of the run's
    previous version; ``None`` if ``j`` is 0.
    """

    head: ClosedHead
    j: int = 0
    target: Offsets | None = None
    before: tuple[Plan, Outcome] | None = None


Position = RunComplete | OpenVersion | PendingPublish | Ready


def read_entry(cls: type[E], key: str) -> Procedure[tuple[E, str] | None]:
    """Read an entry with its spilled fields. Returns the entry and the sha256 of its bytes, or ``None`` if the key is missing."""
    data = yield from get(key)
    if data is None:
        return None
    return (yield from read_spilled(cls, key, data))


def read_spilled(cls: type[E], key: str, data: bytes) -> Procedure[tuple[E, str]]:
    """Read the spilled fields of an entry whose bytes were read already, and decode the entry. Returns it and the sha256 of its bytes."""
    parts = {}
    body = codec.parse(cls, key, data)
    for name, digest in codec.spilled(cls, body).items():
        part = yield from get(keys.spill(digest))
        if part is not None:
            parts[name] = part
    return codec.assemble(cls, key, body, parts), codec.sha256(data)


def create_entry(key: str, entry: Entry) -> Procedure[Creation]:
    """Create an entry if its key is absent. Creates the objects of its spilled fields before (W4)."""
    encoded = codec.encode(entry)
    for spill, part in encoded.spills.items():
        written = yield from create(spill, part)
        invariants.check_i1(spill, written.data, part)
    return (yield from create(key, encoded.data))


def find_head() -> Procedure[Head]:
    """Return the newest version that a listing shows (W8, W9), and whether it has pending publishes (P1)."""
    listed = yield from list_keys(keys.LOG, HEAD_KEYS)
    versions = [parsed[0] for parsed in map(keys.parse_entry, listed) if parsed is not None]
    if not versions:
        return ClosedHead()
    head = yield from read_head(max(versions))
    if head is None:
        raise LogDamagedError("a listed version has neither plan nor outcome", invariant="I1", version=max(versions))
    return head


def read_head(version: int) -> Procedure[Head | None]:
    """
    Return the head, assuming that ``version`` is the newest version. Returns ``None`` if the version has neither a plan nor an outcome.

    Reads computed keys and sends no listing.
    """
    outcome = yield from read_entry(Outcome, keys.outcome(version))
    if outcome is not None:
        return (yield from _closed_head(*outcome))
    plan = yield from read_entry(Plan, keys.plan(version))
    if plan is None:
        return None
    before = ClosedHead()
    if version > 0:
        previous = yield from read_entry(Outcome, keys.outcome(version - 1))
        if previous is None:
            raise LogDamagedError(
                "a plan exists, but the outcome before it is missing", invariant="I2", version=version
            )
        before = yield from _closed_head(*previous)
    return before.with_plan(*plan)


def _closed_head(outcome: Outcome, outcome_sha: str) -> Procedure[ClosedHead]:
    """Return the head at a closed version, with its receipts if it requires them and they exist (P1)."""
    head = ClosedHead(
        outcome=outcome,
        outcome_sha=outcome_sha,
        has_pending_publishes=outcome.requires_receipts,
        markers=outcome.markers,
    )
    receipts = (yield from read_entry(Receipts, keys.receipts(outcome.version))) if outcome.requires_receipts else None
    return head if receipts is None else head.with_receipts(receipts[0])


def confirm_head(head: Head) -> Procedure[Head]:
    """
    Return the newest head, starting from a head that a listing showed.

    A listing may lag (W8). So this procedure reads the computed keys of the next versions until one is missing or open.
    """
    while (later := (yield from read_head(head.closed + 1))) is not None:
        head = later
        if isinstance(head, OpenHead):
            break
    return head


def locate(run_key: str, head: Head) -> Procedure[Position]:
    """
    Return the position of a run, given the head (W9-W11, P1).

    The caller reads the head first. This procedure then reads the run's pointers. A writer creates the pointer before the outcome, so every version up to the
    closed head has its pointer by then.
    """
    if isinstance(head, OpenHead):
        return OpenVersion(head=head)
    if head.has_pending_publishes and head.outcome is not None:
        return PendingPublish(head=head, outcome=head.outcome)
    pointer = yield from _newest_pointer(run_key)
    if pointer is None:
        return Ready(head=head)
    if pointer.version > head.closed:
        later = yield from read_head(pointer.version)
        if later is None:
            raise LogDamagedError(
                "a run's pointer names a version that does not exist", invariant="I16", version=pointer.version
            )
        if isinstance(later, OpenHead):
            return OpenVersion(head=later)
        if later.has_pending_publishes and later.outcome is not None:
            return PendingPublish(head=later, outcome=later.outcome)
        head = later
    plan = yield from read_entry(Plan, keys.plan(pointer.version))
    if plan is None:
        raise LogDamagedError(
            "a run's pointer names a version that does not exist", invariant="I16", version=pointer.version
        )
    invariants.check_i16(pointer, plan[0])
    outcome = yield from _outcome_of(head, pointer.version)
    invariants.check_i3_outcome(outcome, plan_sha=plan[1])
    if outcome.committed and plan[0].work.is_planned_again and not (yield from _remains(head, pointer.version)):
        return Ready(head=head, j=plan[0].j + 1, before=(plan[0], outcome))
    return position_after(head, plan[0], outcome)


def _remains(head: Head, version: int) -> Procedure[bool]:
    """Return whether no rollback has removed a closed version."""
    newest = head.outcome
    if newest is None or newest.newest.get(Rollback.kind, -1) <= version:
        return True
    return remains(version, (yield from remaining_versions(newest)))


def position_after(head: ClosedHead, plan: Plan, outcome: Outcome) -> RunComplete | Ready:
    """
    Return the position of a run after ``outcome`` closed its newest plan (W11).

    A drain is complete when the ``next`` offsets of the *head* reach the target, because other runs may have committed some of the offsets.
    """
    reached = plan.target is not None and offsets.reached(head.next, plan.target)
    where = "target reached" if reached else "below target" if plan.target is not None else "no target"
    if RECOVERY[outcome.result, where] is Step.COMPLETE:
        return RunComplete(head=head, plan=plan, outcome=outcome)
    return Ready(head=head, j=plan.j + 1, target=plan.target, before=(plan, outcome))


def _outcome_of(head: Head, version: int) -> Procedure[Outcome]:
    if head.outcome is not None and head.closed == version:
        return head.outcome
    return (yield from closed_outcome(version))


def closed_outcome(version: int) -> Procedure[Outcome]:
    """Return the outcome of a closed version."""
    outcome = yield from read_entry(Outcome, keys.outcome(version))
    if outcome is None:
        raise LogDamagedError("a version below a closed one has no outcome", invariant="I2", version=version)
    return outcome[0]


def _newest_pointer(run_key: str) -> Procedure[RunPointer | None]:
    """Pointer 0 is read first, because most runs have no pointer. The missing pointer j + 1 confirms the newest j of a listing (W10)."""
    first = yield from read_entry(RunPointer, keys.pointer(run_key, 0))
    if first is None:
        return None
    newest = first[0]
    listed = yield from list_keys(keys.run(run_key), 1)
    hint = max((j for j in map(keys.parse_newest_first, listed) if j is not None), default=0)
    j = max(hint, 1)
    while (later := (yield from read_entry(RunPointer, keys.pointer(run_key, j)))) is not None:
        newest, j = later[0], j + 1
    return newest


def run_versions(run_key: str) -> Procedure[list[int]]:
    """
    Return the versions that have a pointer of this run, oldest first.

    The last one is open if a writer created its pointer and died before it created the outcome. All others are closed.
    """
    versions: list[int] = []
    while (pointer := (yield from read_entry(RunPointer, keys.pointer(run_key, len(versions))))) is not None:
        versions.append(pointer[0].version)
    return versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """
    Result of the create of a plan.

    :param own: the head with the plan; ``None`` if another writer's plan exists
    :param head: the newest head: the same, or that at the other writer's plan, or at its outcome if that exists already
    """

    own: OpenHead | None
    head: Head


def put_plan(head: ClosedHead, plan: Plan) -> Procedure[Planned]:
    """
    Create Plan(head.closed + 1) (W13).

    :raises LogMovedError: the winning plan moved the log
    """
    invariants.check_i19(plan)
    head.with_plan(plan, "")
    key = keys.plan(plan.version)
    written = yield from create_entry(key, plan)
    if written.mine:
        own = head.with_plan(plan, codec.sha256(written.data), is_new=written.first)
        return Planned(own=own, head=own)
    winner = yield from read_spilled(Plan, key, written.data)
    head.with_plan(*winner)
    newest = yield from read_head(plan.version)
    if newest is None:
        raise LogDamagedError("a plan that was read before is missing", invariant="I1", key=key)
    return Planned(own=None, head=newest)


def remaining_versions(outcome: Outcome) -> Procedure[list[range]]:
    """
    Return the versions up to ``outcome`` that no rollback has removed, as ranges in ascending order. A range after the first begins with a rollback (I21).
    """
    found: list[range] = []
    last = outcome
    while (rollback := (yield from _newest_of(Rollback, last, after=-1))) is not None:
        version, work = rollback
        found.append(range(version, last.version + 1))
        assert work.based_on is not None  # see Rollback
        last = yield from closed_outcome(work.based_on)
    return [range(last.version + 1), *reversed(found)]


def commits_of(kind: type[K], outcome: Outcome, after: int) -> Procedure[list[tuple[int, K]]]:
    """
    Return the commits of a kind up to ``outcome``, newest first: version and payload. A rollback does not remove alters and rewrites (I22, R8).

    :param kind: a kind whose commits are chained
    :param outcome: the newest outcome to consider
    :param after: only versions above this one
    """
    return cast(list[tuple[int, K]], (yield from _chained(kind, outcome, after)))


def rewrites_of(outcome: Outcome, after: int) -> Procedure[list[SegmentRewrite]]:
    """Return the rewrites up to ``outcome`` and above version ``after``, newest first. They may no longer apply (R8)."""
    commits = yield from _chained(Rewrite, outcome, after)
    return [rewrite for version, work in commits for rewrite in work.rewrites(version)]


def _chained(kind: type[Kind], outcome: Outcome, after: int) -> Procedure[list[tuple[int, Kind]]]:
    found: list[tuple[int, Kind]] = []
    last = outcome
    while (commit := (yield from _newest_of(kind, last, after=after))) is not None:
        found.append(commit)
        last = yield from closed_outcome(commit[0] - 1)
    return found


def _newest_of(kind: type[Kind], outcome: Outcome, *, after: int) -> Procedure[tuple[int, Kind] | None]:
    """Return the newest commit in the chain of a kind up to ``outcome`` and above version ``after``: version and payload. ``None`` if there is none."""
    version = outcome.newest.get(kind.kind, -1)
    if version <= after:
        return None
    named = yield from closed_outcome(version)
    if named.work is None or kind.kind not in named.work.chains:
        summary = "an outcome names a version as the newest commit of a kind, but the version is no such commit"
        fields = {"version": outcome.version, "kind": kind.kind, "newest": version}
        raise LogDamagedError(summary, invariant=kind.invariant, **fields)
    return version, named.work


def find_current(version: int, head: Head) -> Procedure[int | None]:
    """
    Return the commit whose output has replaced that of ``version``, as of the head (W25); ``None`` if the version was rolled back.

    This is the newest reprocessing run in the chain that starts with ``version``, or ``version`` itself.
    """
    if head.outcome is not None and Rollback.kind in head.outcome.newest:
        kept = yield from remaining_versions(head.outcome)
        if not remains(version, kept):
            return None
    current, at = version, version + 1
    while at <= head.closed:
        if at % SEGMENT_WIDTH == 0 and at + SEGMENT_WIDTH <= head.closed + 1:
            segment = yield from read_entry(Segment, keys.segment(1, at // SEGMENT_WIDTH))
            if segment is not None and current not in segment[0].hidden.commits:
                at += SEGMENT_WIDTH
                continue
        outcome = yield from _outcome_of(head, at)
        if outcome.replaces == current:
            current = at
        at += 1
    return current


def reprocessing_runs_after(version: int, closed: int) -> Procedure[list[int]]:
    """
    Return the versions above ``version``, up to and including ``closed``, that replace the rows of a commit up to and including ``version``.

    Skips the versions of a segment that replaces no such commit.
    """
    found = []
    at = version + 1
    while at <= closed:
        if at % SEGMENT_WIDTH == 0 and at + SEGMENT_WIDTH <= closed + 1:
            segment = yield from read_entry(Segment, keys.segment(1, at // SEGMENT_WIDTH))
            if segment is not None and not any(replaced <= version for replaced in segment[0].hidden.commits):
                at += SEGMENT_WIDTH
                continue
        outcome = yield from closed_outcome(at)
        if outcome.replaces is not None and outcome.replaces <= version:
            found.append(at)
        at += 1
    return found


def find_root(version: int) -> Procedure[int]:
    """Return the first commit in the chain of a reprocessing run. A batch is its own root (W25)."""
    while True:
        outcome = yield from read_entry(Outcome, keys.outcome(version))
        if outcome is None:
            raise LogDamagedError(
                "a reprocessing run replaces a version without outcome", invariant="I20", version=version
            )
        if outcome[0].replaces is None:
            return version
        version = outcome[0].replaces


def find_staged(head: OpenHead) -> Procedure[list[StagedManifest]]:
    """Return the manifests of attempts of the open plan (W17). The caller must check whether the files of a manifest exist."""
    manifests = []
    for key in (yield from list_keys(keys.attempts(head.plan.version))):
        manifest = yield from read_entry(StagedManifest, key)
        if manifest is not None and manifest[0].plan == head.plan_sha:
            manifests.append(manifest[0])
    return manifests


def decide(head: OpenHead, outcome: Outcome) -> Procedure[tuple[ClosedHead, Outcome]]:
    """
    Create the run pointer of the open plan, then its outcome (W20-W22).

    :returns: the head, and the stored outcome, which may be that of another writer
    """
    plan = head.plan
    head.with_outcome(outcome, "")
    pointer = RunPointer(run_key=plan.run_key, j=plan.j, version=plan.version, target=plan.target)
    pointer_key = keys.pointer(plan.run_key, plan.j)
    written = yield from create_entry(pointer_key, pointer)
    if not written.mine:
        stored_pointer, _ = yield from read_spilled(RunPointer, pointer_key, written.data)
        invariants.check_i16(stored_pointer, plan)
    key = keys.outcome(plan.version)
    written = yield from create_entry(key, outcome)
    stored = outcome if written.mine else (yield from read_spilled(Outcome, key, written.data))[0]
    return head.with_outcome(stored, codec.sha256(written.data)), stored


def put_receipts(head: ClosedHead, receipts: Receipts) -> Procedure[tuple[ClosedHead, Receipts]]:
    """
    Create the receipts of the head's commit (P6).

    :returns: the head without pending publishes, and the stored receipts, which may be those of another publisher
    """
    head.with_receipts(receipts)
    key = keys.receipts(receipts.version)
    written = yield from create_entry(key, receipts)
    stored = receipts if written.mine else (yield from read_spilled(Receipts, key, written.data))[0]
    return head.with_receipts(stored), stored


def claim(proposed: Claim) -> Procedure[bool]:
    """Claim one round of a chunk of a version's effects. Returns whether the stored claim has the nonce of ``proposed`` (P4)."""
    key = keys.claim(proposed.version, proposed.sink, proposed.chunk, proposed.round)
    return (yield from create_entry(key, proposed)).mine


def put_effects(effects: Effects) -> Procedure[Effects]:
    """Record the result of one round of a chunk. Returns the stored record, which may be that of another publisher."""
    key = keys.effects(effects.version, effects.sink, effects.chunk, effects.round)
    written = yield from create_entry(key, effects)
    return effects if written.mine else (yield from read_spilled(Effects, key, written.data))[0]


def write_segments(version: int, known: Sequence[tuple[Outcome, str]] = ()) -> Procedure[None]:
    """
    Create the segments that became full when ``version`` was closed, and the segment that a dead writer left out 50 versions ago (W23).

    :param known: outcomes that the caller has read already, with the sha256 of their bytes
    """
    already_read = {outcome.version: (outcome, sha) for outcome, sha in known}
    behind = segments.behind(version)
    if behind is not None:
        yield from read_or_write_segment(1, behind)
    for level, index in segments.due(version):
        if level == 1:
            yield from _write_level_1(index, already_read)
        else:
            yield from _write_parent(level, index)


def _write_level_1(index: int, already_read: dict[int, tuple[Outcome, str]]) -> Procedure[Segment]:
    folded = []
    for version in range(index * SEGMENT_WIDTH, (index + 1) * SEGMENT_WIDTH):
        pair = already_read.get(version) or (yield from read_entry(Outcome, keys.outcome(version)))
        if pair is None:
            raise LogDamagedError("a version below a closed one has no outcome", invariant="I2", version=version)
        folded.append(pair)
    return (yield from _create_segment(segments.level_1(index, [o for o, _ in folded], folded[-1][1])))


def _write_parent(level: int, index: int) -> Procedure[Segment]:
    children = []
    for child in range(index * SEGMENT_WIDTH, (index + 1) * SEGMENT_WIDTH):
        children.append((yield from read_or_write_segment(level - 1, child)))
    return (yield from _create_segment(segments.parent(level, index, children)))


def _create_segment(segment: Segment) -> Procedure[Segment]:
    key = keys.segment(segment.level, segment.index)
    written = yield from create_entry(key, segment)
    if not written.mine:
        invariants.check_i9(codec.decode(Segment, key, written.data), segment)
    return segment


def read_or_write_segment(level: int, index: int) -> Procedure[Segment]:
    """Return the segment of a range in which every version is closed. Creates the segment if it is missing (W23)."""
    stored = yield from read_entry(Segment, keys.segment(level, index))
    if stored is not None:
        return stored[0]
    return (yield from (_write_level_1(index, {}) if level == 1 else _write_parent(level, index)))


def read_segments_and_outcomes(version: int, outcomes_from: int | None = None) -> Procedure[list[Segment | Outcome]]:
    """
    Return level-1 segments and outcomes that together cover the versions ``[0, version]``, in order (R1, R4, R5). Writes nothing.

    Each 100 versions are one segment if it exists, and otherwise their outcomes.

    :param outcomes_from: return the outcomes of this version and later ones, because a segment does not show in which order its versions hid rows
    """
    parts: list[Segment | Outcome] = []
    full = min(version + 1, version + 1 if outcomes_from is None else outcomes_from) // SEGMENT_WIDTH
    for index in range(full):
        segment = yield from read_entry(Segment, keys.segment(1, index))
        if segment is not None:
            parts.append(segment[0])
        else:
            parts += yield from _outcomes(range(index * SEGMENT_WIDTH, (index + 1) * SEGMENT_WIDTH))
    parts += yield from _outcomes(range(full * SEGMENT_WIDTH, version + 1))
    return parts


def _outcomes(versions: range) -> Procedure[list[Outcome]]:
    outcomes = []
    for version in versions:
        outcome = yield from read_entry(Outcome, keys.outcome(version))
        if outcome is None:
            raise LogDamagedError("a version below the head has no outcome", invariant="I2", version=version)
        outcomes.append(outcome[0])
    return outcomes
