"""Publishing to sinks outside the log, after the decision. PROTOCOL.md 4.7 reserves it; the model holds the rules that it will have to follow."""

from __future__ import annotations

from tests.model.state import (
    CLAIM,
    DEAD,
    DONE_ONCE,
    EFFECT,
    LOOK,
    PERSON,
    REFUSED,
    SENT_ON,
    UNKNOWN,
    Process,
    Request,
    State,
    Steps,
    spend,
    with_late,
    with_outside,
    with_process,
)
from tests.model.writer import Writer


class Publisher(Writer):
    """The steps from a decided commit to its receipts."""

    def transact(self, s: State, i: int, process: Process) -> Steps:
        """The transactional sink: marker and rows in one transaction."""
        yield from self.send(s, i, process)

    def transact_answered(self, s: State, i: int, process: Process, answer: str) -> State:
        """What the sink says goes into the receipts; refused: this process is scheduled again later; passed: the receipts are there already."""
        n = process.n
        if answer == REFUSED:
            return with_process(s, i, Process(LOOK))
        if answer == "":
            return with_process(s, i, self.passed(s, i, process))
        return with_process(s, i, self.publish(s, n, self.said(process, self.disposition_said(answer))))

    def disposition_said(self, answer: str) -> str:
        """The receipts say what the marker says: applied or skipped."""
        return answer

    def passed(self, s: State, i: int, process: Process) -> Process:
        """The marker is above n: Receipts(n) exist, and are what is known of n."""
        if s.log[process.n].receipts is not None:
            return self.after(s, i, process.n)
        return self.publish(s, process.n, self.said(process, "applied"))

    @staticmethod
    def said(process: Process, word: str) -> tuple[str, ...]:
        """The answers of the sinks so far."""
        return (*process.more, word)  # type: ignore[arg-type]

    def deliver(self, s: State, i: int, process: Process) -> Steps:
        """The at-least-once sink: sent until an answer came. Copies that come late deliver what was delivered already, or is sent again."""
        n = process.n
        delivered = tuple(sorted({*s.outside.delivered, n}))
        after = with_outside(s, s.outside._replace(delivered=delivered))
        yield ("delivers version", n), with_process(after, i, self.publish(s, n, self.said(process, SENT_ON)))

    def claim(self, s: State, i: int, process: Process) -> Steps:
        """The at-most-once sink: claim the effect first."""
        yield from self.send(s, i, process)

    def claim_answered(self, s: State, i: int, process: Process, _: object) -> State:
        """Only a claim that shows this very entry's nonce permits the effect."""
        if s.log[process.n].claim == self.nonce(s, i):
            return with_process(s, i, Process(EFFECT, process.n, more=process.more))
        return with_process(s, i, self.foreign_claim(s, i, process))

    def foreign_claim(self, s: State, i: int, process: Process) -> Process:
        """A retry of the same run closes a foreign claim as *unknown*, never as *done*; another run waits."""
        n = process.n
        if s.log[n].plan.run != self.actors[i].run and s.log[n].claim != PERSON:
            return Process(LOOK)
        return self.publish(s, n, self.said(process, UNKNOWN))

    def effect(self, s: State, i: int, process: Process) -> Steps:
        """One call, without retries of its client."""
        n = process.n
        done = self.publish(s, n, self.said(process, DONE_ONCE))
        yield ("performs the effect of version", n), with_process(self.land(s, ("effect", n))[0], i, done)
        if s.left.unknown:
            lost = with_late(spend(s, "unknown"), ("effect", n))
            unsure = self.publish(s, n, self.said(process, UNKNOWN))
            yield ("performs the effect of version", n, "-> unknown"), with_process(lost, i, unsure)

    def receipts(self, s: State, i: int, process: Process) -> Steps:
        """Send Receipts(n). A run is answered only after them."""
        yield from self.send(s, i, process)

    def receipts_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, self.after(s, i, process.n))

    def retire(self, s: State) -> State:
        """
        A nonce is minted at every entry to publishing and never used again. Numbers of processes stand for the nonces of entries that live; those of entries
        that are over are all alike, since no later entry can equal them.
        """
        live = {self.nonce(s, i) for i, p in enumerate(s.processes) if p.at in (CLAIM, EFFECT)}
        live |= {PERSON, DEAD}
        for n, version in enumerate(s.log):
            if version.claim and version.claim not in live:
                s = s._replace(log=(*s.log[:n], version._replace(claim=DEAD), *s.log[n + 1 :]))
        if any(r[0] == "claim" and r[2] not in live for r in s.late):
            s = s._replace(late=frozenset(self.retired(r, live) for r in s.late))
        return s

    @staticmethod
    def retired(request: Request, live: set[int]) -> Request:
        """The late claim of an entry that is over."""
        return ("claim", request[1], DEAD) if request[0] == "claim" and request[2] not in live else request
