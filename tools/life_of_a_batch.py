"""
Draws docs/explanation/life-of-a-batch.svg from the protocol's table: the states of a version, and the object whose creation leads from one to the next.

``python -m tools.life_of_a_batch`` writes the file. tests/architecture/test_pages.py fails if it is out of date.
"""

from __future__ import annotations

from pathlib import Path

from airflow_provider_streamsem.protocol.machine import VERSION, VersionState

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "life-of-a-batch.svg"
_WIDTH, _HEIGHT = 132, 44
_AT = {
    VersionState.VOID: (20, 58),
    VersionState.PLANNED: (250, 58),
    VersionState.COMMITTED: (480, 20),
    VersionState.PUBLISHED: (710, 20),
    VersionState.ABORTED: (480, 110),
}
_OBJECTS = {"plan": "Plan(n)", "commit": "Outcome(n)", "abort": "Outcome(n)", "receipts": "Receipts(n)"}
_NOTES = {
    VersionState.VOID: "no object",
    VersionState.PLANNED: "Spark stages attempts",
    VersionState.COMMITTED: "rows are visible",
    VersionState.PUBLISHED: "sinks have the rows",
    VersionState.ABORTED: "no rows are visible",
}


def drawing() -> str:
    """Return the SVG as text. Its colours are readable on light and dark backgrounds."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 190" role="img" font-family="sans-serif" font-size="13">',
        "<title>The states of a version, and the object whose creation leads from one to the next</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#7986cb"/></marker></defs>',
    ]
    for (before, created), after in VERSION.items():
        (x1, y1), (x2, y2) = _AT[before], _AT[after]
        start, end = (x1 + _WIDTH, y1 + _HEIGHT // 2), (x2 - 2, y2 + _HEIGHT // 2)
        middle = ((start[0] + end[0]) // 2, (start[1] + end[1]) // 2 - 8)
        parts.append(
            f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="#7986cb" stroke-width="1.5" marker-end="url(#tip)"/>'
        )
        parts.append(
            f'<text x="{middle[0]}" y="{middle[1]}" text-anchor="middle" fill="#7986cb">{_OBJECTS[created]}</text>'
        )
    for state, (x, y) in _AT.items():
        parts.append(f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#3f51b5" stroke="none"/>')
        middle_x, middle_y = x + _WIDTH // 2, y + _HEIGHT // 2 + 5
        parts.append(
            f'<text x="{middle_x}" y="{middle_y}" text-anchor="middle" fill="#ffffff" font-weight="bold">{state.value}</text>'
        )
        parts.append(
            f'<text x="{middle_x}" y="{y + _HEIGHT + 17}" text-anchor="middle" fill="#7986cb">{_NOTES[state]}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PAGE.write_text(drawing())
