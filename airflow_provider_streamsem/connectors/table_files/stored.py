"""Checks that planned files of a table still exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from airflow_provider_streamsem.connectors.table_files.batches import PlannedFile
from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownResultError
from airflow_provider_streamsem.stores.dataset import open_dataset

F = TypeVar("F", bound=PlannedFile)


def missing(location: str, files: Sequence[F]) -> list[F]:
    """
    Return the files that do not exist with the planned size. Sends one request for each file.

    :param location: root of the files
    :raises UnavailableError: the store did not report the result of a request. Nothing became visible
    """
    store = open_dataset(location)

    def stat_of(file: F) -> ObjectStat | None:
        try:
            return store.stat(file.key)
        except UnknownResultError as error:
            summary = "the location of a table's files did not report the result of a request; nothing became visible"
            raise UnavailableError(summary, location=location, file=file.key) from error

    stats = zip(files, in_threads(stat_of, files), strict=True)
    return [file for file, stat in stats if stat is None or file.bytes not in (-1, stat.bytes)]
