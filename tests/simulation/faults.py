"""The faults of a request or step, and their rates in one simulation."""

from __future__ import annotations

from enum import Enum
from random import Random


class Fate(Enum):
    """What happens to one request. Every member except ``GOOD`` is a fault."""

    GOOD = "applied and answered"
    SLOW = "applied, and answered some turns later"
    LOST_REPLY = "applied; the answer is lost"
    LATE = "no answer; applied later, possibly after the sender died"
    NEVER = "no answer; never applied"
    CONFLICT = "409; not applied, but the answer does not prove it"
    STALE = "a listing of an earlier state"
    CRASH_BEFORE = "the sender dies; not applied"
    CRASH_AFTER = "applied; the sender dies before the answer"
    PAUSE = "the sender pauses for many turns, then sends it"
    PARTITION = "this and the sender's next requests get no answer; each may be applied"


RATES: dict[Fate, tuple[float, ...]] = {
    Fate.SLOW: (0.0, 0.1, 0.3),
    Fate.LOST_REPLY: (0.0, 0.03, 0.1),
    Fate.LATE: (0.0, 0.03, 0.1),
    Fate.NEVER: (0.0, 0.03),
    Fate.CONFLICT: (0.0, 0.03),
    Fate.CRASH_BEFORE: (0.0, 0.0, 0.01),
    Fate.CRASH_AFTER: (0.0, 0.0, 0.01),
    Fate.PAUSE: (0.0, 0.03, 0.08),
    Fate.PARTITION: (0.0, 0.01),
}
STALE_RATES = (0.0, 0.2, 0.6)
ON_DISK = (Fate.CRASH_BEFORE, Fate.CRASH_AFTER, Fate.PAUSE, Fate.NEVER)


class FaultModel:
    """Draws the faults of a simulation. Each seed has other rates, and lacks some faults, so that the seeds cover many combinations."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._rates = {fate: rng.choice(rates) for fate, rates in RATES.items()}
        self._stale = rng.choice(STALE_RATES)
        self.longest_pause = rng.choice((20, 80, 400))
        self.stopped = False

    def fate(self, *, listing: bool = False) -> Fate:
        """The fate of one request to the store."""
        if self.stopped:
            return Fate.GOOD
        drawn = self._rng.random()
        for fate, rate in self._rates.items():
            drawn -= rate
            if drawn < 0:
                return fate
        return Fate.STALE if listing and self._rng.random() < self._stale else Fate.GOOD

    def fate_on_disk(self, *, listing: bool = False) -> Fate:
        """The fate of a step of the engine or of a request to a directory. The process may die or pause. No applied request gets an unknown result."""
        fate = self.fate(listing=listing)
        return fate if fate in ON_DISK or (fate is Fate.STALE and listing) else Fate.GOOD
