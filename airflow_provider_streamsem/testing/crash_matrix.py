"""
A run with a kill at every step, and the retry after it: the output must be that of the run that was left alone.

Steps are enumerated, never sampled: they are counted in the run that was left alone, and a run that does not reach its step is a failure, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from airflow_provider_streamsem.testing.steps import Steps
from airflow_provider_streamsem.testing.stores import Crash

Output: TypeAlias = Mapping[str, object]
"""What a run left, by name. Multisets (:class:`Counter`) are compared element by element, all else as a whole."""
_SHOWN = 5


class Trial(Protocol):
    """One run at a place of its own, where nobody ran before."""

    def run(self, steps: Steps) -> None:
        """Run, or go on after a death; raises what ``steps`` raises."""
        ...

    def output(self) -> Output:
        """What the run left. Asked for once, after the last :meth:`run`."""
        ...


def crash_matrix(trial: Callable[[], Trial]) -> list[str]:
    """
    Run left alone, twice; then once for each step with a kill there and a retry after it.

    :param trial: makes a trial that shares nothing with those before
    :returns: the names of the steps, in order
    :raises AssertionError: names each step after which the output differs, what was lost and what was doubled; or two runs differ that nobody disturbed, so
        that nothing can be said of the others
    """
    steps, expected = _left_alone(trial())
    _, repeated = _left_alone(trial())
    differences = compare(expected, repeated)
    if differences:
        raise AssertionError(
            "two runs that nobody disturbed left different output: the transform does not give the same rows each time. "
            "Leave columns that are meant to differ out by ignore=[...]\n" + _indented(differences)
        )
    faults: list[str] = []
    cause: Exception | None = None
    for at, step in enumerate(steps):
        differences, error = _killed(trial(), at, expected)
        cause = cause or error
        if differences:
            faults.append(f"killed at step {at + 1} of {len(steps)}, {step}:\n{_indented(differences)}")
    if faults:
        what = "a kill and the retry left another output than the run that was left alone"
        raise AssertionError(f"{what}: {len(faults)} of {len(steps)} steps\n" + "\n".join(faults)) from cause
    return steps


def _left_alone(trial: Trial) -> tuple[list[str], Output]:
    steps = Steps()
    trial.run(steps)
    return steps.taken, trial.output()


def _killed(trial: Trial, at: int, expected: Output) -> tuple[list[str], Exception | None]:
    """How the output differs after a kill and the retry, in words; and the error that stopped one of them."""
    kill = Steps(at)
    try:
        trial.run(kill)
    except Crash:
        pass
    except Exception as error:
        if not kill.died:
            return [f"the run failed before it: {type(error).__name__}: {error}"], error
    if not kill.died:
        return [f"the run took only {len(kill.taken)} steps: it does not take the same steps each time"], None
    try:
        trial.run(Steps())
    except Exception as error:
        return [f"the retry failed: {type(error).__name__}: {error}"], error
    return compare(expected, trial.output()), None


def compare(expected: Output, found: Output) -> list[str]:
    """In words, one entry for each name whose value differs."""
    differences = []
    for name in sorted({*expected, *found}):
        wanted, got = expected.get(name), found.get(name)
        if isinstance(wanted, Counter) and isinstance(got, Counter):
            missing, more = wanted - got, got - wanted
            told = {
                "lost": missing,
                "doubled": Counter({row: n for row, n in more.items() if wanted[row]}),
                "new": Counter({row: n for row, n in more.items() if not wanted[row]}),
            }
            parts = [f"{what} {_shown(rows)}" for what, rows in told.items() if rows]
            differences += [f"{name}: {'; '.join(parts)}"] if parts else []
        elif wanted != got:
            differences.append(f"{name}: {got!r}, where the run left alone has {wanted!r}")
    return differences


def multiset(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Rows as text that is equal where they are, and how often each is there."""
    return Counter(repr({name: row[name] for name in sorted(row)}) for row in rows)


def _shown(rows: Counter[Any]) -> str:
    shown = sorted(f"{row}" if n == 1 else f"{row} ({n} times)" for row, n in rows.items())[:_SHOWN]
    more = [f"and {len(rows) - _SHOWN} others"] if len(rows) > _SHOWN else []
    return f"{rows.total()}: {', '.join([*shown, *more])}"


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
