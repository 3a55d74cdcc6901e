"""The complete protocol: all processes, all faults, and all actions of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.model.configurations import (
    ALTER_RUN,
    AMO,
    COMPACTION,
    EXPIRY,
    REPROCESS_RUN,
    ROLLBACK_RUN,
    TXN,
    Configuration,
)
from tests.model.publisher import Publisher
from tests.model.state import (
    ALTER,
    CLAIM,
    CLOSE,
    COMPLETED,
    DELETED,
    DELIVER,
    EFFECT,
    EXPIRE,
    HALFWAY,
    LIST_HEAD,
    LOCATE,
    MANIFEST,
    NO_STATE,
    NOBODY,
    NONE,
    OPERATOR,
    OUTCOME,
    PLAN,
    POINTER,
    READ_HEAD,
    RECEIPTS,
    REWRITE,
    ROLLBACK,
    STAGE,
    TRANSACT,
    UNKNOWN,
    WITHOUT_ATTEMPT,
    Attempt,
    ExternalSinks,
    Log,
    Move,
    Outcome,
    Process,
    State,
    Steps,
    Version,
    applied_rewrites,
    committed,
    config_after,
    has_needed_files,
    newest_alter,
    newest_closed,
    oldest_kept,
    oldest_readable,
    spend,
    state_after,
    with_late,
    with_process,
    with_version,
)


def winners_of(log: Log) -> dict[tuple[int, int], tuple[int, int]]:
    """The states that folding renames: version and winning attempt → version and attempt 0."""
    winners = {n: v.outcome.attempt for n, v in enumerate(log) if v.outcome is not None and v.outcome.attempt > 0}
    return {(n, x): (n, 0) for n, x in winners.items()}


class Protocol(Publisher):
    """The protocol of PROTOCOL.md. A mutant is a subclass that breaks one rule."""

    folds = True  # whether equivalent states are folded into one. Mutants can distinguish more states

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._moves: dict[str, Callable[[State, int, Process], Steps]] = {
            LIST_HEAD: self.list_head,
            READ_HEAD: self.read_head,
            LOCATE: self.locate,
            PLAN: self.plan,
            CLOSE: self.close,
            STAGE: self.stage,
            HALFWAY: self.halfway,
            MANIFEST: self.manifest,
            POINTER: self.pointer,
            OUTCOME: self.outcome,
            TRANSACT: self.transact,
            DELIVER: self.deliver,
            CLAIM: self.claim,
            EFFECT: self.effect,
            RECEIPTS: self.receipts,
            COMPLETED: self.clear,
        }
        pairs = zip(self.actors, self.actors[1:], strict=False)
        self._twins = [i for i, (a, b) in enumerate(pairs) if a == b] if self.folds else []

    def start(self) -> State:
        """The initial state: nothing is stored, and every process lists the head."""
        runs = 1 + max(actor.run for actor in self.actors)
        processes = tuple(Process(LIST_HEAD) for _ in self.actors)
        return State((), ((),) * runs, ExternalSinks(), frozenset(), processes, self.configuration.budget)

    def successors(self, s: State) -> list[Move]:
        """All steps from a state. Each has its run, or ``NONE`` for a fault or an action of an operator, its label and the state after it."""
        moves: list[Move] = []
        for i, process in enumerate(s.processes):
            actor = self.actors[i]
            name = f"{actor.name}[{i}]"
            if process.at == LIST_HEAD and not self.may_start(s, actor.after):
                continue
            for label, after in self._moves[process.at](s, i, process):
                moves.append((actor.run, (name, *label), self.normalize(after)))
            if s.budget.crashes and process.at not in (LIST_HEAD, COMPLETED):
                label = (name, "crashes at:", process.at, process.n)
                moves.append((NONE, label, self.normalize(self.crash(s, i, process))))
        for move in (self.apply_late, self.abort, self.skip, self.vacuum, self.vacuum_state):
            moves.extend((NONE, label, self.normalize(after)) for label, after in move(s))
        return moves

    def may_start(self, s: State, run: int) -> bool:
        """Whether a process that starts after a run may start."""
        processes = (p for p, actor in zip(s.processes, self.actors, strict=True) if actor.run == run)
        return all(process.at == COMPLETED for process in processes)

    # ---- liveness (I10)

    def is_closed(self, s: State) -> bool:
        """Whether no version is open and none has pending publishes."""
        return not s.log or (s.log[-1].outcome is not None and not self.has_pending_publishes(s, len(s.log) - 1))

    def is_complete(self, s: State, run: int) -> bool:
        """
        Whether every process of a run completed. A reprocessing run, a rollback or an alter may also wait for its commit while no version is open, and a run
        with other immutable fields than those of the log is refused.
        """
        closed = self.is_closed(s)
        return all(
            p.at == COMPLETED or (closed and self.waits_for_commit(s, i)) or self.is_refused_at(s, i)
            for i, (p, actor) in enumerate(zip(s.processes, self.actors, strict=True))
            if actor.run == run
        )

    def are_all_complete(self, s: State) -> bool:
        """
        Whether every process completed. A rollback may always be refused. After a rollback, an alter or an expiry, so may a reprocessing run.
        """
        is_rolled_back = any(committed(version) and version.plan.kind == ROLLBACK for version in s.log)
        is_changed = newest_alter(s.log, len(s.log) - 1) != NONE or oldest_readable(s.log, len(s.log) - 1) > 0
        refusable = (REPROCESS_RUN, ROLLBACK_RUN) if is_rolled_back or is_changed else (ROLLBACK_RUN,)
        refusable = (*refusable, COMPACTION, EXPIRY)  # there may be fewer than two commits, or no version that expires
        return all(
            p.at == COMPLETED
            or (self.actors[i].kind in refusable and self.waits_for_commit(s, i))
            or self.is_refused_at(s, i)
            or not self.may_start(s, self.actors[i].after)
            for i, p in enumerate(s.processes)
        )

    def is_refused_at(self, s: State, i: int) -> bool:
        """Whether the run fails at the newest version, because the log has other immutable fields (W35). An alter never does."""
        is_alter_open = bool(s.log) and s.log[-1].outcome is None and s.log[-1].plan.kind == ALTER
        has_pending = bool(s.log) and self.has_pending_publishes(s, len(s.log) - 1)
        may_fail = self.actors[i].kind != ALTER_RUN and not is_alter_open and not has_pending
        newest = config_after(s.log, len(s.log) - 1) if s.log else 0
        return may_fail and self.is_refused(s, i, newest)

    def waits_for_commit(self, s: State, i: int) -> bool:
        """Whether a reprocessing run or a rollback cannot be planned yet."""
        kinds = (REPROCESS_RUN, ROLLBACK_RUN, ALTER_RUN, COMPACTION, EXPIRY)
        is_closed = self.actors[i].kind in kinds and self.is_closed(s)
        return is_closed and self.next_step(s, i, len(s.log) - 1).at == LIST_HEAD

    def waits_for_others(self, s: State, run: int) -> bool:
        """
        Whether a run may wait: another run claimed an effect, a sink refuses the head and an operator has not skipped it, or an alter has given up at an open
        version.
        """
        kinds = {actor.kind for actor in self.actors if actor.run == run}
        if not all(self.may_start(s, actor.after) for actor in self.actors if actor.run == run):
            return True
        if kinds == {ALTER_RUN} and s.log and s.log[-1].outcome is None and s.log[-1].plan.kind != ALTER:
            return self.has_no_try_left(s)
        if kinds == {COMPACTION} and not self.is_closed(s) and s.log[-1].plan.kind != REWRITE:
            return True  # it closes no version of another run (W40)
        if kinds == {EXPIRY} and not self.is_closed(s) and s.log[-1].plan.kind != EXPIRE:
            return True
        if not s.log or not self.has_pending_publishes(s, len(s.log) - 1):
            return False
        head = s.log[-1]
        return self.configuration.poison or (head.claim not in (NOBODY, OPERATOR) and head.plan.run != run)

    # ---- faults

    def crash(self, s: State, i: int, process: Process) -> State:
        """The process loses its memory and the run starts again. Its request may still be applied."""
        request = ("effect", process.n) if process.at == EFFECT else self.request(s, i, process)
        s = with_late(spend(s, "crashes"), self.useful(s, request))
        return with_process(s, i, Process(LIST_HEAD))

    def apply_late(self, s: State) -> Steps:
        """Apply a request in flight. No process gets the answer."""
        for request in s.late:
            after = s._replace(late=s.late - {request})
            yield ("a late", *request[:2], "is applied"), self.apply(after, request)[0]

    def clear(self, s: State, i: int, _: Process) -> Steps:
        """Start a completed run again with its run key."""
        if s.budget.clears:
            yield ("is cleared",), with_process(spend(s, "clears"), i, Process(LIST_HEAD))

    # ---- actions of an operator

    def abort(self, s: State) -> Steps:
        """Abort the open version: create its pointer, then send its outcome, which may be applied at any time (W22)."""
        n = len(s.log) - 1
        if not s.budget.aborts or n < 0 or s.log[n].outcome is not None:
            return
        plan = s.log[n].plan
        after = spend(self.apply(s, ("pointer", plan.run, plan.j, n))[0], "aborts")
        yield ("an operator aborts version", n), with_late(after, ("outcome", n, self.abort_of(s, n)))

    def skip(self, s: State) -> Steps:
        """
        Skip the newest commit for a sink: a transaction that sets the marker without rows, or a claim whose effect is not performed. If another publisher
        has claimed the effect and has ended, the operator creates receipts with *unknown*.
        """
        n = len(s.log) - 1
        if not s.budget.skips or n < 0 or not self.has_pending_publishes(s, n):
            return
        label = ("an operator skips version", n)
        if TXN in self.sinks and s.external.marker < n:
            yield label, with_late(spend(s, "skips"), ("transaction", n, NONE, True))
        if AMO in self.sinks and not s.log[n].claim:
            yield label, with_late(spend(s, "skips"), ("claim", n, OPERATOR))
        if self.sinks == (AMO,) and s.log[n].claim:
            closed = with_late(spend(s, "skips"), ("receipts", n, (UNKNOWN,)))
            yield ("an operator closes the claim of version", n), closed

    def vacuum(self, s: State) -> Steps:
        """Delete the losing attempts of one closed version: files, then manifests (V1, V3); or the files of an attempt that no reader needs (V8)."""
        if not s.budget.vacuums:
            return
        for n, version in enumerate(s.log):
            if not self.may_vacuum(version):
                continue
            kept = NONE if version.outcome is None or self.is_unneeded(s, n) else version.outcome.attempt
            attempts = tuple(a if x == kept else self.deleted(a) for x, a in enumerate(version.attempts))
            if attempts != version.attempts:
                yield (
                    ("vacuum deletes losing attempts of version", n),
                    with_version(spend(s, "vacuums"), n, version._replace(attempts=attempts)),
                )

    def is_unneeded(self, s: State, n: int) -> bool:
        """
        Whether no reader of the oldest readable version or a later one needs the files of version n: it was superseded, or is a rewrite that does not apply,
        up to the oldest readable version (V8). Or a rewrite up to that version has its rows, and still applies.
        """
        closed = newest_closed(s.log)
        oldest = oldest_readable(s.log, closed)
        if n > oldest or not committed(s.log[n]) or has_needed_files(s.log, n, oldest):
            return False
        rewrites = [r for r in applied_rewrites(s.log, oldest) if n in s.log[r].plan.commits]
        return all(self.is_final(s, r, closed) for r in rewrites)

    def is_final(self, s: State, r: int, closed: int) -> bool:
        """Whether a rewrite up to the oldest readable version still applies."""
        return r in applied_rewrites(s.log, closed)

    def vacuum_state(self, s: State) -> Steps:
        """Select the oldest state that is kept. The files of older ones are deleted at any later time (V7)."""
        closed = newest_closed(s.log)
        if not s.budget.state_vacuums or closed < 0:
            return
        oldest = state_after(s.log, self.oldest_kept(s, closed))
        if oldest != NO_STATE:
            label = ("vacuum selects the state of version", oldest[0], "as the oldest")
            yield label, with_late(spend(s, "state_vacuums"), ("vacuum", oldest))

    def oldest_kept(self, s: State, closed: int) -> int:
        """The version whose state is the oldest that vacuum keeps (V7)."""
        return oldest_kept(s.log, closed, self.configuration.keep)

    def may_vacuum(self, version: Version) -> bool:
        """Whether vacuum may delete attempts of a version: only if it is closed (V1)."""
        return version.outcome is not None

    @staticmethod
    def deleted(attempt: Attempt) -> Attempt:
        """The attempt after its files and its manifest were deleted."""
        return attempt._replace(files=DELETED, manifest=False)

    # ---- equivalent states

    def normalize(self, s: State) -> State:
        """Remove details that cannot affect a later step: nonces of ended publishers and requests without effect. If ``folds`` is true, also fold the state."""
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
        Map equivalent states to one state.

        If vacuum cannot run again, no step reads the losing attempts of a closed version: a process that still stages one finds the outcome later. They are
        removed, the winner becomes attempt 0, and processes lose their attempt. This is not done in scopes with vacuum and sinks, because a sink may hold the
        number of an attempt. Twins, two processes of the same run, are interchangeable.
        """
        if not s.budget.vacuums and not (self.sinks and self.configuration.budget.vacuums):
            log = tuple(self.folded(version) for version in s.log)
            processes = tuple(
                p._replace(x=NONE) if p.x >= 0 and log[p.n].outcome is not None else p for p in s.processes
            )
            s = self.with_renamed_states(s._replace(log=log, processes=processes), winners_of(s.log))
        for last in range(len(self._twins), 0, -1):
            for i in self._twins[:last]:
                a, b = s.processes[i], s.processes[i + 1]
                if b < a:
                    s = s._replace(processes=(*s.processes[:i], b, a, *s.processes[i + 2 :]))
                    s = self.renamed(s, i + 1, i + 2) if AMO in self.sinks else s
        return s

    @staticmethod
    def folded(version: Version) -> Version:
        """A closed version without its losing attempts."""
        outcome = version.outcome
        if outcome is None or version.plan.kind in WITHOUT_ATTEMPT:
            return version
        if outcome.attempt <= 0 and len(version.attempts) == committed(version):
            return version
        if not committed(version):
            return version._replace(attempts=())
        winner = version.attempts[outcome.attempt]
        return version._replace(outcome=outcome._replace(attempt=0), attempts=(winner,))

    @staticmethod
    def with_renamed_states(s: State, new: Mapping[tuple[int, int], tuple[int, int]]) -> State:
        """
        The state with other names of the operators' states, in stored outcomes, in attempts and in requests in flight.

        :param new: version and attempt that wrote a state → its new name
        """
        if not new:
            return s

        def renamed(outcome: Outcome | None) -> Outcome | None:
            return None if outcome is None else outcome._replace(state=new.get(outcome.state, outcome.state))

        log = tuple(
            v._replace(
                outcome=renamed(v.outcome),
                attempts=tuple(a._replace(base=new.get(a.base, a.base)) for a in v.attempts),
            )
            for v in s.log
        )
        late = frozenset(
            (*r[:2], renamed(r[2])) if r[0] == "outcome"  # type: ignore[arg-type]
            else ("vacuum", new.get(r[1], r[1])) if r[0] == "vacuum"  # type: ignore[call-overload]
            else r
            for r in s.late
        )  # fmt: skip
        return s._replace(log=log, late=late)

    @staticmethod
    def renamed(s: State, a: int, b: int) -> State:
        """The state with the nonces of two processes exchanged."""
        new = {a: b, b: a}
        log = tuple(v._replace(claim=new.get(v.claim, v.claim)) for v in s.log)
        late = frozenset(("claim", r[1], new.get(int(str(r[2])), r[2])) if r[0] == "claim" else r for r in s.late)
        return s._replace(log=log, late=late)
