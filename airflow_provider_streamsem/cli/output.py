"""
Prints the results of commands. This module imports rich only to show a table or progress.

Names, paths and reasons come from the log, and any writer of the log can choose them. So the functions print control characters, which a terminal would
interpret, as escapes.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider_streamsem.protocol.entries import Json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.table import Table as RichTable

# C0, DEL and C1 controls, line and paragraph separators, bidirectional controls, and unpaired surrogates, which cannot be encoded.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_SHORTENED = 40
"""The number of characters of a truncated cell, with the ellipsis."""


def printable(text: str, *, keep: str = "") -> str:
    r"""
    Return a text in which each control character is replaced with an escape such as ``\u001b``, which is also a JSON escape.

    Control characters are those that a terminal would interpret, or that change the order in which it shows the text.

    :param keep: control characters to keep, such as the line breaks of a text that this package formatted
    """
    return _CONTROLS.sub(lambda match: match[0] if match[0] in keep else f"\\u{ord(match[0]):04x}", text)


class PrintableFormatter(logging.Formatter):
    """A log formatter that replaces control characters with escapes."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record. Line breaks and tabs of a traceback are kept."""
        return printable(super().format(record), keep="\n\t")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """
    A table for the terminal. A cell may have several lines. Only cells of ``shortened`` are truncated.

    :param left_out_first: the columns that may be left out if the terminal is too narrow, in the order in which they are left out
    :param folded: the columns whose text may wrap
    :param shortened: the columns whose text has one line, of which a terminal shows at most 40 characters
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out_first: Sequence[str] = ()
    folded: Sequence[str] = ()
    shortened: Sequence[str] = ()

    @property
    def width(self) -> int:
        """The width of the table in characters."""
        from rich.cells import cell_len

        def needed(column: str, cells: Iterable[str]) -> int:
            parts = re.split(r"\s" if column in self.folded else "\n", "\n".join(cells))
            return max(map(cell_len, parts)) + len(" | ")

        return 1 + sum(
            needed(column, cells) for column, *cells in zip(self.columns, self.columns, *self.rows, strict=True)
        )

    def without(self, column: str) -> Table:
        """Return the table without one column."""
        at = self.columns.index(column)
        rows = [[*row[:at], *row[at + 1 :]] for row in self.rows]
        columns = [*self.columns[:at], *self.columns[at + 1 :]]
        return replace(self, columns=columns, rows=rows, left_out_first=[c for c in self.left_out_first if c != column])

    def with_short_cells(self) -> Table:
        """Return the table with the cells of ``shortened`` truncated."""
        from rich.text import Text

        def short(column: str, cell: str) -> str:
            text = Text(cell)
            if column in self.shortened:
                text.truncate(_SHORTENED, overflow="ellipsis")
            return text.plain

        return replace(self, rows=[[*map(short, self.columns, row)] for row in self.rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """
    The result of a command.

    :param document: the document for ``--json``. Its structure is part of the public interface
    :param tables: tables for the terminal
    :param lines: lines for the terminal. They can be piped to other commands, but control characters in them are replaced. Only the document is exact
    :param exit_code: exit code of the command
    """

    document: Json
    tables: Sequence[Table] = field(default_factory=list)
    lines: Sequence[str] = field(default_factory=list)
    exit_code: int = 0


def show_json(document: Json) -> None:
    """Print a document as JSON. Control characters are printed as JSON escapes, so a parser returns the exact document."""
    print(printable(json.dumps(document, indent=2, ensure_ascii=False), keep="\n"))


def show_error(text: str, *, keep: str = "") -> None:
    """Print a text to standard error. ``keep`` is that of :func:`printable`."""
    print(printable(text, keep=keep), file=sys.stderr)


@contextmanager
def progress(command: str, terminal: Console | None = None) -> Iterator[None]:
    """
    Show the newest log line beside a spinner while a command runs. Shows nothing if standard error is not a terminal.

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
    """A log handler that shows the newest log line beside the spinner, and prints warnings above it."""

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


def show(result: CommandResult, *, wide: bool = False) -> None:
    """
    Print the tables and lines of a command's result.

    :param wide: leave out no column and truncate no cell, even if a table is wider than the terminal
    """
    for table in result.tables:
        show_table(table, wide=wide)
    for line in result.lines:
        print(printable(line))


def show_table(table: Table, *, wide: bool = False) -> None:
    """
    Print a table, and below it the names of the columns that were left out.

    A pipe and a file have no width, so all columns and whole cells are printed there, unless the environment variable ``COLUMNS`` sets a width.

    :param wide: leave out no column and truncate no cell
    """
    from rich.console import Console

    terminal = Console()
    has_width = terminal.is_terminal or "COLUMNS" in os.environ
    fitting = replace(table, folded=()) if not has_width else table if wide else _fitting(table, terminal.width)
    Console(width=max(terminal.width, fitting.width)).print(_drawn(fitting))
    missing = [column for column in table.columns if column not in fitting.columns]
    if missing:
        print(f"Not shown, because the terminal is too narrow: {', '.join(missing)}. Do: use --wide or --json.")


def _fitting(table: Table, width: int) -> Table:
    table = table.with_short_cells()
    while table.width > width and table.left_out_first:
        table = table.without(table.left_out_first[0])
    return table


def _drawn(table: Table) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    # Text objects, because rich would parse a str as markup.
    drawn = RichTable(title=Text(printable(table.title), style="table.title"), title_justify="left")
    for column in table.columns:
        drawn.add_column(Text(printable(column)), overflow="fold", no_wrap=column not in table.folded)
    for row in table.rows:
        drawn.add_row(*[Text(printable(cell, keep="\n")) for cell in row])
    return drawn


def utc(at_ms: int | None) -> str:
    """Return a time as text, in UTC; ``""`` for ``None``."""
    return "" if at_ms is None else datetime.fromtimestamp(at_ms // 1000, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
