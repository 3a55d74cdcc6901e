"""Plans the batches of an Iceberg source: files of the initial snapshot, then the appended files of whole snapshots of the branch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.iceberg import history
from airflow_provider_streamsem.connectors.iceberg.history import BranchHistory
from airflow_provider_streamsem.connectors.iceberg.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.source import Planner, SourceEnd, SourceSlice
from airflow_provider_streamsem.connectors.table_files.batches import Budget, adjacent, rows_of
from airflow_provider_streamsem.connectors.table_files.stored import missing
from airflow_provider_streamsem.errors import OR_RECORD_GAP, SourceChangedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, position

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

logger = logging.getLogger(__name__)

SNAPSHOTS, INITIAL = "snapshots@", "initial@"
"""Beginnings of the names of the two partitions. The UUID of the table follows."""


@dataclass(slots=True)
class _Selected:
    """The snapshots of a batch, up to ``end``, exclusive. ``lost`` are sequence numbers whose snapshots have expired."""

    end: int
    newest: Snapshot | None = None
    pins: list[FilePin] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)


class IcebergPlanner(Planner):
    """
    An Iceberg source that is bound to a commit log.

    :param opened: loads the table
    :param path: location of the table's files
    :param branch: the branch to read
    :param changes: ``refuse`` or ``skip``: what to do with a snapshot that changes rows

    The hint names the newest snapshot that a plan has read: ``{"sequence": n, "snapshot": id}``. It detects a history that was rewritten.
    """

    def __init__(
        self, opened: Callable[[], AbstractContextManager[Table]], path: str, branch: str, changes: str
    ) -> None:
        self._opened, self._path, self._branch, self._changes = opened, path, branch, changes
        self._initial: tuple[int, list[FilePin]] | None = None

    def poll(self, hint: Json) -> SourceEnd:
        """Return one past the sequence number of the branch's newest snapshot, and 0 for the initial snapshot."""
        with self._opened() as table:
            uuid, end = str(table.metadata.table_uuid), history.lineage(table, self._branch).end
        return SourceEnd({f"{INITIAL}{uuid}": 0, f"{SNAPSHOTS}{uuid}": end})

    def slice(
        self, start: Offsets, end: SourceEnd, limits: Limits, hint: Json, *, on_data_loss: str
    ) -> SourceSlice | None:
        """
        Select files of the initial snapshot or, after its last file, whole snapshots. Expired snapshots and missing files of the initial one can become gaps.
        """
        with self._opened() as table:
            uuid = str(table.metadata.table_uuid)
            self._check_uuid(start, uuid)
            lineage = history.lineage(table, self._branch)
            first, last = position(start, f"{SNAPSHOTS}{uuid}"), position(end.offsets, f"{SNAPSHOTS}{uuid}")
            self._check_lineage(lineage, first, last, hint)
            unread_files = -position(start, f"{INITIAL}{uuid}")
            if position(end.offsets, f"{INITIAL}{uuid}") > -unread_files:
                return self._of_initial(table, lineage, first - 1, unread_files, limits, on_data_loss)
            if last <= first:
                return None
            return self._of_snapshots(table, lineage, (first, last), limits, on_data_loss)

    def _check_uuid(self, start: Offsets, uuid: str) -> None:
        known = {name.partition("@")[2] for name in start}
        if uuid not in known:
            summary = "the Iceberg table has another UUID than in the committed offsets: it was dropped and recreated, or replaced. Nothing was written"
            raise SourceChangedError(summary, committed=sorted(known), found=uuid).advising(
                "restore the former table and run again. To read the new table, use a new log."
            )

    def _check_lineage(self, lineage: BranchHistory, first: int, last: int, hint: Json) -> None:
        """``last`` is exclusive. The snapshot before ``first`` was read, so the branch must contain it unless it has expired."""
        snapshots = lineage.snapshots
        is_rewritten = max(first, last) > lineage.end or any(lineage.lacks(number) for number in (first - 1, last - 1))
        newest, read = (hint.get("sequence"), hint.get("snapshot")) if isinstance(hint, dict) else (None, None)
        if type(newest) is int and newest in snapshots and str(snapshots[newest].snapshot_id) != read:
            is_rewritten = True
        if is_rewritten:
            summary = "the branch of the Iceberg table lacks snapshots that were read or planned: it was rolled back or rewritten. Nothing was written"
            facts = {"branch": self._branch, "next": first, "newest": lineage.end - 1}
            raise SourceChangedError(summary, **facts).advising(
                "set the branch back to a descendant of the snapshot that was read, and run again. To read the table in its current state, use a new log."
            )

    def _of_initial(
        self, table: Table, lineage: BranchHistory, number: int, unread_files: int, limits: Limits, on_data_loss: str
    ) -> SourceSlice:
        """Select the next files of the initial snapshot. ``number`` is its sequence number, and ``unread_files`` are not read yet."""
        snapshot = lineage.snapshots.get(number)
        if snapshot is None:
            summary = "the initial snapshot of the Iceberg table has expired before all its files were read; nothing was written"
            raise SourceChangedError(summary, sequence=number, files_left=unread_files).advising(
                "start a new pipeline with a new log, and keep its first snapshot with a tag until it is read."
            )
        if self._initial is None or self._initial[0] != number:
            self._initial = number, history.at_snapshot(table, snapshot, self._path)
        files = self._initial[1]
        if unread_files > len(files):
            summary = "the initial snapshot has fewer files than when the pipeline started; nothing was written"
            raise SourceChangedError(summary, sequence=number, files_left=unread_files, files=len(files)).advising(
                "start a new pipeline with a new log."
            )
        budget = Budget(limits)
        selected = [*takewhile(lambda pin: budget.fits([pin]), files[-unread_files:])]
        lost = self._missing(selected, on_data_loss)
        gaps = tuple((at - unread_files, at - unread_files + 1) for at, pin in enumerate(selected) if pin.key in lost)
        name = f"{INITIAL}{table.metadata.table_uuid}"
        return SourceSlice(
            ranges={name: (-unread_files, len(selected) - unread_files)},
            gaps={name: gaps} if gaps else {},
            pins=[table_pin(table, (number, number + 1), snapshot), *(pin for pin in selected if pin.key not in lost)],
            hint=_hint(snapshot),
            rows=budget.rows,
        )

    def _of_snapshots(
        self, table: Table, lineage: BranchHistory, unread: tuple[int, int], limits: Limits, on_data_loss: str
    ) -> SourceSlice:
        """Select the next snapshots of ``[start, end)``. They have the same columns, so they end before a snapshot with other columns."""
        selected = self._select(table, lineage, unread, limits, on_data_loss)
        lost = self._missing(selected.pins, on_data_loss)
        gap_numbers = {pin.sequence for pin in selected.pins if pin.key in lost}
        name = f"{SNAPSHOTS}{table.metadata.table_uuid}"
        gaps: Gaps = {name: adjacent([*selected.lost, *gap_numbers])} if selected.lost or gap_numbers else {}
        if gaps:
            logger.warning("recording snapshots of the Iceberg table %s as gaps: %s", ".".join(table.name()), gaps)
        pins = [pin for pin in selected.pins if pin.sequence not in gap_numbers]
        return SourceSlice(
            ranges={name: (unread[0], selected.end)},
            gaps=gaps,
            pins=[table_pin(table, (unread[0], selected.end), selected.newest), *pins],
            hint=_hint(selected.newest),
            rows=sum(map(rows_of, pins)),
        )

    def _select(
        self, table: Table, lineage: BranchHistory, unread: tuple[int, int], limits: Limits, on_data_loss: str
    ) -> _Selected:
        """A snapshot that cannot be read fails the run only if no snapshot before it has files. Otherwise the batch ends before it."""
        first, last = unread
        selected, budget = _Selected(first), Budget(limits)
        selected.lost = lineage.expired(first, last)
        if selected.lost:
            if on_data_loss == "fail":
                summary = "unread snapshots of the Iceberg table may have expired; nothing was written"
                raise SourceChangedError(summary, expired=adjacent(selected.lost), oldest=lineage.oldest).advising(
                    OR_RECORD_GAP
                )
            selected.end = selected.lost[-1] + 1
        for number, snapshot in lineage.snapshots.items():
            if not first <= number < last:
                continue
            newest = selected.newest
            if newest is not None and not budget.is_empty and newest.schema_id != snapshot.schema_id:
                break
            try:
                pins = self._pins_of(table, snapshot)
            except SourceChangedError:
                if budget.is_empty:
                    raise
                break
            if not budget.fits(pins):
                break
            selected.pins += pins
            selected.end, selected.newest = number + 1, snapshot
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
        name = ".".join(table.name())
        logger.warning("skipping snapshot %d of the Iceberg table %s: %s", snapshot.snapshot_id, name, operation)
        return []

    def _missing(self, pins: Sequence[FilePin], on_data_loss: str) -> set[str]:
        missing_files = missing(self._path, pins)
        if missing_files and on_data_loss == "fail":
            summary = "an unread file of the Iceberg table is missing, for example because its snapshot was expired; nothing was written"
            raise SourceChangedError(
                summary, sequence=missing_files[0].sequence, file=missing_files[0].key, files=len(missing_files)
            ).advising(OR_RECORD_GAP)
        return {pin.key for pin in missing_files}

    def lag(self, start: Offsets, hint: Json) -> int:
        """Return the number of unread snapshots of the branch, plus the number of unread files of the initial snapshot."""
        return len(self._unread_times(start))

    def unread_before(self, start: Offsets, at_ms: int) -> int:
        return sum(ms < at_ms for ms in self._unread_times(start))

    def minimum_clock(self, start: Offsets) -> int | None:
        return min(self._unread_times(start), default=None)

    def _unread_times(self, start: Offsets) -> list[int]:
        """Return the commit time of each unread snapshot, and that of the initial snapshot for each of its unread files."""
        with self._opened() as table:
            uuid, snapshots = table.metadata.table_uuid, history.lineage(table, self._branch).snapshots
        first, unread_files = position(start, f"{SNAPSHOTS}{uuid}"), -position(start, f"{INITIAL}{uuid}")
        initial = snapshots[first - 1].timestamp_ms if first - 1 in snapshots else 0
        return [initial] * unread_files + [
            snapshot.timestamp_ms for number, snapshot in snapshots.items() if number >= first
        ]


def table_pin(table: Table, range: tuple[int, int], snapshot: Snapshot | None) -> TablePin:
    """
    Return the pin of a table with the columns of a snapshot.

    :param range: ``[start, end)`` of the sequence numbers
    """
    schema = history.schema_of(table, snapshot)
    mapping = table.name_mapping()
    text = "" if mapping is None else mapping.model_dump_json()
    return TablePin(str(table.metadata.table_uuid), *range, schema.model_dump_json(), text)


def _hint(snapshot: Any) -> Json:
    return None if snapshot is None else {"sequence": snapshot.sequence_number, "snapshot": str(snapshot.snapshot_id)}
