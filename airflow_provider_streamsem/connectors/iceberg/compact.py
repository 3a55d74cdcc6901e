"""
Compacts an Iceberg table. pyiceberg has no rewrite action, so this module writes the rows of small files of one partition as one new file, compares the values
of both, and replaces the small files in one snapshot with the operation ``replace``. Imports pyiceberg, so only the sink imports this module, when it compacts.

The catalog accepts the commit only if the branch ``main`` has not moved since it was read. If another writer has committed, the table is loaded again. If it
still has the small files unchanged, the new files are committed on top of the other commit. Otherwise the new files are deleted, and the work starts again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.typedef import Record

from airflow_provider_streamsem.clock import doubling, tries
from airflow_provider_streamsem.connectors.data_files.rewrite import changed
from airflow_provider_streamsem.connectors.iceberg.commit import OneCommit
from airflow_provider_streamsem.connectors.iceberg.replace import (
    FilesChangedError,
    NewFiles,
    commit_once,
    is_read_correctly,
    translated,
)
from airflow_provider_streamsem.connectors.iceberg.rewrite import RewrittenTable
from airflow_provider_streamsem.connectors.sink import TableRewrite
from airflow_provider_streamsem.errors import DataError, UnavailableError

COMPACTION = "streamsem.compaction"
"""Property of a snapshot that compacts. Its value is the id of the compaction."""
_PLANS = 3
_COMMITS = 6
_FIRST_WAIT_S = 0.04
_DIRECTORY = "compacted"

Together = list[FileScanTask]
"""Small files of one partition that become one new file."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """
    Compacts one table. ``load`` refuses a table that cannot be compacted; ``before_commit`` is called before each commit.

    :param target_file_bytes: total size of the small files that become one file, at most
    :param max_bytes: size of the files that one snapshot replaces, at most, unless two files together have more
    """

    load: Callable[[], Table]
    target_file_bytes: int
    max_bytes: int
    before_commit: Callable[[], None]

    def preview(self) -> list[TableRewrite]:
        """Return what :meth:`run` would rewrite. Reads no data file, except to check its dates and times."""
        table = self.load()
        with translated(table, "rewrite_data_files"):
            return [_rewrite_of(group) for group in self._groups(table)]

    def run(self) -> list[TableRewrite]:
        """Fails if other writers change the same files again and again (``UnavailableError``), or if the rows of a new file differ (``DataError``)."""
        done: list[TableRewrite] = []
        table = self.load()
        for _ in range(_PLANS):
            try:
                with translated(table, "rewrite_data_files"):
                    for group in list(self._groups(self.load())):
                        done.append(self._rewrite(group))
            except FilesChangedError:
                continue
            return done
        summary = "other writers changed the files that the compaction of the Iceberg table has read, so their rewrite was not committed; no row was changed"
        raise UnavailableError(summary, table=".".join(table.name()), tries=_PLANS).advising(
            "compact again when the other writers have ended. In a DAG, set `retries`."
        )

    def _groups(self, table: Table) -> Iterator[list[Together]]:
        group: list[Together] = []
        size = 0
        for together in self._small(table):
            added = sum(task.file.file_size_in_bytes for task in together)
            if group and size + added > self.max_bytes:
                yield group
                group, size = [], 0
            group.append(together)
            size += added
        if group:
            yield group

    def _small(self, table: Table) -> Iterator[Together]:
        """Files are small below half of the target. Files with row-level deletes, or with dates or times that pyiceberg would change, stay."""
        partitions: dict[Any, Together] = defaultdict(list)
        for task in table.scan().plan_files():
            if self._is_small(table, task):
                partitions[_key(task.file.partition)].append(task)
        for tasks in partitions.values():
            together: Together = []
            size = 0
            for task in sorted(tasks, key=lambda task: task.file.file_path):
                if not is_read_correctly(table, task):
                    continue
                if together and size + task.file.file_size_in_bytes > self.target_file_bytes:
                    yield together
                    together, size = [], 0
                together.append(task)
                size += task.file.file_size_in_bytes
            if len(together) > 1:
                yield together

    def _is_small(self, table: Table, task: FileScanTask) -> bool:
        file = task.file
        return (
            file.file_size_in_bytes * 2 < self.target_file_bytes
            and not task.delete_files
            and file.file_format == FileFormat.PARQUET
            and file.spec_id == table.metadata.default_spec_id
        )

    def _rewrite(self, group: list[Together]) -> TableRewrite:
        table = self.load()
        new = NewFiles(table)
        try:
            for together in group:
                new.files += _written(table, together)
            snapshot = self._commit(group, new)
        except Exception:
            new.delete()
            raise
        return _rewrite_of(group, new=new.files, snapshot=snapshot)

    def _commit(self, group: list[Together], new: NewFiles) -> int:
        """Commit on top of the commits of other writers, if these have not changed the small files. Return the id of the snapshot."""
        tasks = [task for together in group for task in together]
        for _ in tries(doubling(_FIRST_WAIT_S, _COMMITS - 1)):
            table = self.load()
            current = {task.file.file_path: task for task in table.scan().plan_files()}
            found = [current.get(task.file.file_path) for task in tasks]
            unchanged = [task.file for task in found if task is not None and not task.delete_files]
            if len(unchanged) < len(tasks) or _layout(table) != _layout(new.table):
                raise FilesChangedError
            self.before_commit()
            snapshot = commit_once(
                self.load,
                table,
                partial(_replace, new=new, removed=unchanged),
                new,
                COMPACTION,
            )
            if snapshot is not None:
                return snapshot
        summary = "other writers committed to the Iceberg table before each commit of the compaction, which was not committed; no row was changed"
        raise UnavailableError(summary, table=".".join(new.table.name()), tries=_COMMITS).advising(
            "compact again. In a DAG, set `retries`."
        )


def _replace(commit: OneCommit, *, new: NewFiles, removed: Sequence[DataFile]) -> None:
    commit.replace_files(new.files, removed, {COMPACTION: new.id})


def _key(partition: Record) -> tuple[Any, ...]:
    """Values of different types are never compared, because a table has one type for each column."""
    return tuple(partition[at] for at in range(len(partition)))


def _written(table: Table, together: Together) -> list[DataFile]:
    """No file if the small files have no rows."""
    rewritten = RewrittenTable(table.metadata, table.io, _DIRECTORY)

    def rows() -> Iterator[Any]:
        return chain.from_iterable(rewritten.rows(task) for task in together)

    expected = sum(task.file.record_count for task in together)
    files = [rewritten.write(rows(), together[0].file.partition)] if expected else []
    facts = changed(rows, rewritten.written(files), rewritten.schema)
    written = sum(file.record_count for file in files)
    if facts is None and written != expected:
        facts = {"rows_read": written, "rows_written": written, "columns": []}
    if facts is not None:
        NewFiles(table, files).delete()
        summary = "the rows of the new files differ from those of the small files; the Iceberg table was not changed"
        raise DataError(summary, table=".".join(table.name()), rows_in_table=expected, **facts).advising(
            "check the files of the table with another engine, and compact the table with it."
        )
    return files


def _rewrite_of(group: list[Together], *, new: Sequence[DataFile] | None = None, snapshot: int = 0) -> TableRewrite:
    files = [task.file for together in group for task in together]
    return TableRewrite(
        rows=sum(file.record_count for file in files),
        files=len(files),
        bytes=sum(file.file_size_in_bytes for file in files),
        new_files=None if new is None else len(new),
        new_bytes=None if new is None else sum(file.file_size_in_bytes for file in new),
        table_version=None if new is None else str(snapshot),
    )


def _layout(table: Table) -> tuple[int, int]:
    """Return the ids of the columns and of the partitions that a commit uses. Files that were written for others would be found under wrong values."""
    return table.metadata.current_schema_id, table.metadata.default_spec_id
