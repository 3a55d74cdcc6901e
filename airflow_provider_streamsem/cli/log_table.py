"""The table that ``streamsem log`` prints: a row for each version, with the columns that have values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_streamsem.cli.output import Table, printable, utc
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.kinds.batch import Batch

_LINES = 6
"""The maximum number of partitions or sinks of a version that the table of ``streamsem log`` shows."""


def log_table(name: str, rows: list[Json], *, now_ms: int) -> Table:
    """
    Return the versions of a log as a table for the terminal.

    :param now_ms: the current time in milliseconds since the epoch, from which ages are computed
    """
    columns: dict[str, Callable[[Json], object]] = {
        "version": lambda row: row["version"],
        "result": lambda row: f"{_result(row)}, expired" if row.get("is_expired") else _result(row),
        "closed (UTC)": lambda row: utc(row["decided_at_ms"]),
        "age": lambda row: "" if row["decided_at_ms"] is None else age(now_ms - row["decided_at_ms"]),
        "offsets": lambda row: _in_lines(f"{p} [{start}, {end})" for p, (start, end) in sorted(row["ranges"].items())),
        "read": lambda row: row["counts"].get("read", ""),
        "written": lambda row: _in_lines(_written(row)),
        "filtered": lambda row: row["counts"].get("filtered", ""),
        "quarantined": lambda row: row["counts"].get("quarantined", ""),
        "late": lambda row: row["counts"].get("late", ""),
        "watermark (UTC)": lambda row: utc(row.get("watermark_ms")),
        "sinks": lambda row: _in_lines(f"{sink} {state}" for sink, state in sorted(row["sinks"].items())),
        "files": lambda row: row["files"],
        "attempts": lambda row: row["attempts"],
        "duration": lambda row: "" if row["duration_ms"] is None else f"{row['duration_ms'] / 1000:.1f} s",
        "changed in the spec": lambda row: "\n".join(row["changed"]),
        "reason": lambda row: printable(row["reason"]),
    }
    cells = {title: [str(cell(row)) for row in rows] for title, cell in columns.items()}
    if all(state == "committed" for row in rows for state in row["sinks"].values()):
        del cells["sinks"]  # the column `result` shows the same
    shown = [title for title, column in cells.items() if not rows or any(column)]
    left_out_first = [
        "attempts",
        "files",
        "duration",
        "closed (UTC)",
        "sinks",
        "changed in the spec",
        "age",
        "filtered",
        "reason",
        "watermark (UTC)",
        "quarantined",
        "offsets",
        "written",
    ]
    return Table(
        title=f"commit log of {name}" + ("" if rows else ": no versions yet"),
        columns=shown,
        rows=[*zip(*(cells[title] for title in shown), strict=True)],
        left_out_first=[title for title in left_out_first if title in shown],
        shortened=["reason"],
    )


def _result(row: Json) -> str:
    result = row["result"] if row["kind"] == Batch.kind else f"{row['description']}, {row['result']}"
    return f"{result}, rolled back" if row["is_rolled_back"] else result


def _written(row: Json) -> list[str]:
    rows_by_sink = {sink: row["counts"].get(f"written.{sink}") for sink in sorted(row["sinks"])}
    return [
        f"{sink} {rows}" if len(rows_by_sink) > 1 else str(rows)
        for sink, rows in rows_by_sink.items()
        if rows is not None
    ]


def _in_lines(parts: Iterable[str]) -> str:
    lines = [*parts]
    more = len(lines) - _LINES
    return "\n".join(lines if more <= 1 else [*lines[:_LINES], f"and {more} more"])


def age(ms: int) -> str:
    """Format a duration in its largest fitting unit, such as ``3 min``."""
    seconds = max(0, ms) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
