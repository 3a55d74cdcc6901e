"""
Writes the tables of docs/explanation/benchmarks.md from the stored results. ``make bench`` runs ``python -m tools.benchmark_page``.

A table stands between the lines ``<!-- results: NAME -->`` and ``<!-- end of results -->``. ``NAME`` is a benchmark, or ``goals``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks import results
from benchmarks.results import Result

PAGE = results.RESULTS.parent / "benchmarks.md"
_TABLE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def page() -> str:
    """Return the page with the tables of the newest results."""
    found = [*results.results()]
    return _TABLE.sub(lambda table: f"{table[1]}\n{_section(table[2], found)}\n{table[3]}", PAGE.read_text())


def _section(name: str, found: Sequence[Result]) -> str:
    if name == "goals":
        return _goals(found)
    chosen = [result for result in found if result.benchmark == name]
    header = ["case", "provider, ms", "peer", "peer, ms", "provider / peer", "goal", "before", "measured"]
    return _table(header, [_cells(result) for result in chosen])


def _cells(result: Result) -> list[str]:
    before = "" if result.before is None else f"{result.before:.2f}"
    ms, peer_ms = f"{result.ms:,.0f}", f"{result.peer_ms:,.0f}"
    return [
        result.case,
        ms,
        result.peer,
        peer_ms,
        f"**{result.ratio:.2f}**",
        result.goal_text,
        before,
        result.date[:10],
    ]


def _goals(found: Sequence[Result]) -> str:
    """Return how many ratios have a goal, and a table of those that fall short."""
    with_goal = [result for result in found if result.goal is not None]
    short = [result for result in with_goal if result.falls_short]
    text = f"{len(with_goal) - len(short)} of {len(with_goal)} ratios meet their goal."
    if not short:
        return text + "\n"
    header = ["benchmark", "case", "peer", "provider / peer", "goal", "measured"]
    lines = [[r.benchmark, r.case, r.peer, f"{r.ratio:.2f}", f"{r.goal:g}", r.date[:10]] for r in short]
    return f"{text} These fall short:\n\n{_table(header, lines)}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
