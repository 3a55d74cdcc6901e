"""
Compacts an Iceberg table. pyiceberg has no rewrite action, so this module writes the rows of small files of one partition as one new file, compares the values
of both, and replaces the small files in one snapshot with the operation ``replace``. Imports pyiceberg, so only the sink imports this module, when it compacts.

The catalog accepts the commit only if the branch ``main`` has not moved since it was read. If another writer has committed, the table is loaded again. If it
still has the small files unchanged, the new files are committed on top of the other commit. Otherwise the new files are deleted, and the work starts again.

The error of a failed commit does not show whether the commit was applied. So this module loads the table, and searches for the id that it gave to its snapshot.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.typedef import Record

from airflow_provider_streamsem.clock import SYSTEM_CLOCK, doubling, tries
from airflow_provider_streamsem.connectors.data_files.rewrite import changed
from airflow_provider_streamsem.connectors.iceberg.catalog import is_transient
from airflow_provider_streamsem.connectors.iceberg.commit import OneCommit, RefusedError
from airflow_provider_streamsem.connectors.iceberg.rewrite import RewrittenTable
from airflow_provider_streamsem.connectors.sink import TableRewrite
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import is_in_python
from airflow_provider_streamsem.connectors.staged_parquet.old_times import misread_columns
from airflow_provider_streamsem.errors import DataError, StreamsemError, UnavailableError

logger = logging.getLogger(__name__)

COMPACTION = "streamsem.compaction"
"""Property of a snapshot that compacts. Its value is the id of the compaction."""
_PLANS = 3
_COMMITS = 6
_FIRST_WAIT_S = 0.04
_DIRECTORY = "compacted"

Together = list[FileScanTask]
"""Small files of one partition that become one new file."""


class _FilesChangedError(Exception):
    """Another writer removed files that a compaction has read, or deleted rows of them. The compaction starts again."""


@dataclass(slots=True)
class _NewFiles:
    """``may_be_committed``: whether a catalog may have applied, or may still apply, a commit with the files."""

    table: Table
    files: list[DataFile] = field(default_factory=list)
    may_be_committed: bool = False

    def delete(self) -> None:
        for file in [] if self.may_be_committed else self.files:
            try:
                self.table.io.delete(file.file_path)
            except Exception:
                logger.warning("a file of a compaction that was not committed remains: %s", file.file_path)


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
        with _translated(table):
            return [_rewrite_of(group) for group in self._groups(table)]

    def run(self) -> list[TableRewrite]:
        """Fails if other writers change the same files again and again (``UnavailableError``), or if the rows of a new file differ (``DataError``)."""
        done: list[TableRewrite] = []
        table = self.load()
        for _ in range(_PLANS):
            try:
                with _translated(table):
                    for group in list(self._groups(self.load())):
                        done.append(self._rewrite(group))
            except _FilesChangedError:
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
                if not _is_read_correctly(table, task):
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
        new = _NewFiles(table)
        try:
            for together in group:
                new.files += _written(table, together)
            snapshot = self._commit(group, new)
        except Exception:
            new.delete()
            raise
        return _rewrite_of(group, new=new.files, snapshot=snapshot)

    def _commit(self, group: list[Together], new: _NewFiles) -> int:
        """Commit on top of the commits of other writers, if these have not changed the small files. Return the id of the snapshot."""
        tasks = [task for together in group for task in together]
        for _ in tries(doubling(_FIRST_WAIT_S, _COMMITS - 1)):
            table = self.load()
            current = {task.file.file_path: task for task in table.scan().plan_files()}
            found = [current.get(task.file.file_path) for task in tasks]
            unchanged = [task.file for task in found if task is not None and not task.delete_files]
            if len(unchanged) < len(tasks) or _layout(table) != _layout(new.table):
                raise _FilesChangedError
            self.before_commit()
            snapshot = self._commit_once(table, unchanged, new)
            if snapshot is not None:
                return snapshot
        summary = "other writers committed to the Iceberg table before each commit of the compaction, which was not committed; no row was changed"
        raise UnavailableError(summary, table=".".join(new.table.name()), tries=_COMMITS).advising(
            "compact again. In a DAG, set `retries`."
        )

    def _commit_once(self, table: Table, removed: Sequence[DataFile], new: _NewFiles) -> int | None:
        """Send one commit, and return the id of its snapshot; ``None`` if the catalog refused it because the branch has moved."""
        compaction = SYSTEM_CLOCK.new_id()
        commit = OneCommit(table)
        commit.replace_files(new.files, removed, {COMPACTION: compaction})
        failure: Exception | None = None
        new.may_be_committed = True
        try:
            commit.commit_transaction()
        except Exception as error:
            failure = error
        snapshot = _find_snapshot(self.load(), compaction)
        if snapshot is not None:
            return snapshot
        # An unknown result may still become a commit, after a timeout for example. Then the new files must remain.
        new.may_be_committed = failure is None or (is_transient(failure) and not isinstance(failure, RefusedError))
        if isinstance(failure, RefusedError):
            return None
        if failure is None:
            summary = (
                "the Iceberg table lacks the snapshot that the catalog has accepted: another writer has expired it"
            )
            raise UnavailableError(summary, table=".".join(table.name())).advising("inspect the table's snapshots.")
        raise failure


def _key(partition: Record) -> tuple[Any, ...]:
    """Values of different types are never compared, because a table has one type for each column."""
    return tuple(partition[at] for at in range(len(partition)))


def _is_read_correctly(table: Table, task: FileScanTask) -> bool:
    """Return whether pyiceberg reads and writes all dates and times of a file unchanged. Reads the footer."""
    import pyarrow.parquet

    with table.io.new_input(task.file.file_path).open() as opened:
        footer = pyarrow.parquet.read_metadata(opened)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        opened.seek(0)
        return all(is_in_python(chunk.statistics) for chunk in chunks) and not misread_columns(opened)  # type: ignore[arg-type]


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
        _NewFiles(table, files).delete()
        summary = "the rows of the new files differ from those of the small files; the Iceberg table was not changed"
        raise DataError(summary, table=".".join(table.name()), rows_in_table=expected, **facts).advising(
            "check the files of the table with another engine, and compact the table with it."
        )
    return files


def _find_snapshot(table: Table, compaction: str) -> int | None:
    for snapshot in table.snapshots():
        if snapshot.summary is not None and snapshot.summary.additional_properties.get(COMPACTION) == compaction:
            return snapshot.snapshot_id
    return None


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


@contextmanager
def _translated(table: Table) -> Iterator[None]:
    try:
        yield
    except (StreamsemError, _FilesChangedError):
        raise
    except Exception as error:
        raise _failed(".".join(table.name()), error) from error


def _failed(table: str, error: Exception) -> StreamsemError:
    facts = {"table": table, "problem": type(error).__name__}
    if is_transient(error):
        summary = "the catalog or the store did not report the result of a request; no row was changed, and whether files were replaced is unknown"
        return UnavailableError(summary, **facts).advising("compact again.")
    summary = "pyiceberg cannot rewrite files of the Iceberg table; the table was not changed"
    return DataError(summary, **facts).advising(
        "correct the cause that the exception before this message names, or compact the table with rewrite_data_files of Spark."
    )


def _layout(table: Table) -> tuple[int, int]:
    """Return the ids of the columns and of the partitions that a commit uses. Files that were written for others would be found under wrong values."""
    return table.metadata.current_schema_id, table.metadata.default_spec_id
