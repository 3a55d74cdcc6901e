"""
The steps of a run, from the listing of the head to the commit (PROTOCOL.md, 4.1 to 4.4 and 4.6).

Each step is one request, or several reads that are modelled as one. This is sound because stored objects never change: a chain of reads has the same result
as one read at the time of the last. Each rule that a mutant breaks is a separate method.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.model.configurations import (
    ALTER_RUN,
    AMO,
    COMPACTION,
    DRAIN,
    DRAIN_LENGTH,
    EXPIRY,
    INTERVAL_LENGTH,
    INTERVAL_RUN,
    REPROCESS_RUN,
    ROLLBACK_RUN,
    TXN,
)
from tests.model.state import (
    ABORT,
    ABORTING,
    ALTER,
    BATCH,
    CLAIM,
    CLOSE,
    COMMIT,
    COMPLETED,
    DELIVER,
    EXPIRE,
    HALF,
    HALFWAY,
    INTERVAL,
    LIST_HEAD,
    LOCATE,
    MANIFEST,
    NO_STATE,
    NONE,
    OUTCOME,
    PLAN,
    POINTER,
    READ_HEAD,
    RECEIPTS,
    REPROCESS,
    REWRITE,
    ROLLBACK,
    STAGE,
    TRANSACT,
    WHOLE,
    WITHOUT_ATTEMPT,
    WITHOUT_PUBLISH,
    WITHOUT_ROWS,
    Attempt,
    Outcome,
    Plan,
    Process,
    Request,
    State,
    Steps,
    bound_commits,
    committed,
    config_after,
    intervals_after,
    is_loadable,
    kept,
    newest_alter,
    newest_of,
    next_after,
    oldest_kept,
    oldest_readable,
    pointer,
    root_of,
    spend,
    state_after,
    visible,
    with_attempt,
    with_late,
    with_process,
)
from tests.model.store import Store, has_all_files


class Writer(Store):
    """The steps of a run up to its commit."""

    knows_own_attempt = False  # only a mutant that deletes its own attempt needs to know whether it staged it

    # ---- recover (W8 to W12)

    def list_head(self, s: State, i: int, _: Process) -> Steps:
        """List the head. A stale listing shows any earlier head. The listed version is then read by key (W9)."""
        head = len(s.log) - 1
        for n in range(-1, head + 1) if self.stale else (head,):
            yield ("lists the head and sees version", n), with_process(s, i, self.recover_version(s, i, n))

    def read_head(self, s: State, i: int, process: Process) -> Steps:
        """Recover again from a known version, by computed keys (W12)."""
        yield ("reads version", process.n), with_process(s, i, self.recover_version(s, i, process.n))

    def recover_version(self, s: State, i: int, n: int) -> Process:
        """The next step for the newest known version: close it, publish it, or read the run pointers."""
        if n < 0:
            return Process(LOCATE, n)
        if s.log[n].outcome is None:
            return Process(CLOSE, n)
        if self.has_pending_publishes(s, n):
            return Process(LIST_HEAD) if self.actors[i].kind in (COMPACTION, EXPIRY) else self.publish(s, n, ())
        return Process(LOCATE, n)

    def has_pending_publishes(self, s: State, n: int) -> bool:
        """Whether version n is a commit with sinks outside the log and without receipts."""
        has_rows = self.sinks and committed(s.log[n]) and s.log[n].plan.kind not in WITHOUT_PUBLISH
        return bool(has_rows) and s.log[n].receipts is None

    def locate(self, s: State, i: int, process: Process) -> Steps:
        """Follow the run's own pointers after the head was read (W10, W11)."""
        after = self.next_step(s, i, process.n)
        yield (f"reads its run pointers after version {process.n}, then:", after.at, after.n), with_process(s, i, after)

    def next_step(self, s: State, i: int, known: int) -> Process:
        """The next step of the run by its newest pointer (table RECOVERY)."""
        newest = self.newest_pointer(s, i)
        if newest < 0:
            return self.cut(s, i, known, 0, NONE)
        if newest > known:
            after = self.recover_version(s, i, newest)
            if after.at != LOCATE:
                return after
            known = newest
        return self.settled(s, i, known, newest)

    def newest_pointer(self, s: State, i: int) -> int:
        """The version of the last pointer before the first missing one, or ``NONE``."""
        run, j = self.actors[i].run, 0
        while pointer(s, run, j) >= 0:
            j += 1
        return pointer(s, run, j - 1) if j else NONE

    def settled(self, s: State, i: int, head: int, n: int) -> Process:
        """The next step of a run whose newest version n is closed. ``head`` is the newest known closed version."""
        plan = s.log[n].plan
        if self.is_result(s, i, head, n):
            return Process(COMPLETED, n)
        return self.cut(s, i, head, plan.j + 1, plan.target)

    def is_result(self, s: State, i: int, head: int, n: int) -> bool:
        """Whether version n completes its run: a commit completes a single batch or a reprocessing run, a *head* at the target completes a drain."""
        plan, target = s.log[n].plan, s.log[n].plan.target
        if plan.kind == INTERVAL and not self.remains(s, head, n):
            return False
        return committed(s.log[n]) if target == NONE else next_after(s.log, head) >= target

    def remains(self, s: State, head: int, n: int) -> bool:
        """Whether no rollback has removed an interval (W53)."""
        return n in kept(s.log, head)

    # ---- plan (W13 to W15, W24, W25, W51)

    def cut(self, s: State, i: int, head: int, j: int, target: int) -> Process:
        """Cut Plan(head + 1). The source grows before every poll, so that a target that is not frozen would change."""
        actor, start = self.actors[i], next_after(s.log, head)
        if actor.kind == ALTER_RUN:
            return self.cut_alter(s, i, head, j)
        if self.is_refused(s, i, config_after(s.log, head)):
            return Process(LIST_HEAD)
        if actor.kind == REPROCESS_RUN:
            return self.cut_reprocess(s, i, head, j)
        if actor.kind == ROLLBACK_RUN:
            return self.cut_rollback(s, i, head, j)
        if actor.kind == COMPACTION:
            return self.cut_rewrite(s, i, head, j)
        if actor.kind == EXPIRY:
            return self.cut_expiry(s, i, head, j)
        if actor.kind == INTERVAL_RUN:
            return self.cut_interval(s, i, head, j)
        if actor.kind == DRAIN:
            target = self.target_of(start, target)
            end = min(start + actor.size, target)
        else:
            end = start + actor.size
        plan = Plan(BATCH, start, end, self.run_key(s, i), j, target, config=actor.config)
        return Process(PLAN, head + 1, memory=(plan,))

    def cut_interval(self, s: State, i: int, head: int, j: int) -> Process:
        """
        Cut the plan of an interval (W51). The source answers with another offset for the same time to each process, because records arrive late.
        """
        actor = self.actors[i]
        start, end = self.bounds(s, actor.of, head, lambda edge: INTERVAL_LENGTH * edge + actor.size)
        plan = Plan(INTERVAL, start, end, actor.run, j, config=actor.config, interval=actor.of)
        return Process(PLAN, head + 1, memory=(plan,))

    def bounds(self, s: State, interval: int, head: int, offset_of: Callable[[int], int]) -> tuple[int, int]:
        """The offsets between which an interval is read: those of its neighbors, or those of the source, but not beyond other intervals."""
        read = intervals_after(s.log, head)
        earlier, later = [each for each in read if each[0] < interval], [each for each in read if each[0] > interval]
        lowest, highest = (earlier[-1][2] if earlier else 0), (later[0][1] if later else INTERVAL_LENGTH * 100)
        start = lowest if earlier and earlier[-1][0] == interval - 1 else min(highest, max(lowest, offset_of(interval)))
        end = highest if later and later[0][0] == interval + 1 else min(highest, offset_of(interval + 1))
        return start, max(start, end)

    def is_refused(self, s: State, i: int, config: int) -> bool:
        """Whether the run fails, because it has other immutable fields than those of the log (W35). Only another spec, or an alter, helps."""
        return self.actors[i].config != config

    def cut_alter(self, s: State, i: int, head: int, j: int) -> Process:
        """Cut the plan of an alter. Before the first version no field is immutable, so the head is listed again (W37)."""
        if head < 0 or config_after(s.log, head) == self.actors[i].config:
            return Process(LIST_HEAD)
        at = next_after(s.log, head)
        return Process(
            PLAN, head + 1, memory=(Plan(ALTER, at, at, self.run_key(s, i), j, config=self.actors[i].config),)
        )

    def target_of(self, start: int, target: int) -> int:
        """The drain's frozen target. For the run's first plan it is the end of the source (W14)."""
        return target if target != NONE else start + DRAIN_LENGTH

    def run_key(self, s: State, i: int) -> int:
        """The key under which the process plans."""
        return self.actors[i].run

    def cut_reprocess(self, s: State, i: int, head: int, j: int) -> Process:
        """Cut the plan of a reprocessing run from the log at ``head``. If the commit to reprocess does not exist yet, list the head again."""
        commits = self.commits(s, head)
        if len(commits) <= self.actors[i].of:
            return Process(LIST_HEAD)
        replaces = self.replaced(s, i, commits[self.actors[i].of], head)
        if self.is_bound(s, replaces, head):
            return Process(LIST_HEAD)
        old = s.log[replaces].plan
        start, end = self.reprocess_range(s, head, old)
        config = self.actors[i].config
        plan = Plan(REPROCESS, start, end, self.run_key(s, i), j, NONE, replaces, config=config)
        return Process(PLAN, head + 1, memory=(plan,))

    def commits(self, s: State, head: int) -> list[int]:
        """
        The commits with rows that were not rolled back, in ascending order, since the newest alter. No run reprocesses an earlier version after an alter of the
        state, or rolls back to it (W38).
        """
        first = self.first_reprocessable(s, head)
        return [
            n
            for n in kept(s.log, head)
            if n >= first and committed(s.log[n]) and s.log[n].plan.kind not in WITHOUT_ROWS
        ]

    def first_reprocessable(self, s: State, head: int) -> int:
        """The first version that a run may reprocess, or to which it may roll back."""
        return newest_alter(s.log, head) + 1

    def cut_rollback(self, s: State, i: int, head: int, j: int) -> Process:
        """Cut the plan of a rollback from the log at ``head``. If there is nothing that it may remove, list the head again."""
        commits = self.commits(s, head)
        to = commits[self.actors[i].of] if self.actors[i].of < len(commits) else NONE
        if to == NONE or commits[-1] == to or self.is_corrected(s, to, head) or not self.keeps_state(s, to, head):
            return Process(LIST_HEAD)
        if self.is_expired(s, to, head):
            return Process(LIST_HEAD)
        at = next_after(s.log, to)
        plan = Plan(ROLLBACK, at, at, self.run_key(s, i), j, to=to, config=self.actors[i].config)
        return Process(PLAN, head + 1, memory=(plan,))

    def cut_rewrite(self, s: State, i: int, head: int, j: int) -> Process:
        """Cut the plan of a rewrite of all rows that are visible at ``head`` (W40). If there are fewer than two commits, list the head again."""
        commits = self.commits_to_rewrite(s, head)
        if len(commits) < 2 or self.has_no_try_left(s):
            return Process(LIST_HEAD)
        at = next_after(s.log, head)
        plan = Plan(REWRITE, at, at, self.run_key(s, i), j, config=self.actors[i].config, commits=commits)
        return Process(PLAN, head + 1, memory=(plan,))

    def commits_to_rewrite(self, s: State, head: int) -> tuple[int, ...]:
        """
        The commits whose rows are visible at ``head``. If there is a bound rewrite, only those that have expired, or only the others (W45).
        """
        rows, bound, oldest = sorted(visible(s.log, head)), bound_commits(s.log, head), oldest_readable(s.log, head)
        expired = [n for n in rows if n < oldest]
        if not bound:
            return tuple(rows)
        return tuple(expired if {*expired} - bound else [n for n in rows if n >= oldest])

    def is_bound(self, s: State, n: int, head: int) -> bool:
        """Whether the rows of a commit may be only in a rewrite, so that it is not reprocessed (W44)."""
        return n in bound_commits(s.log, head)

    def is_expired(self, s: State, to: int, head: int) -> bool:
        """Whether a version is below the oldest readable one, so that no rollback returns to it (W44)."""
        return to < oldest_readable(s.log, head)

    def cut_expiry(self, s: State, i: int, head: int, j: int) -> Process:
        """Cut the plan of an expiry (W43). If no version expires, list the head again."""
        oldest = head - self.actors[i].of
        if oldest <= oldest_readable(s.log, head):
            return Process(LIST_HEAD)
        at = next_after(s.log, head)
        plan = Plan(EXPIRE, at, at, self.run_key(s, i), j, config=self.actors[i].config, oldest=oldest)
        return Process(PLAN, head + 1, memory=(plan,))

    def is_corrected(self, s: State, to: int, head: int) -> bool:
        """Whether a version after ``to`` has reprocessed a version up to ``to``. Such a rollback is refused (W32)."""
        return any(s.log[n].plan.replaces in range(to + 1) and committed(s.log[n]) for n in range(to + 1, head + 1))

    def keeps_state(self, s: State, to: int, head: int) -> bool:
        """Whether the state after ``to`` exists, and no vacuum may delete it. Otherwise the rollback is refused (W32)."""
        keep = self.configuration.keep
        return not keep or (to >= oldest_kept(s.log, head, keep) and is_loadable(s.log, state_after(s.log, to)))

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
        """Stage at once if the plan was created (W17). Otherwise recover again (W12): the stored plan may be of another run, or an earlier copy of this request."""
        if answer and s.log[process.n].plan.kind in WITHOUT_ATTEMPT:
            return with_process(s, i, Process(CLOSE, process.n))
        return with_process(s, i, Process(STAGE, process.n) if answer else Process(READ_HEAD, process.n))

    # ---- stage (W16 to W18)

    def close(self, s: State, i: int, process: Process) -> Steps:
        """Close an open version whose plan this process did not create: adopt a staged attempt, or stage a new one (W17)."""
        n = process.n
        plan = s.log[n].plan
        if plan.kind in WITHOUT_ATTEMPT:
            yield (f"closes the {plan.kind}", n), with_process(s, i, self.to_commit(s, i, n, NONE, own=False))
            return
        if self.actors[i].kind == EXPIRY or (self.actors[i].kind == COMPACTION and plan.kind != REWRITE):
            yield ("is refused at the open version", n), with_process(s, i, Process(LIST_HEAD))
            return
        if self.actors[i].kind == ALTER_RUN:
            if plan.config == self.actors[i].config:
                yield ("is complete before version", n), with_process(s, i, Process(LOCATE, n - 1))
            elif self.has_no_try_left(s):
                yield ("gives up at version", n), with_process(s, i, Process(LIST_HEAD))
            else:
                yield ("aborts version", n), with_process(s, i, self.to_commit(s, i, n, ABORTING, own=False))
            return
        if self.is_refused(s, i, plan.config):
            yield ("is refused at version", n), with_process(s, i, Process(LIST_HEAD))
            return
        adoptable = self.adoptable(s, n)
        for x in adoptable:
            yield (f"adopts attempt {x} of version", n), with_process(s, i, self.to_commit(s, i, n, x, own=False))
        if plan.kind == REWRITE:
            yield from self.abort_rewrite(s, i, n, is_staged=bool(adoptable))
            return
        if not adoptable or self.stale:
            yield from self.stage(s, i, process)

    def abort_rewrite(self, s: State, i: int, n: int, *, is_staged: bool) -> Steps:
        """Abort the rewrite of another process, if it is not staged or if the listing does not show its attempt (W42)."""
        if not is_staged or self.stale:
            yield ("aborts the rewrite", n), with_process(s, i, self.to_commit(s, i, n, ABORTING, own=False))

    def has_no_try_left(self, s: State) -> bool:
        """
        Whether an alter no longer aborts open versions, and a compaction plans no rewrite again. Without a limit, they and a run could abort and plan versions
        forever.
        """
        aborted = [version for version in s.log if version.outcome is not None and not committed(version)]
        return len(aborted) >= self.configuration.tries

    def adoptable(self, s: State, n: int) -> list[int]:
        """Attempts with a manifest and all files."""
        return [x for x, a in enumerate(s.log[n].attempts) if a.manifest and has_all_files(a)]

    def stage(self, s: State, i: int, process: Process) -> Steps:
        """Mint an attempt id and write the first file (W18)."""
        n = process.n
        x = self.attempt_id(s, i, n)
        attempts = s.log[n].attempts
        if x < len(attempts):
            begun = attempts[x]._replace(entries=attempts[x].entries + 1)
        else:
            base, config = self.base_of(s, n), self.actors[i].config
            begun = Attempt(HALF, False, self.range_read(s, i, process), owner=self.owner(i), base=base, config=config)
        s = with_attempt(s, n, x, begun)
        yield (f"writes the first file of attempt {x} of version", n), with_process(s, i, Process(HALFWAY, n, x))

    def attempt_id(self, s: State, i: int, n: int) -> int:
        """A new id each time that a process begins to stage."""
        return len(s.log[n].attempts)

    def owner(self, i: int) -> int:
        """The process that owns an attempt. Only a mutant sets it."""
        return 0

    def range_read(self, s: State, i: int, process: Process) -> int:
        """The end of the range that the attempt reads: that of the stored plan (W16)."""
        return s.log[process.n].plan.end

    def base_of(self, s: State, n: int) -> tuple[int, int]:
        """The state that an attempt loads: that of the outcome before its batch, or before the batch that it reprocesses (W28)."""
        return state_after(s.log, root_of(s.log, n) - 1)

    def halfway(self, s: State, i: int, process: Process) -> Steps:
        """Write the last file. The manifest follows it (W18)."""
        n, x = process.n, process.x
        s = self.last_file(s, n, x)
        yield (f"writes the last file of attempt {x} of version", n), with_process(s, i, Process(MANIFEST, n, x))

    def last_file(self, s: State, n: int, x: int) -> State:
        """The attempt has all files, unless vacuum deleted its first file in the meantime."""
        if not 0 <= x < len(s.log[n].attempts) or s.log[n].attempts[x].files != HALF:
            return s
        return with_attempt(s, n, x, s.log[n].attempts[x]._replace(files=WHOLE))

    def manifest(self, s: State, i: int, process: Process) -> Steps:
        """Send the staged manifest."""
        yield from self.send(s, i, process)

    def manifest_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, self.to_commit(s, i, process.n, process.x, own=True))

    # ---- commit (W20, W21)

    def to_commit(self, s: State, i: int, n: int, x: int, *, own: bool) -> Process:
        """Send the run pointer first. If it exists, continue with the outcome: the answer would be *exists*."""
        memory = (1,) if own and self.knows_own_attempt else ()
        _, run, j, _ = self.pointer_of(s, i, n)
        return Process(POINTER if pointer(s, run, j) < 0 else OUTCOME, n, x, memory)

    def pointer_of(self, s: State, i: int, n: int) -> tuple[str, int, int, int]:
        """The pointer that Plan(n) names, whichever run closes the version (W20)."""
        plan = s.log[n].plan
        return "pointer", plan.run, plan.j, n

    def pointer(self, s: State, i: int, process: Process) -> Steps:
        """Send the run pointer."""
        yield from self.send(s, i, process)

    def pointer_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, process._replace(at=OUTCOME))

    def commit_of(self, s: State, i: int, n: int, x: int) -> Outcome:
        """The commit of attempt x. A reprocessing run changes neither ``next`` (W26) nor the operators' state (W27)."""
        plan = s.log[n].plan
        if plan.kind == ROLLBACK:
            return self.rollback_of(s, plan)
        if plan.kind == ALTER:
            return self.alter_of(s, n)
        if plan.kind == EXPIRE:
            return Outcome(
                COMMIT,
                NONE,
                next_after(s.log, n - 1),
                state=state_after(s.log, n - 1),
                intervals=intervals_after(s.log, n - 1),
            )
        if x == ABORTING:
            return self.abort_of(s, n)
        if plan.kind == BATCH:
            return Outcome(COMMIT, x, plan.end, plan.replaces, state=(n, x))
        state, intervals = state_after(s.log, n - 1), self.intervals_of(s, n)
        return Outcome(COMMIT, x, next_after(s.log, n - 1), plan.replaces, state=state, intervals=intervals)

    def intervals_of(self, s: State, n: int) -> tuple[tuple[int, int, int], ...]:
        """The intervals after the commit of version n: those before it, and the one that it reads (W52)."""
        plan, before = s.log[n].plan, intervals_after(s.log, n - 1)
        return tuple(sorted([*before, (plan.interval, plan.start, plan.end)])) if plan.kind == INTERVAL else before

    def rollback_of(self, s: State, plan: Plan) -> Outcome:
        """The commit of a rollback: ``next`` and state are those after the version to which it returns (W31)."""
        state, intervals = state_after(s.log, plan.to), intervals_after(s.log, plan.to)
        return Outcome(COMMIT, NONE, next_after(s.log, plan.to), state=state, to=plan.to, intervals=intervals)

    def alter_of(self, s: State, n: int) -> Outcome:
        """The commit of an alter: ``next`` is unchanged, and the next version starts without the operators' state (W37)."""
        return Outcome(COMMIT, NONE, next_after(s.log, n - 1), state=NO_STATE, intervals=intervals_after(s.log, n - 1))

    def abort_of(self, s: State, n: int) -> Outcome:
        """The outcome of an abort. It changes no ``next`` and no state, and hides no files, also for a reprocessing run."""
        state, intervals = state_after(s.log, n - 1), intervals_after(s.log, n - 1)
        return Outcome(ABORT, NONE, next_after(s.log, n - 1), state=state, intervals=intervals)

    def outcome(self, s: State, i: int, process: Process) -> Steps:
        """Send Outcome(n)."""
        yield from self.send(s, i, process)

    def outcome_answered(self, s: State, i: int, process: Process, _: object) -> State:
        """Continue with the stored outcome, whichever process created it (W21)."""
        return with_process(s, i, self.after_outcome(s, i, process.n))

    def after_outcome(self, s: State, i: int, n: int) -> Process:
        """The step after Outcome(n) was read: publish a commit."""
        if self.sinks and committed(s.log[n]) and s.log[n].plan.kind not in WITHOUT_PUBLISH:
            return self.publish(s, n, ())
        return self.after_close(s, i, n)

    def after_close(self, s: State, i: int, n: int) -> Process:
        """The step after version n was closed. If it is of another run, this run reads its pointers again (W12)."""
        if s.log[n].plan.run == self.actors[i].run:
            return self.settled(s, i, n, n)
        return Process(LOCATE, n)

    # ---- requests

    def request(self, s: State, i: int, process: Process) -> Request | None:
        """The request of the process's next step, or ``None``."""
        at, n, x, memory = process
        if at == PLAN:
            return "plan", n, memory[0]
        if at == MANIFEST:
            return "manifest", n, x
        if at == POINTER:
            return self.pointer_of(s, i, n)
        if at == OUTCOME:
            return "outcome", n, self.commit_of(s, i, n, x)
        if at == CLAIM:
            return "claim", n, self.nonce(s, i)
        if at == RECEIPTS:
            return "receipts", n, memory
        if at == TRANSACT:
            return self.transaction(s, n)
        return None

    def send(self, s: State, i: int, process: Process) -> Steps:
        """Apply and answer the request; or leave a copy in flight and send the same bytes again, because the answer is unknown (W6)."""
        request = self.request(s, i, process)
        assert request is not None
        after, answer = self.apply(s, request)
        after = getattr(self, f"{process.at}_answered")(after, i, process, answer)
        yield (f"sends its {process.at} of version", process.n, "->", answer), after
        if s.budget.unknown:
            yield from self.unanswered(s, i, process, request)

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        """The request is applied now, later or never. A copy that can change nothing, or is in flight already, adds no state."""
        if self.useful(s, request) and request not in s.late:
            yield self.unknown_answer_label(process), with_late(spend(s, "unknown"), request)

    def unknown_answer_label(self, process: Process) -> tuple[object, ...]:
        return (f"sends its {process.at} of version", process.n, "-> unknown")

    # ---- used by the publish stage (publisher.py), defined here for the types

    def publish(self, s: State, n: int, results: tuple[str, ...]) -> Process:
        """The step after the sinks with ``results``: publish the next sink, or create the receipts after the last."""
        if len(results) == len(self.sinks):
            return Process(RECEIPTS, n, memory=results)
        sink = self.sinks[len(results)]
        return Process(TRANSACT if sink == TXN else CLAIM if sink == AMO else DELIVER, n, memory=results)

    def transaction(self, s: State, n: int) -> Request:
        """The sink transaction that publishes version n."""
        outcome = s.log[n].outcome
        assert outcome is not None
        return "transaction", n, outcome.attempt, False

    def nonce(self, s: State, i: int) -> int:
        """The nonce of this publisher. It is not used after the publisher ends, see ``retire``."""
        return i + 1
