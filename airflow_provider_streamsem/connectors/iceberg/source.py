"""
The Iceberg source: reads the rows that are appended to a branch of an Iceberg table, snapshot by snapshot (extra ``iceberg``).

The source has two partitions, and their names contain the UUID of the table. The offset of ``snapshots@<uuid>`` is a sequence number: the snapshots of the
branch below it were read. The offset of ``initial@<uuid>`` is minus the number of files of the initial snapshot that are left to read. The initial snapshot is
the one before the first snapshot to read, and no later snapshot is planned before its last file.

The planner reads the table's metadata and names the files in the plan. Spark's own Parquet reader reads them, so Spark needs no Iceberg package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.iceberg import catalog as iceberg_catalog
from airflow_provider_streamsem.connectors.iceberg import history
from airflow_provider_streamsem.connectors.iceberg.history import MAIN, BranchHistory
from airflow_provider_streamsem.connectors.iceberg.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.iceberg.planner import INITIAL, SNAPSHOTS, IcebergPlanner
from airflow_provider_streamsem.connectors.source import Loaded
from airflow_provider_streamsem.connectors.table_files.source import TableSource
from airflow_provider_streamsem.errors import InvalidError, SourceChangedError, StreamsemError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.stores.contract import normalised

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

CHANGES = ("refuse", "skip")
_TAG = "tag:"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSource(TableSource):
    """
    Reads the rows that are appended to a branch of an Iceberg table, in any catalog that pyiceberg supports.

    A batch reads whole snapshots, or files of the initial snapshot. The columns of a batch are those of the table at its snapshots, so a batch ends before a
    snapshot with other columns. Columns are found by field id.

    :param path: a location that contains every file of the table, such as the table's location: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param table: ``namespace.table``; a namespace may have several levels
    :param catalog: the catalog's name in pyiceberg
    :param properties: properties of the catalog in pyiceberg's form (``type``, ``uri``, ``warehouse`` …), without secrets
    :param conn_id: an Airflow connection with more properties in its extra, including secrets, as for ``IcebergSink``
    :param branch: the branch to read
    :param starting: where a new pipeline starts. ``earliest``: the table as it is at the branch's newest snapshot, then the snapshots after it. ``latest``:
        the snapshots after the newest one. An integer: the snapshots after the one with this id. ``tag:NAME``: the snapshots after the tagged one. A timestamp
        with a time zone: the first snapshot that was committed then or later; as ``earliest``, if the branch has no snapshot that is older
    :param changes: what to do with a snapshot that overwrites or deletes rows. ``refuse``: the run fails. ``skip``: the snapshot is ignored as a whole, with
        rows that it added
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "iceberg"
    unit: ClassVar[str] = "snapshots"
    order: ClassVar[str] = (
        "records of the source are ordered by snapshot. Records of one snapshot have no order, also of the initial one. If the limits divide the initial "
        "snapshot into several batches, the rows of a later batch replace those of an earlier one, whichever are older"
    )
    start_names: ClassVar[str] = f"earliest|latest|{_TAG}.*"
    table_pin: ClassVar[Any] = TablePin
    file_pin: ClassVar[Any] = FilePin
    pins_error: ClassVar[str] = "the pins of a plan are not those of an Iceberg table; nothing was read"
    missing_file_error: ClassVar[str] = (
        "a planned file of the Iceberg table is missing, for example because its snapshot was expired"
    )
    path: str
    table: str
    catalog: str = "default"
    properties: Mapping[str, str] = field(default_factory=dict)
    conn_id: str | None = None
    branch: str = MAIN
    starting: str | int = "earliest"
    changes: str = "refuse"

    def __post_init__(self) -> None:
        where = "source iceberg:"
        arguments.text(f"{where} path", self.path, pattern=r"(?=.*\S)[^#?]*", accepted="a location without # and ?")
        normalised(self.path)
        arguments.text(f"{where} table", self.table, pattern=r"[^.\s]+(\.[^.\s]+)+", accepted="namespace.table")
        arguments.text(f"{where} catalog", self.catalog)
        object.__setattr__(self, "properties", arguments.options(f"{where} properties", self.properties))
        iceberg_catalog.check_properties(where, self.properties)
        if self.conn_id is not None:
            arguments.text(f"{where} conn_id", self.conn_id)
        arguments.text(f"{where} branch", self.branch)
        arguments.choice(f"{where} changes", self.changes, CHANGES)
        self._check_starting(where, "tag:NAME", "the id of a snapshot")

    @property
    def name(self) -> str:
        return self.table

    @property
    def reasons(self) -> tuple[str, ...]:
        changing = (
            "fails the run" if self.changes == "refuse" else "is ignored, with rows that it added"
        )  # fmt: skip
        return (
            "the plan names each file with its size and the columns of the table, and a file of an Iceberg table never changes",
            f"a snapshot that overwrites or deletes rows {changing}",
            "expired snapshots and missing files fail the run, or are recorded as gaps; a recreated table and a branch that was rolled back fail it",
        )

    def to_json(self) -> Json:
        """Return the arguments in the form of the TOML file."""
        return {**asdict(self), "properties": dict(self.properties)}

    def immutable_config(self) -> Json:
        """Return the catalog's name, the table, the location of its files and the branch. The table's UUID is not included, because the offsets contain it."""
        identity = {"catalog": self.catalog, "table": self.table, "branch": self.branch}
        return {"type": "iceberg", "path": normalised(self.path), **identity}

    @contextmanager
    def opened(self) -> Iterator[Table]:
        """
        Load the table for the duration of the block. Errors of the block name the table.

        :raises SourceChangedError: there is no table, or it cannot be read. Nothing was written
        :raises UnavailableError: the catalog or the table cannot be opened now
        """
        with iceberg_catalog.opened(self.catalog, self.properties, self.conn_id, self.path) as catalog:
            table = iceberg_catalog.table(catalog, self.table, refusal=SourceChangedError)
            if table is None:
                summary = "there is no Iceberg table of this name; nothing was written"
                raise SourceChangedError(summary, table=self.table, catalog=self.catalog).advising(
                    "create or restore the table, or correct the source's table and catalog; then run again."
                )
            try:
                history.check_table(table)
                yield table
            except StreamsemError as error:
                error.fields = {"table": self.table, **error.fields}
                raise

    def initial_offsets(self) -> Offsets:
        if type(self.starting) is not int and not self._has_name_as_start():
            return self.offsets_for_time(arguments.time_ms("starting", self.starting))
        with self.opened() as table:
            lineage = history.lineage(table, self.branch)
            if self.starting == "earliest":
                return self._at_newest(table, lineage)
            history.schema_of(table, lineage.snapshots.get(lineage.end - 1))
            start = lineage.end if self.starting == "latest" else self._after(table, lineage)
            return {f"{SNAPSHOTS}{table.metadata.table_uuid}": start}

    def _after(self, table: Table, lineage: BranchHistory) -> int:
        """One past the sequence number of the snapshot that ``starting`` names."""
        snapshot_id = self.starting
        if isinstance(snapshot_id, str):
            ref = table.metadata.refs.get(snapshot_id.removeprefix(_TAG))
            snapshot_id = -1 if ref is None else ref.snapshot_id
        for number, snapshot in lineage.snapshots.items():
            if snapshot.snapshot_id == snapshot_id:
                return number + 1
        summary = "source iceberg: starting names a snapshot that the branch does not have, or that has expired"
        raise InvalidError(summary, table=self.table, branch=self.branch, given=self.starting)

    def offsets_for_time(self, at_ms: int) -> Offsets:
        """If the branch has no older snapshot, return the offsets of the table at the newest snapshot."""
        with self.opened() as table:
            lineage = history.lineage(table, self.branch)
            before: int | None = None
            for number, snapshot in lineage.snapshots.items():
                if snapshot.timestamp_ms >= at_ms:
                    break
                before = number
            if lineage.snapshots and before is None:
                return self._at_newest(table, lineage)
            history.schema_of(table, lineage.snapshots.get(lineage.end - 1))
            return {f"{SNAPSHOTS}{table.metadata.table_uuid}": 0 if before is None else before + 1}

    def _at_newest(self, table: Table, lineage: BranchHistory) -> Offsets:
        """Return the offsets before the first file of the table at the newest snapshot."""
        uuid, newest = table.metadata.table_uuid, lineage.snapshots.get(lineage.end - 1)
        history.schema_of(table, newest)
        number = 0 if newest is None else len(history.at_snapshot(table, newest, self.path))
        return {f"{SNAPSHOTS}{uuid}": lineage.end, **({f"{INITIAL}{uuid}": -number} if number else {})}

    def open(self, log: CommitLog, hint: Json) -> IcebergPlanner:
        return IcebergPlanner(self.opened, self.path, self.table, self.branch, self.changes)

    def check_table(self, planned: TablePin) -> None:
        with self.opened() as table:
            uuid = str(table.metadata.table_uuid)
        if uuid != planned.uuid:
            summary = "the Iceberg table was recreated after its snapshots were planned"
            raise SourceChangedError(summary, table=self.table, planned_uuid=planned.uuid, found_uuid=uuid)

    def _load(self, spark: SparkSession, pins: Sequence[Any], *, in_order: bool) -> Loaded:
        """Reads the footers of the files. Raises ``DataError`` if a file lacks field ids or partition columns that reading it requires."""
        from airflow_provider_streamsem.connectors.iceberg.records import IcebergRecords, without_rows

        if pins:
            planned, *files = pins
            return IcebergRecords(spark, self.path, planned, files, in_order=in_order)
        with self.opened() as table:
            return without_rows(spark, history.schema_of(table, None))
