"""Compares column names without regard to case, as most readers do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def more_than_once(names: Iterable[str]) -> list[str]:
    """Return the lower-case form of each name that occurs more than once if case is ignored."""
    return sorted(name for name, count in Counter(name.lower() for name in names).items() if count > 1)
