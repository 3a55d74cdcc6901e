"""The labels of delivery guarantees, and which label satisfies which."""

from __future__ import annotations

from collections.abc import Mapping

LABELS = ("exactly_once", "effectively_once", "at_least_once", "at_most_once")

SATISFIES: Mapping[str, frozenset[str]] = {
    "exactly_once": frozenset({"exactly_once", "effectively_once", "at_least_once", "at_most_once"}),
    "effectively_once": frozenset({"effectively_once", "at_least_once"}),
    "at_least_once": frozenset({"at_least_once"}),
    "at_most_once": frozenset({"at_most_once"}),
    "none": frozenset(),
}
"""
Label → the labels that it satisfies.

Effectively once does not satisfy at most once, because such a sink may apply a record twice. The second time has no effect.
"""


def weaker(label: str, other: str) -> str:
    """Return the strongest label that both labels satisfy; ``none`` if there is no such label."""
    both = SATISFIES[label] & SATISFIES[other]
    return next((name for name in SATISFIES if name in both), "none")
