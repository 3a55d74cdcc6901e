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
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.delta import files
from airflow_provider_streamsem.connectors.delta.columns import Columns, columns_of
from airflow_provider_streamsem.connectors.delta.history import History
from airflow_provider_streamsem.connectors.delta.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.delta.planner import SNAPSHOT, VERSIONS, DeltaPlanner
from airflow_provider_streamsem.connectors.delta.table import CachedTable, checked_path, open_at_version, opened
from airflow_provider_streamsem.connectors.source import Loaded
from airflow_provider_streamsem.connectors.table_files.source import TableSource
from airflow_provider_streamsem.errors import DataError, InvalidError, SourceChangedError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.stores.contract import normalised

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = ("refuse", "skip", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSource(TableSource):
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

    extra: ClassVar[str] = "delta"
    unit: ClassVar[str] = "versions"
    order: ClassVar[str] = (
        "records of the source are ordered by version. Records of one version, or of the snapshot that a new pipeline reads first, have no order. If the "
        "limits divide this snapshot into several batches, the rows of a later batch replace those of an earlier one, whichever are older"
    )
    table_pin: ClassVar[Any] = TablePin
    file_pin: ClassVar[Any] = FilePin
    pins_error: ClassVar[str] = "the pins of a plan are not those of a Delta table; nothing was read"
    missing_file_error: ClassVar[str] = "a planned file of the Delta table is missing, for example because of VACUUM"
    path: str
    starting: str | int = "earliest"
    changes: str = "refuse"

    def __post_init__(self) -> None:
        where = "source delta:"
        checked_path(f"{where} path", self.path)
        normalised(self.path)
        arguments.choice(f"{where} changes", self.changes, CHANGES)
        self._check_starting(where, 42)

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

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return asdict(self)

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
        if type(self.starting) is not int and not self._has_name_as_start():
            return self.offsets_for_time(arguments.time_ms("starting", self.starting))
        with opened(self.path) as cached:
            self.columns(cached)
            if type(self.starting) is int and self.starting > cached.end:
                summary = "source delta: starting is a version that the table does not have"
                raise InvalidError(summary, table=self.path, given=self.starting, newest=cached.end - 1)
            start = self.starting if type(self.starting) is int else cached.end
            snapshot = self._at_snapshot(cached) if self.starting == "earliest" else {}
            return {f"{VERSIONS}{cached.id}": int(start), **snapshot}

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """If the table's log does not go back that far, return the offsets of a snapshot of the table."""
        with opened(self.path) as cached:
            self.columns(cached)
            properties = cached.table.metadata().configuration
            in_commit = properties.get("delta.enableInCommitTimestamps", "").lower() == "true"
            start, is_oldest = History(self.path).first_at(at_ms, in_commit=in_commit)
            # A snapshot lacks the changes of the first versions, so a change data feed is read from version 0.
            reads_from_0 = start == 0 and self.changes == "read"
            if is_oldest and not reads_from_0:
                return {f"{VERSIONS}{cached.id}": cached.end, **self._at_snapshot(cached)}
            return {f"{VERSIONS}{cached.id}": start}

    def _at_snapshot(self, cached: CachedTable) -> dict[str, int]:
        """Return the offset before the first file of a snapshot of the table, by partition; empty if the table has no files."""
        number = len(cached.table.file_uris())
        return {f"{SNAPSHOT}{cached.id}": -number} if number else {}

    def open(self, log: CommitLog, hint: Json) -> DeltaPlanner:
        return DeltaPlanner(self.path, self.changes)

    def check_table(self, planned: TablePin) -> None:
        with opened(self.path) as cached:
            if cached.id != planned.table_id or cached.end < planned.end:
                summary = (
                    "the Delta table was recreated, or restored from an older copy, after its versions were planned"
                )
                facts = {
                    "planned_id": planned.table_id,
                    "found_id": cached.id,
                    "planned_versions": (planned.start, planned.end),
                }
                raise SourceChangedError(summary, table=self.path, **facts, newest=cached.end - 1)

    def _load(self, spark: SparkSession, pins: Sequence[Any], *, in_order: bool) -> Loaded:
        """Raises ``DataError`` if the versions need Spark's Delta package, and Spark does not have it."""
        from airflow_provider_streamsem.connectors.delta.records import DeltaRecords, without_rows

        reads_changes = self.changes == "read"
        if not pins:
            with opened(self.path) as cached:
                columns = self.columns(cached)
            return without_rows(spark, columns.schema, reads_changes=reads_changes)
        table, *planned = pins
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
