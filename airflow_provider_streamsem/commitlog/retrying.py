"""Repeats requests to a store until their result is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_streamsem.clock import Clock
from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.stores.contract import ObjectStat, Store, UnknownResultError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """
    The retry policy for requests whose result is unknown (W6, W7).

    :param tries: number of consecutive requests with an unknown result after which the caller gets an error
    :param first_wait_s: delay before the first retry, in seconds; it doubles with each retry
    :param longest_wait_s: maximum delay before a retry, in seconds
    """

    tries: int = 8
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0

    def wait_s(self, unknown_results: int) -> float:
        """Return the delay after a number of consecutive unknown results, in seconds."""
        wait_s: float = self.first_wait_s * 2 ** (unknown_results - 1)
        return min(wait_s, self.longest_wait_s)


class RetryingStore:
    """
    A store that repeats reads, listings and deletions until their result is known. A repeated deletion finds nothing to delete.

    Creates are not repeated, because a create that is repeated does not report whether it was the first (W6).
    """

    def __init__(self, store: Store, clock: Clock, policy: RetryPolicy) -> None:
        self.url = store.url
        self._store, self._clock, self._policy = store, clock, policy

    def repeat(self, call: Callable[[], T]) -> T:
        """
        Return the result of a call that changes nothing more if it is repeated.

        :raises UnavailableError: the result of ``tries`` consecutive calls is unknown
        """
        unknown_results = 0
        while True:
            try:
                return call()
            except UnknownResultError as error:
                unknown_results += 1
                if unknown_results >= self._policy.tries:
                    summary = (
                        "the store did not report the result of a request; whether the request was applied is unknown"
                    )
                    facts = {"location": self.url, "tries": unknown_results, **error.fields}
                    raise UnavailableError(summary, **facts).advising(error.do) from error
            self._clock.sleep(self._policy.wait_s(unknown_results))

    def create(self, key: str, data: bytes) -> bool:
        """Create an object if it is absent, with one request."""
        return self._store.create(key, data)

    def read(self, key: str) -> bytes | None:
        """Return the bytes of an object, or ``None`` if it does not exist."""
        return self.repeat(lambda: self._store.read(key))

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Yield the objects whose key starts with a prefix. The listing is complete before the first is returned."""
        return iter(self.repeat(lambda: [*self._store.list(prefix, limit, start_after)]))

    def stat(self, key: str) -> ObjectStat | None:
        """Return the metadata of an object, or ``None`` if it does not exist."""
        return self.repeat(lambda: self._store.stat(key))

    def delete(self, key: str) -> None:
        """Delete an object if it exists."""
        self.repeat(lambda: self._store.delete(key))
