"""
The clock and the generator of ids. The protocol and the runs read the time and create ids only through it.

Neither determines which writer wins or what vacuum deletes (I13).
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Protocol

MOST_DIFFERENCE_MS = 3_600_000
"""Clocks of two machines may differ by less than this. A greater difference is an error of one clock, which must not determine all later times."""


def iso_time(at_ms: int) -> str:
    """Return milliseconds since the epoch as ISO 8601 text in UTC with milliseconds. A time that Python cannot represent is returned as milliseconds."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, tz=timezone.utc).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def later(now_ms: int, earlier_ms: int) -> int:
    """
    Return a clock reading that is not before the one of an earlier step, although another machine with another clock may have performed that step.

    This is one millisecond after ``earlier_ms`` if this machine's clock is behind by less than :data:`MOST_DIFFERENCE_MS`.
    """
    return earlier_ms + 1 if 0 < earlier_ms - now_ms < MOST_DIFFERENCE_MS else now_ms


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


def tries(waits_s: Iterable[float], clock: Clock = SYSTEM_CLOCK) -> Iterator[int]:
    """Yield the number of each try, from 0, and wait before each one but the first. The caller ends the loop when a try succeeds."""
    yield 0
    for number, wait_s in enumerate(waits_s, start=1):
        clock.sleep(wait_s)
        yield number


def doubling(first_s: float, count: int, most_s: float = math.inf) -> list[float]:
    """Return ``count`` waits in seconds. Each is twice as long as the one before, and at most ``most_s``."""
    return [min(first_s * 2**n, most_s) for n in range(count)]
