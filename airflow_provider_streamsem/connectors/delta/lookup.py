"""A lookup table in Delta: the rows of the newest version when a batch is planned (extra ``delta``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_streamsem.connectors.delta import files
from airflow_provider_streamsem.connectors.delta.columns import columns_of
from airflow_provider_streamsem.connectors.delta.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.delta.planner import table_pin
from airflow_provider_streamsem.connectors.delta.source import DeltaSource
from airflow_provider_streamsem.connectors.delta.table import open_at_version, opened
from airflow_provider_streamsem.connectors.lookup import SourceLookup, check_number_of_files, checking_pin
from airflow_provider_streamsem.connectors.table_files.stored import missing
from airflow_provider_streamsem.errors import LogDamagedError, SourceChangedError
from airflow_provider_streamsem.protocol.codec import build, plain
from airflow_provider_streamsem.protocol.entries import Json


@dataclass(frozen=True, slots=True)
class SnapshotPin:
    """
    The rows of a table at one version. The files are part of the pin, so that the version can be read after its entries were deleted from the table's log.

    :param deleted: sha256 of the rows that deletion vectors remove; ``""`` if there are none
    """

    table: TablePin
    files: tuple[FilePin, ...]
    deleted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTable(SourceLookup):
    """
    A lookup table in Delta. The plan of a batch pins the newest version of the table: its id, its columns, and its files, at most 1,000.

    Spark needs no Delta package. The rows of a pin exist until VACUUM deletes a file of the version. A version with deletion vectors can be read only while
    the table's log still describes it.

    :param path: location of the table: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "delta"
    reasons: ClassVar[tuple[str, ...]] = (
        "the plan pins the table's id, a version and its files, which never change; a file that VACUUM has deleted fails the batch",
    )
    path: str

    def pin(self, now_ms: int) -> Json:
        """Pin the newest version. It must have at most 1,000 files (``InvalidError``), and lack none (``SourceChangedError``)."""
        with opened(self.path) as cached:
            table, version = cached.table, cached.end - 1
            columns = columns_of(table, self.path, reads_changes=False)
            listed = tuple(file for file, _ in files.of_version(table, columns, self.path, committed_ms=0, change=""))
            check_number_of_files(listed, table=self.path, version=version)
            if missing_files := missing(self.path, listed):
                summary = "a file of the newest version of the Delta table is missing; nothing was written"
                facts = {**missing_files[0].facts, "files": len(missing_files)}
                raise SourceChangedError(summary, table=self.path, **facts).advising(
                    "restore the file, or restore the table to a version whose files exist; then run again."
                )
            deleted = files.digest_of_deleted(table, self.path) if any(file.deleted for file in listed) else ""
            return plain(SnapshotPin(table_pin(cached.id, version, version + 1, columns), listed, deleted))

    def check_pin(self, pin: Json) -> None:
        """Check that the table is the pinned one, and that each file of the version exists with its size."""
        snapshot = self._read(pin)
        with checking_pin():
            self._source().check_pins(self._pins(pin), was_read=False)
            version = snapshot.table.start
            if not snapshot.deleted:
                return
            if files.digest_of_deleted(open_at_version(self.path, version), self.path) != snapshot.deleted:
                summary = "the deletion vectors of a version of the Delta table were changed after it was planned"
                raise SourceChangedError(summary, table=self.path, version=version)

    def _source(self) -> DeltaSource:
        return DeltaSource(**self._arguments())

    def _pins(self, pin: Json) -> Sequence[TablePin | FilePin]:
        snapshot = self._read(pin)
        return [snapshot.table, *snapshot.files]

    def _read(self, pin: Json) -> SnapshotPin:
        summary = "the pin of a lookup is not a version of a Delta table; nothing was read"
        try:
            snapshot: SnapshotPin = build(SnapshotPin, pin, "pin")
            self._source().read_pins([pin["table"], *pin["files"]])
        except LogDamagedError as error:
            raise LogDamagedError(summary, invariant="R6", table=self.path) from error
        table, changes = snapshot.table, any(file.change for file in snapshot.files)
        if table.reader != "parquet" or not 0 <= table.start == table.end - 1 or changes:
            raise LogDamagedError(summary, invariant="R6", table=self.path)
        return snapshot
