"""Checks that planned files of a table still exist."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TypeVar

from airflow_provider_streamsem.connectors.table_files.batches import PlannedFile
from airflow_provider_streamsem.errors import StreamsemError, UnavailableError
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownResultError
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset

F = TypeVar("F", bound=PlannedFile)

_FEW = 100
_LISTED_PER_FILE = 10
"""A request that lists 1,000 objects takes about as long as 100 requests for one object each."""


def missing(location: str, files: Sequence[F]) -> list[F]:
    """
    Return the files that do not exist with the planned size.

    More than 100 files are listed, as long as the listing has at most 10 times as many objects. A request is sent for each file that the listing lacks.
    """
    store = open_dataset(location)
    listed = _listed(store, files) if len(files) > _FEW else {}

    def stat_of(file: F) -> ObjectStat | None:
        try:
            return store.stat(file.key)
        except UnknownResultError as error:
            summary = "the location of a table's files did not report the result of a request; nothing became visible"
            raise UnavailableError(summary, location=location, file=file.key) from error

    unlisted = [file for file in files if file.key not in listed]
    stats = dict(zip((file.key for file in unlisted), in_threads(stat_of, unlisted), strict=True)) | listed
    return [file for file in files if (stat := stats[file.key]) is None or file.bytes not in (-1, stat.bytes)]


def _listed(store: Dataset, files: Sequence[F]) -> dict[str, ObjectStat | None]:
    """Return key → object of the files that a listing from the first to the last of them finds; no file if the store refuses to list them."""
    keys = {file.key for file in files}
    first, last = min(keys), max(keys)
    try:
        objects = store.list("", limit=_LISTED_PER_FILE * len(files), start_after=first[:-1])
        return {stat.key: stat for stat in takewhile(lambda stat: stat.key <= last, objects) if stat.key in keys}
    except (StreamsemError, UnknownResultError):
        return {}
