"""Mutants of expiries, and of vacuum of the files that no reader of a readable version needs."""

from __future__ import annotations

from tests.model.mutant import Mutant, caught_by
from tests.model.state import (
    EXPIRE,
    LIST_HEAD,
    PLAN,
    REWRITE,
    Outcome,
    Plan,
    Process,
    State,
    committed,
    has_needed_files,
    newest_closed,
    next_after,
    oldest_readable,
    visible,
)


@caught_by("I6", "expire_reprocess")
class ReprocessOfBoundCommit(Mutant):
    """A reprocessing run replaces a commit of a bound rewrite. Readers need the files of the other commits again, which vacuum has deleted."""

    def is_bound(self, s: State, n: int, head: int) -> bool:
        return False


@caught_by("I6", "expire_rollback")
class RollbackToExpired(Mutant):
    """A rollback removes a commit of a bound rewrite, because it returns to a version below the oldest readable one."""

    def is_expired(self, s: State, to: int, head: int) -> bool:
        return False


@caught_by("I6", "expire_bound")
class RewriteOfBoundAndReadable(Mutant):
    """A rewrite has commits of a bound rewrite and a later commit. When this commit is reprocessed, nothing that exists has the rows of the others."""

    def commits_to_rewrite(self, s: State, head: int) -> tuple[int, ...]:
        return tuple(sorted(visible(s.log, head)))


@caught_by("I6", "expire_rewrites")
class VacuumBehindLaterRewrite(Mutant):
    """Vacuum deletes the files of a rewrite's commits without looking for a later rewrite of its rows."""

    def is_final(self, s: State, r: int, closed: int) -> bool:
        return True


@caught_by("I7", "expire_abort")
class VacuumBeforeOutcome(Mutant):
    """Vacuum deletes files after the plan of an expiry, and before its outcome, which may be an abort."""

    def is_unneeded(self, s: State, n: int) -> bool:
        newest = s.log[-1].plan
        if newest.kind != EXPIRE or n > newest.oldest or not committed(s.log[n]):
            return super().is_unneeded(s, n)
        return not has_needed_files(s.log, n, newest.oldest)


@caught_by("I6", "expire_kept")
class VacuumOfRolledBackRewrite(Mutant):
    """Vacuum deletes the files of a rewrite after a rollback to a version before it, although the rewrite still applies."""

    def is_unneeded(self, s: State, n: int) -> bool:
        is_passed = any(version.outcome is not None and -1 < version.outcome.to < n for version in s.log[n:])
        oldest = oldest_readable(s.log, newest_closed(s.log))
        return is_passed and s.log[n].plan.kind == REWRITE and committed(s.log[n]) and n <= oldest


@caught_by("I7", "expire_reprocess")
class VacuumOfReadableVersion(Mutant):
    """Vacuum deletes the files that readers of the oldest readable version need and readers of the head do not."""

    def is_unneeded(self, s: State, n: int) -> bool:
        closed = newest_closed(s.log)
        return committed(s.log[n]) and n <= closed and not has_needed_files(s.log, n, closed)


@caught_by("I24", "expire_twice")
class ExpiryLowersOldest(Mutant):
    """An expiry does not compare the oldest readable version with that of an earlier expiry."""

    def cut_expiry(self, s: State, i: int, head: int, j: int) -> Process:
        oldest, at = head - self.actors[i].of, next_after(s.log, head)
        if oldest <= 0:
            return Process(LIST_HEAD)
        plan = Plan(EXPIRE, at, at, self.run_key(s, i), j, config=self.actors[i].config, oldest=oldest)
        return Process(PLAN, head + 1, memory=(plan,))


@caught_by("I4", "expire_abort")
class ExpiryRewinds(Mutant):
    """The outcome of an expiry has the initial offsets. All records are read again."""

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        outcome = super().commit_of(s, i, n, x)
        return outcome._replace(next=0) if s.log[n].plan.kind == EXPIRE else outcome
