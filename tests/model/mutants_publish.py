"""Mutants of publishing: transactions, claims, receipts, skips."""

from __future__ import annotations

from dataclasses import replace

from tests.model.configurations import Configuration
from tests.model.mutant import Mutant, caught_by
from tests.model.state import (
    APPLIED,
    CLAIM,
    DONE_ONCE,
    EFFECT,
    LOCATE,
    LOOK,
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
    """Nobody can give up a commit that a sink refuses forever."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(replace(configuration, left=configuration.left._replace(skips=0)))


@caught_by("I18", "txn")
class PublishFirst(Mutant):
    """A sink is published when an attempt is staged, before the outcome."""

    def manifest_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, process._replace(at=TRANSACT, more=("early",)))

    def request(self, s: State, i: int, process: Process) -> Request | None:
        if process.at == TRANSACT and process.more == ("early",):
            return "transaction", process.n, process.x, False
        return super().request(s, i, process)

    def transact_answered(self, s: State, i: int, process: Process, answer: str) -> State:
        if process.more == ("early",):
            return with_process(s, i, self.to_decide(s, i, process.n, process.x, own=True))
        return super().transact_answered(s, i, process, answer)


@caught_by("I18", "txn_retry", unchecked=("I15",))
class MarkerOutside(Mutant):
    """The marker is read before the transaction, not changed inside it: rows are applied twice."""

    def transact(self, s: State, i: int, process: Process) -> Steps:
        n = process.n
        if process.x != NONE:
            yield from super().transact(s, i, process)
        elif s.outside.marker >= n:
            said = self.disposition(s.outside, n)
            yield ("finds the marker at or above", n), self.transact_answered(s, i, process, said)
        else:
            yield ("finds the marker below", n), with_process(s, i, process._replace(x=0))

    def land_transaction(self, s: State, n: int, attempt: int, skip: bool) -> tuple[State, Answer]:
        return s._replace(outside=self.applied(s, n, attempt, skip)), SKIPPED if skip else APPLIED

    def transaction_matters(self, *_: object) -> bool:
        return True


@caught_by("I15", "txn", unchecked=("I18",))
class MarkerSet(MarkerOutside):
    """The same, seen by the marker: a slow process sets it back to an older version."""


@caught_by("I18", "txn")
class ReceiptsFirst(Mutant):
    """Receipts(n) are written before the sinks have answered."""

    def publish(self, s: State, n: int, said: tuple[str, ...]) -> Process:
        return Process(RECEIPTS, n, more=(APPLIED,) * len(self.sinks))


@caught_by("I18", "txn", unchecked=("I2", "I12"))
class PlanBeforeReceipts(Mutant):
    """Plan(n+1) is sent before Receipts(n): the sink gets n+1 before n."""

    def seen(self, s: State, i: int, n: int) -> Process:
        found = super().seen(s, i, n)
        return Process(LOCATE, n) if found.at == TRANSACT else found


@caught_by("I18", "skip")
class ReceiptsGuess(Mutant):
    """A marker at n counts as applied, whatever it says."""

    def disposition_said(self, answer: str) -> str:
        return APPLIED


@caught_by("I18", "skip")
class SkipInLogOnly(Mutant):
    """A person skips by writing Receipts(n), and leaves the sink's marker where it is."""

    def skip(self, s: State) -> Steps:
        n = len(s.log) - 1
        if s.left.skips and n >= 0 and self.owes_receipts(s, n):
            after = spend(with_version(s, n, s.log[n]._replace(receipts=(SKIPPED,))), "skips")
            yield ("a person writes receipts of version", n), after


@caught_by("I17", "amo_retry")
class ClaimPerRun(Mutant):
    """All processes of a run claim with one nonce."""

    def nonce(self, s: State, i: int) -> int:
        return self.actors[i].run + 1

    def retire(self, s: State) -> State:
        return s


@caught_by("I17", "amo_retry")
class ClaimPerProcess(Mutant):
    """A process claims with one nonce for all its entries. A crash stands for a call that failed and is recreated in the same process."""

    def retire(self, s: State) -> State:
        return s


@caught_by("I17", "amo_retry")
class ClaimUnknown(Mutant):
    """The effect is performed after a claim without an answer."""

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        if process.at == CLAIM:
            after = with_late(spend(s, "unknown"), self.useful(s, request))
            yield self.unknown_label(process), with_process(after, i, process._replace(at=EFFECT))
        else:
            yield from super().unanswered(s, i, process, request)


@caught_by("I17", "amo_retry")
class ClaimTakeover(Mutant):
    """Who finds the claim of another entry performs the effect in its location."""

    def foreign_claim(self, s: State, i: int, process: Process) -> Process:
        return process._replace(at=EFFECT)


@caught_by("I18", "amo_retry")
class UnknownIsDone(Mutant):
    """Who finds the claim of another entry writes that the effect was performed."""

    def foreign_claim(self, s: State, i: int, process: Process) -> Process:
        return self.publish(s, process.n, self.said(process, DONE_ONCE))


@caught_by("I10", "amo_retry")
class NoCloseUnknown(Mutant):
    """Only the entry that claimed may write the receipts."""

    folds = True  # attempts and twins are as they were

    def foreign_claim(self, s: State, i: int, process: Process) -> Process:
        return Process(LOOK)


@caught_by("I18", "amo_retry")
class LostEffectIsDone(Mutant):
    """An effect without an answer is written down as performed."""

    def effect(self, s: State, i: int, process: Process) -> Steps:
        for label, after in super().effect(s, i, process):
            done = after.processes[i]
            said = tuple(DONE_ONCE if word == UNKNOWN else str(word) for word in done.more)
            yield label, with_process(after, i, done._replace(more=said))
