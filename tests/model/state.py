"""
What the model knows of the world at one moment: stored objects, sinks outside the log, requests under way, processes, and what may still go wrong.

Offsets are one partition's. The rows of an attempt are two files, since "some of the files" is the only size that matters. Times and checksums are not here:
no step depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

BATCH, REPROCESS = "batch", "reprocess"
COMMIT, ABORT = "commit", "abort"
NONE = -1  # of a target, a replaced version, an attempt
HALF, WHOLE, DELETED = 1, 2, 0  # the files of an attempt
NOBODY, PERSON, DEAD = 0, 98, 99  # of a claim; a process that is alive bears its number + 1
APPLIED, SKIPPED, REFUSED, DONE_ONCE, SENT_ON, UNKNOWN = "applied", "skipped", "refused", "done", "sent", "unknown"

# Where a process stands. The names are those of PROTOCOL.md, 4.
LOOK, LOOK_AT, LOCATE, PLAN, CLOSE, STAGE, HALFWAY = "look", "look at", "locate", "plan", "close", "stage", "halfway"
MANIFEST, POINTER, OUTCOME = "manifest", "pointer", "outcome"
TRANSACT, SEND, CLAIM, EFFECT, RECEIPTS, ANSWERED = "transact", "send", "claim", "effect", "receipts", "answered"


class Plan(NamedTuple):
    """Plan(n); ``replaces`` is the version whose files a reprocessing run replaces."""

    kind: str
    start: int
    end: int
    run: int
    j: int
    target: int = NONE
    replaces: int = NONE


class Outcome(NamedTuple):
    """Outcome(n); ``replaces`` is the version whose files it hides, ``writer`` tells outcomes of two writers apart where a mutant looks at it."""

    result: str
    attempt: int
    next: int
    replaces: int = NONE
    writer: int = 0


class Attempt(NamedTuple):
    """
    What lies under one attempt id, which is its location in the version's list.

    ``read`` is the end of the range that was really read; ``entries`` counts the entries to staging that wrote here.
    """

    files: int
    manifest: bool
    read: int
    entries: int = 1
    owner: int = 0


class Version(NamedTuple):
    """All objects of one version, its data files included."""

    plan: Plan
    outcome: Outcome | None = None
    receipts: tuple[str, ...] | None = None
    claim: int = NOBODY
    attempts: tuple[Attempt, ...] = ()


class Outside(NamedTuple):
    """
    Sinks outside the log. ``marker`` and ``said`` are the marker of the transactional sink, ``rows`` what it holds: (base version, version, attempt).

    ``skipped`` is known to the checker only: a real sink remembers the disposition of its marker alone.
    """

    marker: int = -1
    said: str = ""
    rows: tuple[tuple[int, int, int], ...] = ()
    skipped: tuple[int, ...] = ()
    effects: tuple[int, ...] = ()
    delivered: tuple[int, ...] = ()


class Process(NamedTuple):
    """One process of a run: where it stands, the version it works on, the attempt it would decide, and what else it remembers."""

    at: str
    n: int = -1
    x: int = NONE
    more: tuple[object, ...] = ()


class Budget(NamedTuple):
    """What may still happen: each a number of times, at any moment."""

    unknown: int = 0
    crashes: int = 0
    aborts: int = 0
    vacuums: int = 0
    clears: int = 0
    skips: int = 0


Log: TypeAlias = tuple[Version, ...]
Request: TypeAlias = tuple[object, ...]
Label: TypeAlias = tuple[object, ...]


class State(NamedTuple):
    """One state. ``pointers[run][j]`` is the version that pointer j of a run names; ``late`` are requests that may yet be applied, or never."""

    log: Log
    pointers: tuple[tuple[int, ...], ...]
    outside: Outside
    late: frozenset[Request]
    processes: tuple[Process, ...]
    left: Budget
    gone: tuple[tuple[int, Outcome], ...] = ()  # outcomes that a mutant deleted: (version, what it said)


Step: TypeAlias = tuple[Label, State]
Move: TypeAlias = tuple[int, Label, State]  # the run whose process moves, or NONE
Steps: TypeAlias = Iterator[Step]


def next_after(log: Log, n: int) -> int:
    """``Outcome(n).next``; the initial offset is 0."""
    while n >= 0:
        outcome = log[n].outcome
        if outcome is not None:
            return outcome.next
        n -= 1  # only where a mutant planned ahead
    return 0


def committed(version: Version) -> bool:
    """Whether the version is decided as a commit."""
    return version.outcome is not None and version.outcome.result == COMMIT


def newest_of(log: Log, k: int, upto: int) -> int:
    """The commit that holds the rows of ``k`` at version ``upto``: ``k`` or the newest committed reprocessing of the chain that began with it (W25)."""
    for n in range(k + 1, upto + 1):
        if log[n].plan.replaces == k and committed(log[n]):
            k = n
    return k


def base_of(log: Log, n: int) -> int:
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
    """The state after process ``i`` moved."""
    log, pointers, outside, late, processes, left, gone = state
    return State(log, pointers, outside, late, (*processes[:i], process, *processes[i + 1 :]), left, gone)


def with_outside(state: State, outside: Outside) -> State:
    """The state after a sink outside the log changed."""
    return State(state.log, state.pointers, outside, *state[3:])


def with_late(state: State, request: Request | None) -> State:
    """The state after a copy of a request was left on its way."""
    if request is None:
        return state
    log, pointers, outside, late, processes, left, gone = state
    return State(log, pointers, outside, late | {request}, processes, left, gone)


def with_attempt(state: State, n: int, x: int, attempt: Attempt) -> State:
    """The state after attempt ``x`` of version ``n`` changed, or was begun."""
    version = state.log[n]
    attempts = (*version.attempts[:x], attempt, *version.attempts[x + 1 :])
    return with_version(state, n, version._replace(attempts=attempts))


def spend(state: State, what: str) -> State:
    """The state with one less of something that may go wrong."""
    left = state.left
    return state._replace(left=left._replace(**{what: getattr(left, what) - 1}))
