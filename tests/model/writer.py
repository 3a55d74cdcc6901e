"""
What a run does, from its look at the head to its decision (PROTOCOL.md, 4.1 to 4.4 and 4.6).

Each step is one request, or reads whose answers could as well have come at one moment: stored objects never change, so a chain of reads says what one read at
the time of its last would have said. A rule that a mutant breaks is a method of its own.
"""

from __future__ import annotations

from tests.model.configurations import AMO, DRAIN, DRAIN_LENGTH, REPROCESS_RUN, TXN
from tests.model.state import (
    ANSWERED,
    BATCH,
    CLAIM,
    CLOSE,
    COMMIT,
    HALF,
    HALFWAY,
    LOCATE,
    LOOK,
    LOOK_AT,
    MANIFEST,
    NONE,
    OUTCOME,
    PLAN,
    POINTER,
    RECEIPTS,
    REPROCESS,
    SEND,
    STAGE,
    TRANSACT,
    WHOLE,
    Attempt,
    Outcome,
    Plan,
    Process,
    Request,
    State,
    Steps,
    committed,
    newest_of,
    next_after,
    pointer,
    spend,
    with_attempt,
    with_late,
    with_process,
)
from tests.model.store import Store, whole


class Writer(Store):
    """The steps of a run up to its decision."""

    remembers_own = False  # only writers that delete what they staged need to know whether they staged it

    # ---- look (W8 to W12)

    def peek(self, s: State, i: int, _: Process) -> Steps:
        """LIST the head. A stale listing shows any earlier head; what it shows is then read by key (W9)."""
        head = len(s.log) - 1
        for n in range(-1, head + 1) if self.stale else (head,):
            yield ("lists the head and sees version", n), with_process(s, i, self.seen(s, i, n))

    def look_at(self, s: State, i: int, process: Process) -> Steps:
        """Look again from a version that is known, by computed keys (W12)."""
        yield ("reads version", process.n), with_process(s, i, self.seen(s, i, process.n))

    def seen(self, s: State, i: int, n: int) -> Process:
        """What is to be done with the newest version that is known: close it, publish it, or find this run's location after it."""
        if n < 0:
            return Process(LOCATE, n)
        if s.log[n].outcome is None:
            return Process(CLOSE, n)
        if self.owes_receipts(s, n):
            return self.publish(s, n, ())
        return Process(LOCATE, n)

    def owes_receipts(self, s: State, n: int) -> bool:
        """Whether a sink outside the log may still wait for version n. An abort has no pending publishes."""
        return bool(self.sinks) and committed(s.log[n]) and s.log[n].receipts is None

    def locate(self, s: State, i: int, process: Process) -> Steps:
        """Follow the run's own pointers, the head being known (W10, W11)."""
        after = self.located(s, i, process.n)
        yield (f"reads its run pointers after version {process.n}, then:", after.at, after.n), with_process(s, i, after)

    def located(self, s: State, i: int, known: int) -> Process:
        """Where the run stands (table RECOVERY)."""
        newest = self.newest_pointer(s, i)
        if newest < 0:
            return self.cut(s, i, known, 0, NONE)
        if newest > known:
            after = self.seen(s, i, newest)
            if after.at != LOCATE:
                return after
            known = newest
        return self.settled(s, i, known, newest)

    def newest_pointer(self, s: State, i: int) -> int:
        """The version of the last pointer before the first that is missing, or ``NONE``."""
        run, j = self.actors[i].run, 0
        while pointer(s, run, j) >= 0:
            j += 1
        return pointer(s, run, j - 1) if j else NONE

    def settled(self, s: State, i: int, head: int, n: int) -> Process:
        """Where a run stands whose newest version is n, closed, while the newest closed version that is known is ``head``."""
        plan = s.log[n].plan
        if self.is_answer(s, i, head, n):
            return Process(ANSWERED, n)
        return self.cut(s, i, head, plan.j + 1, plan.target)

    def is_answer(self, s: State, i: int, head: int, n: int) -> bool:
        """A commit answers a single batch or a reprocessing run; a drain is answered where the *head* has reached its target."""
        target = s.log[n].plan.target
        return committed(s.log[n]) if target == NONE else next_after(s.log, head) >= target

    # ---- plan (W13 to W15, W24, W25)

    def cut(self, s: State, i: int, head: int, j: int, target: int) -> Process:
        """Cut Plan(head + 1). The source has grown whenever it is asked, so that a target which is not frozen would move."""
        actor, start = self.actors[i], next_after(s.log, head)
        if actor.kind == REPROCESS_RUN:
            return self.cut_reprocess(s, i, head, j)
        if actor.kind == DRAIN:
            target = self.target_of(start, target)
            end = min(start + actor.size, target)
        else:
            end = start + actor.size
        return Process(PLAN, head + 1, more=(Plan(BATCH, start, end, self.run_key(s, i), j, target),))

    def target_of(self, start: int, target: int) -> int:
        """The drain's frozen target; the source's end where this is the run's first plan (W14)."""
        return target if target != NONE else start + DRAIN_LENGTH

    def run_key(self, s: State, i: int) -> int:
        """The key under which the process plans."""
        return self.actors[i].run

    def cut_reprocess(self, s: State, i: int, head: int, j: int) -> Process:
        """Cut a reprocessing run of the commit that was asked for from the log as it stands at ``head``; before that commit nothing to reprocess."""
        commits = [n for n in range(head + 1) if committed(s.log[n])]
        if len(commits) <= self.actors[i].of:
            return Process(LOOK)
        replaces = self.replaced(s, i, commits[self.actors[i].of], head)
        old = s.log[replaces].plan
        start, end = self.reprocess_range(s, head, old)
        return Process(PLAN, head + 1, more=(Plan(REPROCESS, start, end, self.run_key(s, i), j, NONE, replaces),))

    def replaced(self, s: State, i: int, k: int, head: int) -> int:
        """The commit that holds the rows of ``k`` at ``head`` (W25)."""
        return newest_of(s.log, k, head)

    def reprocess_range(self, s: State, head: int, old: Plan) -> tuple[int, int]:
        """The ranges of a reprocessing run are those of the commit that it replaces (W25)."""
        return old.start, old.end

    def plan(self, s: State, i: int, process: Process) -> Steps:
        """Send Plan(n)."""
        yield from self.send(s, i, process)

    def plan_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        """Created: stage at once (W17). Otherwise somebody planned n, perhaps an earlier sending of this process: look again (W12)."""
        return with_process(s, i, Process(STAGE, process.n) if answer else Process(LOOK_AT, process.n))

    # ---- run (W16 to W18)

    def close(self, s: State, i: int, process: Process) -> Steps:
        """An open version whose plan this process did not create: adopt what was staged, or stage (W17)."""
        n = process.n
        found = self.adoptable(s, n)
        for x in found:
            yield (f"adopts attempt {x} of version", n), with_process(s, i, self.to_decide(s, i, n, x, own=False))
        if not found or self.stale:
            yield from self.stage(s, i, process)

    def adoptable(self, s: State, n: int) -> list[int]:
        """Attempts with a manifest, every file of which is there."""
        return [x for x, a in enumerate(s.log[n].attempts) if a.manifest and whole(a)]

    def stage(self, s: State, i: int, process: Process) -> Steps:
        """Mint an attempt id and write the first file (W18)."""
        n = process.n
        x = self.attempt_id(s, i, n)
        attempts = s.log[n].attempts
        if x < len(attempts):
            begun = attempts[x]._replace(entries=attempts[x].entries + 1)
        else:
            begun = Attempt(HALF, False, self.range_read(s, i, process), owner=self.owner(i))
        s = with_attempt(s, n, x, begun)
        yield (f"writes the first file of attempt {x} of version", n), with_process(s, i, Process(HALFWAY, n, x))

    def attempt_id(self, s: State, i: int, n: int) -> int:
        """A fresh one at every entry to staging."""
        return len(s.log[n].attempts)

    def owner(self, i: int) -> int:
        """Nobody asks whose an attempt is; only a mutant does."""
        return 0

    def range_read(self, s: State, i: int, process: Process) -> int:
        """Where the range ends that is read: that of the stored plan (W16)."""
        return s.log[process.n].plan.end

    def halfway(self, s: State, i: int, process: Process) -> Steps:
        """Write the last file. Only then comes the manifest (W18)."""
        n, x = process.n, process.x
        s = self.last_file(s, n, x)
        yield (f"writes the last file of attempt {x} of version", n), with_process(s, i, Process(MANIFEST, n, x))

    def last_file(self, s: State, n: int, x: int) -> State:
        """The attempt is whole, unless vacuum took its first file meanwhile."""
        if not 0 <= x < len(s.log[n].attempts) or s.log[n].attempts[x].files != HALF:
            return s
        return with_attempt(s, n, x, s.log[n].attempts[x]._replace(files=WHOLE))

    def manifest(self, s: State, i: int, process: Process) -> Steps:
        """Send the staged manifest."""
        yield from self.send(s, i, process)

    def manifest_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, self.to_decide(s, i, process.n, process.x, own=True))

    # ---- decide (W20, W21)

    def to_decide(self, s: State, i: int, n: int, x: int, *, own: bool) -> Process:
        """The pointer first; a pointer that is there already needs no request whose answer is known."""
        more = (1,) if own and self.remembers_own else ()
        _, run, j, _ = self.pointer_of(s, i, n)
        return Process(POINTER if pointer(s, run, j) < 0 else OUTCOME, n, x, more)

    def pointer_of(self, s: State, i: int, n: int) -> tuple[str, int, int, int]:
        """The pointer that Plan(n) names, whoever decides (W20)."""
        plan = s.log[n].plan
        return "pointer", plan.run, plan.j, n

    def pointer(self, s: State, i: int, process: Process) -> Steps:
        """Send the run pointer."""
        yield from self.send(s, i, process)

    def pointer_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, process._replace(at=OUTCOME))

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        """The commit of attempt x. A reprocessing run leaves ``next`` as it was (W26)."""
        plan = s.log[n].plan
        return Outcome(COMMIT, x, plan.end if plan.kind == BATCH else next_after(s.log, n - 1), plan.replaces)

    def outcome(self, s: State, i: int, process: Process) -> Steps:
        """Send Outcome(n)."""
        yield from self.send(s, i, process)

    def outcome_answered(self, s: State, i: int, process: Process, _: object) -> State:
        """Whatever is stored is the answer (W21): a commit is published, after an abort the run goes on."""
        return with_process(s, i, self.after_decision(s, i, process.n))

    def after_decision(self, s: State, i: int, n: int) -> Process:
        """What follows once Outcome(n) was read."""
        if self.sinks and committed(s.log[n]):
            return self.publish(s, n, ())
        return self.after(s, i, n)

    def after(self, s: State, i: int, n: int) -> Process:
        """The version is closed: of this run, see whether it is the answer; of another, look for this run's location again (W12)."""
        if s.log[n].plan.run == self.actors[i].run:
            return self.settled(s, i, n, n)
        return Process(LOCATE, n)

    # ---- requests

    def request(self, s: State, i: int, process: Process) -> Request | None:
        """The request that a process has under way, if it waits for one."""
        at, n, x, more = process
        if at == PLAN:
            return "plan", n, more[0]
        if at == MANIFEST:
            return "manifest", n, x
        if at == POINTER:
            return self.pointer_of(s, i, n)
        if at == OUTCOME:
            return "outcome", n, self.commit_of(s, i, n, x)
        if at == CLAIM:
            return "claim", n, self.nonce(s, i)
        if at == RECEIPTS:
            return "receipts", n, more
        if at == TRANSACT:
            return self.transaction(s, n)
        return None

    def send(self, s: State, i: int, process: Process) -> Steps:
        """The request is applied and answered; or its answer is unknown, a copy stays on its way, and the same bytes are sent again (W6)."""
        request = self.request(s, i, process)
        assert request is not None
        after, answer = self.land(s, request)
        after = getattr(self, f"{process.at}_answered")(after, i, process, answer)
        yield (f"sends its {process.at} of version", process.n, "->", answer), after
        if s.left.unknown:
            yield from self.unanswered(s, i, process, request)

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        """Applied now, later or never. A copy that can change nothing, or is on its way already, makes no new state worth a look."""
        if self.useful(s, request) and request not in s.late:
            yield self.unknown_label(process), with_late(spend(s, "unknown"), request)

    def unknown_label(self, process: Process) -> tuple[object, ...]:
        return (f"sends its {process.at} of version", process.n, "-> unknown")

    # ---- publishing is another file's; named here for the types

    def publish(self, s: State, n: int, said: tuple[str, ...]) -> Process:
        """Which sink comes next, after those that said ``said``; the receipts after the last."""
        if len(said) == len(self.sinks):
            return Process(RECEIPTS, n, more=said)
        sink = self.sinks[len(said)]
        return Process(TRANSACT if sink == TXN else CLAIM if sink == AMO else SEND, n, more=said)

    def transaction(self, s: State, n: int) -> Request:
        """The sink transaction that publishes version n."""
        outcome = s.log[n].outcome
        assert outcome is not None
        return "transaction", n, outcome.attempt, False

    def nonce(self, s: State, i: int) -> int:
        """The nonce of this entry to publishing. It dies with the entry, see ``retire``."""
        return i + 1
