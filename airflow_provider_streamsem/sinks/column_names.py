"""Names of columns as readers take them, most of which do not tell upper from lower case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def more_than_once(names: Iterable[str]) -> list[str]:
    """The names, in lower case, that more than one column has where case does not count."""
    return sorted(name for name, count in Counter(name.lower() for name in names).items() if count > 1)
