"""
Requests and events of procedures, the state machine of a create, and the table of a run's next step (PROTOCOL.md, 3 and 4.1).

* A *procedure* is a generator that yields a :data:`Request`, receives an :data:`Event`, and returns its result. It performs no I/O. Only
  ``commitlog/log.py`` performs requests. So a test can stop, repeat or interleave procedures at any request.
* The tables :data:`CREATE` and :data:`RECOVERY` contain every transition. A pair that is not in its table cannot occur in an undamaged log. The states of a
  version are the classes :class:`airflow_provider_streamsem.protocol.view.ClosedHead` and :class:`airflow_provider_streamsem.protocol.view.OpenHead`.
* ``Unknown`` is an ordinary event. No code treats it as success or failure. Only a read of the key shows the result (W6).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Put:
    """Request: create ``key`` if it is absent."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Request: read ``key``."""

    key: str


@dataclass(frozen=True, slots=True)
class List:
    """Request: list the first ``limit`` keys under ``prefix`` in order; all keys if ``limit`` is ``None``."""

    prefix: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class Created:
    """The request created the key."""


@dataclass(frozen=True, slots=True)
class Exists:
    """The key exists already, possibly because an earlier request with the same bytes was applied."""


@dataclass(frozen=True, slots=True)
class Found:
    """The bytes under the key."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Missing:
    """The key did not exist at the time of the read."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Keys that exist. A key that is not listed may exist too (W8)."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """
    The store did not report a result (409, 5xx, timeout, lost connection). The request may have been applied, may be applied later, or may never be applied.
    """


Request: TypeAlias = Put | Get | List
Event: TypeAlias = Created | Exists | Found | Missing | Listed | Unknown
Procedure: TypeAlias = Generator[Request, Event, T]


class CreateState(Enum):
    """State of one create-if-absent."""

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
"""(state, event) → state."""


class Step(Enum):
    """Next step of a run whose newest version is closed."""

    PLAN = "plan"
    COMPLETE = "complete"


RECOVERY: dict[tuple[str, str], Step] = {
    ("commit", "no target"): Step.COMPLETE,
    ("commit", "below target"): Step.PLAN,
    ("commit", "target reached"): Step.COMPLETE,
    ("abort", "no target"): Step.PLAN,
    ("abort", "below target"): Step.PLAN,
    ("abort", "target reached"): Step.COMPLETE,
}
"""(result of the run's newest version, position of the head relative to the run's target) → step (W11). A single batch has no target."""


@dataclass(frozen=True, slots=True)
class Creation:
    """
    Result of a create.

    :param data: the stored bytes
    :param mine: whether the stored bytes equal the bytes that were sent
    :param first: whether the store reported to this procedure that it created the key. If so, no other process can have read the key before
    """

    data: bytes
    mine: bool
    first: bool


def create(key: str, data: bytes) -> Procedure[Creation]:
    """Create ``key`` with ``data`` if the key is absent, and return the stored bytes (W6, table :data:`CREATE`)."""
    state = CreateState.SENT
    while True:
        event = yield (Put(key, data) if state is CreateState.SENT else Get(key))
        state = CREATE[state, _event_name(event, data)]
        if state is CreateState.WON:
            return Creation(data, mine=True, first=isinstance(event, Created))
        if state is CreateState.LOST:
            assert isinstance(event, Found)
            return Creation(event.data, mine=False, first=False)


def _event_name(event: Event, data: bytes) -> str:
    if isinstance(event, Found):
        return "equal" if event.data == data else "different"
    return type(event).__name__.lower()


def get(key: str) -> Procedure[bytes | None]:
    """Return the bytes under ``key``, or ``None`` if the key is missing."""
    while True:
        event = yield Get(key)
        if isinstance(event, Found):
            return event.data
        if isinstance(event, Missing):
            return None


def list_keys(prefix: str, limit: int | None = None) -> Procedure[tuple[str, ...]]:
    """Return the first ``limit`` keys under ``prefix``, or all keys if ``limit`` is ``None``. The result is a hint: keys may be missing from it (W8)."""
    while True:
        event = yield List(prefix, limit)
        if isinstance(event, Listed):
            return event.keys
