"""A clock for tests that advances without waiting."""

from __future__ import annotations

import hashlib
from itertools import count


class ManualClock:
    """
    A clock that advances only through :meth:`sleep`, which returns immediately. Its ids have the form of UUIDs, and end with consecutive numbers.

    :param now_ms: the initial time in milliseconds since the epoch
    :param name: determines the ids. Clocks with different names never return the same id
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, name: str = "id") -> None:
        self._now_ms = now_ms
        self._prefix = hashlib.sha256(name.encode()).hexdigest()[:24]
        self._ids = count()

    def now_ms(self) -> int:
        return self._now_ms

    def new_id(self) -> str:
        return f"{self._prefix}{next(self._ids):08x}"

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        self._now_ms += int(seconds * 1000)
