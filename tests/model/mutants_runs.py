"""Mutants of run pointers and of drains."""

from __future__ import annotations

from tests.model.configurations import DRAIN
from tests.model.mutant import Mutant, caught_by
from tests.model.state import (
    BATCH,
    COMMIT,
    LIST_HEAD,
    LOCATE,
    NONE,
    OUTCOME,
    PLAN,
    POINTER,
    Plan,
    Process,
    Request,
    State,
    Steps,
    committed,
    next_after,
    pointer,
    spend,
    with_late,
    with_process,
)


@caught_by("I19", "retry", unchecked=("I16",))
class NoPointer(Mutant):
    """No run pointer is created."""

    def to_commit(self, s: State, i: int, n: int, x: int, *, own: bool) -> Process:
        return Process(OUTCOME, n, x)


@caught_by("I16", "retry")
class PointerUnknown(Mutant):
    """The outcome is sent while the answer of the run pointer is unknown."""

    def unanswered(self, s: State, i: int, process: Process, request: Request) -> Steps:
        yield from super().unanswered(s, i, process, request)
        if process.at == POINTER:
            after = with_late(spend(s, "unknown"), self.useful(s, request))
            label = (*self.unknown_answer_label(process), "and it commits")
            yield label, with_process(after, i, process._replace(at=OUTCOME))


@caught_by("I19", "retry", unchecked=("I16",))
class PointerAfterOutcome(NoPointer):
    """The run pointer is created after the outcome."""

    def outcome_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, process._replace(at=POINTER))

    def pointer_answered(self, s: State, i: int, process: Process, _: object) -> State:
        return with_process(s, i, self.after_outcome(s, i, process.n))


@caught_by("I12", "help", unchecked=("I16",))
class PointerOfClosingRun(Mutant):
    """A run that closes the version of another run creates the pointer of its own run."""

    def pointer_of(self, s: State, i: int, n: int) -> tuple[str, int, int, int]:
        return "pointer", self.actors[i].run, s.log[n].plan.j, n


@caught_by("I19", "retry", unchecked=("I16",))
class PointerFirst(Mutant):
    """The run pointers are read before the head, not after it."""

    def list_head(self, s: State, i: int, process: Process) -> Steps:
        if not process.memory:
            newest = self.newest_pointer(s, i)
            yield ("reads its run pointers:", newest), with_process(s, i, Process(LIST_HEAD, memory=(newest,)))
            return
        n = len(s.log) - 1
        after = self.recover_version(s, i, n)
        if after.at == LOCATE and process.memory == (NONE,):
            after = self.cut(s, i, n, 0, NONE)
        yield ("lists the head and sees version", n), with_process(s, i, after)


@caught_by("I19", "two_aborts", unchecked=("I16",))
class OnePointer(Mutant):
    """A run has a single pointer. If it names an abort, the run plans again."""

    def newest_pointer(self, s: State, i: int) -> int:
        return pointer(s, self.actors[i].run, 0)

    def cut(self, s: State, i: int, head: int, j: int, target: int) -> Process:
        return super().cut(s, i, head, 0, target)


@caught_by("I19", "retry", unchecked=("I16",))
class AbortNoPointer(Mutant):
    """An operator aborts without creating the run pointer."""

    def abort(self, s: State) -> Steps:
        n = len(s.log) - 1
        if s.budget.aborts and n >= 0 and s.log[n].outcome is None:
            yield ("an operator aborts version", n), with_late(spend(s, "aborts"), ("outcome", n, self.abort_of(s, n)))


@caught_by("I19", "clear", unchecked=("I16",))
class ClearIgnoresPointers(Mutant):
    """A cleared run does not read its pointers."""

    def clear(self, s: State, i: int, _: Process) -> Steps:
        if s.budget.clears:
            yield ("is cleared",), with_process(spend(s, "clears"), i, Process(LIST_HEAD, memory=("cleared",)))

    def list_head(self, s: State, i: int, process: Process) -> Steps:
        n = len(s.log) - 1
        if process.memory and self.recover_version(s, i, n).at == LOCATE:
            yield ("plans without its run pointers after version", n), with_process(s, i, self.cut(s, i, n, 0, NONE))
        else:
            yield from super().list_head(s, i, process)


@caught_by("I19", "drain_clear")
class TargetNotFrozen(Mutant):
    """Every plan of a drain sets the current end of the source as the target."""

    def target_of(self, start: int, target: int) -> int:
        return super().target_of(start, NONE)


@caught_by("I19", "drain_clear")
class TargetExceeded(Mutant):
    """The last batch of a drain is not truncated at the target."""

    def cut(self, s: State, i: int, head: int, j: int, target: int) -> Process:
        start, actor = next_after(s.log, head), self.actors[i]
        plan = Plan(BATCH, start, start + actor.size, actor.run, j, self.target_of(start, target))
        return Process(PLAN, head + 1, memory=(plan,))


@caught_by("I19", "drain_clear", unchecked=("I16",))
class DrainIgnoresPointer(Mutant):
    """A drain that is started again does not read its pointers, and freezes a new target."""

    def newest_pointer(self, s: State, i: int) -> int:
        return NONE


@caught_by("I19", "drain_clear")
class DrainPointerWithoutTarget(Mutant):
    """The run pointer has no target. A retry plans the next j up to the current end of the source."""

    def next_step(self, s: State, i: int, known: int) -> Process:
        after = super().next_step(s, i, known)
        if after.at == PLAN and isinstance(plan := after.memory[0], Plan) and plan.j:
            return self.cut(s, i, after.n - 1, plan.j, NONE)
        return after


@caught_by("I19", "drain_overtaken")
class DrainIgnoresHead(Mutant):
    """A drain checks whether its own last commit has reached the target, not whether the head has. It plans ranges that other runs committed."""

    def is_result(self, s: State, i: int, head: int, n: int) -> bool:
        plan = s.log[n].plan
        return committed(s.log[n]) and (plan.target == NONE or plan.end >= plan.target)


@caught_by("I19", "drain_overtaken")
class DrainAbortPlansOn(Mutant):
    """A drain whose last version was aborted plans again, even if other runs have reached its target."""

    def is_result(self, s: State, i: int, head: int, n: int) -> bool:
        return committed(s.log[n]) and super().is_result(s, i, head, n)


@caught_by("I12", "drain_clear")
class DrainCompletesEarly(Mutant):
    """A drain completes after its first commit, like a single batch."""

    def is_result(self, s: State, i: int, head: int, n: int) -> bool:
        outcome = s.log[n].outcome
        return outcome is not None and outcome.result == COMMIT


@caught_by("I12", "drain_clear")
class DrainAbortCompletes(Mutant):
    """A drain completes after an abort below its target."""

    def is_result(self, s: State, i: int, head: int, n: int) -> bool:
        return super().is_result(s, i, head, n) or (self.actors[i].kind == DRAIN and not committed(s.log[n]))
