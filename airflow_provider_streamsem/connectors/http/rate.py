"""Client-side rate control by additive increase and multiplicative decrease (AIMD): slow down when the endpoint limits the rate, then speed up again."""

from __future__ import annotations

from airflow_provider_streamsem.clock import Clock

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
_CALLS_TO_RECOVER = 50


class Pace:
    """
    Limits the rate of calls: determines when the next call may be made.

    The first deferral of a call (status 429, for example) sets the rate to half of the measured rate. The measured rate is the number of calls per second that
    were answered since the previous first deferral. Each call that is answered raises the rate by a constant, so that the rate doubles after 50 calls.

    :param clock: the clock. It may jump; a jump never makes a wait longer than requested
    :param max_per_s: maximum calls per second; ``None``: only the endpoint limits the rate
    """

    def __init__(self, clock: Clock, max_per_s: int | None) -> None:
        self._clock = clock
        self._fastest = float("inf") if max_per_s is None else float(max_per_s)
        self._rate = self._fastest
        self._step = 0.0
        self._since_ms = clock.now_ms()
        self._answered = 0
        self._from_ms = self._since_ms
        self._wait_ms = 0.0
        self._deferrals = 0
        self.waited_s = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the next call may be made, or 0 if it may be made now."""
        return max(0.0, min(self._wait_ms, self._wait_ms - (self._clock.now_ms() - self._from_ms))) / 1000

    def wait(self) -> None:
        if self.wait_s:
            self._clock.sleep(self.wait_s)
        self._allow_after(0.0)

    def record_answer(self) -> None:
        """Record that the endpoint has answered a call and did not defer it. Increases the rate."""
        self._answered += 1
        self._deferrals, self.waited_s = 0, 0.0
        self._rate = min(self._rate + self._step, self._fastest)
        self._allow_after(min(1 / self._rate, LONGEST_BACKOFF_S))

    def backoff_s(self, retry_after_s: float | None) -> float:
        """Return the seconds to wait: ``retry_after_s``, or the backoff if it is longer. It doubles each time the same call is deferred, up to 30 seconds."""
        return max(retry_after_s or 0.0, min(FIRST_BACKOFF_S * 2.0 ** min(self._deferrals, 6), LONGEST_BACKOFF_S))

    def record_deferral(self, wait_s: float) -> None:
        """Record that the endpoint has deferred a call. The next call may be made after ``wait_s`` seconds, and at a lower rate."""
        now_ms = self._clock.now_ms()
        if not self._deferrals and self._answered:
            measured = self._answered * 1000 / max(1, now_ms - self._since_ms)
            self._rate = min(measured / 2, self._fastest)
            self._step = self._rate / _CALLS_TO_RECOVER
            self._since_ms, self._answered = now_ms, 0
        self._deferrals += 1
        self.waited_s += wait_s
        self._allow_after(wait_s)

    def _allow_after(self, wait_s: float) -> None:
        self._from_ms, self._wait_ms = self._clock.now_ms(), wait_s * 1000
