"""
An Iceberg table that is made of the very files that Spark staged: publishing writes one snapshot of the table, and no data (extra ``iceberg``). Rows that
are merged by key are the exception (:mod:`airflow_provider_streamsem.sinks.iceberg_merge`).

The marker is a property of the table, which stays when snapshots expire, and of the snapshot that holds the files. Both are set in one commit, which the
catalog takes only while the table's branch ``main`` is where it was read: of two publishers one wins. What a failed commit says is never believed: the table
is loaded anew and asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    MarkerLostError,
    PublishError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol.entries import Committable, Json, Receipt
from airflow_provider_streamsem.sinks import (
    column_types,
    iceberg_catalog,
    iceberg_columns,
    iceberg_files,
    iceberg_merge,
    keyed_rows,
)
from airflow_provider_streamsem.sinks.contract import Batch, EffectLedger, SinkMarker
from airflow_provider_streamsem.sinks.iceberg_catalog import is_transient
from airflow_provider_streamsem.sinks.table import TableSink, attempts_named
from airflow_provider_streamsem.stores.contract import normalised, split_url

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction

_TRIES = 12
_LONGEST_WAIT_S = 2.0
_ROLLED_BACK = (
    "the Iceberg table was rolled back to a snapshot from before the newest version of this pipeline was published"
)
_NEW_TABLE = {
    "commit.manifest-merge.enabled": "true",  # or each version would leave a manifest for readers to open
    "write.metadata.delete-after-commit.enabled": "true",  # the newest hundred are kept
}


@dataclass(frozen=True, slots=True)
class IcebergSink(TableSink):
    """
    Rows of an Iceberg table, in any catalog that pyiceberg knows. Any reader of Iceberg reads it; others may append to it, compact it and delete from it.

    The table is made with the first batch that has rows, or one that is there is taken if its columns and partitions fit. Columns that the transform adds are
    added to the table, and types widen where Iceberg promotes them. A redo replaces the files of the version that it redoes.

    :param path: where files are staged, below ``data/``, and stay: an absolute path, ``file:///path`` or ``s3://bucket/prefix``. A new table gets this location
    :param table: ``namespace.table``; a namespace may have several parts
    :param catalog: pyiceberg's name of the catalog
    :param properties: properties of the catalog as pyiceberg has them (``type``, ``uri``, ``warehouse`` …); none that holds a secret
    :param conn_id: an Airflow connection with more properties in its extra, secrets among them; its host is the ``uri``, login and password the
        ``credential`` of a REST catalog
    :param partition_by: the table's partition columns, each by its identity
    :param mode: ``append``: rows are added. ``upsert``: a row takes the place of that of its key; of one batch the last one in the order of the staged files
        stays. The publisher reads the batch, and each file of the table that it changes, into memory; the rows must have every column of the table; redoes
        are refused
    :param keys: of ``upsert``: the one column that tells rows apart; it may not be null
    :param expire_after_s: snapshots that this sink made are expired, in the commit that publishes, when they are older than this many seconds; absent: kept.
        Publishing takes longer with each snapshot of the table that is kept
    """

    extra: ClassVar[str] = "iceberg"
    once: ClassVar[str] = (
        "each version is one commit of the table, which holds {holds} and the pipeline's marker, and is taken only while the table is as it was read"
    )
    path: str
    table: str
    catalog: str = "default"
    properties: Mapping[str, str] = field(default_factory=dict)
    conn_id: str | None = None
    partition_by: Sequence[str] = ()
    expire_after_s: int | None = None
    mode: str = "append"
    keys: Sequence[str] = ()

    def __post_init__(self) -> None:
        where = "sink iceberg:"
        arguments.text(f"{where} path", self.path, pattern=r"[^#?]*", accepted="a place without # and ?")
        arguments.text(f"{where} table", self.table, pattern=r"[^.\s]+(\.[^.\s]+)+", accepted="namespace.table")
        arguments.text(f"{where} catalog", self.catalog)
        object.__setattr__(self, "properties", arguments.options(f"{where} properties", self.properties))
        iceberg_catalog.check_properties(where, self.properties)
        if self.conn_id is not None:
            arguments.text(f"{where} conn_id", self.conn_id)
        if self.expire_after_s is not None:
            arguments.whole(f"{where} expire_after_s", self.expire_after_s, least=1)
        self.take_arguments(where)
        if len(self.keys) > 1 or any("." in key for key in self.keys):
            what = "an Iceberg table is merged by one key, which has no dot in its name"
            raise InvalidError(what, given=list(self.keys))

    def guarded(self) -> Json:
        """The table, where its files lie, its partition columns, and that rows are merged. Properties of the catalog may change: it is known by its name."""
        return {
            "type": "iceberg",
            "path": normalised(self.path),
            "catalog": self.catalog,
            "table": self.table,
            "partition_by": list(self.partition_by),
            **self.guarded_mode,
        }

    def accept(self, schema: str) -> str:
        """The columns must be of types that Iceberg has, and fit the table where it is there already; then they are staged as the table's types."""
        with self._opened() as catalog:
            table = self._read(catalog, refusal=DataError)
            if table is not None:
                schema = self._fitted(table, schema)
            named, _ = column_types.typed(schema)
            columns = iceberg_columns.iceberg_schema(named, self.partition_by)
            keyed_rows.check_keys(json.loads(named)["fields"], self.keys)
            if table is not None:
                self._check_merge(table, columns)
            return schema

    def attempts_in_use(self) -> set[tuple[int, str]]:
        """Those of the data files that the current snapshot names, or that of a branch or tag."""
        with self._opened() as catalog:
            table = self._read(catalog, refusal=UnavailableError)
            return set() if table is None else attempts_named(iceberg_files.data_files(table))

    def check_redo(self, replaced: Committable | None) -> None:
        """The table must still have the files that the redo replaces."""
        if replaced is None or not replaced.files:
            return
        with self._opened() as catalog:
            table = self._read(catalog, refusal=InvalidError)
            changed = [] if table is None else self._changed(table, replaced)[0]
        if changed:
            what = "others rewrote or deleted files of this version in the Iceberg table, so it cannot be reprocessed; nothing was written"
            raise InvalidError(what, table=self.table, files=changed)

    def stats(self, parquet: Any) -> str:
        """A file's metrics, by column path; pyiceberg makes those of files that it writes."""
        if self.merges:
            keyed_rows.check_times(parquet)
            return ""
        return iceberg_files.metrics(parquet, partition_by=self.partition_by)

    def publish(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """One commit with the files, the marker, and the removal of what a redo replaces."""
        return self._until_marked(batch, skipped=False)

    def skip(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """One commit of an empty snapshot with the marker."""
        return self._until_marked(batch, skipped=True)

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """What the table's property says. A rollback leaves it as it was, and takes out the rows: that is an error."""
        with self._opened() as catalog:
            table = self._read(catalog, refusal=UnavailableError)
            key = _key(pipeline_uuid, sink)
            found = None if table is None else _marker(table, key)
            if table is not None and found is not None and _is_rolled_back(table, key):
                raise MarkerLostError(_ROLLED_BACK, table=self.table, sink=sink, marker=found.version)
            return found

    def _until_marked(self, batch: Batch, *, skipped: bool) -> Receipt | None:
        """Look what the table says, and commit, until it says that the version is marked. An answer that the commit landed is believed, no other."""
        if batch.is_nothing:
            return Receipt(result="applied", rows=0)
        key = _key(batch.pipeline_uuid, batch.sink)
        cause: Exception | None = None
        refused_at: str | None = None
        with self._opened() as catalog:
            for attempt in range(_TRIES):
                reached = ""
                if attempt:
                    SYSTEM_CLOCK.sleep(min(0.02 * 2**attempt, _LONGEST_WAIT_S))
                try:
                    table = self._read(catalog, refusal=PublishError)
                    found = None if table is None else _marker(table, key)
                    if found is not None and found.version > batch.version:
                        return None
                    if not skipped:
                        self._check_marker(batch, table, key, found)
                    if table is not None and found is not None and batch.is_settled(found):
                        return _receipt(batch, table, key, found)
                    reached = "" if table is None else table.metadata_location
                    if refused_at == reached:
                        what = "the Iceberg table refuses the batch; nothing of it is in the table"
                        facts = {"table": self.table, "version": batch.version, "problem": type(cause).__name__}
                        raise PublishError(what, **facts) from cause
                    table = table or self._created(catalog, batch)
                    self._commit(table, batch, key, "skipped" if skipped else "applied")
                    found = _marker(table, key)
                    if found is not None and batch.is_settled(found):
                        return _receipt(batch, table, key, found)
                except (PublishError, InvalidError):
                    raise
                except Exception as error:  # whatever it says, it may have landed
                    cause = error
                    # Another writer's commit explains a failure, and so do the catalog and the store. What fails on the table as it was read fails again.
                    refused_at = None if is_transient(error) else reached
        raise UnavailableError(
            "the Iceberg table gave no clear answer; whether the batch is in it is unknown",
            table=self.table,
            version=batch.version,
            tries=_TRIES,
        ) from cause

    def _check_marker(self, batch: Batch, table: Table | None, key: str, found: SinkMarker | None) -> None:
        what = "has no marker of this pipeline: it was deleted and created again, or replaced"
        what = "is missing: it was deleted or renamed" if table is None else what
        truth = f"the Iceberg table, which has rows of this pipeline by its receipts, {what}"
        if not batch.is_settled(found):
            batch.check_marker(found, truth, table=self.table, catalog=self.catalog)
        if table is not None and found is not None and _is_rolled_back(table, key):
            raise batch.lost(_ROLLED_BACK, marker=found.version, table=self.table, catalog=self.catalog)

    def _commit(self, table: Table, batch: Batch, key: str, word: str) -> None:
        """One commit, tried once. Its requirement that ``main`` has not moved comes with the snapshot, so there always is one."""
        from airflow_provider_streamsem.sinks.iceberg_commit import OneCommit

        mark = {key: f"{batch.version} {word} {batch.outcome}"}
        files: list[IcebergFile] = []
        gone: list[IcebergFile] = []
        commit = OneCommit(table)
        if word == "applied":
            self._fit(commit, table, batch)
            self.check_staged(batch)
        if word == "applied" and not self.merges:
            metadata = commit.table_metadata
            files = [
                iceberg_files.iceberg_file(metadata, file, self._uri(file.key)) for file in batch.committable.files
            ]
            gone = self._standing(table, batch)
        if self.expire_after_s is not None:
            commit.expire(older_than_ms=SYSTEM_CLOCK.now_ms() - self.expire_after_s * 1000, marked=key)
        commit.set_properties(mark)
        if word == "applied" and self.merges and batch.committable.rows:
            iceberg_merge.merge(commit, self.place, batch, self.keys[0], mark)
        else:
            commit.add_snapshot(files, gone, mark)
        commit.commit_transaction()

    def _fit(self, commit: Transaction, table: Table, batch: Batch) -> None:
        """Check the table again, add the columns that it lacks, and have it map names to columns: the files have no ids."""
        try:
            wanted = self._fitted(table, batch.schema)
            iceberg_columns.check_staged_types(table.metadata, batch.schema)
            columns = iceberg_columns.iceberg_schema(wanted, self.partition_by)
            self._check_merge(table, columns)
        except (ConflictError, DataError) as error:
            raise PublishError(
                "the Iceberg table was changed after the batch was staged and does not take its rows; nothing of the batch is in it",
                table=self.table,
                version=batch.version,
                problem=error.truth,
                **{name: value for name, value in error.fields.items() if name not in ("table", "version")},
            ) from error
        with commit.update_schema() as update:  # of a table that has all columns this changes nothing
            update.union_by_name(columns)
        if table.name_mapping() is None:
            mapping = commit.table_metadata.schema().name_mapping
            commit.set_properties({"schema.name-mapping.default": mapping.model_dump_json()})
        if not self.merges and batch.schema:
            noted = iceberg_columns.noted_names(commit.table_metadata, batch.schema)
            if noted != table.properties.get(iceberg_columns.COLUMNS):
                commit.set_properties({iceberg_columns.COLUMNS: noted})

    def _standing(self, table: Table, batch: Batch) -> list[IcebergFile]:
        """The files that a redo takes out of the table: they must be there as they were put there, or rows would stay."""
        replaced = Committable(format="parquet", rows=0, files=()) if batch.replaced is None else batch.replaced
        if not replaced.files:
            return []
        changed, standing = self._changed(table, replaced)
        if changed:
            raise PublishError(
                "files that a redo replaces were rewritten or deleted in the Iceberg table by others; the redo would double their rows",
                table=self.table,
                version=batch.version,
                files=changed,
            )
        return standing

    def _changed(self, table: Table, replaced: Committable) -> tuple[list[str], list[IcebergFile]]:
        """The files that are not in the table as they were put there, and those that are."""
        uris = [self._uri(file.key) for file in replaced.files]
        there = {task.file.file_path: task for task in table.scan().plan_files()}
        changed = [uri for uri in uris if uri not in there or there[uri].delete_files]
        return changed, [there[uri].file for uri in uris if uri not in changed]

    def _created(self, catalog: Catalog, batch: Batch) -> Table:
        """The new table, empty. Where another process made one meanwhile this is an error like any other."""
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        columns = self._columns(batch)
        parts = [
            PartitionField(columns.find_field(name).field_id, 1000 + at, IdentityTransform(), name)
            for at, name in enumerate(self.partition_by)
        ]
        catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
        return catalog.create_table(
            self.table, columns, location=self._uri(""), partition_spec=PartitionSpec(*parts), properties=_NEW_TABLE
        )

    def _columns(self, batch: Batch) -> Schema:
        return iceberg_columns.iceberg_schema(batch.schema, self.partition_by)

    def _loaded(self, catalog: Catalog) -> Table | None:
        """The table as it is now, or ``None`` where there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return catalog.load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _read(self, catalog: Catalog, *, refusal: type[StreamsemError]) -> Table | None:
        """
        The table as it is now.

        :param refusal: what is raised where pyiceberg cannot read such a table, now or later
        :raises UnavailableError: it cannot be loaded now
        """
        try:
            return self._loaded(catalog)
        except InvalidError:
            raise
        except Exception as error:
            raise _kind(error, refusal)(
                "the Iceberg table cannot be loaded", table=self.table, problem=type(error).__name__
            ) from error

    def _fitted(self, table: Table, schema: str) -> str:
        """The columns as the table has them, after what this sink does not satisfy was refused."""
        self._check_partitions(table)
        asked = iceberg_columns.unwritable(table.metadata, expires=self.expire_after_s is not None)
        if asked:
            what = "the Iceberg table requires more of its writers than this sink does; nothing became visible"
            raise DataError(what, table=self.table, requires=asked)
        if not self.merges:
            iceberg_columns.check_names(table.metadata)
        return iceberg_columns.fitted(table.metadata, schema, self.partition_by, lacks=not self.merges)

    def _check_partitions(self, table: Table) -> None:
        schema = table.schema()
        found = [(str(schema.find_column_name(part.source_id)), str(part.transform)) for part in table.spec().fields]
        if found != [(name, "identity") for name in self.partition_by]:
            raise ConflictError(
                "the Iceberg table has other partitions than the sink",
                table=self.table,
                partition_by=list(self.partition_by),
                found=[f"{transform}({name})" for name, transform in found],
            )

    def _check_merge(self, table: Table, columns: Schema) -> None:
        """A merged row takes the place of a whole one: what it lacks would be lost. And pyiceberg must be able to write what the table asks for."""
        if self.merges:
            iceberg_merge.check_writable(table)
        given = {field.name for field in columns.fields}
        lacking = [field.name for field in table.schema().fields if field.name not in given]
        if self.merges and given and lacking:
            raise DataError(
                "the rows lack columns of the Iceberg table, whose values a merge would lose; nothing became visible",
                table=self.table,
                missing=lacking,
            )

    def _opened(self) -> AbstractContextManager[Catalog]:
        return iceberg_catalog.opened(self.catalog, self.properties, self.conn_id, self.path)

    def _uri(self, key: str) -> str:
        """One spelling for each file, for ever: tables compare them as text."""
        scheme, rest = split_url(self.path)
        return f"{scheme}://{rest}/{key}".rstrip("/")


def _key(pipeline_uuid: str, sink: str) -> str:
    return f"streamsem.{pipeline_uuid}.{sink}"


def _kind(error: BaseException, refusal: type[StreamsemError]) -> type[StreamsemError]:
    return UnavailableError if is_transient(error) else refusal


def _marker(table: Table, key: str) -> SinkMarker | None:
    """What the table's property says: ``<version> <state> <sha256 of the outcome>``."""
    if key not in table.properties:
        return None
    version, state, outcome = f"{table.properties[key]} ".split(" ")[:3]
    return SinkMarker(int(version), state, outcome)


def _is_rolled_back(table: Table, key: str) -> bool:
    """Whether the snapshot of the marker is kept, and the table's branch ``main`` does not lead to it: somebody rolled the table back."""
    mark = table.properties[key]
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    marked = [
        snapshot
        for snapshot in snapshots.values()
        if snapshot.summary is not None and snapshot.summary.additional_properties.get(key) == mark
    ]
    if not marked:
        return False  # it has expired
    newest, at = marked[-1], table.current_snapshot()
    while at is not None:
        if at.snapshot_id == newest.snapshot_id:
            return False
        parent = at.parent_snapshot_id
        if parent is not None and parent not in snapshots:
            # An expired snapshot hides the way; numbers grow along it.
            return (at.sequence_number or 0) < (newest.sequence_number or 0)
        at = None if parent is None else snapshots[parent]
    return True


def _receipt(batch: Batch, table: Table, key: str, found: SinkMarker) -> Receipt:
    mark = table.properties[key]
    made = [
        snapshot.snapshot_id
        for snapshot in table.snapshots()
        if snapshot.summary is not None and snapshot.summary.additional_properties.get(key) == mark
    ]
    detail: Json = {"snapshot": str(made[-1])} if made else None  # it may have been expired
    if found.state == "skipped":
        return Receipt(result="skipped", rows=0, detail=detail)
    return Receipt(result="applied", rows=batch.committable.rows, detail=detail)
