"""Names of columns: quotes them for Spark SQL, and compares them without regard to case, as most readers do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def quoted(name: str) -> str:
    """Quote the name of a column or field, which may contain any character."""
    return "`" + name.replace("`", "``") + "`"


def more_than_once(names: Iterable[str]) -> list[str]:
    """Return the lower-case form of each name that occurs more than once if case is ignored."""
    return sorted(name for name, count in Counter(name.lower() for name in names).items() if count > 1)
