"""A clock for tests that advances without waiting."""

from __future__ import annotations

from itertools import count


class ManualClock:
    """
    A clock that advances only through :meth:`sleep`, which returns immediately. Its ids are consecutive numbers.

    :param now_ms: the initial time in milliseconds since the epoch
    :param name: prefix of every id. Clocks with different names never return the same id
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, name: str = "id") -> None:
        self._now_ms = now_ms
        self._name = name
        self._ids = count()

    def now_ms(self) -> int:
        """Return the current time in milliseconds since the epoch."""
        return self._now_ms

    def new_id(self) -> str:
        """Return the next id."""
        return f"{self._name}-{next(self._ids):04d}"

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        self._now_ms += int(seconds * 1000)
