"""
How a request is applied: create-if-absent in the store, a transaction or an effect in a sink outside the log.

A request is a tuple whose first item is its kind. ``land`` applies it and says whether it created its key; ``matters`` says whether a copy that is still on its
way can change anything at all, since one that cannot need not be remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model.configurations import Configuration
from tests.model.state import (
    APPLIED,
    NONE,
    REFUSED,
    REPROCESS,
    SKIPPED,
    WHOLE,
    Attempt,
    Outcome,
    Outside,
    Plan,
    Request,
    State,
    Version,
    base_of,
    pointer,
    with_attempt,
    with_outside,
    with_version,
)

Answer = bool | str


class Store:
    """The store and the outside sinks, as they answer requests."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.actors = configuration.actors
        self.sinks = configuration.sinks
        self.stale = configuration.stale
        self._land: dict[object, Callable[..., tuple[State, Answer]]] = {}
        self._matters: dict[object, Callable[..., bool]] = {}
        for kind in ("plan", "manifest", "pointer", "outcome", "claim", "receipts", "transaction", "effect", "force"):
            self._land[kind] = getattr(self, f"land_{kind}")
            self._matters[kind] = getattr(self, f"{kind}_matters")

    def land(self, s: State, request: Request) -> tuple[State, Answer]:
        """The request is applied now: the state after it, and what the answer would say."""
        return self._land[request[0]](s, *request[1:])

    def matters(self, s: State, request: Request) -> bool:
        """Whether applying the request, now or later, could still change something."""
        return self._matters[request[0]](s, *request[1:])

    def land_plan(self, s: State, n: int, plan: Plan) -> tuple[State, Answer]:
        """Create Plan(n). A plan is sent only by who knows version n - 1, so that n is at most one beyond the log."""
        if n < len(s.log):
            return s, False
        return s._replace(log=(*s.log, Version(plan))), True

    def plan_matters(self, s: State, n: int, _: Plan) -> bool:
        return n >= len(s.log)

    def land_manifest(self, s: State, n: int, x: int) -> tuple[State, Answer]:
        """Create the staged manifest of attempt x: nobody else sends this key."""
        if not self.manifest_matters(s, n, x):
            return s, False
        return with_attempt(s, n, x, s.log[n].attempts[x]._replace(manifest=True)), True

    def manifest_matters(self, s: State, n: int, x: int) -> bool:
        return 0 <= x < len(s.log[n].attempts) and not s.log[n].attempts[x].manifest

    def land_pointer(self, s: State, run: int, j: int, n: int) -> tuple[State, Answer]:
        """Create run pointer j."""
        if not self.pointer_matters(s, run, j, n):
            return s, False
        chain = s.pointers[run]
        chain = (*chain[:j], *(-1 for _ in range(j - len(chain))), n, *chain[j + 1 :])
        return s._replace(pointers=(*s.pointers[:run], chain, *s.pointers[run + 1 :])), True

    def pointer_matters(self, s: State, run: int, j: int, _: int) -> bool:
        return pointer(s, run, j) < 0

    def land_outcome(self, s: State, n: int, outcome: Outcome) -> tuple[State, Answer]:
        """Create Outcome(n): the one object that decides."""
        if s.log[n].outcome is not None:
            return s, False
        return with_version(s, n, s.log[n]._replace(outcome=outcome)), True

    def outcome_matters(self, s: State, n: int, _: Outcome) -> bool:
        return s.log[n].outcome is None

    def land_force(self, s: State, n: int, outcome: Outcome) -> tuple[State, Answer]:
        """Write Outcome(n) whatever is there. Sent by mutants only."""
        return with_version(s, n, s.log[n]._replace(outcome=outcome)), True

    def force_matters(self, *_: object) -> bool:
        return True

    def land_claim(self, s: State, n: int, nonce: int) -> tuple[State, Answer]:
        """Create Claim(n)."""
        if s.log[n].claim:
            return s, False
        return with_version(s, n, s.log[n]._replace(claim=nonce)), True

    def claim_matters(self, s: State, n: int, _: int) -> bool:
        return not s.log[n].claim

    def land_receipts(self, s: State, n: int, said: tuple[str, ...]) -> tuple[State, Answer]:
        """Create Receipts(n)."""
        if s.log[n].receipts is not None:
            return s, False
        return with_version(s, n, s.log[n]._replace(receipts=said)), True

    def receipts_matters(self, s: State, n: int, _: object) -> bool:
        return s.log[n].receipts is None

    def land_transaction(self, s: State, n: int, attempt: int, skip: bool) -> tuple[State, Answer]:
        """
        One transaction of the transactional sink: set the marker to n where it is below n, and only then change rows.

        The rows of a reprocessing run take the place of the rows of their whole chain; a skip moves the marker and no rows.
        """
        at = s.outside
        if at.marker >= n:
            return s, self.disposition(at, n)
        if self.configuration.poison and n == 0 and not skip:
            return s, REFUSED
        return with_outside(s, self.applied(s, n, attempt, skip)), SKIPPED if skip else APPLIED

    def transaction_matters(self, s: State, n: int, *_: object) -> bool:
        return s.outside.marker < n

    def disposition(self, at: Outside, n: int) -> str:
        """What the sink says of a version that its marker has reached. Above n, the receipts of n exist and are what counts."""
        return at.said if at.marker == n else ""

    def applied(self, s: State, n: int, attempt: int, skip: bool) -> Outside:
        """The transactional sink after version n was applied or skipped."""
        at = s.outside
        if skip:
            return at._replace(marker=n, said=SKIPPED, skipped=(*at.skipped, n))
        rows = tuple(sorted([*self.kept(s, n), (base_of(s.log, n), n, attempt)]))
        return at._replace(marker=n, said=APPLIED, rows=rows)

    def kept(self, s: State, n: int) -> list[tuple[int, int, int]]:
        """The rows in the sink that version n does not replace. A batch replaces none, be they its own."""
        replaced = base_of(s.log, n) if s.log[n].plan.kind == REPROCESS else NONE
        return [row for row in s.outside.rows if row[0] != replaced]

    def land_effect(self, s: State, n: int) -> tuple[State, Answer]:
        """The effect of the at-most-once sink happens."""
        return with_outside(s, s.outside._replace(effects=tuple(sorted((*s.outside.effects, n))))), True

    def effect_matters(self, *_: object) -> bool:
        return True

    def useful(self, s: State, request: Request | None) -> Request | None:
        """The request, where a copy of it can still change something."""
        return request if request is not None and self.matters(s, request) else None


def whole(attempt: Attempt) -> bool:
    """Whether every file is there with the recorded size and checksum (W17)."""
    return attempt.files == WHOLE


def unexpected(value: Any) -> AssertionError:
    """A value that no table of the model names."""
    return AssertionError(f"the model has no case for {value!r}")
