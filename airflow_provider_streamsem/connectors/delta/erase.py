"""
Erases rows of a Delta table (extra ``delta``): writes the other rows of the files that have them to new files, and replaces the files in one entry of the
table's log. Imports pyarrow, so only the sink imports this module, when it erases.

``DeltaTable.delete`` of delta-rs would store the predicate, with its values, in the table's log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from airflow_provider_streamsem.connectors.data_files.rewrite import RowsDifferError
from airflow_provider_streamsem.connectors.delta.mergeable import forbids_removal
from airflow_provider_streamsem.connectors.delta.replace import Replacement, UnknownCommitError
from airflow_provider_streamsem.connectors.delta.rewrite import AddedFile, NewFile, RewrittenTable
from airflow_provider_streamsem.connectors.delta.table import open_newest
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import TableErasure
from airflow_provider_streamsem.connectors.staged_parquet.old_times import misread_columns
from airflow_provider_streamsem.errors import DataError, InvalidError, StreamsemError

_READERS = 16
_OTHER_ENGINE = "DELETE, and then REORG TABLE ... APPLY (PURGE)"


def erase(path: str, predicate: Predicate, *, dry_run: bool, before_commit: Callable[[], None]) -> TableErasure | None:
    """Erase the selected rows of a table, as :meth:`PublishingSink.erase_rows` describes."""
    cached = open_newest(path, refusal=InvalidError)
    if cached is None:
        return None
    table = cached.table
    target = RewrittenTable(path, table)
    if not {*predicate.columns} <= {*target.schema.names}:
        cached.keep()
        return None
    predicate.selected(target.schema.empty_table(), path)  # checks the types, even if there is no file
    replacement = Replacement(target, "erasure", _OTHER_ENGINE, changes_data=True)
    replacement.check_requirements(table)  # with column mapping or deletion vectors, the files cannot be searched
    chosen = _selected_files(replacement, predicate)
    rows = sum(count for _, count in chosen)
    files = [file for file, _ in chosen]
    if files:
        _check(replacement, table, files)
    if dry_run or not files:
        cached.keep()
        return TableErasure(rows=rows, files=len(files))
    new: list[NewFile] = []
    try:
        for file, count in chosen:
            new += _written(replacement, file, count, predicate)
        version = replacement.commit(files, new, before_commit)
    except StreamsemError as error:
        if not isinstance(error, UnknownCommitError):
            target.delete(new)
        raise
    return TableErasure(rows=rows, files=len(files), table_version=str(version))


def _selected_files(replacement: Replacement, predicate: Predicate) -> list[tuple[AddedFile, int]]:
    """Return the files with selected rows, each with their number."""
    target = replacement.target

    def count(file: AddedFile) -> int:
        if target.dataset.stat(unquote(file["path"])) is None:
            raise replacement.missing(file["path"])
        return predicate.count(target.rows(file, predicate.columns), target.location)

    files = target.files()
    try:
        with ThreadPoolExecutor(_READERS) as pool:
            return [(file, rows) for file, rows in zip(files, pool.map(count, files), strict=True) if rows]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise replacement.failed(error) from error


def _check(replacement: Replacement, table: Any, files: list[AddedFile]) -> None:
    requires = forbids_removal(table)
    if requires:
        summary = "the Delta table permits no deletion by this library; no row of it was erased"
        raise InvalidError(summary, table=replacement.target.location, requires=requires).advising(
            "delta.appendOnly: set it to false, erase again, and set it again. Change data feed: run DELETE in Spark, then VACUUM. The change files contain "
            "the rows until then, and the table's log contains the predicate until delta.logRetentionDuration."
        )
    replacement.check_partitions(table, files)
    dataset = replacement.target.dataset
    for file in files:
        with dataset.open(dataset.stat(unquote(file["path"]))) as opened:  # type: ignore[arg-type]
            replacement.check_dates(file["path"], misread_columns(opened))


def _written(replacement: Replacement, file: AddedFile, erased: int, predicate: Predicate) -> list[NewFile]:
    """Write the rows of a file that are not selected. Returns no file if all are selected."""
    target = replacement.target

    def kept() -> Iterator[Any]:
        for part in target.rows(file):
            yield predicate.others(part, target.location)

    try:
        files = target.written(kept, target.partition_of(file))
    except RowsDifferError as error:
        facts = error.facts
    except (OSError, ValueError, pa.ArrowException) as error:
        raise replacement.failed(error) from error
    else:
        written, expected = sum(each.rows for each in files), file["num_records"]
        if expected is None or written == expected - erased:
            return files
        target.delete(files)
        facts = {"rows_read": expected - erased, "rows_written": written, "columns": []}
    summary = "the rows of the new files differ from those to keep; the Delta table was not changed"
    raise DataError(summary, table=target.location, **facts).advising(
        "check the files of the table with another engine, and delete the rows with DELETE in that engine."
    )
