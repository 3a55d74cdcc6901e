"""
What an endpoint does with a record, and whether doing it again changes anything: the table behind the label of a sink that cannot take part in a transaction.

Two things may happen to an at-least-once call: it is repeated at once, and it is repeated *late*, by a publisher that was frozen, after a newer value of the
same key was sent. An operation is idempotent here only where neither changes the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """
    One row of the table.

    :param idempotent: whether a record that is performed again, at once or late, changes nothing
    :param why: in a sentence
    :param instead: what would raise the label; ``""`` where nothing needs to
    """

    idempotent: bool
    why: str
    instead: str = ""


_KEY = "an endpoint that performs each key once (idempotent=True)"
OPERATIONS: Mapping[str, Operation] = {
    "append": Operation(idempotent=False, why="a repeat is one more row", instead=f"upsert_newer, or {_KEY}"),
    "increment": Operation(idempotent=False, why="a repeat counts twice", instead=f"upsert_newer of the sum, or {_KEY}"),
    "send": Operation(
        idempotent=False, why="a repeat is read twice", instead=f'{_KEY}; or delivery="at_most_once", which may lose some'
    ),
    "upsert": Operation(
        idempotent=False,
        why="a repeat at once sets the same value; a late one sets an older value over a newer",
        instead=f"upsert_newer, or {_KEY}",
    ),
    "upsert_newer": Operation(
        idempotent=True,
        why="the endpoint sets a value only where (Streamsem-Version, Streamsem-Position), as numbers, is not below the pair that set it before",
    ),
    "delete": Operation(
        idempotent=False,
        why="a repeat at once finds nothing; a late one deletes what was made anew",
        instead=f"upsert_newer of a mark, or {_KEY}",
    ),
    "max": Operation(idempotent=True, why="the greatest value stays, whatever is repeated and in whatever order"),
    "min": Operation(idempotent=True, why="the least value stays, whatever is repeated and in whatever order"),
    "union": Operation(idempotent=True, why="a member of a set is there or not, whatever is repeated and in whatever order"),
}  # fmt: skip


def table() -> list[str]:
    """The table as Markdown lines."""
    lines = ["| the endpoint does | done again it changes nothing | why | instead |", "|---|---|---|---|"]
    for name, operation in OPERATIONS.items():
        lines.append(
            f"| `{name}` | {'yes' if operation.idempotent else 'no'} | {operation.why} | {operation.instead} |"
        )
    return lines
