"""
Compacts a Delta table (extra ``delta``): writes the rows of small files to larger files, compares the values of both, and replaces the small files in one entry
of the table's log, whose actions change no data. Imports pyarrow, so only the sink imports this module, when it compacts.

Entries of other writers may precede the entry of the compaction, unless they remove files that the compaction rewrites.

The error of a failed commit does not show whether the commit was applied. So this module searches the table's log for the id that it gave to its entry.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from airflow_provider_streamsem.clock import SYSTEM_CLOCK, doubling, tries
from airflow_provider_streamsem.connectors.delta.history import History
from airflow_provider_streamsem.connectors.delta.mergeable import NULL_TEXTS, PARTITION_TYPES, misspelt
from airflow_provider_streamsem.connectors.delta.requirements import unwritable
from airflow_provider_streamsem.connectors.delta.rewrite import (
    AddedFile,
    NewFile,
    RewrittenTable,
    RowsDifferError,
    actions,
)
from airflow_provider_streamsem.connectors.delta.table import is_transient, open_newest
from airflow_provider_streamsem.connectors.sink import TableRewrite
from airflow_provider_streamsem.connectors.staged_parquet.old_times import REWRITE_BY_SPARK, is_near, misread_columns
from airflow_provider_streamsem.errors import DataError, InvalidError, StreamsemError, UnavailableError

COMPACTION = "streamsem_compaction"
"""Key in the commit information of an entry that compacts. Its value is the id of the compaction."""
_READERS = 16
_COMMITS = 6
_FIRST_WAIT_S = 0.04
_TIMES = ("date", "timestamp")


def compact(
    path: str, *, target_file_bytes: int, dry_run: bool, before_commit: Callable[[], None]
) -> list[TableRewrite]:
    """Compact a table, as :meth:`CompactsTable.compact_table` describes. One entry of the table's log rewrites all files."""
    cached = open_newest(path, refusal=InvalidError)
    if cached is None:
        return []
    table = cached.table
    _check_requirements(path, table)
    target = RewrittenTable(path, table)
    groups = _choose(target, target_file_bytes)
    chosen = [file for group in groups for file in group]
    rows = 0
    if chosen:
        _check_partitions(path, table, chosen)
        rows = _checked_rows(target, chosen)
    if not chosen or dry_run:
        cached.keep()
        return [_rewrite_of(chosen, rows)] if chosen else []
    new: list[NewFile] = []
    try:
        for group in groups:
            new += _written(target, group)
        version = _commit(target, chosen, new, before_commit)
    except StreamsemError as error:
        if not isinstance(error, _UnknownCommitError):
            target.delete(new)
        raise
    return [_rewrite_of(chosen, rows, new=new, version=version)]


class _UnknownCommitError(UnavailableError):
    """The entry of a compaction may still be committed, so its new files must remain."""


def _rewrite_of(
    chosen: Sequence[AddedFile], rows: int, *, new: Sequence[NewFile] | None = None, version: int = 0
) -> TableRewrite:
    return TableRewrite(
        rows=rows,
        files=len(chosen),
        bytes=sum(file["size_bytes"] for file in chosen),
        new_files=None if new is None else len(new),
        new_bytes=None if new is None else sum(file.bytes for file in new),
        table_version=None if new is None else str(version),
    )


def _written(target: RewrittenTable, group: Sequence[AddedFile]) -> list[NewFile]:
    """Returns no file if the small files have no rows."""

    def rows() -> Iterator[Any]:
        return chain.from_iterable(target.rows(file) for file in group)

    expected = [file["num_records"] for file in group]
    try:
        files = target.written(rows, target.partition_of(group[0]))
    except RowsDifferError as error:
        facts = error.facts
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _failed(target.location, error) from error
    else:
        written = sum(file.rows for file in files)
        if None in expected or written == sum(expected):
            return files
        target.delete(files)
        facts = {"rows_read": written, "rows_written": written, "columns": []}
    summary = "the rows of the new files differ from those of the small files; the Delta table was not changed"
    raise DataError(summary, table=target.location, rows_in_table=expected, **facts).advising(
        "check the files of the table with another engine, and compact the table with OPTIMIZE of it."
    )


def _check_requirements(path: str, table: Any) -> None:
    if problems := [*unwritable(table), *(f"path {path}" for path in misspelt(table)[:1])]:
        summary = "the Delta table has requirements for writers that a compaction does not satisfy; nothing was written"
        raise InvalidError(summary, table=path, requires=problems).advising(
            "compact the table with OPTIMIZE of an engine that supports these requirements."
        )


