"""
Every state and transition of the protocol (PROTOCOL.md, 3), and the procedures that ask for requests.

Rule 1: every transition stands in a table of this file. A pair that is not in its table cannot happen in an undamaged log.
Rule 2: nothing here does anything. A procedure is a generator: it yields a :data:`Request`, is sent an :data:`Event`, and returns its result. Only
``commitlog/log.py`` performs requests, so a test can stop, repeat or interleave any procedure at any request.
Rule 3: ``Unknown`` is an event like the others. It is never turned into success or failure; only a read of the key decides (W6).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Put:
    """Create ``key`` if it is absent."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Read ``key``."""

    key: str


@dataclass(frozen=True, slots=True)
class List:
    """The first ``limit`` keys under ``prefix``, in order; all of them where ``limit`` is ``None``."""

    prefix: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class Created:
    """The request created the key."""


@dataclass(frozen=True, slots=True)
class Exists:
    """The key was there already: perhaps by an earlier sending of the same bytes."""


@dataclass(frozen=True, slots=True)
class Found:
    """The bytes under the key."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Missing:
    """No such key at the moment of the read."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Keys that exist. What is not among them proves nothing (W8)."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """409, 5xx, time-out, lost connection: the request may have been applied, may be applied later, or never."""


Request: TypeAlias = Put | Get | List
Event: TypeAlias = Created | Exists | Found | Missing | Listed | Unknown
Procedure: TypeAlias = Generator[Request, Event, T]


class VersionState(Enum):
    """What is stored of a version."""

    VOID = "void"
    PLANNED = "planned"
    COMMITTED = "committed"
    PUBLISHED = "published"
    ABORTED = "aborted"


VERSION: dict[tuple[VersionState, str], VersionState] = {
    (VersionState.VOID, "plan"): VersionState.PLANNED,
    (VersionState.PLANNED, "commit"): VersionState.COMMITTED,
    (VersionState.PLANNED, "abort"): VersionState.ABORTED,
    (VersionState.COMMITTED, "receipts"): VersionState.PUBLISHED,
}
"""(state, object created) → state. Only a commit that owes receipts gets them; to all others COMMITTED is the end"""


class CreateState(Enum):
    """Where one create-if-absent stands."""

    SENT = "sent"
    READING = "reading"
    WON = "won"
    LOST = "lost"


CREATE: dict[tuple[CreateState, str], CreateState] = {
    (CreateState.SENT, "created"): CreateState.WON,
    (CreateState.SENT, "exists"): CreateState.READING,
    (CreateState.SENT, "unknown"): CreateState.SENT,
    (CreateState.READING, "equal"): CreateState.WON,
    (CreateState.READING, "different"): CreateState.LOST,
    (CreateState.READING, "missing"): CreateState.SENT,
    (CreateState.READING, "unknown"): CreateState.READING,
}
"""(state, answer) → state"""


class Step(Enum):
    """What a run does next, once the head is known and closed."""

    PLAN = "plan"
    CLOSE = "close"
    ANSWER = "answer"


RECOVERY: dict[tuple[VersionState, str], Step] = {
    (VersionState.VOID, "no target"): Step.PLAN,
    (VersionState.PLANNED, "no target"): Step.CLOSE,
    (VersionState.PLANNED, "below target"): Step.CLOSE,
    (VersionState.COMMITTED, "no target"): Step.ANSWER,
    (VersionState.COMMITTED, "below target"): Step.PLAN,
    (VersionState.COMMITTED, "target reached"): Step.ANSWER,
    (VersionState.ABORTED, "no target"): Step.PLAN,
    (VersionState.ABORTED, "below target"): Step.PLAN,
    (VersionState.ABORTED, "target reached"): Step.ANSWER,
}
"""(state of the run's newest version, where the head stands to the run's target) → step (W11). A single batch has no target.
A commit that owes receipts is not closed: it is rolled forward before anything else (P1)"""


@dataclass(frozen=True, slots=True)
class Creation:
    """
    How a create ended.

    :param data: the bytes that are stored now
    :param mine: they are the bytes that were sent
    :param first: the store answered *created* to this very procedure, so nobody can have seen the key before it
    """

    data: bytes
    mine: bool
    first: bool


def create(key: str, data: bytes) -> Procedure[Creation]:
    """Create ``key`` with ``data`` if it is absent, and say what is stored (W6, table :data:`CREATE`)."""
    state = CreateState.SENT
    while True:
        event = yield (Put(key, data) if state is CreateState.SENT else Get(key))
        state = CREATE[state, _answer(event, data)]
        if state is CreateState.WON:
            return Creation(data, mine=True, first=isinstance(event, Created))
        if state is CreateState.LOST:
            assert isinstance(event, Found)
            return Creation(event.data, mine=False, first=False)


def _answer(event: Event, data: bytes) -> str:
    if isinstance(event, Found):
        return "equal" if event.data == data else "different"
    return type(event).__name__.lower()


def get(key: str) -> Procedure[bytes | None]:
    """The bytes under ``key``, or ``None`` where the read found nothing."""
    while True:
        event = yield Get(key)
        if isinstance(event, Found):
            return event.data
        if isinstance(event, Missing):
            return None


def list_keys(prefix: str, limit: int | None = None) -> Procedure[tuple[str, ...]]:
    """The first keys under ``prefix``: a hint (W8)."""
    while True:
        event = yield List(prefix, limit)
        if isinstance(event, Listed):
            return event.keys
