"""
What a command answers, and the one place where it is printed. rich is imported when a table is shown.

Names, paths and reasons come from the log, and from whoever may write to it. What a terminal would execute or reorder is printed as an escape.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_streamsem.protocol.entries import Json

if TYPE_CHECKING:
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


def show(answer: Answer) -> None:
    """Print an answer for people."""
    if answer.tables:
        from rich.console import Console

        console = Console()
        for table in answer.tables:
            console.print(drawn(table))
    for line in answer.lines:
        print(printable(line))


def drawn(table: Table) -> RichTable:
    """A table as rich draws it."""
    from rich.table import Table as RichTable
    from rich.text import Text

    # As Text: rich would read a str as markup.
    made = RichTable(title=Text(printable(table.title), style="table.title"), title_justify="left")
    for column in table.columns:
        made.add_column(Text(printable(column)), overflow="fold", no_wrap=column in table.whole)
    for row in table.rows:
        made.add_row(*[Text(printable(cell, keep="\n")) for cell in row])
    return made
