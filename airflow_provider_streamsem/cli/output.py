"""
What a command answers, and the one place where it is printed. rich is imported when a table is shown.

Names, paths and reasons come from the log, and from whoever may write to it. What a terminal would execute or reorder is printed as an escape.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_provider_streamsem.protocol.entries import Json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.table import Table as RichTable

# C0, DEL and C1 controls, line and paragraph separators, controls of writing direction, and halves of surrogate pairs, which cannot be printed.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, keep: str = "") -> str:
    r"""
    Text without what a terminal would execute or reorder: each such character as ``\u001b``, an escape that JSON has, too.

    :param keep: characters that stay, such as the line breaks of a text that this package laid out
    """
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)


class PrintableFormatter(logging.Formatter):
    """Log lines without what a terminal would execute."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the line breaks of a traceback."""
        return printable(super().format(record), keep="\n\t")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """
    Rows under column names. A cell may have several lines. None is ever cut, and only the texts of ``folded`` are broken over lines.

    :param left_out_first: the columns that are left out where the terminal is too narrow, in this order
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out_first: Sequence[str] = ()
    folded: Sequence[str] = ()

    @property
    def width(self) -> int:
        """How many characters a line of the table needs."""
        from rich.cells import cell_len

        def needed(column: str, cells: Iterable[str]) -> int:
            parts = re.split(r"\s" if column in self.folded else "\n", "\n".join(cells))
            return max(map(cell_len, parts)) + len(" | ")

        return 1 + sum(
            needed(column, cells) for column, *cells in zip(self.columns, self.columns, *self.rows, strict=True)
        )

    def without(self, column: str) -> Table:
        """The table without a column."""
        at = self.columns.index(column)
        rows = [[*row[:at], *row[at + 1 :]] for row in self.rows]
        columns = [*self.columns[:at], *self.columns[at + 1 :]]
        return replace(self, columns=columns, rows=rows, left_out_first=[c for c in self.left_out_first if c != column])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    The answer of a command.

    :param document: for ``--json``; its shape is part of the public interface
    :param lines: plain lines for people. Paths can be piped on; one with a control character is exact in the document only
    """

    document: Json
    tables: Sequence[Table] = field(default_factory=list)
    lines: Sequence[str] = field(default_factory=list)
    exit_code: int = 0


def show_json(document: Json) -> None:
    """Print a document as JSON. A reader of JSON gets exactly the document."""
    print(printable(json.dumps(document, indent=2, ensure_ascii=False), keep="\n"))


def show_error(text: str, *, keep: str = "") -> None:
    """Print what went wrong on standard error."""
    print(printable(text, keep=keep), file=sys.stderr)


@contextmanager
def progress(command: str, terminal: Console | None = None) -> Iterator[None]:
    """
    While a command works: the newest line of its log beside a spinner. Nothing where standard error is no terminal.

    :param terminal: default: standard error
    """
    if terminal is None and not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    terminal = terminal or Console(stderr=True)
    logger = logging.getLogger("airflow_provider_streamsem")
    level = logger.level
    with terminal.status(command) as status:
        shown = _Progress(status)
        logger.addHandler(shown)
        logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.removeHandler(shown)


class _Progress(logging.Handler):
    """The newest line beside the spinner; warnings stay above it."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self._status = status
        self.setFormatter(PrintableFormatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        from rich.text import Text

        line = Text(self.format(record))
        if record.levelno >= logging.WARNING:
            self._status.console.print(line)
        else:
            self._status.update(line)


def show(answer: Answer, *, wide: bool = False) -> None:
    """
    Print an answer for people.

    :param wide: leave no column out, though lines become longer than the terminal is wide
    """
    for table in answer.tables:
        show_table(table, wide=wide)
    for line in answer.lines:
        print(printable(line))


def show_table(table: Table, *, wide: bool = False) -> None:
    """Print a table; says which columns it left out."""
    from rich.console import Console

    terminal = Console()
    fitting = table if wide else _fitting(table, terminal.width)
    Console(width=max(terminal.width, fitting.width)).print(_drawn(fitting))
    missing = [column for column in table.columns if column not in fitting.columns]
    if missing:
        print(f"Not shown, because the terminal is too narrow: {', '.join(missing)}. Do: use --wide or --json.")


def _fitting(table: Table, width: int) -> Table:
    while table.width > width and table.left_out_first:
        table = table.without(table.left_out_first[0])
    return table


def _drawn(table: Table) -> RichTable:
    """A table as rich draws it."""
    from rich.table import Table as RichTable
    from rich.text import Text

    # As Text: rich would read a str as markup.
    made = RichTable(title=Text(printable(table.title), style="table.title"), title_justify="left")
    for column in table.columns:
        made.add_column(Text(printable(column)), overflow="fold", no_wrap=column not in table.folded)
    for row in table.rows:
        made.add_row(*[Text(printable(cell, keep="\n")) for cell in row])
    return made
