"""How fast an endpoint is called: it slows down where the endpoint limits the rate, and speeds up again (additive increase, multiplicative decrease)."""

from __future__ import annotations

from airflow_provider_streamsem.clock import Clock

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
_CALLS_TO_RECOVER = 50


class Pace:
    """
    When the next call may be made.

    Each deferral (429, for example) sets the rate to half of the calls per second that ended since the deferral before it. Each call that
    ends raises the rate by the same amount, so that it doubles after 50 calls.

    :param clock: time; it may jump, and no wait is longer than what is asked for here
    :param max_per_s: calls per second that are never exceeded; ``None``: no limit but the endpoint's
    """

    def __init__(self, clock: Clock, max_per_s: int | None) -> None:
        self._clock = clock
        self._fastest = float("inf") if max_per_s is None else float(max_per_s)
        self._rate = self._fastest
        self._step = 0.0
        self._since_ms = clock.now_ms()
        self._ended = 0
        self._from_ms = self._since_ms
        self._wait_ms = 0.0
        self._deferrals = 0
        self.waited_s = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the next call may be made; 0 where it may be made now."""
        return max(0.0, min(self._wait_ms, self._wait_ms - (self._clock.now_ms() - self._from_ms))) / 1000

    def wait(self) -> None:
        """Wait until the next call may be made."""
        if self.wait_s:
            self._clock.sleep(self.wait_s)
        self._hold(0.0)

    def ended(self) -> None:
        """A call ended without a deferral: the endpoint accepts calls at this rate."""
        self._ended += 1
        self._deferrals, self.waited_s = 0, 0.0
        self._rate = min(self._rate + self._step, self._fastest)
        self._hold(min(1 / self._rate, LONGEST_BACKOFF_S))

    def backoff_s(self, asked_s: float | None) -> float:
        """How long to wait after a deferral: what the endpoint asked for, and longer each time where it defers the same call again."""
        return max(asked_s or 0.0, min(FIRST_BACKOFF_S * 2.0 ** min(self._deferrals, 6), LONGEST_BACKOFF_S))

    def deferred(self, wait_s: float) -> None:
        """The endpoint deferred a call: wait ``wait_s`` seconds before it is sent again, and go on at a lower rate."""
        now_ms = self._clock.now_ms()
        if not self._deferrals and self._ended:
            measured = self._ended * 1000 / max(1, now_ms - self._since_ms)
            self._rate = min(measured / 2, self._fastest)
            self._step = self._rate / _CALLS_TO_RECOVER
            self._since_ms, self._ended = now_ms, 0
        self._deferrals += 1
        self.waited_s += wait_s
        self._hold(wait_s)

    def _hold(self, wait_s: float) -> None:
        self._from_ms, self._wait_ms = self._clock.now_ms(), wait_s * 1000
