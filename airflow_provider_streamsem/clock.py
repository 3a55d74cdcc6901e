"""
The clock and the generator of ids. The protocol and the runs read the time and create ids only through it.

Neither determines which writer wins or what vacuum deletes (I13).
"""

from __future__ import annotations

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Interface for time and ids. Tests substitute their own implementation."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        ...

    def new_id(self) -> str:
        """Return a globally unique id."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block for a number of seconds."""
        ...


class SystemClock:
    """The system clock and random UUIDs."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000

    def new_id(self) -> str:
        """Return a random UUID as 32 hexadecimal digits."""
        return uuid.uuid4().hex

    def sleep(self, seconds: float) -> None:
        """Block for a number of seconds."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()
