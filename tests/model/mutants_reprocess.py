"""Mutants of reprocessing runs."""

from __future__ import annotations

from tests.model.configurations import REPROCESS_RUN
from tests.model.mutant import Mutant, caught_by, with_deleted_attempt
from tests.model.state import (
    LOCATE,
    NONE,
    PLAN,
    READ_HEAD,
    REPROCESS,
    STAGE,
    Outcome,
    Plan,
    Process,
    State,
    Steps,
    committed,
    next_after,
    pointer,
    with_process,
)


@caught_by("I7", "reprocess")
class ReprocessDeletes(Mutant):
    """A committed reprocessing run deletes the files that it replaces."""

    def outcome_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        version = s.log[process.n]
        if version.plan.kind == REPROCESS and committed(version):
            old = s.log[version.plan.replaces].outcome
            assert old is not None
            s = with_deleted_attempt(s, version.plan.replaces, old.attempt)
        return super().outcome_answered(s, i, process, answer)


@caught_by("I18", "reprocess_txn")
class ReprocessAppends(Mutant):
    """A reprocessing run adds its rows to a transactional sink and keeps the old rows."""

    def kept_rows(self, s: State, n: int) -> list[tuple[int, int, int]]:
        return list(s.external.rows)


@caught_by("I18", "reprocess_skip")
class ReprocessReplacesNamedRows(Mutant):
    """A reprocessing run deletes from a transactional sink only the rows of the version that it replaces. If that version was skipped, older rows remain."""

    folds = True  # the mutant does not distinguish attempts or twins

    def kept_rows(self, s: State, n: int) -> list[tuple[int, int, int]]:
        return [row for row in s.external.rows if row[1] != s.log[n].plan.replaces]


@caught_by("I20", "reprocess_chain")
class ReprocessReplacesRootAlways(Mutant):
    """A reprocessing run replaces the first commit of the chain, not the newest."""

    def replaced(self, s: State, i: int, k: int, head: int) -> int:
        return k


@caught_by("I20", "reprocess_abort")
class ReprocessChainsOnAbort(Mutant):
    """A reprocessing run replaces the newest version of the chain, even if it was aborted."""

    def replaced(self, s: State, i: int, k: int, head: int) -> int:
        for n in range(k + 1, head + 1):
            if s.log[n].plan.replaces == k:
                k = n
        return k


@caught_by("I20", "reprocess_chain")
class ReprocessNotRecutAfterLostPlan(Mutant):
    """A reprocessing run that lost the create of its plan sends the same plan again for the next version."""

    def plan_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        return with_process(s, i, Process(STAGE, process.n) if answer else process._replace(at=READ_HEAD))

    def read_head(self, s: State, i: int, process: Process) -> Steps:
        after = self.recover_version(s, i, process.n)
        memory = process.memory if after.at == LOCATE else after.memory
        yield ("reads version", process.n), with_process(s, i, after._replace(memory=memory))

    def locate(self, s: State, i: int, process: Process) -> Steps:
        after = self.next_step(s, i, process.n)
        old = process.memory[0] if process.memory else None
        if after.at == PLAN and isinstance(old, Plan) and old.kind == REPROCESS:
            after = after._replace(memory=(old,))
        yield ("reads its run pointers, then:", after.at, after.n), with_process(s, i, after)


@caught_by("I12", "reprocess")
class ReprocessWithoutOwnRunKey(Mutant):
    """A reprocessing run uses the run key of the run that it reprocesses."""

    def newest_pointer(self, s: State, i: int) -> int:
        if self.actors[i].kind != REPROCESS_RUN:
            return super().newest_pointer(s, i)
        j = 0
        while pointer(s, 0, j) >= 0:
            j += 1
        return pointer(s, 0, j - 1) if j else NONE


@caught_by("I20", "reprocess")
class ReprocessReadsNewRange(Mutant):
    """A reprocessing run reads a new range of the source, not the range of the commit that it replaces."""

    def reprocess_range(self, s: State, head: int, old: Plan) -> tuple[int, int]:
        start = next_after(s.log, head)
        return start, start + old.end - old.start


@caught_by("I4", "reprocess_of_drain")
class ReprocessMovesNext(Mutant):
    """The outcome of a reprocessing run sets next to the end of its range."""

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        return super().commit_of(s, i, n, x)._replace(next=s.log[n].plan.end)


@caught_by("I20", "reprocess")
class ReprocessHidesNothing(Mutant):
    """The outcome of a reprocessing run has no replaced version. Old and new files are both visible."""

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        return super().commit_of(s, i, n, x)._replace(replaces=NONE)


@caught_by("I20", "reprocess")
class ReprocessAbortHides(Mutant):
    """The abort of a reprocessing run has the replaced version of its plan. Neither old nor new files are visible."""

    def abort_of(self, s: State, n: int) -> Outcome:
        return super().abort_of(s, n)._replace(replaces=s.log[n].plan.replaces)


@caught_by("I4", "reprocess")
class ReprocessAbortRewinds(Mutant):
    """The abort of a reprocessing run sets next to the start of its plan, like the abort of a batch."""

    def abort_of(self, s: State, n: int) -> Outcome:
        return super().abort_of(s, n)._replace(next=s.log[n].plan.start)
