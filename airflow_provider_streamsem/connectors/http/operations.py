"""
Operations of endpoints, and whether they are idempotent. The delivery guarantee of the HTTP sink depends on their idempotency.

With at-least-once delivery, a call may be repeated immediately. A zombie may also repeat it *late*, after a newer value of the same key was sent. An
operation counts as idempotent only if neither repetition changes the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """
    One operation of an endpoint.

    :param idempotent: whether a repeated call, immediate or late, changes nothing
    :param why: the reason, as one sentence
    :param instead: an alternative with a stronger guarantee; ``""`` if the operation is idempotent
    """

    idempotent: bool
    why: str
    instead: str = ""


_KEY = "an endpoint that performs each idempotency key once (idempotent=True)"
OPERATIONS: Mapping[str, Operation] = {
    "append": Operation(idempotent=False, why="a repeated call adds another row", instead=f"upsert_newer, or {_KEY}"),
    "increment": Operation(idempotent=False, why="a repeated call counts twice", instead=f"upsert_newer of the sum, or {_KEY}"),
    "send": Operation(
        idempotent=False, why="the receiver gets a repeated record twice", instead=f'{_KEY}; or delivery="at_most_once", which may lose records'
    ),
    "upsert": Operation(
        idempotent=False,
        why="an immediate repeat sets the same value, but a late repeat overwrites a newer value with an older one",
        instead=f"upsert_newer, or {_KEY}",
    ),
    "upsert_newer": Operation(
        idempotent=True,
        why="the endpoint sets a value only if (Streamsem-Version, Streamsem-Position), compared as numbers, is not below the pair of the current value",
    ),
    "delete": Operation(
        idempotent=False,
        why="an immediate repeat finds nothing, but a late repeat deletes a recreated record",
        instead=f"upsert_newer of a tombstone, or {_KEY}",
    ),
    "max": Operation(idempotent=True, why="the greatest value stays, whichever calls are repeated and in any order"),
    "min": Operation(idempotent=True, why="the least value stays, whichever calls are repeated and in any order"),
    "union": Operation(idempotent=True, why="a set contains a member once, whichever calls are repeated and in any order"),
}  # fmt: skip


def table() -> list[str]:
    """Return :data:`OPERATIONS` as the lines of a Markdown table."""
    lines = ["| operation | idempotent | why | instead |", "|---|---|---|---|"]
    for name, operation in OPERATIONS.items():
        lines.append(
            f"| `{name}` | {'yes' if operation.idempotent else 'no'} | {operation.why} | {operation.instead} |"
        )
    return lines
