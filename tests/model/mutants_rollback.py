"""Mutants of rollbacks."""

from __future__ import annotations

from tests.model.mutant import Mutant, caught_by
from tests.model.state import (
    BATCH,
    NONE,
    ROLLBACK,
    ExternalSinks,
    Outcome,
    Plan,
    Process,
    State,
    committed,
    next_after,
    state_after,
)


@caught_by("I21", "rollback")
class RollbackHidesNothing(Mutant):
    """The outcome of a rollback hides no files. The rows of later versions stay visible, and their records are read again."""

    def rollback_of(self, s: State, plan: Plan) -> Outcome:
        return super().rollback_of(s, plan)._replace(to=NONE)


@caught_by("I4", "rollback")
class RollbackKeepsOffsets(Mutant):
    """The outcome of a rollback keeps the offsets. The records of the removed rows are never read again."""

    def rollback_of(self, s: State, plan: Plan) -> Outcome:
        return super().rollback_of(s, plan)._replace(next=next_after(s.log, len(s.log) - 1))


@caught_by("I21", "rollback")
class RollbackKeepsState(Mutant):
    """The outcome of a rollback keeps the operators' state, which contains the records that are read again."""

    def rollback_of(self, s: State, plan: Plan) -> Outcome:
        return super().rollback_of(s, plan)._replace(state=state_after(s.log, len(s.log) - 2))


@caught_by("I20", "rollback_reprocess")
class RollbackWithoutCorrections(Mutant):
    """A rollback removes a reprocessing run, although the version that it reprocessed stays. No rows of that version are visible."""

    def is_corrected(self, s: State, to: int, head: int) -> bool:
        return False


@caught_by("I21", "rollback_twice")
class RollbackToRolledBack(Mutant):
    """A rollback returns to a version that another rollback has removed."""

    def commits(self, s: State, head: int) -> list[int]:
        return [n for n in range(head + 1) if committed(s.log[n]) and s.log[n].plan.kind != ROLLBACK]


@caught_by("I18", "rollback_txn")
class RollbackLeavesRowsInSink(Mutant):
    """Publishing a rollback sets the marker and removes no rows. The rows that are read again are in the sink twice."""

    def rows_kept_by_rollback(self, s: State, to: int) -> list[tuple[int, int, int]]:
        return [*s.external.rows]


@caught_by("I18", "rollback_txn")
class RollbackRemovesNewestOnly(Mutant):
    """Publishing a rollback removes only the rows of the version before it."""

    def rows_kept_by_rollback(self, s: State, to: int) -> list[tuple[int, int, int]]:
        newest = max((row[0] for row in s.external.rows), default=NONE)
        return [row for row in s.external.rows if row[0] <= to or row[0] != newest]


@caught_by("I18", "rollback_txn")
class RollbackSetsNoMarker(Mutant):
    """Publishing a rollback removes the rows, and leaves the marker. A late publisher applies a version that was rolled back."""

    def after_transaction(self, s: State, n: int, attempt: int, skip: bool) -> ExternalSinks:
        after = super().after_transaction(s, n, attempt, skip)
        return after._replace(marker=n - 1) if s.log[n].plan.kind == ROLLBACK else after


@caught_by("I4", "rollback_twice")
class BatchIgnoresRollback(Mutant):
    """A run plans after the newest committed batch, not after the newest version."""

    def cut(self, s: State, i: int, head: int, j: int, target: int) -> Process:
        process = super().cut(s, i, head, j, target)
        plan = process.memory[0] if process.memory else None
        batches = [n for n in range(head + 1) if committed(s.log[n]) and s.log[n].plan.kind == BATCH]
        if not isinstance(plan, Plan) or plan.kind != BATCH or not batches:
            return process
        start = next_after(s.log, batches[-1])
        return process._replace(memory=(plan._replace(start=start, end=start + plan.end - plan.start),))


@caught_by("I4", "rollback_abort")
class RollbackAbortRewinds(Mutant):
    """The abort of a rollback sets next to the offsets of its plan."""

    def abort_of(self, s: State, n: int) -> Outcome:
        found = super().abort_of(s, n)
        return found._replace(next=s.log[n].plan.end) if s.log[n].plan.kind == ROLLBACK else found
