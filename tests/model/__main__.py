"""``python -m tests.model [all | small | exhaustive | mutants | NAME ...] [-v]``: explore scopes, hunt mutants; ``-v`` prints the steps."""

from __future__ import annotations

import sys
from time import perf_counter

from tests.model.configurations import CONFIGURATIONS, EXHAUSTIVE, SMALL
from tests.model.explore import explore
from tests.model.mutants import MUTANTS, hunt
from tests.model.protocol import Protocol

GROUPS = {"small": [*SMALL], "exhaustive": [*EXHAUSTIVE], "mutants": [*MUTANTS], "all": [*CONFIGURATIONS, *MUTANTS]}


def look_at(name: str, *, verbose: bool) -> bool:
    """Explore one scope or mutant, and say in one line what came of it; whether that is what should come of it."""
    began = perf_counter()
    if name in MUTANTS:
        broken = MUTANTS[name]
        verdict = hunt(name)
        right, where = verdict.invariant == broken.invariant, f"{name} in {broken.configuration}"
    else:
        verdict = explore(Protocol(CONFIGURATIONS[name]))
        right, where = verdict.holds and verdict.states == CONFIGURATIONS[name].states, name
    found = f"{verdict.invariant} after {len(verdict.trace)} steps" if verdict.invariant else "holds"
    seconds = perf_counter() - began
    print(
        f"{'ok ' if right else 'BAD'} {where:46s} {found:20s} {verdict.states:10,d} states {seconds:7.1f} s", flush=True
    )
    if verbose or not right:
        print(verdict, flush=True)
    return right


def main(arguments: list[str]) -> int:
    """The exit status: 1 where a scope breaks an invariant, has another number of states than is recorded, or a mutant survives."""
    names = [name for argument in arguments if argument != "-v" for name in GROUPS.get(argument, [argument])]
    unknown = [name for name in names if name not in CONFIGURATIONS and name not in MUTANTS]
    if unknown or not names:
        print(__doc__, "unknown: " + " ".join(unknown) if unknown else "", *GROUPS["all"], sep="\n", file=sys.stderr)
        return 2
    return int(not all([look_at(name, verbose="-v" in arguments) for name in names]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
