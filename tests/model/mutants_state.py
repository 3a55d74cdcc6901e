"""Mutants of the state of the transform's operators."""

from __future__ import annotations

from tests.model.mutant import Mutant, caught_by
from tests.model.state import ABORT, DELETED, NO_STATE, NONE, Outcome, State, next_after, state_after


@caught_by("W28", "help")
class BaseOfNewestAttempt(Mutant):
    """An attempt loads the state that the newest attempt at the previous batch wrote, committed or not, as with one directory for all attempts."""

    def base_of(self, s: State, n: int) -> tuple[int, int]:
        version, attempt = super().base_of(s, n)
        return (version, attempt) if version == NONE else (version, len(s.log[version].attempts) - 1)


@caught_by("W28", "clear")
class AbortForgetsState(Mutant):
    """The outcome of an abort has no state."""

    def abort_of(self, s: State, n: int) -> Outcome:
        return Outcome(ABORT, NONE, next_after(s.log, n - 1))


@caught_by("W28", "reprocess")
class ReprocessMovesState(Mutant):
    """The outcome of a reprocessing run has the state that its attempt wrote."""

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        return super().commit_of(s, i, n, x)._replace(state=(n, x))


@caught_by("W28", "reprocess_of_drain")
class ReprocessOnNewestState(Mutant):
    """A reprocessing run loads the newest state, which contains the records that it counts again."""

    def base_of(self, s: State, n: int) -> tuple[int, int]:
        return state_after(s.log, n - 1)


@caught_by("W28", "help")
class BaseOfOwnPlan(Mutant):
    """A run loads the state of its own last commit, and ignores the commits of other runs."""

    def base_of(self, s: State, n: int) -> tuple[int, int]:
        run = s.log[n].plan.run
        own = [m for m in range(n) if s.log[m].plan.run == run]
        return state_after(s.log, own[-1]) if own else NO_STATE


@caught_by("V7", "rollback_state")
class VacuumCountsRolledBackVersions(Mutant):
    """Vacuum counts versions that were rolled back. It selects the state of one of them as the oldest."""

    def oldest_kept(self, s: State, closed: int) -> int:
        return max(closed - self.configuration.keep, NONE)


@caught_by("V7", "rollback_state")
class VacuumDeletesSharedFiles(Mutant):
    """Vacuum deletes all files of older states, also those that newer states share."""

    def left_of_older(self, s: State, state: tuple[int, int], kept_states: list[tuple[int, int]]) -> int:
        return DELETED


@caught_by("V7", "rollback_state")
class RollbackToDeletedState(Mutant):
    """A rollback does not check whether the state to which it returns is kept."""

    def keeps_state(self, s: State, to: int, head: int) -> bool:
        return True


@caught_by("V7", "rollback_state")
class VacuumKeepsOneVersionLess(Mutant):
    """Vacuum selects the state of the version after the one whose state it must keep."""

    def oldest_kept(self, s: State, closed: int) -> int:
        return min(super().oldest_kept(s, closed) + 1, closed)
