"""Mutants of the publish stage: transactions, claims, receipts, skips."""

from __future__ import annotations

from dataclasses import replace

from tests.model.configurations import Configuration
from tests.model.mutant import Mutant, caught_by
from tests.model.state import (
    APPLIED,
    CLAIM,
    DONE,
    EFFECT,
    LIST_HEAD,
    LOCATE,
    NONE,
    RECEIPTS,
    SKIPPED,
    TRANSACT,
    UNKNOWN,
    Process,
    Request,
    State,
    Steps,
    spend,
    with_late,
    with_process,
    with_version,
)
from tests.model.store import Answer


@caught_by("I10", "poison")
class NoSkip(Mutant):
    """An operator cannot skip a commit that a sink always refuses."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(replace(configuration, budget=configuration.budget._replace(skips=0)))


@caught_by("I18", "txn")
class PublishFirst(Mutant):
    """A sink gets the rows when an attempt is staged, before the outcome."""

    def manifest_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, process._replace(at=TRANSACT, memory=("early",)))

    def request(self, s: State, i: int, process: Process) -> Request | None:
        if process.at == TRANSACT and process.memory == ("early",):
            return "transaction", process.n, process.x, False
        return super().request(s, i, process)

    def transact_answered(self, s: State, i: int, process: Process, answer: str) -> State:
        if process.memory == ("early",):
            return with_process(s, i, self.to_commit(s, i, process.n, process.x, own=True))
        return super().transact_answered(s, i, process, answer)


@caught_by("I18", "txn_retry", unchecked=("I15",))
class MarkerOutsideTransaction(Mutant):
    """The marker is read before the transaction, not inside it. Rows are applied twice."""

    def transact(self, s: State, i: int, process: Process) -> Steps:
        n = process.n
        if process.x != NONE:
            yield from super().transact(s, i, process)
        elif s.external.marker >= n:
            state = self.marker_state_at(s.external, n)
            yield ("finds the marker at or above", n), self.transact_answered(s, i, process, state)
        else:
            yield ("finds the marker below", n), with_process(s, i, process._replace(x=0))

    def apply_transaction(self, s: State, n: int, attempt: int, skip: bool) -> tuple[State, Answer]:
        return s._replace(external=self.after_transaction(s, n, attempt, skip)), SKIPPED if skip else APPLIED

    def transaction_matters(self, *_: object) -> bool:
        return True


@caught_by("I15", "txn", unchecked=("I18",))
class MarkerSetBack(MarkerOutsideTransaction):
    """The marker is read before the transaction, not inside it. A slow process sets it back to an older version."""


@caught_by("I18", "txn")
class ReceiptsFirst(Mutant):
    """Receipts(n) are created before the sinks have answered."""

    def publish(self, s: State, n: int, results: tuple[str, ...]) -> Process:
        return Process(RECEIPTS, n, memory=(APPLIED,) * len(self.sinks))


@caught_by("I18", "txn", unchecked=("I2", "I12"))
class PlanBeforeReceipts(Mutant):
    """Plan(n+1) is sent before Receipts(n). The sink gets n+1 before n."""

    def recover_version(self, s: State, i: int, n: int) -> Process:
        after = super().recover_version(s, i, n)
        return Process(LOCATE, n) if after.at == TRANSACT else after


@caught_by("I18", "skip")
class ReceiptsIgnoreMarkerState(Mutant):
    """A marker at n is recorded as applied, also if its state is skipped."""

    def receipt_result(self, answer: str) -> str:
        return APPLIED


@caught_by("I18", "skip")
class SkipInLogOnly(Mutant):
    """An operator skips a version by creating Receipts(n), without setting the sink's marker."""

    def skip(self, s: State) -> Steps:
        n = len(s.log) - 1
        if s.budget.skips and n >= 0 and self.has_pending_publishes(s, n):
            after = spend(with_version(s, n, s.log[n]._replace(receipts=(SKIPPED,))), "skips")
            yield ("an operator creates receipts of version", n), after


@caught_by("I17", "amo_retry")
class ClaimPerRun(Mutant):
    """All processes of a run claim with the same nonce."""

    def nonce(self, s: State, i: int) -> int:
        return self.actors[i].run + 1

    def retire(self, s: State) -> State:
        return s


@caught_by("I17", "amo_retry")
class ClaimPerProcess(Mutant):
    """All publishers of a process claim with the same nonce. A crash models a call that failed and is repeated in the same process."""

    def retire(self, s: State) -> State:
        return s


@caught_by("I17", "amo_retry")
class ClaimUnknown(Mutant):
    """The effect is performed after a claim whose answer is unknown."""

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        if process.at == CLAIM:
            after = with_late(spend(s, "unknown"), self.useful(s, request))
            yield self.unknown_answer_label(process), with_process(after, i, process._replace(at=EFFECT))
        else:
            yield from super().unanswered(s, i, process, request)


@caught_by("I17", "amo_retry")
class ClaimTakeover(Mutant):
    """A publisher that finds the claim of another publisher performs the effect."""

    def claim_of_other(self, s: State, i: int, process: Process) -> Process:
        return process._replace(at=EFFECT)


@caught_by("I18", "amo_retry")
class UnknownIsDone(Mutant):
    """A publisher that finds the claim of another publisher records the effect as done."""

    def claim_of_other(self, s: State, i: int, process: Process) -> Process:
        return self.publish(s, process.n, self.with_result(process, DONE))


@caught_by("I10", "amo_retry")
class ClaimNeverClosed(Mutant):
    """Only the publisher that claimed may create the receipts."""

    folds = True  # the mutant does not distinguish attempts or twins

    def claim_of_other(self, s: State, i: int, process: Process) -> Process:
        return Process(LIST_HEAD)


@caught_by("I18", "amo_retry")
class UnknownEffectIsDone(Mutant):
    """An effect whose answer is unknown is recorded as done."""

    def effect(self, s: State, i: int, process: Process) -> Steps:
        for label, after in super().effect(s, i, process):
            performer = after.processes[i]
            results = tuple(DONE if result == UNKNOWN else str(result) for result in performer.memory)
            yield label, with_process(after, i, performer._replace(memory=results))
