"""
Table of endpoint operations and whether they are idempotent. It determines the delivery guarantee of a sink that cannot take part in a transaction.

An at-least-once call may be repeated at once. A zombie may also repeat it *late*, after a newer value of the same key was sent. An operation
counts as idempotent only if neither repetition changes the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """
    One row of the table.

    :param idempotent: whether repeating a record, at once or late, changes nothing
    :param why: the reason, as one sentence
    :param instead: the alternative with a stronger guarantee; ``""`` if the operation is idempotent
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
        why="a repeat at once finds nothing; a late one deletes what was created again",
        instead=f"upsert_newer of a mark, or {_KEY}",
    ),
    "max": Operation(idempotent=True, why="the greatest value stays, whatever is repeated and in whatever order"),
    "min": Operation(idempotent=True, why="the least value stays, whatever is repeated and in whatever order"),
    "union": Operation(idempotent=True, why="a member of a set is there or not, whatever is repeated and in whatever order"),
}  # fmt: skip


def table() -> list[str]:
    """Return the table as Markdown lines."""
    lines = ["| the endpoint does | done again it changes nothing | why | instead |", "|---|---|---|---|"]
    for name, operation in OPERATIONS.items():
        lines.append(
            f"| `{name}` | {'yes' if operation.idempotent else 'no'} | {operation.why} | {operation.instead} |"
        )
    return lines
