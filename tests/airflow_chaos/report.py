"""Reports trials on Airflow as tables, in a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tests.airflow_chaos.trial import AirflowTrial
from tests.chaos.report import fault_rows, injected, markdown_table, notes, table

TRIAL_COLUMNS = (
    "database", "schedulers", "minutes", "faults", "records", "aborted on purpose", "commits", "attempts", "two attempts in one version",
    "of them orphan and retry", "versions with files of several attempts", "duplicates", "losses", "unreadable files",
)  # fmt: skip
FAULT_COLUMNS = ("fault", "injected", "attempts", "duplicates", "losses")


def summary_row(trial: AirflowTrial) -> tuple[str, ...]:
    numbers = (
        trial.schedulers, f"{trial.minutes:g}", injected(trial), trial.records, trial.aborted, trial.commits, trial.tries, len(trial.overlaps),
        trial.orphan_overlaps, trial.both_wrote, trial.duplicates, trial.losses, trial.unreadable,
    )  # fmt: skip
    return (trial.subject, *map(str, numbers))


def all_notes(trial: AirflowTrial) -> list[str]:
    """Return the facts that the tables do not show."""
    lines = notes(trial)
    if not trial.orphan_overlaps:
        lines.append("no orphan was concurrent with its retry: this trial proves nothing about orphans")
    return lines


def show(trial: AirflowTrial) -> None:
    console = Console(width=max(Console().width, 200))
    console.print(table(f"{trial.subject} (seed {trial.seed})", FAULT_COLUMNS, list(fault_rows(trial))))
    console.print(table("result", TRIAL_COLUMNS, [summary_row(trial)]))
    for note in all_notes(trial):
        console.print(note, soft_wrap=True)


def markdown(trials: Sequence[AirflowTrial]) -> str:
    lines = markdown_table(TRIAL_COLUMNS, [summary_row(trial) for trial in trials])
    for trial in trials:
        lines += ["", f"`--database {trial.subject} --minutes {trial.minutes:g} --seed {trial.seed}`", ""]
        lines += markdown_table(FAULT_COLUMNS, list(fault_rows(trial)))
        lines += ["", *(f"- {note}" for note in all_notes(trial)), ""]
        rows = [
            (str(n), i.kind, i.state, i.action, str(i.duplicates), str(i.losses))
            for n, i in enumerate(trial.injections, 1)
        ]
        lines += markdown_table(("#", "fault", "state at fault", "action", "duplicates", "losses"), rows)
    return "\n".join(lines) + "\n"
