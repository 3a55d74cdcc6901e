"""The overview of several logs that ``streamsem top`` shows: a row for each pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_streamsem.cli.log_table import age
from airflow_provider_streamsem.cli.output import Table
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.readers.history import History, rows_per_minute

NEWEST = 30
"""How many versions of each log are read."""
_BARS = "▁▂▃▄▅▆▇█"


def pipelines(logs: Sequence[str]) -> list[dict[str, Any]]:
    """Return the state of the pipelines of some logs. A log that cannot be read has only ``log`` and ``error``."""
    return [_pipeline(log) for log in logs]


def _pipeline(log: str) -> dict[str, Any]:
    try:
        opened = open_log(log)
        newest = History(opened).summaries(limit=NEWEST)
    except StreamsemError as error:
        return {"log": log, "error": f"{type(error).__name__}: {error.summary}"}
    first = newest[0] if newest else None
    closed = [each for each in newest if each.decided_at_ms is not None]
    return {
        "log": log,
        "pipeline": opened.record.name,
        "version": None if first is None else first.version,
        "result": None if first is None else first.result,
        "closed_at_ms": closed[0].decided_at_ms if closed else None,
        "lag": next((each.lag for each in newest if each.lag is not None), None),
        "rows_per_minute": rows_per_minute(newest),
        "duration_ms": closed[0].duration_ms if closed else None,
        "rows": [each.most_rows for each in reversed(newest)],
    }


def overview(rows: Sequence[dict[str, Any]], *, now_ms: int) -> Table:
    """
    Return the overview as a table.

    :param rows: as :func:`pipelines` returns them
    """
    cells = [
        [row["log"], *[""] * 7, row["error"]]
        if "error" in row
        else [
            row["pipeline"],
            "" if row["version"] is None else str(row["version"]),
            row["result"] or "",
            "" if row["closed_at_ms"] is None else age(now_ms - row["closed_at_ms"]),
            "" if row["lag"] is None else f"{row['lag']:,}",
            "" if row["rows_per_minute"] is None else f"{row['rows_per_minute']:,.0f}",
            "" if row["duration_ms"] is None else f"{row['duration_ms'] / 1000:.1f} s",
            sparkline(row["rows"]),
            "",
        ]
        for row in rows
    ]
    columns = [
        "pipeline",
        "version",
        "result",
        "age",
        "unread",
        "rows/min",
        "duration",
        f"rows of {NEWEST} versions",
        "error",
    ]
    is_used = [name != "error" or any(row[at] for row in cells) for at, name in enumerate(columns)]
    return Table(
        title="pipelines",
        columns=[name for name, used in zip(columns, is_used, strict=True) if used],
        rows=[[cell for cell, used in zip(row, is_used, strict=True) if used] for row in cells],
        left_out_first=["duration", f"rows of {NEWEST} versions", "rows/min"],
        folded=["error"],
    )


def sparkline(values: Sequence[int]) -> str:
    """Return a bar for each value, whose height is relative to the greatest one. 0 has the lowest bar."""
    greatest = max(values, default=0)
    return "".join(_BARS[0 if greatest == 0 else round(value / greatest * (len(_BARS) - 1))] for value in values)
