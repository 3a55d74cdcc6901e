"""
Erases rows of an Iceberg table: writes the other rows of the files that have them to new files, and replaces the files in one snapshot. Imports pyiceberg, so
only the sink imports this module, when it erases.

The catalog accepts the commit only if the branch ``main`` has not moved since the table was read. Otherwise the new files are deleted, and the work starts
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from airflow_provider_streamsem.clock import doubling, tries
from airflow_provider_streamsem.connectors.data_files.rewrite import RowsDifferError
from airflow_provider_streamsem.connectors.iceberg.replace import NewFiles, commit_once, is_read_correctly, translated
from airflow_provider_streamsem.connectors.iceberg.rewrite import RewrittenTable
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import TableErasure
from airflow_provider_streamsem.errors import DataError, InvalidError, UnavailableError

ERASURE = "streamsem.erasure"
"""Property of a snapshot that erases. Its value is the id of the erasure."""
_DIRECTORY = "erased"
_READERS = 16
_COMMITS = 6
_FIRST_WAIT_S = 0.04

Selected = tuple[FileScanTask, int]
"""A file with selected rows, and their number."""


def erase(
    load: Callable[[], Table], predicate: Predicate, *, dry_run: bool, before_commit: Callable[[], None]
) -> TableErasure | None:
    """
    Erase the selected rows of a table, as :meth:`PublishingSink.erase_rows` describes.

    :param load: loads the table, and refuses one that cannot be rewritten
    """
    table = load()
    for _ in tries(doubling(_FIRST_WAIT_S, _COMMITS - 1)):
        with translated(table, "DELETE"):
            found = _selected(table, predicate)
            if found is None:
                return None
            rows = sum(count for _, count in found)
            if dry_run or not found:
                return TableErasure(rows=rows, files=len(found), remaining=_refs(table))
            snapshot = _commit(load, table, found, predicate, before_commit)
            if snapshot is not None:
                return TableErasure(rows=rows, files=len(found), table_version=str(snapshot), remaining=_refs(table))
        table = load()
    summary = (
        "each commit of the erasure conflicted with a commit of another writer; no row of the Iceberg table was changed"
    )
    raise UnavailableError(summary, table=".".join(table.name()), tries=_COMMITS).advising(
        "repeat the command. In a DAG, set `retries`."
    )


def _selected(table: Table, predicate: Predicate) -> list[Selected] | None:
    """Return the files with selected rows; ``None`` if the table does not have the columns of the predicate."""
    rewritten, name = RewrittenTable(table.metadata, table.io, _DIRECTORY), ".".join(table.name())
    if not {*predicate.columns} <= {*rewritten.schema.names}:
        return None
    predicate.selected(rewritten.schema.empty_table(), name)  # checks the types, even if there is no file

    def count(task: FileScanTask) -> int:
        return predicate.count(rewritten.rows(task, predicate.columns), name)

    tasks = [*table.scan().plan_files()]
    with ThreadPoolExecutor(_READERS) as pool:
        found = [(task, rows) for task, rows in zip(tasks, pool.map(count, tasks), strict=True) if rows]
    misread = [task.file.file_path for task, _ in found if not is_read_correctly(table, task)]
    if misread:
        summary = (
            "a file of the Iceberg table contains dates or times that the erasure would change; nothing was erased"
        )
        raise InvalidError(summary, table=name, file=misread[0]).advising("delete the rows with DELETE of Spark.")
    return found


def _refs(table: Table) -> tuple[str, ...]:
    """Their snapshots do not expire."""
    names = sorted((ref.snapshot_ref_type.value, name) for name, ref in table.refs().items() if name != "main")
    return tuple(
        f"the {kind} {name} of the Iceberg table: run DROP {kind.upper()} in Spark, or delete the rows in it"
        for kind, name in names
    )


def _commit(
    load: Callable[[], Table],
    table: Table,
    found: Sequence[Selected],
    predicate: Predicate,
    before_commit: Callable[[], None],
) -> int | None:
    """Return the id of the snapshot; ``None`` if another writer has committed before."""
    new = NewFiles(table)
    removed = [task.file for task, _ in found]
    try:
        for task, rows in found:
            new.files += _written(table, task, rows, predicate)
        before_commit()
        snapshot = commit_once(
            load, table, lambda commit: commit.add_snapshot(new.files, removed, {ERASURE: new.id}), new, ERASURE
        )
    except Exception:
        new.delete()
        raise
    if snapshot is None:
        new.delete()
    return snapshot


def _written(table: Table, task: FileScanTask, erased: int, predicate: Predicate) -> list[DataFile]:
    """Write the rows of a file that are not selected. Returns no file if all are selected."""
    rewritten, name = RewrittenTable(table.metadata, table.io, _DIRECTORY), ".".join(table.name())
    has_own_spec = task.file.spec_id == table.metadata.default_spec_id

    def kept() -> Iterator[Any]:
        for part in rewritten.rows(task):
            yield predicate.others(part, name)

    try:
        return rewritten.write_compared(kept, task.file.partition if has_own_spec else None)
    except RowsDifferError as error:
        summary = "the rows of the new files differ from those to keep; the Iceberg table was not changed"
        raise DataError(summary, table=name, **error.facts).advising(
            "check the files of the table with another engine, and delete the rows with DELETE in that engine."
        ) from error
