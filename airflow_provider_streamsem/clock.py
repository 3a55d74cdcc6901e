"""The only reader of time and maker of ids. Neither decides who wins or what is deleted (I13)."""

from __future__ import annotations

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Time and ids, so that tests can give their own."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def new_id(self) -> str:
        """An id that nobody else has."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock and random uuids."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def new_id(self) -> str:
        """A random uuid, 32 hexadecimal digits."""
        return uuid.uuid4().hex

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()
