"""Checks that planned files of a table still exist. Requests for several files are sent concurrently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from airflow_provider_streamsem.connectors.table_files.batches import PlannedFile
from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownAnswerError
from airflow_provider_streamsem.stores.dataset import open_dataset

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound=PlannedFile)

_THREADS = 16


def missing(location: str, files: Sequence[F]) -> list[F]:
    """
    Return the files that do not exist with the planned size. Sends one request for each file.

    :param location: root of the files
    :raises UnavailableError: the store gave no clear answer. Nothing became visible
    """
    store = open_dataset(location)

    def stat(file: F) -> ObjectStat | None:
        try:
            return store.stat(file.key)
        except UnknownAnswerError as error:
            what = "the location of a table's files gave no clear answer; nothing became visible"
            raise UnavailableError(what, location=location, file=file.key) from error

    found = zip(files, in_threads(stat, files), strict=True)
    return [file for file, held in found if held is None or file.bytes not in (-1, held.bytes)]


def in_threads(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function with each item, up to 16 at a time, and return the results in order."""
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as pool:
        contexts = [copy_context() for _ in items]
        return list(pool.map(lambda context, item: context.run(call, item), contexts, items))
