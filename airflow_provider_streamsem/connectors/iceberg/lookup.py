"""A lookup table in Iceberg: the rows of the newest snapshot of a branch when a batch is planned (extra ``iceberg``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from airflow_provider_streamsem.connectors.iceberg import history
from airflow_provider_streamsem.connectors.iceberg.history import MAIN
from airflow_provider_streamsem.connectors.iceberg.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.iceberg.planner import table_pin
from airflow_provider_streamsem.connectors.iceberg.source import IcebergSource
from airflow_provider_streamsem.connectors.lookup import SourceLookup, check_number_of_files, checking_pin
from airflow_provider_streamsem.connectors.table_files.stored import missing
from airflow_provider_streamsem.errors import LogDamagedError, SourceChangedError
from airflow_provider_streamsem.protocol.codec import build, plain
from airflow_provider_streamsem.protocol.entries import Json


@dataclass(frozen=True, slots=True)
class SnapshotPin:
    """
    The rows of a table at one snapshot. The files are part of the pin, so that the rows can be read after the snapshot has expired, while its files exist.

    :param snapshot: id as text; ``""`` if the branch has none
    :param table: ``start`` is the sequence number of the snapshot
    """

    snapshot: str
    table: TablePin
    files: tuple[FilePin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTable(SourceLookup):
    """
    A lookup table in Iceberg, in any catalog that pyiceberg supports. The plan of a batch pins the newest snapshot of a branch: the table's UUID, the id of the
    snapshot, its columns, and its files, at most 1,000.

    Spark needs no Iceberg package. The rows of a pin exist until the snapshot has expired and one of its files was deleted. A snapshot with delete files
    (merge-on-read) is refused.

    :param path: as in :class:`IcebergSource`
    :param table: as in :class:`IcebergSource`
    :param catalog: as in :class:`IcebergSource`
    :param properties: as in :class:`IcebergSource`
    :param conn_id: as in :class:`IcebergSource`
    :param branch: as in :class:`IcebergSource`
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "iceberg"
    reasons: ClassVar[tuple[str, ...]] = (
        "the plan pins the table's UUID, a snapshot and its files, which never change; a file that was deleted with an expired snapshot fails the batch",
    )
    path: str
    table: str
    catalog: str = "default"
    properties: Mapping[str, str] = field(default_factory=dict)
    conn_id: str | None = None
    branch: str = MAIN

    def pin(self, now_ms: int) -> Json:
        """Pin the newest snapshot of the branch. It must have at most 1,000 files (``InvalidError``), and lack none (``SourceChangedError``)."""
        with self._source().opened() as table:
            lineage = history.lineage(table, self.branch)
            number = max(lineage.end - 1, 0)
            snapshot = lineage.snapshots.get(number)
            pinned_files = () if snapshot is None else tuple(history.at_snapshot(table, snapshot, self.path))
            pinned = table_pin(table, (number, lineage.end), snapshot)
        name = "" if snapshot is None else str(snapshot.snapshot_id)
        check_number_of_files(pinned_files, table=self.table, snapshot=name)
        if missing_files := missing(self.path, pinned_files):
            summary = "a file of the newest snapshot of the Iceberg table is missing; nothing was written"
            raise SourceChangedError(
                summary, table=self.table, snapshot=name, file=missing_files[0].key, files=len(missing_files)
            ).advising("restore the file, or set the branch to a snapshot whose files exist; then run again.")
        return plain(SnapshotPin(name, pinned, pinned_files))

    def check_pin(self, pin: Json) -> None:
        """Check that the table is the pinned one, and that each file of the snapshot exists with its size."""
        pins = self._pins(pin)
        with checking_pin(snapshot=pin["snapshot"]):
            self._source().check_pins(pins, was_read=False)

    def _pins(self, pin: Json) -> Sequence[TablePin | FilePin]:
        try:
            snapshot: SnapshotPin = build(SnapshotPin, pin, "pin")
            self._source().read_pins([pin["table"], *pin["files"]])
        except LogDamagedError as error:
            summary = "the pin of a lookup is not a snapshot of an Iceberg table; nothing was read"
            raise LogDamagedError(summary, invariant="R6", table=self.table) from error
        return [snapshot.table, *snapshot.files]

    def _source(self) -> IcebergSource:
        return IcebergSource(**self._arguments())
