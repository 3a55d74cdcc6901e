"""
The Delta source: reads the rows of a Delta table, version by version (extra ``delta``).

The source has two partitions, and their names contain the id of the table. The offset of ``versions@<id>`` is the next version to read. The offset of
``snapshot@<id>`` is minus the number of files of the initial snapshot that are left to read. The snapshot is the table at the version before the first one to
read, and no version is planned before its last file.

The planner reads the table's log and names the files in the plan. Spark's own Parquet reader reads them, so Spark needs no Delta package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.delta import files
from airflow_provider_streamsem.connectors.delta.columns import Columns, columns_of
from airflow_provider_streamsem.connectors.delta.history import History
from airflow_provider_streamsem.connectors.delta.pins import Pin, read_pins, split
from airflow_provider_streamsem.connectors.delta.planner import SNAPSHOT, VERSIONS, DeltaPlanner
from airflow_provider_streamsem.connectors.delta.table import CachedTable, checked_path, open_at_version, open_existing
from airflow_provider_streamsem.connectors.source import Loaded, Source
from airflow_provider_streamsem.connectors.table_files.stored import missing
from airflow_provider_streamsem.errors import DataError, InvalidError, RecordsMissingError, SourceChangedError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges
from airflow_provider_streamsem.stores.contract import lineage_name, normalised

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = ("refuse", "skip", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSource(Source):
    """
    Reads the new rows of a Delta table, or its change data feed.

    A batch reads whole versions of the table, or files of the initial snapshot. The columns of a batch are those of the table at its versions, so a batch
    ends before a version that changes the columns.

    :param path: location of the table: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param starting: where a new pipeline starts. ``earliest``: a snapshot of the table, then the versions after it. ``latest``: the versions after the
        newest one. An integer: this version, inclusive, without a snapshot. A timestamp with a time zone: the first version that was committed then or later.
        If the table's log does not go back that far: as ``earliest``
    :param changes: what to do with a version that updates, deletes or restores rows. ``refuse``: the run fails. ``skip``: the version is ignored as a whole,
        with rows that it may have inserted. ``read``: read the table's change data feed, with the columns ``_change_type``, ``_commit_version`` and
        ``_commit_timestamp``
    :raises InvalidError: an argument is not valid
    """

    delivery: ClassVar[str] = "exactly_once"
    extra: ClassVar[str] = "delta"
    unit: ClassVar[str] = "versions"
    limits: ClassVar[tuple[str, ...]] = ("max_files", "max_bytes", "max_rows", "min_rows")
    order: ClassVar[str] = (
        "records of the source are ordered by version. Records of one version, or of the snapshot that a new pipeline reads first, have no order. If the "
        "limits divide this snapshot into several batches, the rows of a later batch replace those of an earlier one, whichever are older"
    )
    path: str
    starting: str | int = "earliest"
    changes: str = "refuse"

    def __post_init__(self) -> None:
        where = "source delta:"
        checked_path(f"{where} path", self.path)
        normalised(self.path)
        arguments.choice(f"{where} changes", self.changes, CHANGES)
        if type(self.starting) is int:
            arguments.integer(f"{where} starting", self.starting, least=0)
        elif self.starting not in ("earliest", "latest"):
            try:
                arguments.time_ms(f"{where} starting", arguments.text(f"{where} starting", self.starting))
            except InvalidError as error:
                accepted = ["earliest", "latest", "2026-01-31T00:00:00Z", 42]
                raise InvalidError(f"{where} starting is not valid", given=self.starting, accepted=accepted) from error

    @property
    def conditions(self) -> str:
        return "without versions that change rows" if self.changes == "skip" else ""

    @property
    def reasons(self) -> tuple[str, ...]:
        rows = {
            "refuse": "a version that updates, deletes or restores rows fails the run",
            "skip": "a version that updates, deletes or restores rows is ignored, with rows that it inserted",
            "read": "a version that updates or deletes rows gives a record for each change, from the table's change data feed",
        }[self.changes]
        return (
            "the plan names each file with its size and the columns of the table, and a file of a Delta table never changes",
            rows,
            "missing versions and files fail the run, or are recorded as gaps; a recreated table and a rewritten history fail it",
        )

    @property
    def location(self) -> str:
        return self.path

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return asdict(self)

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        return [lineage_name(self.path)]

    def immutable_config(self) -> Json:
        """Return the location, and whether the change data feed is read. The table's id is not included, because the offsets contain it."""
        return {"type": "delta", "path": normalised(self.path), "change_feed": self.changes == "read"}

    def columns(self, cached: CachedTable) -> Columns:
        """
        Return the columns of an opened table.

        :raises SourceChangedError: the table has features that this source cannot read. Nothing was written
        """
        return columns_of(cached.table, self.path, reads_changes=self.changes == "read")

    def initial_offsets(self) -> Offsets:
        if self.starting not in ("earliest", "latest") and type(self.starting) is not int:
            return self.offsets_for_time(arguments.time_ms("starting", self.starting))
        cached = open_existing(self.path)
        self.columns(cached)
        end = cached.table.version() + 1
        if type(self.starting) is int and self.starting > end:
            summary = "source delta: starting is a version that the table does not have"
            raise InvalidError(summary, table=self.path, given=self.starting, newest=end - 1)
        offsets = self._at_snapshot(cached) if self.starting == "earliest" else {}
        start = self.starting if type(self.starting) is int else end
        offsets = {f"{VERSIONS}{cached.table.metadata().id}": int(start), **offsets}
        cached.keep()
        return offsets

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """If the table's log does not go back that far, return the offsets of a snapshot of the table."""
        cached = open_existing(self.path)
        self.columns(cached)
        properties = cached.table.metadata().configuration
        in_commit = properties.get("delta.enableInCommitTimestamps", "").lower() == "true"
        start, is_oldest = History(self.path).first_at(at_ms, in_commit=in_commit)
        offsets = {}
        # A snapshot lacks the changes of the first versions, so a change data feed is read from version 0.
        reads_from_0 = start == 0 and self.changes == "read"
        if is_oldest and not reads_from_0:
            start, offsets = cached.table.version() + 1, self._at_snapshot(cached)
        cached.keep()
        return {f"{VERSIONS}{cached.table.metadata().id}": start, **offsets}

    def _at_snapshot(self, cached: CachedTable) -> dict[str, int]:
        """Return the offset before the first file of a snapshot of the table, by partition; empty if the table has no files."""
        number = len(cached.table.file_uris())
        return {f"{SNAPSHOT}{cached.table.metadata().id}": -number} if number else {}

    def open(self, log: CommitLog, hint: Json) -> DeltaPlanner:
        return DeltaPlanner(self.path, self.changes)

    def read_pins(self, pins: Json) -> tuple[Pin, ...]:
        return read_pins(pins, table=self.path)

    def check_pins(self, pins: Sequence[Pin], *, was_read: bool) -> None:
        """Check the table, and the files with their sizes unless Spark has read them: Spark fails on a missing file, and Delta's files never change."""
        if not pins:
            return
        table, planned = split(pins)
        cached = open_existing(self.path)
        table_id, newest = cached.table.metadata().id, cached.table.version()
        if table_id != table.table_id or newest < table.end - 1:
            summary = "the Delta table was recreated, or restored from an older copy, after its versions were planned"
            facts = {"planned_id": table.table_id, "found_id": table_id, "planned_versions": (table.start, table.end)}
            raise SourceChangedError(summary, table=self.path, **facts, newest=newest)
        cached.keep()
        if was_read:
            return
        if missing_files := missing(self.path, planned):
            summary = "a planned file of the Delta table is missing, for example because of VACUUM"
            raise RecordsMissingError(
                summary,
                table=self.path,
                version=missing_files[0].version,
                file=missing_files[0].key,
                files=len(missing_files),
            )

    def load(self, spark: SparkSession, pins: Sequence[Pin]) -> Loaded:
        """Raises ``DataError`` if the versions need Spark's Delta package, and Spark does not have it."""
        return self._load(spark, pins, in_order=False)

    def load_in_order(self, spark: SparkSession, pins: Sequence[Pin]) -> Loaded:
        """Return the rows of :meth:`load`, distributed by version. In a version, rows with former values precede those with new values."""
        return self._load(spark, pins, in_order=True)

    def _load(self, spark: SparkSession, pins: Sequence[Pin], *, in_order: bool) -> Loaded:
        from airflow_provider_streamsem.connectors.delta.records import DeltaRecords, without_rows

        reads_changes = self.changes == "read"
        if not pins:
            cached = open_existing(self.path)
            columns = self.columns(cached)
            cached.keep()
            return without_rows(spark, columns.schema, reads_changes=reads_changes)
        table, planned = split(pins)
        deleted = {}
        if table.reader == "parquet" and any(pin.deleted for pin in planned):
            deleted = files.deleted_rows(open_at_version(self.path, planned[0].version), self.path)
            for pin in planned:
                if len(deleted.get(pin.key, ())) != pin.deleted:
                    summary = "a deletion vector of the Delta table was changed after it was planned"
                    raise DataError(summary, table=self.path, version=pin.version, file=pin.key)
        return DeltaRecords(
            spark, self.path, table, planned, reads_changes=reads_changes, deleted=deleted, in_order=in_order
        )
