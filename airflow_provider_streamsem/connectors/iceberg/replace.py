"""
Replaces data files of an Iceberg table in one commit. Imports pyiceberg, so only the sink imports this module, when it compacts or erases.

The error of a failed commit does not show whether the commit was applied. So this module loads the table, and searches for the id that it gave to its snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.iceberg.catalog import is_transient
from airflow_provider_streamsem.connectors.iceberg.commit import OneCommit, RefusedError
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import is_in_python
from airflow_provider_streamsem.connectors.staged_parquet.old_times import misread_columns
from airflow_provider_streamsem.errors import DataError, StreamsemError, UnavailableError

logger = logging.getLogger(__name__)


class FilesChangedError(Exception):
    """Another writer removed files that the work has read, or deleted rows of them. The work starts again."""


@dataclass(slots=True)
class NewFiles:
    """
    The files that one commit adds.

    :param may_be_committed: whether a catalog may have applied, or may still apply, a commit with the files
    :param id: the value of the property of the snapshot that has them
    """

    table: Table
    files: list[DataFile] = field(default_factory=list)
    may_be_committed: bool = False
    id: str = field(default_factory=SYSTEM_CLOCK.new_id)

    def delete(self) -> None:
        """Delete the files, unless a commit may have them."""
        for file in [] if self.may_be_committed else self.files:
            try:
                self.table.io.delete(file.file_path)
            except Exception:
                logger.warning("a file that was not committed remains: %s", file.file_path)


def commit_once(
    load: Callable[[], Table], table: Table, stage: Callable[[OneCommit], None], new: NewFiles, key: str
) -> int | None:
    """
    Send one commit, and return the id of its snapshot; ``None`` if the catalog refused it because the branch has moved.

    :param load: loads the table again
    :param stage: stages the snapshot, with the property ``key`` = ``new.id``
    """
    commit = OneCommit(table)
    stage(commit)
    failure: Exception | None = None
    new.may_be_committed = True
    try:
        commit.commit_transaction()
    except Exception as error:
        failure = error
    for snapshot in load().snapshots():
        if snapshot.summary is not None and snapshot.summary.additional_properties.get(key) == new.id:
            return snapshot.snapshot_id
    # An unknown result may still become a commit, after a timeout for example. Then the new files must remain.
    new.may_be_committed = failure is None or (is_transient(failure) and not isinstance(failure, RefusedError))
    if isinstance(failure, RefusedError):
        return None
    if failure is None:
        summary = "the catalog accepted the commit, but the Iceberg table does not have its snapshot: another writer has expired it or rolled the table back"
        raise UnavailableError(summary, table=".".join(table.name())).advising(
            "repeat the command: it continues with what remains."
        )
    raise failure


def is_read_correctly(table: Table, task: FileScanTask) -> bool:
    """Return whether pyiceberg reads and writes all dates and times of a file unchanged. Reads the footer."""
    import pyarrow.parquet

    with table.io.new_input(task.file.file_path).open() as opened:
        footer = pyarrow.parquet.read_metadata(opened)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        opened.seek(0)
        return all(is_in_python(chunk.statistics) for chunk in chunks) and not misread_columns(opened)  # type: ignore[arg-type]


@contextmanager
def translated(table: Table, other_engine: str) -> Iterator[None]:
    """
    Map the errors of pyiceberg within the block to errors of this package.

    :param other_engine: what Spark runs in place of this work
    """
    try:
        yield
    except (StreamsemError, FilesChangedError):
        raise
    except Exception as error:
        facts = {"table": ".".join(table.name()), "problem": type(error).__name__}
        if is_transient(error):
            summary = "the catalog or the store did not report the result of a request; whether the files of the Iceberg table were replaced is unknown"
            raise UnavailableError(summary, **facts).advising(
                "repeat the command: it continues with what remains."
            ) from error
        summary = "pyiceberg cannot rewrite files of the Iceberg table; the table was not changed"
        raise DataError(summary, **facts).advising(
            f"correct the cause that the exception above names, or run {other_engine} of Spark."
        ) from error
