"""The publish stage: sinks outside the log get the rows of a commit (PROTOCOL.md, 4.7)."""

from __future__ import annotations

from tests.model.state import (
    CLAIM,
    DEAD,
    DONE,
    EFFECT,
    LIST_HEAD,
    OPERATOR,
    REFUSED,
    SENT,
    UNKNOWN,
    Process,
    Request,
    State,
    Steps,
    spend,
    with_external,
    with_late,
    with_process,
)
from tests.model.writer import Writer


class Publisher(Writer):
    """The steps from a commit to its receipts."""

    def transact(self, s: State, i: int, process: Process) -> Steps:
        """Publish to the transactional sink: marker and rows in one transaction."""
        yield from self.send(s, i, process)

    def transact_answered(self, s: State, i: int, process: Process, answer: str) -> State:
        """Record the sink's answer for the receipts. If the sink refused, the run starts again."""
        n = process.n
        if answer == REFUSED:
            return with_process(s, i, Process(LIST_HEAD))
        if answer == "":
            return with_process(s, i, self.after_passed_marker(s, i, process))
        return with_process(s, i, self.publish(s, n, self.with_result(process, self.receipt_result(answer))))

    def receipt_result(self, answer: str) -> str:
        """The result in the receipts: the marker's state, applied or skipped."""
        return answer

    def after_passed_marker(self, s: State, i: int, process: Process) -> Process:
        """The step if the marker is above n. Receipts(n) exist then, except in mutants."""
        if s.log[process.n].receipts is not None:
            return self.after_close(s, i, process.n)
        return self.publish(s, process.n, self.with_result(process, "applied"))

    @staticmethod
    def with_result(process: Process, result: str) -> tuple[str, ...]:
        """The results of the sinks so far, with one more."""
        return (*process.memory, result)  # type: ignore[arg-type]

    def deliver(self, s: State, i: int, process: Process) -> Steps:
        """Deliver to the at-least-once sink until it answers. Late copies are not modelled: they deliver the same version again."""
        n = process.n
        delivered = tuple(sorted({*s.external.delivered, n}))
        after = with_external(s, s.external._replace(delivered=delivered))
        yield ("delivers version", n), with_process(after, i, self.publish(s, n, self.with_result(process, SENT)))

    def claim(self, s: State, i: int, process: Process) -> Steps:
        """Claim the effect of the at-most-once sink."""
        yield from self.send(s, i, process)

    def claim_answered(self, s: State, i: int, process: Process, _: object) -> State:
        """Only a claim with this publisher's nonce permits the effect."""
        if s.log[process.n].claim == self.nonce(s, i):
            return with_process(s, i, Process(EFFECT, process.n, memory=process.memory))
        return with_process(s, i, self.claim_of_other(s, i, process))

    def claim_of_other(self, s: State, i: int, process: Process) -> Process:
        """A retry of the same run closes the claim of another publisher as *unknown*, never as *done*. Another run waits."""
        n = process.n
        if s.log[n].plan.run != self.actors[i].run and s.log[n].claim != OPERATOR:
            return Process(LIST_HEAD)
        return self.publish(s, n, self.with_result(process, UNKNOWN))

    def effect(self, s: State, i: int, process: Process) -> Steps:
        """Perform the effect: one call, without retries by its client."""
        n = process.n
        performed = self.publish(s, n, self.with_result(process, DONE))
        yield ("performs the effect of version", n), with_process(self.apply(s, ("effect", n))[0], i, performed)
        if s.budget.unknown:
            lost = with_late(spend(s, "unknown"), ("effect", n))
            unknown = self.publish(s, n, self.with_result(process, UNKNOWN))
            yield ("performs the effect of version", n, "-> unknown"), with_process(lost, i, unknown)

    def receipts(self, s: State, i: int, process: Process) -> Steps:
        """Send Receipts(n). The run completes only after they exist."""
        yield from self.send(s, i, process)

    def receipts_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, self.after_close(s, i, process.n))

    def retire(self, s: State) -> State:
        """
        Replace the nonces of publishers that ended by ``DEAD``.

        Each publisher mints its own nonce. The model uses the process's number as the nonce of a live publisher. No later publisher can have the nonce of one
        that ended, so these need no distinction.
        """
        live = {self.nonce(s, i) for i, p in enumerate(s.processes) if p.at in (CLAIM, EFFECT)}
        live |= {OPERATOR, DEAD}
        for n, version in enumerate(s.log):
            if version.claim and version.claim not in live:
                s = s._replace(log=(*s.log[:n], version._replace(claim=DEAD), *s.log[n + 1 :]))
        if any(r[0] == "claim" and r[2] not in live for r in s.late):
            s = s._replace(late=frozenset(self.retired(r, live) for r in s.late))
        return s

    @staticmethod
    def retired(request: Request, live: set[int]) -> Request:
        """A late claim with ``DEAD`` as its nonce, if its publisher ended."""
        return ("claim", request[1], DEAD) if request[0] == "claim" and request[2] not in live else request
