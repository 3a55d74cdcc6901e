"""What a command answers, and how it is shown to people. rich is imported when something is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_streamsem.protocol.entries import Json

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under column names; columns named in ``whole`` are not broken over lines."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    whole: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    The answer of a command.

    :param document: for ``--json``; its shape is part of the public interface
    :param lines: plain lines for people, printed as they are (paths can be piped on)
    """

    document: Json
    tables: Sequence[Table] = field(default_factory=list)
    lines: Sequence[str] = field(default_factory=list)
    exit_code: int = 0


def show(answer: Answer) -> None:
    """Print an answer for people."""
    if answer.tables:
        from rich.console import Console

        console = Console()
        for table in answer.tables:
            console.print(drawn(table))
    for line in answer.lines:
        print(line)


def drawn(table: Table) -> RichTable:
    """A table as rich draws it."""
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=table.title, title_justify="left")
    for column in table.columns:
        made.add_column(column, overflow="fold", no_wrap=column in table.whole)
    for row in table.rows:
        made.add_row(*[Text(cell) for cell in row])
    return made
