"""
Draws docs/explanation/life-of-a-batch.svg from the table in PROTOCOL.md, 3: the states of a version, and the object whose creation leads from one to the
next.

``python -m tools.life_of_a_batch`` writes the file. tests/architecture/test_pages.py fails if it is out of date.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "explanation" / "life-of-a-batch.svg"
_WIDTH, _HEIGHT = 132, 44
_AT = {
    "VOID": (20, 58),
    "PLANNED": (250, 58),
    "COMMITTED": (480, 20),
    "PUBLISHED": (710, 20),
    "ABORTED": (480, 110),
}
_NOTES = {
    "VOID": "no object",
    "PLANNED": "Spark stages attempts",
    "COMMITTED": "rows are visible",
    "PUBLISHED": "sinks have the rows",
    "ABORTED": "no rows are visible",
}


def transitions() -> list[tuple[str, str, str]]:
    """Return (state, created object, next state) of each row of the table."""
    rows = re.findall(
        r"^\| ([A-Z]+) \| (\w+\(n\))[^|]* \| ([A-Z]+) \|$", (DOCS / "PROTOCOL.md").read_text(), re.MULTILINE
    )
    return [(before, created, after) for before, created, after in rows]


def drawing() -> str:
    """Return the SVG as text. Its colours are readable on light and dark backgrounds."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 190" role="img" font-family="sans-serif" font-size="13">',
        "<title>The states of a version, and the object whose creation leads from one to the next</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#7986cb"/></marker></defs>',
    ]
    for before, created, after in transitions():
        (x1, y1), (x2, y2) = _AT[before], _AT[after]
        start, end = (x1 + _WIDTH, y1 + _HEIGHT // 2), (x2 - 2, y2 + _HEIGHT // 2)
        middle = ((start[0] + end[0]) // 2, (start[1] + end[1]) // 2 - 8)
        parts.append(
            f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="#7986cb" stroke-width="1.5" marker-end="url(#tip)"/>'
        )
        parts.append(f'<text x="{middle[0]}" y="{middle[1]}" text-anchor="middle" fill="#7986cb">{created}</text>')
    for state, (x, y) in _AT.items():
        parts.append(f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#3f51b5" stroke="none"/>')
        middle_x, middle_y = x + _WIDTH // 2, y + _HEIGHT // 2 + 5
        parts.append(
            f'<text x="{middle_x}" y="{middle_y}" text-anchor="middle" fill="#ffffff" font-weight="bold">{state.lower()}</text>'
        )
        parts.append(
            f'<text x="{middle_x}" y="{y + _HEIGHT + 17}" text-anchor="middle" fill="#7986cb">{_NOTES[state]}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PAGE.write_text(drawing())
