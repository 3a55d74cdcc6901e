"""
Stores the results of the benchmarks in docs/explanation/benchmarks.csv, and compares them with the goals.

Results are added, and never replaced, so that a change for the worse is seen. ``python -m tools.benchmark_page`` writes the page from them.
"""

from __future__ import annotations

import csv
import re
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs" / "explanation" / "benchmarks.csv"
COLUMNS = ["date", "commit", "benchmark", "case", "subject", "ms", "ratio"]
"""``ratio`` is the median of the ratios of the provider's time to that of the subject, in the same round. It is empty for the provider."""
PROVIDER = "provider"


@dataclass(frozen=True)
class Goal:
    """
    The greatest ratio of the provider's time to that of a peer.

    :param cases: a regular expression that matches the whole name of a case
    """

    benchmark: str
    cases: str
    peer: str
    ratio: float

    def includes(self, benchmark: str, case: str, peer: str) -> bool:
        """Return whether the goal is for the ratio to a peer."""
        return (benchmark, peer) == (self.benchmark, self.peer) and re.fullmatch(self.cases, case) is not None


GOALS = (
    Goal("parsing", "JSON, (1 % bad)", "bare read and write", 1.3),
    Goal("parsing", "JSON, every record exact", "bare read and write", 3),
    Goal("parsing", "CSV, 2,000 columns", "bare read and write", 1.5),
    Goal("parsing", "(JSON|CSV), .*, first batch", "bare read and write", 1.2),
    Goal("parsing", "(JSON|CSV), .*", "bare read and write", 1),
    Goal("files", "200 JSON records, .*", "bare read and write", 1.5),
    Goal("files", "10,000 JSON files", "bare read and write", 1),
    Goal("start", "local", "bare script", 1.1),
    Goal("start", "Spark Connect", "bare script", 1.3),
    Goal("kafka", ".*", "streaming, file sink", 1),
    Goal("kafka", ".*, 50,000 rows", "bare read and write", 1.03),
    Goal("kafka_json", ".*", "streaming with from_json", 1.1),
    Goal("compact", ".*", "Spark, read and write", 1.2),
    Goal("compact", ".*", "OPTIMIZE", 1),
    Goal("connect", ".*", "bare read and write", 1.3),
    Goal("delta", ".*", "append with txnAppId", 1),
    Goal("expectations", ".*", "without rules", 1.1),
    Goal("merge", ".*", "MERGE of Spark", 1.1),
    Goal("dedup", ".*", "streaming dropDuplicates", 1),
    Goal("state", ".*", "streaming query", 1),
    Goal("sources", ".*", "client or Spark", 1.1),
)
"""The first goal that includes a ratio counts."""


@dataclass(frozen=True)
class Result:
    """
    The ratio of the provider's time to that of a peer.

    :param ms: the provider's median
    :param peer_ms: the peer's median
    :param before: the ratio of the result before this one; ``None``: there is none
    """

    benchmark: str
    case: str
    peer: str
    ms: float
    peer_ms: float
    ratio: float
    date: str
    before: float | None

    @property
    def goal(self) -> float | None:
        """The greatest ratio; ``None``: the project has no goal for it."""
        return next((g.ratio for g in GOALS if g.includes(self.benchmark, self.case, self.peer)), None)

    @property
    def goal_text(self) -> str:
        """The goal, and whether the ratio falls short of it; empty if there is none."""
        return "" if self.goal is None else f"{self.goal:g}{', falls short' * self.falls_short}"

    @property
    def falls_short(self) -> bool:
        """Whether the ratio, with two digits after the point, is greater than its goal."""
        return self.goal is not None and round(self.ratio, 2) > self.goal


def rows() -> list[dict[str, str]]:
    """Return the stored rows, the oldest first. Each has the keys of :data:`COLUMNS`."""
    with RESULTS.open(newline="") as file:
        return [*csv.DictReader(file)]


def latest() -> list[dict[str, str]]:
    """Return the rows of the newest result of each case."""
    stored = rows()
    newest = {(row["benchmark"], row["case"]): _run(row) for row in stored}
    return [row for row in stored if newest[row["benchmark"], row["case"]] == _run(row)]


def _run(row: Mapping[str, str]) -> tuple[str, str]:
    return row["date"], row["commit"]


def results() -> Iterator[Result]:
    """Yield the newest ratio of each case to each peer."""
    stored, newest = rows(), latest()
    for row in newest:
        if row["subject"] == PROVIDER:
            continue
        same = [r for r in stored if all(r[name] == row[name] for name in ("benchmark", "case", "subject"))]
        earlier = [float(r["ratio"]) for r in same if _run(r) != _run(row)]
        mine = next(
            r for r in newest if r["subject"] == PROVIDER and all(r[n] == row[n] for n in ("benchmark", "case"))
        )
        yield Result(
            row["benchmark"], row["case"], row["subject"], float(mine["ms"]), float(row["ms"]), float(row["ratio"]), row["date"],
            earlier[-1] if earlier else None,
        )  # fmt: skip


def record(benchmark: str, case: str, times: Mapping[str, Sequence[float]]) -> None:
    """
    Add the results of one case, and print its ratios with their goals.

    :param benchmark: name of a section of the page
    :param case: name of a row
    :param times: subject → milliseconds of each round. One subject is :data:`PROVIDER`
    """
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    commit = subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], text=True, cwd=RESULTS.parent).strip()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        for subject, measured in times.items():
            ratio = "" if subject == PROVIDER else f"{_ratio(times[PROVIDER], measured):.3f}"
            values = [date, commit, benchmark, case, subject, f"{statistics.median(measured):.0f}", ratio]
            writer.writerow(dict(zip(COLUMNS, values, strict=True)))
    for result in results():
        if (result.benchmark, result.case) == (benchmark, case):
            goal = f" (goal {result.goal_text})" if result.goal_text else ""
            print(
                f"{benchmark}: {case}: {result.ms:,.0f} ms, {result.peer} {result.peer_ms:,.0f} ms: {result.ratio:.2f}{goal}",
                flush=True,
            )


def _ratio(mine: Sequence[float], other: Sequence[float]) -> float:
    """Return the median of the ratios of the rounds, or the ratio of the medians if the rounds are not pairs."""
    if len(mine) != len(other):
        return statistics.median(mine) / statistics.median(other)
    return statistics.median(a / b for a, b in zip(mine, other, strict=True))
