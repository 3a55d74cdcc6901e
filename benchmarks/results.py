"""Stores the medians of a benchmark in docs/explanation/benchmarks.csv, from which ``python -m tools.plots`` draws the page's plots."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs" / "explanation" / "benchmarks.csv"
COLUMNS = ["benchmark", "case", "subject", "ms"]


def rows() -> list[dict[str, str]]:
    """Return the stored rows in order. Each has the keys of :data:`COLUMNS`."""
    with RESULTS.open(newline="") as file:
        return [*csv.DictReader(file)]


def record(benchmark: str, case: str, medians: Mapping[str, float]) -> None:
    """
    Replace the results of one case.

    :param benchmark: name of the plot
    :param case: name of a group of bars
    :param medians: subject → median in milliseconds
    """
    others = [row for row in rows() if (row["benchmark"], row["case"]) != (benchmark, case)]
    new = [
        {"benchmark": benchmark, "case": case, "subject": subject, "ms": f"{ms:.0f}"} for subject, ms in medians.items()
    ]
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(others + new)
