"""Sends requests for several items concurrently, because each request takes some milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

THREADS = 16
"""The number of calls that :func:`in_threads` runs at a time."""


def in_threads(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """
    Call a function with each item, up to 16 at a time, and return the results in order.

    The calls have the caller's context variables. If calls raise errors, the error of the first item that failed is raised.
    """
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(THREADS) as pool:
        contexts = [copy_context() for _ in items]
        return list(pool.map(lambda context, item: context.run(call, item), contexts, items))
