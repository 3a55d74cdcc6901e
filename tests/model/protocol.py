"""The whole protocol: every process, everything that may go wrong, and everything that a person does."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.configurations import AMO, REPROCESS_RUN, TXN, Configuration
from tests.model.publisher import Publisher
from tests.model.state import (
    ABORT,
    ANSWERED,
    CLAIM,
    CLOSE,
    DELETED,
    EFFECT,
    HALFWAY,
    LOCATE,
    LOOK,
    LOOK_AT,
    MANIFEST,
    NOBODY,
    NONE,
    OUTCOME,
    PERSON,
    PLAN,
    POINTER,
    RECEIPTS,
    SEND,
    STAGE,
    TRANSACT,
    UNKNOWN,
    Attempt,
    Move,
    Outcome,
    Outside,
    Process,
    State,
    Steps,
    Version,
    committed,
    next_after,
    spend,
    with_late,
    with_process,
    with_version,
)


class Protocol(Publisher):
    """The protocol as PROTOCOL.md has it. A mutant is a subclass that breaks one rule."""

    folds = True  # states that differ only in what nobody can tell apart are one state; mutants can tell apart more

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._moves: dict[str, Callable[[State, int, Process], Steps]] = {
            LOOK: self.peek,
            LOOK_AT: self.look_at,
            LOCATE: self.locate,
            PLAN: self.plan,
            CLOSE: self.close,
            STAGE: self.stage,
            HALFWAY: self.halfway,
            MANIFEST: self.manifest,
            POINTER: self.pointer,
            OUTCOME: self.outcome,
            TRANSACT: self.transact,
            SEND: self.deliver,
            CLAIM: self.claim,
            EFFECT: self.effect,
            RECEIPTS: self.receipts,
            ANSWERED: self.clear,
        }
        pairs = zip(self.actors, self.actors[1:], strict=False)
        self._twins = [i for i, (a, b) in enumerate(pairs) if a == b] if self.folds else []

    def start(self) -> State:
        """Nothing is stored and every process looks."""
        runs = 1 + max(actor.run for actor in self.actors)
        processes = tuple(Process(LOOK) for _ in self.actors)
        return State((), ((),) * runs, Outside(), frozenset(), processes, self.configuration.left)

    def successors(self, s: State) -> list[Move]:
        """Every step from a state, each with the state after it, and with the run that takes it, where one does of its own."""
        found: list[Move] = []
        for i, process in enumerate(s.processes):
            actor = self.actors[i]
            who = f"{actor.name}[{i}]"
            for label, after in self._moves[process.at](s, i, process):
                found.append((actor.run, (who, *label), self.tidy(after)))
            if s.left.crashes and process.at not in (LOOK, ANSWERED):
                label = (who, "crashes at:", process.at, process.n)
                found.append((NONE, label, self.tidy(self.crash(s, i, process))))
        for move in (self.late, self.abort, self.skip, self.vacuum):
            found.extend((NONE, label, self.tidy(after)) for label, after in move(s))
        return found

    # ---- what must always be possible (I10)

    def is_closed(self, s: State) -> bool:
        """No version is open, and none waits for receipts."""
        return not s.log or (s.log[-1].outcome is not None and not self.owes_receipts(s, len(s.log) - 1))

    def is_served(self, s: State, run: int) -> bool:
        """Every process of a run was answered, or waits for the commit that it is to reprocess, with nothing open that it could close."""
        closed, commits = self.is_closed(s), sum(committed(version) for version in s.log)
        return all(
            p.at == ANSWERED or (closed and actor.kind == REPROCESS_RUN and commits <= actor.of)
            for p, actor in zip(s.processes, self.actors, strict=True)
            if actor.run == run
        )

    def waits_for_others(self, s: State, run: int) -> bool:
        """Whether a run is meant to wait: another run claimed an effect, or a sink refuses the head, and a person has not skipped it."""
        if not s.log or not self.owes_receipts(s, len(s.log) - 1):
            return False
        head = s.log[-1]
        return self.configuration.poison or (head.claim not in (NOBODY, PERSON) and head.plan.run != run)

    # ---- what may go wrong

    def crash(self, s: State, i: int, process: Process) -> State:
        """All memory is lost, a request that was under way may still be applied, and the run is started again."""
        request = ("effect", process.n) if process.at == EFFECT else self.request(s, i, process)
        s = with_late(spend(s, "crashes"), self.useful(s, request))
        return with_process(s, i, Process(LOOK))

    def late(self, s: State) -> Steps:
        """A copy of a request is applied, and nobody hears the answer."""
        for request in s.late:
            after = s._replace(late=s.late - {request})
            yield ("a late", *request[:2], "is applied"), self.land(after, request)[0]

    def clear(self, s: State, i: int, _: Process) -> Steps:
        """A finished run is started again with its run key."""
        if s.left.clears:
            yield ("is cleared",), with_process(spend(s, "clears"), i, Process(LOOK))

    # ---- what a person does

    def abort(self, s: State) -> Steps:
        """Close the open version as an abort: its pointer first, then its outcome, which may be applied at any time (W22)."""
        n = len(s.log) - 1
        if not s.left.aborts or n < 0 or s.log[n].outcome is not None:
            return
        plan = s.log[n].plan
        after = spend(self.land(s, ("pointer", plan.run, plan.j, n))[0], "aborts")
        yield ("a person aborts version", n), with_late(after, ("outcome", n, self.abort_of(s, n)))

    def abort_of(self, s: State, n: int) -> Outcome:
        """An abort leaves ``next`` where it was, of a reprocessing run too, and hides nothing."""
        return Outcome(ABORT, NONE, next_after(s.log, n - 1))

    def skip(self, s: State) -> Steps:
        """
        Give up publishing the newest commit: a transaction of the sink that moves the marker without rows, or a claim that nobody performs. Where another
        entry has claimed, and is known to be gone, a person closes the claim by receipts that say *unknown*.
        """
        n = len(s.log) - 1
        if not s.left.skips or n < 0 or not self.owes_receipts(s, n):
            return
        label = ("a person skips version", n)
        if TXN in self.sinks and s.outside.marker < n:
            yield label, with_late(spend(s, "skips"), ("transaction", n, NONE, True))
        if AMO in self.sinks and not s.log[n].claim:
            yield label, with_late(spend(s, "skips"), ("claim", n, PERSON))
        if self.sinks == (AMO,) and s.log[n].claim:
            closed = with_late(spend(s, "skips"), ("receipts", n, (UNKNOWN,)))
            yield ("a person closes the claim of version", n), closed

    def vacuum(self, s: State) -> Steps:
        """Delete what losing attempts of one closed version left: files, then manifests (V1, V3)."""
        if not s.left.vacuums:
            return
        for n, version in enumerate(s.log):
            if not self.may_vacuum(version):
                continue
            kept = NONE if version.outcome is None else version.outcome.attempt
            swept = tuple(a if x == kept else self.swept(a) for x, a in enumerate(version.attempts))
            if swept != version.attempts:
                yield (
                    ("vacuum sweeps version", n),
                    with_version(spend(s, "vacuums"), n, version._replace(attempts=swept)),
                )

    def may_vacuum(self, version: Version) -> bool:
        """Only closed versions (V1)."""
        return version.outcome is not None

    @staticmethod
    def swept(attempt: Attempt) -> Attempt:
        """An attempt of which nothing is left."""
        return attempt._replace(files=DELETED, manifest=False)

    # ---- one state for many

    def tidy(self, s: State) -> State:
        """Forget what can change nothing: copies of requests without effect, dead nonces, and in the unbroken protocol what ``fold`` names."""
        if AMO in self.sinks:
            s = self.retire(s)
        if self.folds:
            s = self.fold(s)
        if s.late:
            late = frozenset(r for r in s.late if self.matters(s, r))
            if late != s.late:
                s = s._replace(late=late)
        return s

    def fold(self, s: State) -> State:
        """
        Where vacuum takes no part any more, nobody reads the losing attempts of a closed version: whoever still works there meets its outcome in the end. So
        they are forgotten, the winner is attempt 0, and who works on an attempt there works on none. (A sink may hold the number of an attempt by then, so not
        where vacuum and sinks meet.) Twins, two processes of the same run, are interchangeable.
        """
        if not s.left.vacuums and not (self.sinks and self.configuration.left.vacuums):
            log = tuple(self.folded(version) for version in s.log)
            processes = tuple(
                p._replace(x=NONE) if p.x >= 0 and log[p.n].outcome is not None else p for p in s.processes
            )
            s = s._replace(log=log, processes=processes)
        for i in self._twins:
            a, b = s.processes[i], s.processes[i + 1]
            if b < a:
                s = s._replace(processes=(*s.processes[:i], b, a, *s.processes[i + 2 :]))
                s = self.renamed(s, i + 1, i + 2) if AMO in self.sinks else s
        return s

    @staticmethod
    def folded(version: Version) -> Version:
        """A closed version with the attempt that won, if one did, and no other."""
        outcome = version.outcome
        if outcome is None or (outcome.attempt <= 0 and len(version.attempts) == committed(version)):
            return version
        if not committed(version):
            return version._replace(attempts=())
        winner = version.attempts[outcome.attempt]
        return version._replace(outcome=outcome._replace(attempt=0), attempts=(winner,))

    @staticmethod
    def renamed(s: State, a: int, b: int) -> State:
        """The state after the nonces of two processes changed locations."""
        new = {a: b, b: a}
        log = tuple(v._replace(claim=new.get(v.claim, v.claim)) for v in s.log)
        late = frozenset(("claim", r[1], new.get(int(str(r[2])), r[2])) if r[0] == "claim" else r for r in s.late)
        return s._replace(log=log, late=late)
