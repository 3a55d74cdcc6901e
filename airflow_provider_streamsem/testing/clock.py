"""A clock by hand."""

from __future__ import annotations

from itertools import count


class ManualClock:
    """
    Time that moves only when it is told to, ids in a row, sleeps that take no time.

    :param now_ms: where it starts
    :param name: begins every id, so that two clocks never give the same
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, name: str = "id") -> None:
        self._now_ms = now_ms
        self._name = name
        self._ids = count()

    def now_ms(self) -> int:
        """Where it stands."""
        return self._now_ms

    def new_id(self) -> str:
        """The next id."""
        return f"{self._name}-{next(self._ids):04d}"

    def sleep(self, seconds: float) -> None:
        """Move on at once."""
        self._now_ms += int(seconds * 1000)
