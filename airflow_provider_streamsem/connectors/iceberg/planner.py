"""Plans the batches of an Iceberg source: files of the initial snapshot, then the appended files of whole snapshots of the branch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_provider_streamsem.connectors.iceberg import history
from airflow_provider_streamsem.connectors.iceberg.history import BranchHistory
from airflow_provider_streamsem.connectors.iceberg.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.table_files.batches import Budget, adjacent
from airflow_provider_streamsem.connectors.table_files.planner import Selected, TablePlanner
from airflow_provider_streamsem.errors import OR_RECORD_GAP, SourceChangedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, position

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

logger = logging.getLogger(__name__)

SNAPSHOTS, INITIAL = "snapshots@", "initial@"
"""Beginnings of the names of the two partitions. The UUID of the table follows."""


class _Branch:
    """Its history is read after the table's UUID was checked."""

    def __init__(self, table: Table, name: str) -> None:
        self.table, self._name = table, name

    @property
    def id(self) -> str:
        return str(self.table.metadata.table_uuid)

    @cached_property
    def history(self) -> BranchHistory:
        return history.lineage(self.table, self._name)

    @property
    def end(self) -> int:
        return self.history.end


class IcebergPlanner(TablePlanner):
    """
    An Iceberg source that is bound to a commit log. ``path`` is the location of the table's files.

    The hint names the newest snapshot that a plan has read: ``{"sequence": n, "snapshot": id}``. It detects a history that was rewritten.
    """

    versions, initial, number = SNAPSHOTS, INITIAL, "sequence"
    recreated_error = "the Iceberg table has another UUID than in the committed offsets: it was dropped and recreated, or replaced; nothing was written"
    missing_file_error = "an unread file of the Iceberg table is missing, for example because its snapshot was expired; nothing was written"
    gaps_warning = "recording snapshots of the Iceberg table %s as gaps: %s"

    def __init__(
        self, opened: Callable[[], AbstractContextManager[Table]], path: str, name: str, branch: str, changes: str
    ) -> None:
        super().__init__(path, name)
        self._opened, self._branch, self._changes = opened, branch, changes
        self._initial: tuple[int, list[FilePin]] | None = None

    @contextmanager
    def opened(self) -> Iterator[_Branch]:
        with self._opened() as table:
            yield _Branch(table, self._branch)

    def check_history(self, table: _Branch, first: int, last: int, hint: Json) -> None:
        """The snapshot before ``first`` was read, so the branch must contain it unless it has expired."""
        lineage, snapshots = table.history, table.history.snapshots
        is_rewritten = max(first, last) > lineage.end or any(lineage.lacks(number) for number in (first - 1, last - 1))
        newest, read = (hint.get("sequence"), hint.get("snapshot")) if isinstance(hint, dict) else (None, None)
        if type(newest) is int and newest in snapshots and str(snapshots[newest].snapshot_id) != read:
            is_rewritten = True
        if is_rewritten:
            summary = "the branch of the Iceberg table lacks snapshots that were read or planned: it was rolled back or rewritten; nothing was written"
            facts = {"branch": self._branch, "next": first, "newest": lineage.end - 1}
            raise SourceChangedError(summary, **facts).advising(
                "set the branch back to a descendant of the snapshot that was read, and run again. To read the table in its current state, use a new log."
            )

    def snapshot(self, table: _Branch, version: int, unread_files: int) -> tuple[TablePin, list[FilePin], Json]:
        snapshot = table.history.snapshots.get(version)
        if snapshot is None:
            summary = "the initial snapshot of the Iceberg table has expired before all its files were read; nothing was written"
            raise SourceChangedError(summary, sequence=version, files_left=unread_files).advising(
                "start a new pipeline with a new log, and keep its first snapshot with a tag until it is read."
            )
        if self._initial is None or self._initial[0] != version:
            self._initial = version, history.at_snapshot(table.table, snapshot, self._path)
        return table_pin(table.table, (version, version + 1), snapshot), self._initial[1], _hint(snapshot)

    def select(self, table: _Branch, unread: tuple[int, int], limits: Limits, on_data_loss: str) -> Selected:
        """End the batch before a snapshot with other columns."""
        first, last = unread
        selected, budget = Selected(first, lost=table.history.expired(first, last)), Budget(limits)
        newest: Snapshot | None = None
        if selected.lost:
            if on_data_loss == "fail":
                summary = "unread snapshots of the Iceberg table may have expired; nothing was written"
                raise SourceChangedError(
                    summary, expired=adjacent(selected.lost), oldest=table.history.oldest
                ).advising(OR_RECORD_GAP)
            selected.end = selected.lost[-1] + 1
        for number, snapshot in table.history.snapshots.items():
            if not first <= number < last:
                continue
            if newest is not None and not budget.is_empty and newest.schema_id != snapshot.schema_id:
                break
            try:
                pins = self._pins_of(table.table, snapshot)
            except SourceChangedError:
                if budget.is_empty:
                    raise
                break
            if not budget.fits(pins):
                break
            selected.pins[number], selected.end, newest = pins, number + 1, snapshot
        selected.table, selected.hint = table_pin(table.table, (first, selected.end), newest), _hint(newest)
        return selected

    def _pins_of(self, table: Table, snapshot: Snapshot) -> list[FilePin]:
        operation = "unknown" if snapshot.summary is None else snapshot.summary.operation.value
        if operation == "replace":
            return []
        if operation == "append":
            return history.appended(table, snapshot, self._path)
        facts = {"snapshot": str(snapshot.snapshot_id), "operation": operation}
        if self._changes == "refuse":
            summary = "a snapshot of the Iceberg table overwrites or deletes rows; nothing was written"
            raise SourceChangedError(summary, **facts, sequence=snapshot.sequence_number).advising(
                'set changes="skip" to ignore such snapshots, with rows that they added. Or start a new pipeline after this snapshot.'
            )
        logger.warning("skipping snapshot %d of the Iceberg table %s: %s", snapshot.snapshot_id, self._name, operation)
        return []

    def lag(self, start: Offsets, hint: Json) -> int:
        """Unread snapshots of the branch, plus unread files of the initial snapshot."""
        return len(self.unread_times(start))

    def unread_times(self, start: Offsets) -> list[int]:
        with self.opened() as table:
            first, unread_files = position(start, f"{SNAPSHOTS}{table.id}"), -position(start, f"{INITIAL}{table.id}")
            snapshots = table.history.snapshots
        initial = snapshots[first - 1].timestamp_ms if first - 1 in snapshots else 0
        unread = [snapshot.timestamp_ms for number, snapshot in snapshots.items() if number >= first]
        return [initial] * unread_files + unread


def table_pin(table: Table, range: tuple[int, int], snapshot: Snapshot | None) -> TablePin:
    """Return the pin of a table with the columns of a snapshot. ``range``: ``[start, end)`` of the sequence numbers."""
    schema = history.schema_of(table, snapshot)
    mapping = table.name_mapping()
    text = "" if mapping is None else mapping.model_dump_json()
    return TablePin(str(table.metadata.table_uuid), *range, schema.model_dump_json(), text)


def _hint(snapshot: Snapshot | None) -> Json:
    return None if snapshot is None else {"sequence": snapshot.sequence_number, "snapshot": str(snapshot.snapshot_id)}
