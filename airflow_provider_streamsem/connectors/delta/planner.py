"""Plans the batches of a Delta source: files of the initial snapshot, then whole versions of the table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_streamsem.connectors.delta import files
from airflow_provider_streamsem.connectors.delta.columns import Columns, columns_of
from airflow_provider_streamsem.connectors.delta.history import Entry, History
from airflow_provider_streamsem.connectors.delta.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.delta.table import CachedTable, open_at_version, opened
from airflow_provider_streamsem.connectors.table_files.batches import Budget
from airflow_provider_streamsem.connectors.table_files.planner import Selected, TablePlanner
from airflow_provider_streamsem.errors import OR_RECORD_GAP, SourceChangedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, position

logger = logging.getLogger(__name__)

VERSIONS, SNAPSHOT = "versions@", "snapshot@"
"""Beginnings of the names of the two partitions. The id of the table follows."""


@dataclass(slots=True)
class _Selected(Selected):
    entries: list[Entry] = field(default_factory=list)

    def cut(self, end: int) -> None:
        self.end = end
        self.entries = [entry for entry in self.entries if entry.version < end]
        self.pins = {version: pins for version, pins in self.pins.items() if version < end}


class DeltaPlanner(TablePlanner):
    """The hint is the newest entry that a plan has read: ``{"version": v, "entry": sha256}``. It detects a history that was rewritten."""

    versions, initial, number = VERSIONS, SNAPSHOT, "version"
    recreated_error = "the Delta table has another id than in the committed offsets: it was deleted and recreated, or replaced; nothing was written"
    missing_file_error = (
        "an unread file of the Delta table is missing, for example because of VACUUM; nothing was written"
    )
    gaps_warning = "recording versions of the Delta table %s as gaps: %s"

    def __init__(self, path: str, changes: str) -> None:
        super().__init__(path, path)
        self._changes = changes
        self._history = History(path)
        self._columns: tuple[int, Columns] | None = None
        self._snapshot: tuple[int, Columns, list[tuple[FilePin, int]]] | None = None

    def opened(self) -> AbstractContextManager[CachedTable]:
        return opened(self._path)

    def check_history(self, table: CachedTable, first: int, last: int, hint: Json) -> None:
        newest = table.end - 1
        version, digest = (hint.get("version"), hint.get("entry")) if isinstance(hint, dict) else (None, None)
        went_back = max(first, last) > newest + 1
        if not went_back and type(version) is int and digest:
            entry = self._history.entry(version) if version <= newest else None
            went_back = version > newest or (entry is not None and entry.digest != digest)
        if went_back:
            summary = (
                "the Delta table lacks versions that were read, or has other versions with their numbers: its log was restored from an older copy; "
                "nothing was written"
            )
            raise SourceChangedError(summary, table=self._path, next=first, newest=newest, read=version).advising(
                "restore the newest copy of the table's log and run again. To read the table in its current state, use a new log."
            )

    def snapshot(self, table: CachedTable, version: int, unread_files: int) -> tuple[TablePin, list[FilePin], Json]:
        columns, listed = self._files_of_snapshot(table, version)
        pin = table_pin(table.id, version, version + 1, columns)
        return pin, [file for file, _ in listed], _hint(self._history.entry(version))

    def _files_of_snapshot(self, cached: CachedTable, version: int) -> tuple[Columns, list[tuple[FilePin, int]]]:
        if self._snapshot is None or self._snapshot[0] != version:
            table = cached.table if cached.table.version() == version else open_at_version(self._path, version)
            reads = self._changes == "read"
            columns = columns_of(table, self._path, reads_changes=reads)
            committed_ms = self._committed_ms(version) if reads else 0
            listed = files.of_version(
                table, columns, self._path, committed_ms=committed_ms, change="insert" if reads else ""
            )
            self._snapshot = version, columns, listed
        return self._snapshot[1:]

    def select(self, table: CachedTable, unread: tuple[int, int], limits: Limits, on_data_loss: str) -> _Selected:
        """End the batch before an entry that changes the columns."""
        selected = self._listed(unread, limits, on_data_loss)
        columns = self._columns_of(table, selected, unread[0])
        for entry in selected.entries:
            try:
                files.check(entry, selected.pins[entry.version], columns, self._path)
            except SourceChangedError:
                if not any(pins for version, pins in selected.pins.items() if version < entry.version):
                    raise
                selected.cut(entry.version)
                break
        selected.table = table_pin(table.id, unread[0], selected.end, columns)
        selected.hint = _hint(selected.entries[-1] if selected.entries else None)
        return selected

    def pin_for(self, table: TablePin, files: Sequence[FilePin]) -> TablePin:
        needs_package = self._changes == "read" and any(file.deleted for file in files)
        return replace(table, reader="delta") if needs_package else table

    def _listed(self, unread: tuple[int, int], limits: Limits, on_data_loss: str) -> _Selected:
        times = dict(self._history.times(unread[0])) if self._changes == "read" else {}
        budget, oldest = Budget(limits), None
        selected = _Selected(unread[0])
        for version, entry in self._history.entries(*unread):
            if entry is None:
                oldest = self._history.oldest() if oldest is None else oldest
                if on_data_loss != "fail" and version < oldest and budget.is_empty:
                    selected.lost.append(version)
                    selected.end = version + 1
                    continue
            elif entry.defines_table and not budget.is_empty:
                break
            try:
                pins = self._pins_of(version, entry, times.get(version, 0), oldest)
            except SourceChangedError:
                if budget.is_empty:
                    raise
                break
            if entry is None or not budget.fits(pins):
                break
            selected.entries.append(entry)
            selected.pins[version], selected.end = pins, version + 1
        return selected

    def _pins_of(self, version: int, entry: Entry | None, committed_ms: int, oldest: int | None) -> list[FilePin]:
        """``committed_ms`` is the modification time of the entry (UTC), and ``oldest`` the oldest version that has an entry."""
        if entry is None:
            summary = "unread versions of the Delta table are missing: their entries were deleted from its log; nothing was written"
            raise SourceChangedError(summary, table=self._path, version=version, oldest=oldest).advising(OR_RECORD_GAP)
        if entry.changes_rows and self._changes == "skip":
            logger.warning("skipping version %d of the Delta table %s: %s changes rows", version, self._path, entry.operation)  # fmt: skip
        committed_ms = committed_ms if entry.in_commit_ms is None else entry.in_commit_ms
        return files.of_entry(entry, self._path, changes=self._changes, committed_ms=committed_ms)

    def _columns_of(self, cached: CachedTable, selected: _Selected, first: int) -> Columns:
        """Opens the table at the end of the selected versions if the columns there are not known."""
        version, known = selected.end - 1, self._columns
        is_unchanged = not selected.lost and not any(entry.defines_table for entry in selected.entries)
        if known is not None and known[0] == first - 1 and is_unchanged:
            columns = known[1]
        else:
            # Without an entry there are no rows, and the table cannot be opened at a version whose entries are missing.
            is_newest = cached.table.version() == version or not selected.entries
            table: Any = cached.table if is_newest else open_at_version(self._path, version)
            columns = columns_of(table, self._path, reads_changes=self._changes == "read")
        self._columns = version, columns
        return columns

    def _committed_ms(self, version: int) -> int:
        entry = self._history.entry(version)
        if entry is not None and entry.in_commit_ms is not None:
            return entry.in_commit_ms
        return next((ms for listed, ms in self._history.times(version) if listed == version), 0)

    def unread_times(self, start: Offsets) -> list[int]:
        with self.opened() as table:
            first, unread_files = position(start, f"{VERSIONS}{table.id}"), -position(start, f"{SNAPSHOT}{table.id}")
            times = [ms for version, ms in self._history.times(first) if version < table.end]
            if unread_files:
                times += [ms for _, ms in self._files_of_snapshot(table, first - 1)[1][-unread_files:]]
            return times


def table_pin(table_id: str, start: int, end: int, columns: Columns) -> TablePin:
    """Return the pin of a table. ``start`` and ``end`` are versions."""
    return TablePin(table_id, start, end, columns.schema, columns.partition_by, "parquet")


def _hint(entry: Entry | None) -> Json:
    return None if entry is None else {"version": entry.version, "entry": entry.digest}
