"""``python -m tests.model [all | small | exhaustive | mutants | NAME ...] [-v]``: explore scopes and mutants. ``-v`` prints the steps."""

from __future__ import annotations

import sys
from time import perf_counter

from tests.model.configurations import CONFIGURATIONS, EXHAUSTIVE, SMALL
from tests.model.explore import explore
from tests.model.mutants import MUTANTS, find_violation
from tests.model.protocol import Protocol

GROUPS = {"small": [*SMALL], "exhaustive": [*EXHAUSTIVE], "mutants": [*MUTANTS], "all": [*CONFIGURATIONS, *MUTANTS]}


def check(name: str, *, verbose: bool) -> bool:
    """Explore one scope or mutant and print the result in one line. Returns whether it is the expected result."""
    began = perf_counter()
    if name in MUTANTS:
        mutant = MUTANTS[name]
        verdict = find_violation(name)
        expected, label = verdict.invariant == mutant.invariant, f"{name} in {mutant.configuration}"
    else:
        verdict = explore(Protocol(CONFIGURATIONS[name]))
        expected, label = verdict.holds and verdict.states == CONFIGURATIONS[name].states, name
    result = f"{verdict.invariant} after {len(verdict.trace)} steps" if verdict.invariant else "holds"
    seconds = perf_counter() - began
    print(
        f"{'ok ' if expected else 'BAD'} {label:46s} {result:20s} {verdict.states:10,d} states {seconds:7.1f} s",
        flush=True,
    )
    if verbose or not expected:
        print(verdict, flush=True)
    return expected


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 if a scope violates an invariant or has an unexpected number of states, or if a mutant is not caught."""
    names = [name for argument in arguments if argument != "-v" for name in GROUPS.get(argument, [argument])]
    unknown = [name for name in names if name not in CONFIGURATIONS and name not in MUTANTS]
    if unknown or not names:
        print(__doc__, "unknown: " + " ".join(unknown) if unknown else "", *GROUPS["all"], sep="\n", file=sys.stderr)
        return 2
    return int(not all([check(name, verbose="-v" in arguments) for name in names]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
