"""Plans the batches of a Delta source: files of the initial snapshot, then whole versions of the table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from airflow_provider_streamsem.connectors.delta import files
from airflow_provider_streamsem.connectors.delta.columns import Columns, columns_of
from airflow_provider_streamsem.connectors.delta.history import Entry, History
from airflow_provider_streamsem.connectors.delta.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.delta.table import CachedTable, open_at_version, open_existing
from airflow_provider_streamsem.connectors.source import Planner, SourceEnd, SourceSlice
from airflow_provider_streamsem.connectors.table_files.batches import Budget, adjacent, rows_of
from airflow_provider_streamsem.connectors.table_files.stored import missing
from airflow_provider_streamsem.errors import OR_RECORD_GAP, SourceChangedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, position

logger = logging.getLogger(__name__)

VERSIONS, SNAPSHOT = "versions@", "snapshot@"
"""Beginnings of the names of the two partitions. The id of the table follows."""


@dataclass(slots=True)
class _Selected:
    """The versions of a batch, up to ``end``, exclusive. ``lost`` are the versions without an entry."""

    end: int
    entries: list[Entry] = field(default_factory=list)
    pins: dict[int, list[FilePin]] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)

    def cut(self, end: int) -> None:
        self.end = end
        self.entries = [entry for entry in self.entries if entry.version < end]
        self.pins = {version: pins for version, pins in self.pins.items() if version < end}


class DeltaPlanner(Planner):
    """
    A Delta source that is bound to a commit log.

    :param path: location of the table
    :param changes: ``refuse``, ``skip`` or ``read``: what to do with a version that changes rows

    The hint names the newest entry that a plan has read: ``{"version": v, "entry": sha256}``. It detects a history that was rewritten.
    """

    def __init__(self, path: str, changes: str) -> None:
        self._path, self._changes = path, changes
        self._history = History(path)
        self._columns: tuple[int, Columns] | None = None
        self._snapshot: tuple[int, Columns, list[tuple[FilePin, int]]] | None = None

    def poll(self, hint: Json) -> SourceEnd:
        """Return one past the newest version of the table, and 0 for the snapshot."""
        cached = open_existing(self._path)
        table_id, newest = cached.table.metadata().id, cached.table.version()
        cached.keep()
        return SourceEnd({f"{SNAPSHOT}{table_id}": 0, f"{VERSIONS}{table_id}": newest + 1})

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """Select files of the snapshot or, after its last file, whole versions. Missing versions, and missing files of the snapshot, can become gaps."""
        cached = open_existing(self._path)
        table_id: str = cached.table.metadata().id
        self._check_table(start, table_id)
        first = position(start, f"{VERSIONS}{table_id}")
        last = position(end.offsets, f"{VERSIONS}{table_id}")
        self._check_history(cached, first, last, hint)
        unread_files = -position(start, f"{SNAPSHOT}{table_id}")
        planned = None
        if position(end.offsets, f"{SNAPSHOT}{table_id}") > -unread_files:
            planned = self._of_snapshot(cached, table_id, first - 1, unread_files, limits, on_data_loss)
        elif last > first:
            planned = self._of_versions(cached, table_id, (first, last), limits, on_data_loss)
        cached.keep()
        return planned

    def _check_table(self, start: Offsets, table_id: str) -> None:
        known = {name.partition("@")[2] for name in start}
        if table_id not in known:
            summary = "the Delta table has another id than in the committed offsets: it was deleted and recreated, or replaced. Nothing was written"
            facts = {"table": self._path, "committed": sorted(known), "found": table_id}
            raise SourceChangedError(summary, **facts).advising(
                "restore the former table and run again. To read the new table, use a new log."
            )

    def _check_history(self, cached: CachedTable, first: int, last: int, hint: Json) -> None:
        """``first`` is the next version to read, and ``last`` the end of the versions to read, exclusive."""
        newest: int = cached.table.version()
        version, digest = (hint.get("version"), hint.get("entry")) if isinstance(hint, dict) else (None, None)
        went_back = max(first, last) > newest + 1
        if not went_back and type(version) is int and digest:
            entry = self._history.entry(version) if version <= newest else None
            went_back = version > newest or (entry is not None and entry.digest != digest)
        if went_back:
            summary = (
                "the Delta table lacks versions that were read, or has other versions with their numbers: its log was restored from an older copy. "
                "Nothing was written"
            )
            raise SourceChangedError(summary, table=self._path, next=first, newest=newest, read=version).advising(
                "restore the newest copy of the table's log and run again. To read the table in its current state, use a new log."
            )

    def _of_snapshot(
        self, cached: CachedTable, table_id: str, version: int, unread_files: int, limits: Limits, on_data_loss: str
    ) -> SourceSlice:
        """Select the next files of the snapshot at ``version``, of which ``unread_files`` are not read yet."""
        columns, listed = self._files_of_snapshot(cached, version)
        if unread_files > len(listed):
            summary = "the initial snapshot has fewer files than when the pipeline started; nothing was written"
            facts = {"table": self._path, "version": version, "left": unread_files, "files": len(listed)}
            raise SourceChangedError(summary, **facts).advising("start a new pipeline with a new log.")
        budget = Budget(limits)
        selected = [*takewhile(lambda pin: budget.fits([pin]), (pin for pin, _ in listed[-unread_files:]))]
        lost = self._missing(selected, on_data_loss)
        gaps = tuple((at - unread_files, at - unread_files + 1) for at, pin in enumerate(selected) if pin.path in lost)
        name = f"{SNAPSHOT}{table_id}"
        entry = self._history.entry(version)
        return SourceSlice(
            ranges={name: (-unread_files, len(selected) - unread_files)},
            gaps={name: gaps} if gaps else {},
            pins=[table_pin(table_id, version, version + 1, columns, "parquet"), *(p for p in selected if p.path not in lost)],
            hint=_hint(entry),
            rows=budget.rows,
        )  # fmt: skip

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

    def _of_versions(
        self, cached: CachedTable, table_id: str, unread: tuple[int, int], limits: Limits, on_data_loss: str
    ) -> SourceSlice:
        """Select the next versions of ``[start, end)``. They have the same columns, so they end before an entry that changes the columns."""
        first = unread[0]
        selected = self._select(unread, limits, on_data_loss)
        columns = self._columns_of(cached, selected, first)
        for entry in selected.entries:
            try:
                files.check(entry, selected.pins[entry.version], columns, self._path)
            except SourceChangedError:
                if not any(pins for version, pins in selected.pins.items() if version < entry.version):
                    raise
                selected.cut(entry.version)
                break
        planned = [pin for pins in selected.pins.values() for pin in pins]
        lost = self._missing(planned, on_data_loss)
        gap_versions = {pin.version for pin in planned if pin.path in lost} | {*selected.lost}
        name = f"{VERSIONS}{table_id}"
        gaps: Gaps = {name: adjacent(gap_versions)} if gap_versions else {}
        if gaps:
            logger.warning("recording versions of the Delta table %s as gaps: %s", self._path, gaps)
        pins = [pin for pin in planned if pin.version not in gap_versions]
        reader = "delta" if self._changes == "read" and any(pin.deleted for pin in pins) else "parquet"
        return SourceSlice(
            ranges={name: (first, selected.end)},
            gaps=gaps,
            pins=[table_pin(table_id, first, selected.end, columns, reader), *pins],
            hint=_hint(selected.entries[-1] if selected.entries else None),
            rows=sum(map(rows_of, pins)),
        )

    def _select(self, unread: tuple[int, int], limits: Limits, on_data_loss: str) -> _Selected:
        """A version that cannot be read fails the run only if no version before it has files. Otherwise the batch ends before it."""
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
            summary = "unread versions of the Delta table are missing: their entries were deleted from its log. Nothing was written"
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

    def _missing(self, pins: Sequence[FilePin], on_data_loss: str) -> set[str]:
        missing_files = missing(self._path, pins)
        if missing_files and on_data_loss == "fail":
            summary = "an unread file of the Delta table is missing, for example because of VACUUM; nothing was written"
            facts = {"table": self._path, "version": missing_files[0].version, "file": missing_files[0].key}
            raise SourceChangedError(summary, **facts, files=len(missing_files)).advising(OR_RECORD_GAP)
        return {pin.path for pin in missing_files}

    def _committed_ms(self, version: int) -> int:
        entry = self._history.entry(version)
        if entry is not None and entry.in_commit_ms is not None:
            return entry.in_commit_ms
        return next((ms for listed, ms in self._history.times(version) if listed == version), 0)

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        return sum(ms < at_ms for ms in self._unread_times(start))

    def minimum_clock(self, start: Offsets) -> int | None:
        return min(self._unread_times(start), default=None)

    def _unread_times(self, start: Offsets) -> list[int]:
        cached = open_existing(self._path)
        table_id = cached.table.metadata().id
        first, unread_files = position(start, f"{VERSIONS}{table_id}"), -position(start, f"{SNAPSHOT}{table_id}")
        times = [ms for version, ms in self._history.times(first) if version <= cached.table.version()]
        if unread_files:
            times += [ms for _, ms in self._files_of_snapshot(cached, first - 1)[1][-unread_files:]]
        cached.keep()
        return times


def table_pin(table_id: str, start: int, end: int, columns: Columns, reader: Any) -> TablePin:
    """Return the pin of a table. ``start`` and ``end`` are versions."""
    return TablePin(table_id, start, end, columns.schema, columns.partition_by, reader)


def _hint(entry: Entry | None) -> Json:
    return None if entry is None else {"version": entry.version, "entry": entry.digest}
