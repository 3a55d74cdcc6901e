"""Shares a number of bytes of memory between the requests of a server process and the versions that it keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import TypeVar

from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.readers.history import VersionCache
from airflow_provider_streamsem.stores.metered import Meter, metered

T = TypeVar("T")
_MIB = 1 << 20
DEFAULT_MIB = 256
"""The default of ``[streamsem] web_memory``, in MiB."""
_WAIT_S = 60
"""The maximum number of seconds that a request waits for memory."""


class MemoryBudget:
    """
    The memory for logs in a server process. A fourth is for the versions that the process keeps, and the rest for requests.

    A request starts with a small part of the memory. If it needs more, it starts again with a larger part, and at last it uses all of it, while no other
    request reads a log.

    :param mib: MiB of memory
    :attr cache: the versions that the process keeps
    """

    def __init__(self, mib: int = DEFAULT_MIB) -> None:
        self._mib = mib
        self.cache = VersionCache(mib * _MIB // 4)
        self._capacity = self._free = mib * _MIB - mib * _MIB // 4
        self._waiting: deque[object] = deque()
        self._changed = Condition()

    def run(self, call: Callable[[], T]) -> T:
        """
        Return the result of a function that reads logs. The function may be called more than once.

        :raises InvalidError: the function needs more than the memory for requests
        :raises UnavailableError: other requests have used the memory for a minute
        """
        for size in (self._capacity // 16, self._capacity // 4, self._capacity):
            meter = Meter(size, is_serial=size == self._capacity)
            with self._reserved(size), metered(meter):
                try:
                    result = call()
                except Exception:
                    if not meter.is_exceeded:
                        raise
                else:
                    if not meter.is_exceeded:
                        return result
        raise InvalidError(
            "the web view needs more memory for these entries of the log than it may use; other pages are not affected",
            web_memory=self._mib,
        ).advising("set a greater [streamsem] web_memory in MiB, or use the command `streamsem`, which has no limit.")

    @contextmanager
    def _reserved(self, size: int) -> Iterator[None]:
        """Reserve bytes for the block, in the order of the calls."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            is_next = self._changed.wait_for(lambda: self._waiting[0] is ticket and self._free >= size, _WAIT_S)
            self._waiting.remove(ticket)
            self._changed.notify_all()
            if not is_next:
                raise UnavailableError("other requests use the memory of the web view; nothing was read").advising(
                    "try again later."
                )
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()
