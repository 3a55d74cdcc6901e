"""Mutants of planning, staging and adoption."""

from __future__ import annotations

from tests.model.configurations import Configuration
from tests.model.mutant import Mutant, caught_by
from tests.model.state import (
    BATCH,
    CLOSE,
    HALFWAY,
    LOCATE,
    LOOK,
    NONE,
    PLAN,
    STAGE,
    Plan,
    Process,
    State,
    Steps,
    with_attempt,
    with_process,
)


@caught_by("I5", "help")
class LocalRange(Mutant):
    """A writer reads the range that it cut itself, not that of the stored plan."""

    def plan_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        plan = process.more[0]
        assert isinstance(plan, Plan)
        return with_process(s, i, Process(STAGE if answer else CLOSE, process.n, more=(plan.end,)))

    def range_read(self, s: State, i: int, process: Process) -> int:
        return int(str(process.more[0])) if process.more else super().range_read(s, i, process)


@caught_by("I2", "retry")
class PlanAhead(Mutant):
    """Plan(n+1) is sent before Outcome(n) was read."""

    def peek(self, s: State, i: int, process: Process) -> Steps:
        yield from super().peek(s, i, process)
        n = len(s.log) - 1
        if n >= 0 and s.log[n].outcome is None:
            start = s.log[n].plan.end
            plan = Plan(BATCH, start, start + 1, self.actors[i].run, s.log[n].plan.j + 1)
            yield ("plans ahead of version", n), with_process(s, i, Process(PLAN, n + 1, more=(plan,)))


@caught_by("I8", "retry")
class SharedDir(Mutant):
    """All attempts of a version write under one path."""

    def attempt_id(self, s: State, i: int, n: int) -> int:
        return 0


@caught_by("I8", "retry")
class AttemptPerProcess(Mutant):
    """The attempt id is minted once for a process and a version. A crash stands for a call that failed and is recreated in the same process."""

    def attempt_id(self, s: State, i: int, n: int) -> int:
        own = [x for x, attempt in enumerate(s.log[n].attempts) if attempt.owner == self.owner(i)]
        return own[0] if own else super().attempt_id(s, i, n)

    def owner(self, i: int) -> int:
        return i + 1


@caught_by("I6", "retry")
class AdoptIncomplete(Mutant):
    """An attempt is adopted because it has files, without a manifest."""

    def adoptable(self, s: State, n: int) -> list[int]:
        return [x for x, attempt in enumerate(s.log[n].attempts) if attempt.files]


@caught_by("I6", "retry")
class ManifestEarly(Mutant):
    """The manifest is sent before the last file, and who adopts it does not look at the files."""

    def halfway(self, s: State, i: int, process: Process) -> Steps:
        n, x = process.n, process.x
        attempt = s.log[n].attempts[x]
        if attempt.manifest:
            after = self.last_file(s, n, x)
            yield ("writes the last file of version", n), with_process(after, i, self.to_decide(s, i, n, x, own=True))
        else:
            after = with_attempt(s, n, x, attempt._replace(manifest=True))
            yield ("sends its manifest of version", n), with_process(after, i, Process(HALFWAY, n, x))

    def adoptable(self, s: State, n: int) -> list[int]:
        return [x for x, attempt in enumerate(s.log[n].attempts) if attempt.manifest]


@caught_by("I3", "retry")
class CommitNothing(Mutant):
    """Who finds nothing staged commits the version as empty."""

    def close(self, s: State, i: int, process: Process) -> Steps:
        if self.adoptable(s, process.n):
            yield from super().close(s, i, process)
        else:
            empty = self.to_decide(s, i, process.n, NONE, own=False)
            yield ("finds nothing staged of version", process.n), with_process(s, i, empty)


@caught_by("I12", "help")
class HelpIsAnswer(Mutant):
    """Who closes the version of another run takes it for the location of its own run, and does not look again."""

    def after(self, s: State, i: int, n: int) -> Process:
        return self.settled(s, i, n, n)


@caught_by("I10", "help")
class WaitForOwner(Mutant):
    """A run that meets an open version of another run waits until that run has closed it."""

    def seen(self, s: State, i: int, n: int) -> Process:
        found = super().seen(s, i, n)
        return Process(LOOK) if found.at == CLOSE and s.log[n].plan.run != self.actors[i].run else found


@caught_by("I4", "help")
class StartNotReread(Mutant):
    """A plan that was lost is sent again for the next version, with the start that it had."""

    def plan_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        return with_process(s, i, Process(STAGE, process.n) if answer else process._replace(at="read for plan"))

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._moves["read for plan"] = self.read_for_plan

    def read_for_plan(self, s: State, i: int, process: Process) -> Steps:
        """Close what is open, or send the old plan once more."""
        after = self.seen(s, i, process.n)
        if after.at == LOCATE:
            after = Process(PLAN, process.n + 1, NONE, process.more)
        yield ("reads version", process.n), with_process(s, i, after)