def _choose(target: RewrittenTable, size: int) -> list[list[AddedFile]]:
    """
    No file is chosen if no partition has at least twice as many files as it needs. In each partition, adjacent files of at most ``size`` bytes together become
    one file. A larger file, or one without a neighbour to go with, is left alone.
    """
    partitions: dict[tuple[Any, ...], list[AddedFile]] = defaultdict(list)
    for file in target.files():
        partitions[tuple(file[f"partition.{name}"] for name in target.partition_by)].append(file)
    groups: list[list[AddedFile]] = []
    is_worthwhile = False
    for files in partitions.values():
        small = [file for file in files if file["size_bytes"] <= size]
        least = max(1, -(-sum(file["size_bytes"] for file in small) // size))
        is_worthwhile = is_worthwhile or len(small) >= 2 * least
        groups += [together for together in _adjacent(files, size) if len(together) > 1]
    return groups if is_worthwhile else []


def _adjacent(files: Sequence[dict[str, Any]], target: int) -> list[list[dict[str, Any]]]:
    divided: list[list[dict[str, Any]]] = [[]]
    size = 0
    for file in files:
        if size + file["size_bytes"] > target:
            divided.append([])
            size = 0
        if file["size_bytes"] <= target:
            divided[-1].append(file)
            size += file["size_bytes"]
    return divided


def _check_partitions(path: str, table: Any, chosen: Sequence[dict[str, Any]]) -> None:
    """delta-rs would write some partition values as other values."""
    types = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
    columns = list(table.metadata().partition_columns)
    unsupported = [name for name in columns if types[name] not in PARTITION_TYPES]
    unsupported += [name for name in columns if any(file[f"partition.{name}"] in NULL_TEXTS for file in chosen)]
    if unsupported:
        summary = "delta-rs may write values of the table's partition columns as other values; nothing was written"
        raise InvalidError(summary, table=path, columns=unsupported, accepted=list(PARTITION_TYPES)).advising(
            "compact the table with OPTIMIZE of another engine, such as Spark."
        )


def _checked_rows(target: RewrittenTable, chosen: Sequence[AddedFile]) -> int:
    """The footers of files are read if their statistics in the table's log do not suffice."""
    import pyarrow.parquet

    path, dataset = target.location, target.dataset
    stored = [field for field in target.schema if field.name not in target.partition_by]

    def rows_of(file: AddedFile) -> int:
        stat = dataset.stat(unquote(file["path"]))
        if stat is None:
            summary = "a file of the Delta table was not found below the table's path; nothing was written"
            raise InvalidError(summary, table=path, file=file["path"]).advising(
                "restore the file. Compact a shallow clone with OPTIMIZE of another engine."
            )
        if file["num_records"] is not None and _has_near_times(file, stored):
            return int(file["num_records"])
        with dataset.open(stat) as opened:
            footer = pyarrow.parquet.read_metadata(opened)
            opened.seek(0)
            _check_dates(path, file["path"], misread_columns(opened))
        return int(footer.num_rows)

    with ThreadPoolExecutor(_READERS) as pool:
        return sum(pool.map(rows_of, chosen))


def _has_near_times(file: AddedFile, fields: Sequence[Any]) -> bool:
    """Return whether the bounds in the table's log prove that Arrow reads all dates and times of a file correctly."""
    for field in fields:
        if pa.types.is_nested(field.type):
            if any(time in str(field.type) for time in _TIMES):
                return False
        elif pa.types.is_temporal(field.type):
            rows = file["num_records"]
            is_null = rows is not None and file.get(f"null_count.{field.name}") == rows
            bounds = (file.get(f"min.{field.name}"), file.get(f"max.{field.name}"))
            if not is_null and not all(map(is_near, bounds)):
                return False
    return True


def _check_dates(path: str, file: str, columns: list[str]) -> None:
    if columns:
        summary = (
            "a file of the Delta table contains dates or times that a compaction would change; nothing was written"
        )
        raise InvalidError(summary, table=path, file=file, columns=sorted({*columns})).advising(
            f"{REWRITE_BY_SPARK}, or compact the table with OPTIMIZE of Spark."
        )


def _commit(
    target: RewrittenTable, chosen: Sequence[AddedFile], new: Sequence[NewFile], before_commit: Callable[[], None]
) -> int:
    """Commit the entry after the entries of other writers, if these have not removed the small files. Return its number."""
    from deltalake import CommitProperties, Schema

    path, compaction = target.location, SYSTEM_CLOCK.new_id()
    paths, changes = {file["path"] for file in chosen}, actions(new, chosen, target, changes_data=False)
    for _ in tries(doubling(_FIRST_WAIT_S, _COMMITS - 1)):
        cached = open_newest(path)
        table = None if cached is None else cached.table
        if table is None or not paths <= {file["path"] for file in RewrittenTable(path, table).files()}:
            break
        _check_requirements(path, table)
        before_commit()
        before, failure = table.version(), None
        try:
            table.create_write_transaction(
                changes,
                "append",
                Schema.from_json(table.schema().to_json()),
                list(target.partition_by),
                commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={COMPACTION: compaction}),
            )
        except Exception as error:  # the entry may have been committed, so the table's log is read
            failure = error
        found = _find_entry(path, before + 1, compaction)
        if found is not None:
            return found
        if failure is not None and History(path).actions(before + 1) is None:
            raise _failed(path, failure) from failure
    summary = (
        "another writer changed the Delta table during the compaction, which was not committed; no row was changed"
    )
    raise UnavailableError(summary, table=path, tries=_COMMITS).advising(
        "compact again when the other writer has ended. In a DAG, set `retries`."
    )


def _find_entry(path: str, start: int, compaction: str) -> int | None:
    """Return the number of the entry of a compaction, at or above ``start``; ``None`` if the table's log does not have it."""
    history, version = History(path), start
    while (entry := history.actions(version)) is not None:
        if any(action.get("commitInfo", {}).get(COMPACTION) == compaction for action in entry):
            return version
        version += 1
    return None


def _failed(path: str, error: Exception) -> StreamsemError:
    facts = {"table": path, "problem": type(error).__name__}
    if is_transient(error):
        summary = "the store did not report the result of a request, and the table's log has no entry of the compaction; no row was changed"
        return _UnknownCommitError(summary, **facts).advising("compact again.")
    summary = "the Delta table cannot be compacted; the table was not changed"
    return DataError(summary, **facts).advising(
        "correct the cause that the exception before this message names, or compact the table with OPTIMIZE of another engine."
    )
