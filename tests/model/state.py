"""
A state of the model: stored objects, sinks outside the log, requests in flight, processes, and the faults that may still occur.

There is one partition. An attempt has two files, which is enough to model a partly written attempt. Times and checksums are not modelled, because no step
depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from airflow_provider_streamsem.protocol.kinds.move import Move as MoveKind
from airflow_provider_streamsem.protocol.kinds.registry import KINDS as REGISTRY

BATCH, REPROCESS, ROLLBACK, ALTER, REWRITE, EXPIRE, INTERVAL = (
    "batch",
    "reprocess",
    "rollback",
    "alter",
    "rewrite",
    "expire",
    "interval",
)
KINDS = {kind: declared for kind, declared in REGISTRY.items() if kind != MoveKind.kind}
"""The kinds of versions, as the package declares them. So the model cannot differ from the package in what a kind has."""
WITHOUT_ATTEMPT = tuple(kind for kind in KINDS if not KINDS[kind].stages)
WITHOUT_ROWS = tuple(kind for kind in KINDS if not KINDS[kind].has_rows)
WITHOUT_PUBLISH = (ALTER, REWRITE, EXPIRE)
COMMIT, ABORT = "commit", "abort"
NONE = -1  # no target, no replaced version, no attempt
ABORTING = -2  # in place of an attempt: the process aborts the version
HALF, WHOLE, DELETED = 1, 2, 0  # values of Attempt.files
NOBODY, OPERATOR, DEAD = 0, 98, 99  # values of Version.claim; a live process has its number + 1
NO_STATE = (NONE, NONE)
APPLIED, SKIPPED, REFUSED, DONE, SENT, UNKNOWN = "applied", "skipped", "refused", "done", "sent", "unknown"

# The next step of a process. The names are those of PROTOCOL.md, 4.
LIST_HEAD, READ_HEAD, LOCATE, PLAN, CLOSE, STAGE, HALFWAY = (
    "list head",
    "read head",
    "locate",
    "plan",
    "close",
    "stage",
    "halfway",
)
MANIFEST, POINTER, OUTCOME = "manifest", "pointer", "outcome"
TRANSACT, DELIVER, CLAIM, EFFECT, RECEIPTS, COMPLETED = (
    "transact",
    "deliver",
    "claim",
    "effect",
    "receipts",
    "completed",
)


class Plan(NamedTuple):
    """
    Plan(n); ``replaces`` is the version whose files a reprocessing run replaces, ``to`` the version to which a rollback returns.

    ``config`` are the immutable fields of the planner's spec: 0 before the alter, 1 after it. ``commits`` are those whose rows a rewrite stores again.
    ``oldest`` is the oldest version that stays readable after an expiry. ``interval`` is the number of the interval that is read.
    """

    kind: str
    start: int
    end: int
    run: int
    j: int
    target: int = NONE
    replaces: int = NONE
    to: int = NONE
    config: int = 0
    commits: tuple[int, ...] = ()
    oldest: int = NONE
    interval: int = NONE


class Outcome(NamedTuple):
    """
    Outcome(n); ``replaces`` is the version whose files it hides. A rollback hides the files of the versions after ``to``. ``state`` is the operators' state
    after the version: the version and the attempt that wrote it. ``intervals`` are those that were read: number, start and end offset, in ascending order.

    Only one mutant sets ``writer``: the process that created the outcome.
    """

    result: str
    attempt: int
    next: int
    replaces: int = NONE
    writer: int = 0
    state: tuple[int, int] = NO_STATE
    to: int = NONE
    intervals: tuple[tuple[int, int, int], ...] = ()


class Attempt(NamedTuple):
    """
    The objects of one attempt. Its id is its index in the version's list.

    ``read`` is the end of the range that the attempt read. ``entries`` counts how often a process began to stage under this id. ``base`` is the operators' state
    that the attempt loaded. ``state`` is the operators' state that it wrote: whole, deleted except for the files that later states share (``HALF``), or deleted.
    ``config`` are the immutable fields of the process that began it.
    """

    files: int
    manifest: bool
    read: int
    entries: int = 1
    owner: int = 0
    base: tuple[int, int] = NO_STATE
    state: int = WHOLE
    config: int = 0


class Version(NamedTuple):
    """All objects of one version, its data files included."""

    plan: Plan
    outcome: Outcome | None = None
    receipts: tuple[str, ...] | None = None
    claim: int = NOBODY
    attempts: tuple[Attempt, ...] = ()


class ExternalSinks(NamedTuple):
    """
    Sinks outside the log. ``marker`` and ``marker_state`` are the marker of the transactional sink, ``rows`` its content: (root, version, attempt).

    Only the predicates read ``skipped``. A real sink stores the state of its newest marker alone.
    """

    marker: int = -1
    marker_state: str = ""
    rows: tuple[tuple[int, int, int], ...] = ()
    skipped: tuple[int, ...] = ()
    effects: tuple[int, ...] = ()
    delivered: tuple[int, ...] = ()


class Process(NamedTuple):
    """One process of a run: its next step, its version, the attempt that it would commit, and its other memory."""

    at: str
    n: int = -1
    x: int = NONE
    memory: tuple[object, ...] = ()


class Budget(NamedTuple):
    """How often each fault or action may still occur. Each can occur at any moment."""

    unknown: int = 0
    crashes: int = 0
    aborts: int = 0
    vacuums: int = 0
    state_vacuums: int = 0
    clears: int = 0
    skips: int = 0


Log: TypeAlias = tuple[Version, ...]
Request: TypeAlias = tuple[object, ...]
Label: TypeAlias = tuple[object, ...]


class State(NamedTuple):
    """One state. ``pointers[run][j]`` is the version that pointer j of a run names. ``late`` has requests that may be applied later, or never."""

    log: Log
    pointers: tuple[tuple[int, ...], ...]
    external: ExternalSinks
    late: frozenset[Request]
    processes: tuple[Process, ...]
    budget: Budget
    deleted: tuple[tuple[int, Outcome], ...] = ()  # outcomes that a mutant deleted: (version, outcome)


Step: TypeAlias = tuple[Label, State]
Move: TypeAlias = tuple[int, Label, State]  # the run whose process takes the step, or NONE
Steps: TypeAlias = Iterator[Step]


def next_after(log: Log, n: int) -> int:
    """``Outcome(n).next``; the initial offset is 0."""
    while n >= 0:
        outcome = log[n].outcome
        if outcome is not None:
            return outcome.next
        n -= 1  # only if a mutant planned ahead
    return 0


def state_after(log: Log, n: int) -> tuple[int, int]:
    """``Outcome(n).state``; no state before version 0."""
    outcome = log[n].outcome if n >= 0 else None
    return NO_STATE if outcome is None else outcome.state


def intervals_after(log: Log, n: int) -> tuple[tuple[int, int, int], ...]:
    """``Outcome(n).intervals``; none before version 0."""
    outcome = log[n].outcome if n >= 0 else None
    return () if outcome is None else outcome.intervals


def config_after(log: Log, n: int) -> int:
    """The immutable fields that bind the writers after version n: those of its plan. An alter that is open or was aborted changes none."""
    while n >= 0 and log[n].plan.kind == ALTER and not committed(log[n]):
        n -= 1
    return log[n].plan.config if n >= 0 else 0


def newest_alter(log: Log, upto: int) -> int:
    """The newest committed alter up to a version, or ``NONE``."""
    return max((n for n in range(upto + 1) if log[n].plan.kind == ALTER and committed(log[n])), default=NONE)


def newest_closed(log: Log) -> int:
    """The newest version that has an outcome, or ``NONE``. Only the newest version can be open."""
    return len(log) - 1 if log and log[-1].outcome is not None else len(log) - 2 if log else NONE


def lineage(log: Log, state: tuple[int, int]) -> list[tuple[int, int]]:
    """A state and all states on which it builds, newest first. A state shares files with each of them."""
    found = []
    while state != NO_STATE:
        found.append(state)
        state = log[state[0]].attempts[state[1]].base
    return found


def is_loadable(log: Log, state: tuple[int, int]) -> bool:
    """Whether no file of a state is deleted: neither its snapshot nor a file that it shares with an earlier state."""
    states = lineage(log, state)
    kinds = [log[n].attempts[x].state for n, x in states]
    return not kinds or (kinds[0] == WHOLE and DELETED not in kinds)


def oldest_kept(log: Log, closed: int, keep: int) -> int:
    """The version whose state is the oldest that vacuum keeps (V7); ``NONE`` if there are fewer versions."""
    remaining = kept(log, closed)
    rollbacks = [n for n in range(closed + 1) if (outcome := log[n].outcome) is not None and outcome.to != NONE]
    histories = [remaining, *(kept(log, n - 1) for n in rollbacks)]
    oldest = [history[-1 - keep] for history in histories if len(history) > keep]
    return max((n for n in oldest if n in remaining), default=NONE)


def committed(version: Version) -> bool:
    """Whether the version has an outcome that is a commit."""
    return version.outcome is not None and version.outcome.result == COMMIT


def kept(log: Log, upto: int) -> list[int]:
    """The versions up to ``upto`` that no rollback has removed, in ascending order."""
    found: list[int] = []
    for n in range(upto + 1):
        outcome = log[n].outcome
        if outcome is not None and outcome.to != NONE:
            found = [m for m in found if m <= outcome.to]
        found.append(n)
    return found


def visible(log: Log, at: int) -> set[int]:
    """The versions whose rows are visible at version ``at`` (R4)."""
    versions: set[int] = set()
    for n in range(at + 1):
        outcome = log[n].outcome
        if outcome is not None and outcome.to != NONE:
            versions = {m for m in versions if m <= outcome.to}
        if committed(log[n]) and log[n].plan.kind not in WITHOUT_ROWS:
            versions.add(n)
        if outcome is not None:
            versions.discard(outcome.replaces)
    return versions


def applied_rewrites(log: Log, at: int) -> list[int]:
    """The rewrites whose files readers of version ``at`` read (R8)."""
    rewrites = [n for n in range(at + 1) if log[n].plan.kind == REWRITE and committed(log[n])]
    rows = visible(log, at)
    return [
        n
        for n in rewrites
        if {*log[n].plan.commits} <= rows
        and not any(later > n and {*log[n].plan.commits} & {*log[later].plan.commits} for later in rewrites)
    ]


def oldest_readable(log: Log, upto: int) -> int:
    """The oldest version that readers can read after version ``upto`` (W43)."""
    expiries = [log[n].plan.oldest for n in range(upto + 1) if log[n].plan.kind == EXPIRE and committed(log[n])]
    return max(expiries, default=0)


def bound_commits(log: Log, at: int) -> set[int]:
    """The commits whose rows only the files of a rewrite may have: of each rewrite that applies and whose commits have all expired (W44)."""
    oldest = oldest_readable(log, at)
    rewrites = [log[n].plan.commits for n in applied_rewrites(log, at)]
    return {commit for commits in rewrites for commit in commits if max(commits) < oldest}


def has_needed_files(log: Log, n: int, at: int) -> bool:
    """Whether readers of version ``at`` read files of version n (R4, R8)."""
    applied = applied_rewrites(log, at)
    return n in applied or (n in visible(log, at) and not any(n in log[r].plan.commits for r in applied))


def newest_of(log: Log, k: int, upto: int) -> int:
    """The commit that holds the rows of ``k`` at version ``upto``: ``k``, or the newest committed reprocessing run of its chain (W25)."""
    for n in range(k + 1, upto + 1):
        if log[n].plan.replaces == k and committed(log[n]):
            k = n
    return k


def root_of(log: Log, n: int) -> int:
    """The batch at the root of a chain of reprocessing runs."""
    while log[n].plan.kind == REPROCESS:
        n = log[n].plan.replaces
    return n


def pointer(state: State, run: int, j: int) -> int:
    """The version that a run pointer names, or ``NONE``."""
    chain = state.pointers[run]
    return chain[j] if j < len(chain) else NONE


def with_version(state: State, n: int, version: Version) -> State:
    """The state after an object of version ``n`` changed."""
    return State((*state.log[:n], version, *state.log[n + 1 :]), *state[1:])


def with_process(state: State, i: int, process: Process) -> State:
    """The state after a step of process ``i``."""
    log, pointers, external, late, processes, budget, deleted = state
    return State(log, pointers, external, late, (*processes[:i], process, *processes[i + 1 :]), budget, deleted)


def with_external(state: State, external: ExternalSinks) -> State:
    """The state after a sink outside the log changed."""
    return State(state.log, state.pointers, external, *state[3:])


def with_late(state: State, request: Request | None) -> State:
    """The state with one more request in flight."""
    if request is None:
        return state
    log, pointers, external, late, processes, budget, deleted = state
    return State(log, pointers, external, late | {request}, processes, budget, deleted)


def with_attempt(state: State, n: int, x: int, attempt: Attempt) -> State:
    """The state after attempt ``x`` of version ``n`` changed or began."""
    version = state.log[n]
    attempts = (*version.attempts[:x], attempt, *version.attempts[x + 1 :])
    return with_version(state, n, version._replace(attempts=attempts))


def spend(state: State, field: str) -> State:
    """The state with one less in a field of its budget."""
    budget = state.budget
    return state._replace(budget=budget._replace(**{field: getattr(budget, field) - 1}))
