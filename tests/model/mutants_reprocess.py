"""Mutants of reprocess."""

from __future__ import annotations

from tests.model.configurations import REPROCESS_RUN
from tests.model.mutant import Mutant, caught_by, deleted
from tests.model.state import (
    LOCATE,
    LOOK_AT,
    NONE,
    PLAN,
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
    """Who commits a reprocessing run deletes the files that it replaces."""

    def outcome_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        version = s.log[process.n]
        if version.plan.kind == REPROCESS and committed(version):
            old = s.log[version.plan.replaces].outcome
            assert old is not None
            s = deleted(s, version.plan.replaces, old.attempt)
        return super().outcome_answered(s, i, process, answer)


@caught_by("I18", "reprocess_txn")
class ReprocessAppends(Mutant):
    """A reprocessing run adds its rows to a transactional sink beside the old ones."""

    def kept(self, s: State, n: int) -> list[tuple[int, int, int]]:
        return list(s.outside.rows)


@caught_by("I18", "reprocess_skip")
class ReprocessReplacesNamedRows(Mutant):
    """A reprocessing run takes out of a transactional sink the rows of the version that it names, though that version was skipped there and older rows of the chain stand."""

    folds = True  # attempts and twins are as they were

    def kept(self, s: State, n: int) -> list[tuple[int, int, int]]:
        return [row for row in s.outside.rows if row[1] != s.log[n].plan.replaces]


@caught_by("I20", "reprocess_chain")
class ReprocessReplacesBaseAlways(Mutant):
    """A reprocessing run names the first commit of the chain, not the newest."""

    def replaced(self, s: State, i: int, k: int, head: int) -> int:
        return k


@caught_by("I20", "reprocess_abort")
class ReprocessChainsOnAbort(Mutant):
    """A reprocessing run names the newest version of the chain, though that was aborted."""

    def replaced(self, s: State, i: int, k: int, head: int) -> int:
        for n in range(k + 1, head + 1):
            if s.log[n].plan.replaces == k:
                k = n
        return k


@caught_by("I20", "reprocess_chain")
class ReprocessNotRecutAfterLostPlan(Mutant):
    """A reprocessing run whose plan was lost is sent again with the commit that it named before."""

    def plan_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        return with_process(s, i, Process(STAGE, process.n) if answer else process._replace(at=LOOK_AT))

    def look_at(self, s: State, i: int, process: Process) -> Steps:
        after = self.seen(s, i, process.n)
        more = process.more if after.at == LOCATE else after.more
        yield ("reads version", process.n), with_process(s, i, after._replace(more=more))

    def locate(self, s: State, i: int, process: Process) -> Steps:
        after = self.located(s, i, process.n)
        kept = process.more[0] if process.more else None
        if after.at == PLAN and isinstance(kept, Plan) and kept.kind == REPROCESS:
            after = after._replace(more=(kept,))
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
class ReprocessReadsAnew(Mutant):
    """A reprocessing run reads what is new in the source, not the range of the commit that it replaces."""

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
    """The outcome of a reprocessing run does not name what it replaces: old and new files are visible together."""

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        return super().commit_of(s, i, n, x)._replace(replaces=NONE)


@caught_by("I20", "reprocess")
class ReprocessAbortHides(Mutant):
    """The abort of a reprocessing run carries what its plan replaces: neither old nor new files are visible."""

    def abort_of(self, s: State, n: int) -> Outcome:
        return super().abort_of(s, n)._replace(replaces=s.log[n].plan.replaces)


@caught_by("I4", "reprocess")
class ReprocessAbortRewinds(Mutant):
    """The abort of a reprocessing run sets next to the start of its plan, as that of a batch does."""

    def abort_of(self, s: State, n: int) -> Outcome:
        return super().abort_of(s, n)._replace(next=s.log[n].plan.start)
