"""The interface of sinks that can compact their table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRewrite:
    """
    One commit of a table that has rewritten small files, or in a dry run would rewrite them.

    :param rows: number of rows in these files
    :param files: number of the small files
    :param bytes: total size of the small files in bytes
    :param new_files: number of new files; ``None`` in a dry run
    :param new_bytes: total size of the new files in bytes; ``None`` in a dry run
    :param table_version: the version or snapshot of the table that the commit created, as in the receipts of the sink; ``None`` in a dry run
    """

    rows: int
    files: int
    bytes: int
    new_files: int | None = None
    new_bytes: int | None = None
    table_version: str | None = None


@runtime_checkable
class CompactsTable(Protocol):
    """
    Additional interface of a sink outside the log that can rewrite small files of its table into fewer, larger ones.

    Any process may call it while other processes publish. The commit of the table changes no row, and readers of the changes of the table find no new rows in
    it. It sets no marker. The files that it removes from the table are not deleted, so older versions of the table remain readable.
    """

    def compact_table(
        self, *, target_file_bytes: int, max_bytes: int, dry_run: bool, before_commit: Callable[[], None]
    ) -> list[TableRewrite]:
        """
        Compact the table.

        :param target_file_bytes: the size of the new files in bytes
        :param max_bytes: the maximum size in bytes of the files that one commit rewrites, if the table's library can divide the work
        :param dry_run: write nothing, and return what would be rewritten
        :param before_commit: called before each commit of the table, as late as the table's library allows. If it raises, nothing more is committed
        :returns: one value for each commit of the table; empty if there is nothing to rewrite
        :raises InvalidError: the table has requirements or files that the library cannot rewrite unchanged. Nothing was written
        :raises UnavailableError: other writers changed the same files, or the store or catalog did not report the result of a request. No row was changed
        :raises DataError: files cannot be read, or the rows of new files differ from those of the old files. No row was changed
        """
        ...
