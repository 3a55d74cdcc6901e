"""
Compacts a Delta table (extra ``delta``): writes the rows of small files to larger files, compares the values of both, and replaces the small files in one entry
of the table's log, whose actions change no data. Imports pyarrow, so only the sink imports this module, when it compacts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from airflow_provider_streamsem.connectors.data_files.rewrite import RowsDifferError
from airflow_provider_streamsem.connectors.delta.replace import Replacement, UnknownCommitError
from airflow_provider_streamsem.connectors.delta.rewrite import (
    AddedFile,
    NewFile,
    RewrittenTable,
)
from airflow_provider_streamsem.connectors.delta.table import open_newest
from airflow_provider_streamsem.connectors.sink import TableRewrite
from airflow_provider_streamsem.connectors.staged_parquet.old_times import is_near, misread_columns
from airflow_provider_streamsem.errors import DataError, InvalidError, StreamsemError

_READERS = 16
_TIMES = ("date", "timestamp")


def compact(
    path: str, *, target_file_bytes: int, dry_run: bool, before_commit: Callable[[], None]
) -> list[TableRewrite]:
    """Compact a table, as :meth:`CompactsTable.compact_table` describes. One entry of the table's log rewrites all files."""
    cached = open_newest(path, refusal=InvalidError)
    if cached is None:
        return []
    table = cached.table
    target = RewrittenTable(path, table)
    replacement = Replacement(target, "compaction", "OPTIMIZE", changes_data=False)
    replacement.check_requirements(table)
    groups = _choose(target, target_file_bytes)
    chosen = [file for group in groups for file in group]
    rows = 0
    if chosen:
        replacement.check_partitions(table, chosen)
        rows = _checked_rows(replacement, chosen)
    if not chosen or dry_run:
        cached.keep()
        return [_rewrite_of(chosen, rows)] if chosen else []
    new: list[NewFile] = []
    try:
        for group in groups:
            new += _written(replacement, group)
        version = replacement.commit(chosen, new, before_commit)
    except StreamsemError as error:
        if not isinstance(error, UnknownCommitError):
            target.delete(new)
        raise
    return [_rewrite_of(chosen, rows, new=new, version=version)]


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


def _written(replacement: Replacement, group: Sequence[AddedFile]) -> list[NewFile]:
    """Returns no file if the small files have no rows."""
    target = replacement.target

    def rows() -> Iterator[Any]:
        return chain.from_iterable(target.rows(file) for file in group)

    expected = [file["num_records"] for file in group]
    try:
        files = target.written(rows, target.partition_of(group[0]))
    except RowsDifferError as error:
        facts = error.facts
    except (OSError, ValueError, pa.ArrowException) as error:
        raise replacement.failed(error) from error
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


def _checked_rows(replacement: Replacement, chosen: Sequence[AddedFile]) -> int:
    """The footers of files are read if their statistics in the table's log do not suffice."""
    import pyarrow.parquet

    target = replacement.target
    dataset = target.dataset
    stored = [field for field in target.schema if field.name not in target.partition_by]

    def rows_of(file: AddedFile) -> int:
        stat = dataset.stat(unquote(file["path"]))
        if stat is None:
            raise replacement.missing(file["path"])
        if file["num_records"] is not None and _has_near_times(file, stored):
            return int(file["num_records"])
        with dataset.open(stat) as opened:
            footer = pyarrow.parquet.read_metadata(opened)
            opened.seek(0)
            replacement.check_dates(file["path"], misread_columns(opened))
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
