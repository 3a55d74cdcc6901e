"""Mutants of the store, of requests without an answer, and of vacuum."""

from __future__ import annotations

from tests.model.mutant import Mutant, caught_by, deleted
from tests.model.state import (
    ANSWERED,
    COMMIT,
    LOOK,
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
class UncondCommit(Mutant):
    """Outcome(n) is written whether it is there or not."""

    def land_outcome(self, s: State, n: int, outcome: Outcome) -> tuple[State, Answer]:
        return self.land_force(s, n, outcome)

    def outcome_matters(self, *_: object) -> bool:
        return True


@caught_by("I1", "retry")
class NonatomicStore(Mutant):
    """The store looks whether a key is absent, and writes it some time later."""

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        if request[0] == "outcome" and self.matters(s, request):
            yield self.unknown_label(process), with_late(spend(s, "unknown"), ("force", *request[1:]))


@caught_by("I1", "vacuum", unchecked=("I2", "I12"))
class DeleteEntry(Mutant):
    """Vacuum deletes the outcome of a closed version with its attempts."""

    def vacuum(self, s: State) -> Steps:
        for n, version in enumerate(s.log if s.left.vacuums else ()):
            if version.outcome is not None:
                log = (*s.log[:n], version._replace(outcome=None), *s.log[n + 1 :])
                gone = (*s.gone, (n, version.outcome))
                yield ("vacuum deletes the outcome of version", n), spend(s, "vacuums")._replace(log=log, gone=gone)


@caught_by("I6", "vacuum")
class VacuumOpen(Mutant):
    """Vacuum sweeps the attempts of an open version, since they look old."""

    def may_vacuum(self, version: Version) -> bool:
        return True


@caught_by("I6", "retry")
class TimeoutIsFailure(Mutant):
    """A decision without an answer counts as not made: the writer deletes what it staged."""

    remembers_own = True

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        yield from super().unanswered(s, i, process, request)
        if process.at == OUTCOME and process.more and self.takes_for_failed(s, process.n):
            after = with_late(spend(s, "unknown"), self.useful(s, request))
            label = (*self.unknown_label(process), "and it deletes its files")
            yield label, with_process(deleted(after, process.n, process.x), i, Process(LOOK))

    def takes_for_failed(self, s: State, n: int) -> bool:
        """Whether the writer believes that its request was not applied."""
        return True


@caught_by("I6", "retry")
class AbsentIsFailure(TimeoutIsFailure):
    """A read that finds nothing after an unknown answer counts as proof that the request was not applied."""

    def takes_for_failed(self, s: State, n: int) -> bool:
        return s.log[n].outcome is None


@caught_by("I12", "retry")
class ConflictIsLoss(Mutant):
    """A 409 counts as a decision by somebody else, and the run is answered without a read."""

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        yield from super().unanswered(s, i, process, request)
        if process.at == OUTCOME:
            label = (*self.unknown_label(process), "and it answers")
            yield label, with_process(spend(s, "unknown"), i, Process(ANSWERED, process.n))


@caught_by("I6", "retry")
class LoserByNonce(Mutant):
    """A writer deletes what it staged because the outcome bears another writer's nonce, though it may name its attempt."""

    remembers_own = True

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        return super().commit_of(s, i, n, x)._replace(writer=i + 1)

    def outcome_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        outcome = s.log[process.n].outcome
        assert outcome is not None
        if process.more and outcome.result == COMMIT and outcome.writer != i + 1:
            s = deleted(s, process.n, process.x)
        return super().outcome_answered(s, i, process, answer)


@caught_by("I6", "retry")
class CleanupOnFailure(Mutant):
    """A writer that fails deletes what it staged, though its manifest was sent."""

    remembers_own = True

    def crash(self, s: State, i: int, process: Process) -> State:
        after = super().crash(s, i, process)
        return deleted(after, process.n, process.x) if process.at in (POINTER, OUTCOME) and process.more else after
