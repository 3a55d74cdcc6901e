"""Mutants of planning, staging and adoption."""

from __future__ import annotations

from tests.model.configurations import Configuration
from tests.model.mutant import Mutant, caught_by
from tests.model.state import (
    BATCH,
    CLOSE,
    HALFWAY,
    LIST_HEAD,
    LOCATE,
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
    """A writer reads the range of its own plan, not that of the stored plan."""

    def plan_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        plan = process.memory[0]
        assert isinstance(plan, Plan)
        return with_process(s, i, Process(STAGE if answer else CLOSE, process.n, memory=(plan.end,)))

    def range_read(self, s: State, i: int, process: Process) -> int:
        return int(str(process.memory[0])) if process.memory else super().range_read(s, i, process)


@caught_by("I2", "retry")
class PlanAhead(Mutant):
    """Plan(n+1) is sent before Outcome(n) was read."""

    def list_head(self, s: State, i: int, process: Process) -> Steps:
        yield from super().list_head(s, i, process)
        n = len(s.log) - 1
        if n >= 0 and s.log[n].outcome is None:
            start = s.log[n].plan.end
            plan = Plan(BATCH, start, start + 1, self.actors[i].run, s.log[n].plan.j + 1)
            yield ("plans ahead of version", n), with_process(s, i, Process(PLAN, n + 1, memory=(plan,)))


@caught_by("I8", "retry")
class SharedPath(Mutant):
    """All attempts of a version write to the same path."""

    def attempt_id(self, s: State, i: int, n: int) -> int:
        return 0


@caught_by("I8", "retry")
class AttemptPerProcess(Mutant):
    """A process mints one attempt id for a version. A crash models a call that failed and is repeated in the same process."""

    def attempt_id(self, s: State, i: int, n: int) -> int:
        own = [x for x, attempt in enumerate(s.log[n].attempts) if attempt.owner == self.owner(i)]
        return own[0] if own else super().attempt_id(s, i, n)

    def owner(self, i: int) -> int:
        return i + 1


@caught_by("I6", "retry")
class AdoptIncomplete(Mutant):
    """An attempt with files and without a manifest is adopted."""

    def adoptable(self, s: State, n: int) -> list[int]:
        return [x for x, attempt in enumerate(s.log[n].attempts) if attempt.files]


@caught_by("I6", "retry")
class ManifestEarly(Mutant):
    """The manifest is sent before the last file, and a run that adopts the attempt does not check the files."""

    def halfway(self, s: State, i: int, process: Process) -> Steps:
        n, x = process.n, process.x
        attempt = s.log[n].attempts[x]
        if attempt.manifest:
            after = self.last_file(s, n, x)
            yield ("writes the last file of version", n), with_process(after, i, self.to_commit(s, i, n, x, own=True))
        else:
            after = with_attempt(s, n, x, attempt._replace(manifest=True))
            yield ("sends its manifest of version", n), with_process(after, i, Process(HALFWAY, n, x))

    def adoptable(self, s: State, n: int) -> list[int]:
        return [x for x, attempt in enumerate(s.log[n].attempts) if attempt.manifest]


@caught_by("I3", "retry")
class CommitWithoutAttempt(Mutant):
    """A run that finds no staged attempt commits the version without one."""

    def close(self, s: State, i: int, process: Process) -> Steps:
        if self.adoptable(s, process.n):
            yield from super().close(s, i, process)
        else:
            empty = self.to_commit(s, i, process.n, NONE, own=False)
            yield ("finds no staged attempt of version", process.n), with_process(s, i, empty)


@caught_by("I12", "help")
class HelpIsResult(Mutant):
    """A run that closes the version of another run treats it as its own version, and does not recover again."""

    def after_close(self, s: State, i: int, n: int) -> Process:
        return self.settled(s, i, n, n)


@caught_by("I10", "help")
class WaitForOwner(Mutant):
    """A run that finds an open version of another run waits until that run has closed it."""

    def recover_version(self, s: State, i: int, n: int) -> Process:
        after = super().recover_version(s, i, n)
        return Process(LIST_HEAD) if after.at == CLOSE and s.log[n].plan.run != self.actors[i].run else after


@caught_by("I4", "help")
class StartNotReread(Mutant):
    """A run that lost the create of its plan sends it again for the next version, with the same start."""

    def plan_answered(self, s: State, i: int, process: Process, answer: object) -> State:
        return with_process(s, i, Process(STAGE, process.n) if answer else process._replace(at="read for plan"))

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._moves["read for plan"] = self.read_for_plan

    def read_for_plan(self, s: State, i: int, process: Process) -> Steps:
        """Close the open version, or send the old plan again."""
        after = self.recover_version(s, i, process.n)
        if after.at == LOCATE:
            after = Process(PLAN, process.n + 1, NONE, process.memory)
        yield ("reads version", process.n), with_process(s, i, after)
