"""Mutants of rewrites."""

from __future__ import annotations

from tests.model.configurations import COMPACTION
from tests.model.mutant import Mutant, caught_by
from tests.model.state import (
    HALF,
    LIST_HEAD,
    REWRITE,
    Outcome,
    Plan,
    Process,
    State,
    Steps,
    next_after,
    with_process,
)


@caught_by("I23", "rewrite_reprocess")
class RewriteOfStaleView(Mutant):
    """A rewrite names the commits that were visible before the newest version, which may have replaced one of them. Its row is visible again."""

    def commits_to_rewrite(self, s: State, head: int) -> tuple[int, ...]:
        return super().commits_to_rewrite(s, head - 1)


@caught_by("I6", "rewrite_retry")
class RewriteAdoptedHalf(Mutant):
    """A process that finds an open rewrite commits an attempt without its last file."""

    def adoptable(self, s: State, n: int) -> list[int]:
        if s.log[n].plan.kind != REWRITE:
            return super().adoptable(s, n)
        return [x for x, attempt in enumerate(s.log[n].attempts) if attempt.files == HALF]


@caught_by("W28", "rewrite")
class RewriteChangesState(Mutant):
    """The outcome of a rewrite names the state of its own attempt, as that of a batch does."""

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        outcome = super().commit_of(s, i, n, x)
        return outcome._replace(state=(n, x)) if s.log[n].plan.kind == REWRITE and x >= 0 else outcome


@caught_by("I4", "rewrite")
class RewriteRewinds(Mutant):
    """The outcome of a rewrite has the offsets of its oldest commit. All records are read again."""

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        outcome = super().commit_of(s, i, n, x)
        return outcome._replace(next=0) if s.log[n].plan.kind == REWRITE else outcome


@caught_by("I10", "rewrite_retry")
class RunWaitsForRewrite(Mutant):
    """A run that finds an open rewrite waits for its process, which may have ended."""

    def abort_rewrite(self, s: State, i: int, n: int, *, is_staged: bool) -> Steps:
        if self.actors[i].kind != COMPACTION:
            yield ("waits for the rewrite", n), with_process(s, i, Process(LIST_HEAD))
            return
        yield from super().abort_rewrite(s, i, n, is_staged=is_staged)


@caught_by("I20", "rewrite")
class RewriteHidesCommit(Mutant):
    """A rewrite replaces the newest commit, as a reprocessing run does. Readers of some versions find its rows nowhere."""

    def cut_rewrite(self, s: State, i: int, head: int, j: int) -> Process:
        process = super().cut_rewrite(s, i, head, j)
        if not process.memory:
            return process
        plan = process.memory[0]
        assert isinstance(plan, Plan)
        return process._replace(memory=(plan._replace(replaces=plan.commits[-1], start=next_after(s.log, head)),))
