"""Mutants of alters."""

from __future__ import annotations

from tests.model.configurations import ALTER_RUN
from tests.model.mutant import Mutant, caught_by
from tests.model.state import (
    ABORT,
    ALTER,
    CLOSE,
    LOCATE,
    NONE,
    STAGE,
    Outcome,
    Process,
    State,
    Steps,
    state_after,
    with_process,
)


@caught_by("W35", "alter")
class RunIgnoresAlter(Mutant):
    """A run compares its immutable fields with those of the log only when it starts. It plans with the former ones after an alter."""

    def is_refused(self, s: State, i: int, config: int) -> bool:
        return self.actors[i].config != 0 and super().is_refused(s, i, config)


@caught_by("W35", "alter")
class RunStagesOtherSpec(Mutant):
    """A run compares its immutable fields before it plans, and not before it stages an open version of another run."""

    def close(self, s: State, i: int, process: Process) -> Steps:
        plan = s.log[process.n].plan
        if plan.kind != ALTER and self.actors[i].kind != ALTER_RUN and super().is_refused(s, i, plan.config):
            yield ("stages version", process.n), with_process(s, i, Process(STAGE, process.n))
            return
        yield from super().close(s, i, process)


@caught_by("W35", "alter")
class AlterStagesOpenVersion(Mutant):
    """An alter stages the open version with the new spec, instead of an abort."""

    def close(self, s: State, i: int, process: Process) -> Steps:
        plan = s.log[process.n].plan
        if self.actors[i].kind == ALTER_RUN and plan.kind != ALTER and plan.config != self.actors[i].config:
            yield ("stages version", process.n), with_process(s, i, Process(STAGE, process.n))
            return
        yield from super().close(s, i, process)


@caught_by("I2", "alter")
class AlterIgnoresOpenVersion(Mutant):
    """An alter is planned while a version is open."""

    def recover_version(self, s: State, i: int, n: int) -> Process:
        process = super().recover_version(s, i, n)
        is_batch = n >= 0 and s.log[n].plan.kind != ALTER
        return Process(LOCATE, n) if self.actors[i].kind == ALTER_RUN and process.at == CLOSE and is_batch else process


@caught_by("I4", "alter")
class AlterAbortSkipsRange(Mutant):
    """The abort of the open version sets next to the end of its range. Its records are never read."""

    def abort_of(self, s: State, n: int) -> Outcome:
        plan = s.log[n].plan
        return Outcome(ABORT, NONE, plan.end, state=state_after(s.log, n - 1))


@caught_by("I4", "alter")
class AlterRewinds(Mutant):
    """An alter returns to the initial offsets. All records are read again."""

    def alter_of(self, s: State, n: int) -> Outcome:
        return super().alter_of(s, n)._replace(next=0)


@caught_by("W28", "alter")
class AlterKeepsState(Mutant):
    """An alter of the state keeps the former state. The next batch builds on it, or fails."""

    def alter_of(self, s: State, n: int) -> Outcome:
        return super().alter_of(s, n)._replace(state=state_after(s.log, n - 1))


@caught_by("V7", "alter_state")
class VacuumIgnoresAlter(Mutant):
    """Vacuum judges the state files of all roots by the oldest kept state, although an alter has dropped it. It deletes the state after the alter."""

    def is_altered_after(self, s: State, version: int) -> bool:
        return False


@caught_by("W35", "alter_abort")
class AbortedAlterCounts(Mutant):
    """A run takes the spec of an aborted alter for that of the log."""

    def is_refused(self, s: State, i: int, config: int) -> bool:
        newest = s.log[-1].plan if s.log else None
        return super().is_refused(s, i, config if newest is None or newest.kind != ALTER else newest.config)
