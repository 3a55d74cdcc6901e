"""
Kills a run at every step, retries it, and compares the output with that of a run without a kill.

The run without a kill determines the steps. Every step is killed once. A run that does not reach the step at which it is to be killed is a failure too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from airflow_provider_streamsem.testing.steps import Steps
from airflow_provider_streamsem.testing.stores import Crash

Output: TypeAlias = Mapping[str, object]
"""The output of a run: name → value. A value of type :class:`Counter` is a multiset, which is compared by elements. Other values are compared as a whole."""
_SHOWN = 5


class Trial(Protocol):
    """Protocol of a run at a new, empty location."""

    def run(self, steps: Steps) -> None:
        """Run, or continue after a kill. The run calls ``steps`` at each step, and does not catch its exceptions."""
        ...

    def output(self) -> Output:
        """Return the output of the run. The crash matrix calls this method once, after the last :meth:`run`."""
        ...


def crash_matrix(trial: Callable[[], Trial]) -> list[str]:
    """
    Run twice without a kill. Then, for each step, run with a kill at that step, retry, and compare the output.

    :param trial: creates a trial that shares no state with earlier trials
    :returns: the names of the steps, in order
    :raises AssertionError: the output differs after a kill; the message names each such step, with lost and duplicated elements. Or the two runs without a kill
        have different output, so that no comparison is meaningful
    """
    steps, expected = _run_without_a_kill(trial())
    _, repeated = _run_without_a_kill(trial())
    differences = compare(expected, repeated)
    if differences:
        raise AssertionError(
            "two runs without a kill had different output, because the transform does not return the same rows each time. "
            "If columns are meant to differ, exclude them with ignore=[...]\n" + _indented(differences)
        )
    faults: list[str] = []
    cause: Exception | None = None
    for at, step in enumerate(steps):
        differences, error = _run_with_a_kill(trial(), at, expected)
        cause = cause or error
        if differences:
            faults.append(f"killed at step {at + 1} of {len(steps)}, {step}:\n{_indented(differences)}")
    if faults:
        summary = "after a kill and a retry, the output differs from that of a run without a kill"
        raise AssertionError(f"{summary}: {len(faults)} of {len(steps)} steps\n" + "\n".join(faults)) from cause
    return steps


def _run_without_a_kill(trial: Trial) -> tuple[list[str], Output]:
    steps = Steps()
    trial.run(steps)
    return steps.taken, trial.output()


def _run_with_a_kill(trial: Trial, at: int, expected: Output) -> tuple[list[str], Exception | None]:
    """Run with a kill, and retry. Return the differences of the output as text, and the error with which a run failed, or ``None``."""
    steps = Steps(at)
    try:
        trial.run(steps)
    except Crash:
        pass
    except Exception as error:
        if not steps.died:
            return [f"the run failed before this step: {type(error).__name__}: {error}"], error
    if not steps.died:
        return [f"the run took only {len(steps.taken)} steps: it does not take the same steps each time"], None
    try:
        trial.run(Steps())
    except Exception as error:
        return [f"the retry failed: {type(error).__name__}: {error}"], error
    return compare(expected, trial.output()), None


def compare(expected: Output, actual: Output) -> list[str]:
    """Return the differences of two outputs as text, one for each name whose value differs."""
    differences = []
    for name in sorted({*expected, *actual}):
        expected_value, value = expected.get(name), actual.get(name)
        if isinstance(expected_value, Counter) and isinstance(value, Counter):
            missing, more = expected_value - value, value - expected_value
            fields = {
                "lost": missing,
                "duplicated": Counter({row: n for row, n in more.items() if expected_value[row]}),
                "new": Counter({row: n for row, n in more.items() if not expected_value[row]}),
            }
            parts = [f"{difference} {_shown(rows)}" for difference, rows in fields.items() if rows]
            differences += [f"{name}: {'; '.join(parts)}"] if parts else []
        elif expected_value != value:
            differences.append(f"{name}: {value!r}, but the run without a kill has {expected_value!r}")
    return differences


def multiset(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return a multiset of rows: text of a row → number of rows with this text. Equal rows have the same text."""
    return Counter(repr({name: row[name] for name in sorted(row)}) for row in rows)


def _shown(rows: Counter[Any]) -> str:
    shown = sorted(f"{row}" if n == 1 else f"{row} ({n} times)" for row, n in rows.items())[:_SHOWN]
    more = [f"and {len(rows) - _SHOWN} others"] if len(rows) > _SHOWN else []
    return f"{rows.total()}: {', '.join([*shown, *more])}"


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
