"""Reports the faults and results of trials as tables, in a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from tests.chaos.trial import Trial

FAULT_COLUMNS = ("fault", "injected", "attempts", "duplicates", "losses")
SUBJECT_COLUMNS = (
    "subject", "faults", "records", "aborted on purpose", "commits", "tries", "failed or killed", "hung", "duplicates", "losses", "unreadable files"
)  # fmt: skip


def fault_rows(trial: Trial) -> Iterator[tuple[str, ...]]:
    for kind in sorted({i.kind for i in trial.injections}):
        of_kind = [i for i in trial.injections if i.kind == kind]
        numbers = (
            sum(i.injected for i in of_kind),
            sum(i.attempts for i in of_kind),
            sum(i.duplicates for i in of_kind),
            sum(i.losses for i in of_kind),
        )
        yield (kind, *map(str, numbers))
    yield ("whole trial", str(injected(trial)), str(trial.tries), str(trial.duplicates), str(trial.losses))


def injected(trial: Trial) -> int:
    return sum(i.injected for i in trial.injections)


def summary_row(trial: Trial) -> tuple[str, ...]:
    numbers = (
        injected(trial), trial.records, trial.aborted, trial.commits, trial.tries, trial.tries - trial.completed, trial.hung, trial.duplicates,
        trial.losses, trial.unreadable,
    )  # fmt: skip
    return (trial.title, *map(str, numbers))


def show(trials: Sequence[Trial]) -> None:
    console = Console(width=max(Console().width, 150))  # a pipe has no width, and the widest table must fit
    for trial in trials:
        console.print(table(f"{trial.title} (seed {trial.seed})", FAULT_COLUMNS, list(fault_rows(trial))))
    console.print(table("result", SUBJECT_COLUMNS, [(t.subject, *summary_row(t)[1:]) for t in trials]))
    for trial in trials:
        for note in notes(trial):
            console.print(f"{trial.subject}: {note}", soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    result = Table(title=title)
    for n, column in enumerate(columns):
        result.add_column(column, justify="left" if n == 0 else "right")
    for row in rows:
        result.add_row(*row)
    return result


def notes(trial: Trial) -> list[str]:
    """Return the facts that the tables do not show."""
    lines = list(trial.violations)
    if trial.unknown:
        lines.append(
            f"{trial.unknown} records in transactions with an unknown commit; the topic determines whether they are expected"
        )
    if trial.foreign:
        lines.append(f"{trial.foreign} visible rows are not in the topic")
    if not trial.drained:
        lines.append("the topic was not drained in time: losses may be records that were not read yet")
    lines += [f"tries that failed with {error}: {count}" for error, count in sorted(trial.failed.items())]
    if trial.evidence:
        lines.append("not clean: logs and data were kept")
    return lines


def markdown(trials: Sequence[Trial]) -> str:
    lines = [*markdown_table(SUBJECT_COLUMNS, [summary_row(trial) for trial in trials])]
    for trial in trials:
        lines += [
            "",
            f"## {trial.title}",
            "",
            f"`--subject {trial.subject} --faults {len(trial.injections)} --seed {trial.seed}`",
            "",
        ]
        lines += markdown_table(FAULT_COLUMNS, list(fault_rows(trial)))
        lines += [
            "",
            *(f"- {note}" for note in notes(trial)),
            "",
            "| # | fault | state at fault | action | duplicates | losses |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {n} | {i.kind} | {i.state} | {i.action} | {i.duplicates} | {i.losses} |"
            for n, i in enumerate(trial.injections, 1)
        ]
    return "\n".join(lines) + "\n"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows)]
