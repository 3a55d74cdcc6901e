"""
The statistics of staged files that become files of a table.

They contain values of rows: the minimum and the maximum of each column. The entries of a log are never deleted, so an erasure could not remove these values
from it. The log therefore does not store them. The process that stages a file keeps its statistics in memory. Any other publisher reads them from the Parquet
footer of the file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import Any

from airflow_provider_streamsem.connectors.data_files import footers
from airflow_provider_streamsem.errors import UnavailableError
from airflow_provider_streamsem.protocol.entries import Committable, DataFile
from airflow_provider_streamsem.stores.dataset import open_dataset

_MOST = 10_000
_READERS = 8
_known: OrderedDict[tuple[str, str, str], str] = OrderedDict()
"""Location, key and checksum of a file → its statistics. The oldest are dropped."""
_lock = Lock()


def without_stats(location: str, staged: Committable) -> Committable:
    """Keep the statistics of staged files in this process, and return the files without them."""
    with _lock:
        for file in staged.files:
            _known[_key(location, file)] = file.stats
        while len(_known) > _MOST:
            _known.popitem(last=False)
    return replace(staged, files=tuple(replace(file, stats="") for file in staged.files))


def stats_of(location: str, files: Sequence[DataFile], stats: Callable[[Any], str]) -> list[str]:
    """
    Return the statistics of staged files, in order.

    :param stats: returns the statistics of a file, from pyarrow's metadata of the file
    :raises UnavailableError: a file is missing: another publisher has published the batch, and vacuum has deleted the file, or it was deleted otherwise
    """
    dataset = open_dataset(location)

    def read(file: DataFile) -> str:
        known = file.stats or _known.get(_key(location, file))
        if known is not None:
            return known
        stat = dataset.stat(file.key)
        if stat is None:
            summary = "a staged file is missing: another publisher has published the batch, or the file was deleted"
            raise UnavailableError(summary, invariant="I6", location=location, key=file.key).advising(
                "run again: if another publisher has published the batch, the run finds its receipts. Otherwise restore the file, or skip the version: "
                "`streamsem skip`."
            )
        return stats(footers.describe(dataset, stat, "parquet").parquet)

    with ThreadPoolExecutor(_READERS) as pool:
        return [*pool.map(read, files)]


def _key(location: str, file: DataFile) -> tuple[str, str, str]:
    return location, file.key, file.checksum
