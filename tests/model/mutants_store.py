"""Mutants of the store, of unknown results, and of vacuum."""

from __future__ import annotations

from tests.model.mutant import Mutant, caught_by, with_deleted_attempt
from tests.model.state import (
    COMMIT,
    COMPLETED,
    LIST_HEAD,
    OUTCOME,
    POINTER,
    Outcome,
    Process,
    Request,
    State,
    Steps,
    Version,
    spend,
    with_late,
    with_process,
)
from tests.model.store import Answer


@caught_by("I1", "retry")
class UnconditionalCommit(Mutant):
    """Outcome(n) is overwritten if it exists."""

    def apply_outcome(self, s: State, n: int, outcome: Outcome) -> tuple[State, Answer]:
        return self.apply_force(s, n, outcome)

    def outcome_matters(self, *_: object) -> bool:
        return True


@caught_by("I1", "retry")
class NonatomicStore(Mutant):
    """The store checks whether a key exists, and writes it some time later."""

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        if request[0] == "outcome" and self.matters(s, request):
            yield self.unknown_answer_label(process), with_late(spend(s, "unknown"), ("force", *request[1:]))


@caught_by("I1", "vacuum", unchecked=("I2", "I12"))
class DeleteEntry(Mutant):
    """Vacuum deletes the outcome of a closed version."""

    def vacuum(self, s: State) -> Steps:
        for n, version in enumerate(s.log if s.budget.vacuums else ()):
            if version.outcome is not None:
                log = (*s.log[:n], version._replace(outcome=None), *s.log[n + 1 :])
                deleted = (*s.deleted, (n, version.outcome))
                after = spend(s, "vacuums")._replace(log=log, deleted=deleted)
                yield ("vacuum deletes the outcome of version", n), after


@caught_by("I6", "vacuum")
class VacuumOpen(Mutant):
    """Vacuum deletes attempts of an open version because they look old."""

    def may_vacuum(self, version: Version) -> bool:
        return True


@caught_by("I6", "retry")
class TimeoutIsFailure(Mutant):
    """A writer treats an outcome whose answer is unknown as failed, and deletes its attempt."""

    knows_own_attempt = True

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        yield from super().unanswered(s, i, process, request)
        if process.at == OUTCOME and process.memory and self.assumes_failure(s, process.n):
            after = with_late(spend(s, "unknown"), self.useful(s, request))
            label = (*self.unknown_answer_label(process), "and it deletes its files")
            yield label, with_process(with_deleted_attempt(after, process.n, process.x), i, Process(LIST_HEAD))

    def assumes_failure(self, s: State, n: int) -> bool:
        """Whether the writer assumes that its request was not applied."""
        return True


@caught_by("I6", "retry")
class MissingIsFailure(TimeoutIsFailure):
    """A writer whose read finds no outcome after an unknown result assumes that its request failed, and deletes its attempt."""

    def assumes_failure(self, s: State, n: int) -> bool:
        return s.log[n].outcome is None


@caught_by("I12", "retry")
class ConflictIsLoss(Mutant):
    """A run treats a 409 as the commit of another writer, and completes without reading the outcome."""

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        yield from super().unanswered(s, i, process, request)
        if process.at == OUTCOME:
            label = (*self.unknown_answer_label(process), "and it completes")
            yield label, with_process(spend(s, "unknown"), i, Process(COMPLETED, process.n))


@caught_by("I6", "retry")
class LoserByNonce(Mutant):
    """A writer deletes its attempt because the outcome has another writer's nonce, even if the outcome names this attempt."""

    knows_own_attempt = True

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        return super().commit_of(s, i, n, x)._replace(writer=i + 1)

    def outcome_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        outcome = s.log[process.n].outcome
        assert outcome is not None
        if process.memory and outcome.result == COMMIT and outcome.writer != i + 1:
            s = with_deleted_attempt(s, process.n, process.x)
        return super().outcome_answered(s, i, process, answer)


@caught_by("I6", "retry")
class CleanupOnFailure(Mutant):
    """A writer that fails deletes its attempt, even after its manifest was sent."""

    knows_own_attempt = True

    def crash(self, s: State, i: int, process: Process) -> State:
        after = super().crash(s, i, process)
        if process.at in (POINTER, OUTCOME) and process.memory:
            return with_deleted_attempt(after, process.n, process.x)
        return after
