"""
Applies requests: create-if-absent in the store, a transaction or an effect in a sink outside the log.

A request is a tuple whose first item is its kind. ``apply`` applies it and returns whether it created its key. ``matters`` returns whether a copy in flight
can still change anything. A copy that cannot is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model.configurations import Configuration
from tests.model.state import (
    APPLIED,
    DELETED,
    HALF,
    NONE,
    REFUSED,
    REPROCESS,
    ROLLBACK,
    SKIPPED,
    WHOLE,
    Attempt,
    ExternalSinks,
    Outcome,
    Plan,
    Request,
    State,
    Version,
    is_loadable,
    lineage,
    newest_alter,
    pointer,
    root_of,
    with_attempt,
    with_external,
    with_version,
)

Answer = bool | str


class Store:
    """Answers of the store and of the sinks outside the log."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.actors = configuration.actors
        self.sinks = configuration.sinks
        self.stale = configuration.stale
        self._apply: dict[object, Callable[..., tuple[State, Answer]]] = {}
        self._matters: dict[object, Callable[..., bool]] = {}
        for kind in (
            "plan",
            "manifest",
            "pointer",
            "outcome",
            "claim",
            "receipts",
            "transaction",
            "effect",
            "force",
            "vacuum",
        ):
            self._apply[kind] = getattr(self, f"apply_{kind}")
            self._matters[kind] = getattr(self, f"{kind}_matters")

    def apply(self, s: State, request: Request) -> tuple[State, Answer]:
        """Apply the request now. Returns the state after it and the answer."""
        return self._apply[request[0]](s, *request[1:])

    def matters(self, s: State, request: Request) -> bool:
        """Whether the request, applied now or later, could still change something."""
        return self._matters[request[0]](s, *request[1:])

    def apply_plan(self, s: State, n: int, plan: Plan) -> tuple[State, Answer]:
        """Create Plan(n). The sender of a plan knows version n - 1, so n is at most one beyond the log."""
        if n < len(s.log):
            return s, False
        return s._replace(log=(*s.log, Version(plan))), True

    def plan_matters(self, s: State, n: int, _: Plan) -> bool:
        return n >= len(s.log)

    def apply_manifest(self, s: State, n: int, x: int) -> tuple[State, Answer]:
        """Create the staged manifest of attempt x. No other process sends this key."""
        if not self.manifest_matters(s, n, x):
            return s, False
        return with_attempt(s, n, x, s.log[n].attempts[x]._replace(manifest=True)), True

    def manifest_matters(self, s: State, n: int, x: int) -> bool:
        return 0 <= x < len(s.log[n].attempts) and not s.log[n].attempts[x].manifest

    def apply_pointer(self, s: State, run: int, j: int, n: int) -> tuple[State, Answer]:
        """Create run pointer j."""
        if not self.pointer_matters(s, run, j, n):
            return s, False
        chain = s.pointers[run]
        chain = (*chain[:j], *(-1 for _ in range(j - len(chain))), n, *chain[j + 1 :])
        return s._replace(pointers=(*s.pointers[:run], chain, *s.pointers[run + 1 :])), True

    def pointer_matters(self, s: State, run: int, j: int, _: int) -> bool:
        return pointer(s, run, j) < 0

    def apply_outcome(self, s: State, n: int, outcome: Outcome) -> tuple[State, Answer]:
        """Create Outcome(n), the single object that decides the version."""
        if s.log[n].outcome is not None:
            return s, False
        return with_version(s, n, s.log[n]._replace(outcome=outcome)), True

    def outcome_matters(self, s: State, n: int, _: Outcome) -> bool:
        return s.log[n].outcome is None

    def apply_force(self, s: State, n: int, outcome: Outcome) -> tuple[State, Answer]:
        """Overwrite Outcome(n). Only mutants send this."""
        return with_version(s, n, s.log[n]._replace(outcome=outcome)), True

    def force_matters(self, *_: object) -> bool:
        return True

    def apply_claim(self, s: State, n: int, nonce: int) -> tuple[State, Answer]:
        """Create Claim(n)."""
        if s.log[n].claim:
            return s, False
        return with_version(s, n, s.log[n]._replace(claim=nonce)), True

    def claim_matters(self, s: State, n: int, _: int) -> bool:
        return not s.log[n].claim

    def apply_receipts(self, s: State, n: int, results: tuple[str, ...]) -> tuple[State, Answer]:
        """Create Receipts(n)."""
        if s.log[n].receipts is not None:
            return s, False
        return with_version(s, n, s.log[n]._replace(receipts=results)), True

    def receipts_matters(self, s: State, n: int, _: object) -> bool:
        return s.log[n].receipts is None

    def apply_transaction(self, s: State, n: int, attempt: int, skip: bool) -> tuple[State, Answer]:
        """
        One transaction of the transactional sink: set the marker to n if it is below n, and only then change rows.

        The rows of a reprocessing run replace the rows of their whole chain. A rollback removes rows only. A skip sets the marker and changes no rows.
        """
        sink = s.external
        if sink.marker >= n:
            return s, self.marker_state_at(sink, n)
        if self.configuration.poison and n == 0 and not skip:
            return s, REFUSED
        return with_external(s, self.after_transaction(s, n, attempt, skip)), SKIPPED if skip else APPLIED

    def transaction_matters(self, s: State, n: int, *_: object) -> bool:
        return s.external.marker < n

    def marker_state_at(self, sink: ExternalSinks, n: int) -> str:
        """The marker's state if it is at n. If it is above n, the result is empty: Receipts(n) exist and have the result."""
        return sink.marker_state if sink.marker == n else ""

    def after_transaction(self, s: State, n: int, attempt: int, skip: bool) -> ExternalSinks:
        """The transactional sink after version n was applied or skipped."""
        sink = s.external
        if skip:
            return sink._replace(marker=n, marker_state=SKIPPED, skipped=(*sink.skipped, n))
        added = [] if s.log[n].plan.kind == ROLLBACK else [(root_of(s.log, n), n, attempt)]
        rows = tuple(sorted([*self.kept_rows(s, n), *added]))
        return sink._replace(marker=n, marker_state=APPLIED, rows=rows)

    def kept_rows(self, s: State, n: int) -> list[tuple[int, int, int]]:
        """The rows in the sink that version n does not remove. A batch removes none, not even its own."""
        plan = s.log[n].plan
        if plan.kind == ROLLBACK:
            return self.rows_kept_by_rollback(s, plan.to)
        replaced = root_of(s.log, n) if plan.kind == REPROCESS else NONE
        return [row for row in s.external.rows if row[0] != replaced]

    def rows_kept_by_rollback(self, s: State, to: int) -> list[tuple[int, int, int]]:
        """The rows of chains that begin up to the version to which a rollback returns (P10)."""
        return [row for row in s.external.rows if row[0] <= to]

    def apply_vacuum(self, s: State, oldest: tuple[int, int]) -> tuple[State, Answer]:
        """
        Delete the files that only states with fewer batches than ``oldest`` need, and states that began with another batch (V7).

        Nothing is deleted if ``oldest`` itself is not complete. A missing snapshot names no files to keep.
        """
        if not is_loadable(s.log, oldest) or self.is_altered_after(s, oldest[0]):
            return s, False
        kept_states = lineage(s.log, oldest)
        for n, version in enumerate(s.log):
            for x in range(len(version.attempts)):
                state = lineage(s.log, (n, x))
                if state[-1] != kept_states[-1]:
                    left = DELETED
                elif len(state) < len(kept_states):
                    left = self.left_of_older(s, (n, x), kept_states)
                else:
                    continue
                left = min(left, s.log[n].attempts[x].state)
                s = with_attempt(s, n, x, s.log[n].attempts[x]._replace(state=left))
        return s, True

    def is_altered_after(self, s: State, version: int) -> bool:
        """Whether an alter after a version has dropped the state. Later states begin with another batch, although they are newer."""
        return newest_alter(s.log, len(s.log) - 1) > version

    def left_of_older(self, s: State, state: tuple[int, int], kept_states: list[tuple[int, int]]) -> int:
        """What vacuum leaves of an older state: the files that the oldest kept state shares with it."""
        return HALF if state in kept_states else DELETED

    def vacuum_matters(self, s: State, oldest: tuple[int, int]) -> bool:
        return self.apply_vacuum(s, oldest)[0] != s

    def apply_effect(self, s: State, n: int) -> tuple[State, Answer]:
        """Perform the effect of the at-most-once sink."""
        return with_external(s, s.external._replace(effects=tuple(sorted((*s.external.effects, n))))), True

    def effect_matters(self, *_: object) -> bool:
        return True

    def useful(self, s: State, request: Request | None) -> Request | None:
        """The request if a copy of it can still change something, else ``None``."""
        return request if request is not None and self.matters(s, request) else None


def has_all_files(attempt: Attempt) -> bool:
    """Whether every file exists with the recorded size and checksum (W17)."""
    return attempt.files == WHOLE


def unexpected(value: Any) -> AssertionError:
    """An error for a value that the model does not handle."""
    return AssertionError(f"the model has no case for {value!r}")
