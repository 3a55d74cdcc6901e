"""
The Iceberg sink: writes rows to an Iceberg table (extra ``iceberg``). The files that Spark staged become the data files of the table.

Publishing commits one snapshot of the table. It writes no data, unless it merges rows by key
(:mod:`airflow_provider_streamsem.connectors.iceberg.merge`).

The marker is stored as a property of the table, which remains when snapshots expire, and as a property of the snapshot with the files. One commit sets
both. The catalog accepts the commit only if the table's branch ``main`` has not moved since it was read. So if two publishers commit, one of them fails.
After a failed commit, the sink does not interpret the error. It loads the table again and reads the marker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.changes import Changes
from airflow_provider_streamsem.connectors.columns import types as column_types
from airflow_provider_streamsem.connectors.contract import Contract
from airflow_provider_streamsem.connectors.iceberg import catalog as iceberg_catalog
from airflow_provider_streamsem.connectors.iceberg import columns as iceberg_columns
from airflow_provider_streamsem.connectors.iceberg import files as iceberg_files
from airflow_provider_streamsem.connectors.iceberg import partitions
from airflow_provider_streamsem.connectors.iceberg.catalog import is_transient
from airflow_provider_streamsem.connectors.iceberg.partitions import Partition, of_table, spec_of
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import SinkCommit, SinkMarker, TableErasure, TableRewrite
from airflow_provider_streamsem.connectors.staged_parquet import keyed_rows
from airflow_provider_streamsem.connectors.staged_parquet.table_sink import (
    RESTORE_TABLE,
    TableSink,
    attempts_named,
)
from airflow_provider_streamsem.connectors.staged_parquet.transactions import Failure
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    MarkerLostError,
    PublishError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.expectations import Expect
from airflow_provider_streamsem.protocol.entries import DataFile, Json
from airflow_provider_streamsem.stores.contract import normalised, split_url

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_streamsem.connectors.iceberg.commit import OneCommit

_ROLLED_BACK = (
    "the Iceberg table was rolled back to a snapshot from before the newest version of this pipeline was published"
)
_EQUALITY_DELETES = "the Iceberg table has equality deletes, as Flink writes them, and pyiceberg cannot plan its files"
_DO_COMPACT = "compact the table, for example with Spark's procedure rewrite_data_files and delete-file-threshold 1; then run again."
_DO_REWRITE = "compact the table with another engine, for example with Spark's procedure rewrite_data_files."
_DO_DELETE = "delete the rows with DELETE of another engine, such as Spark."
_NEW_TABLE = {
    "write.parquet.compression-codec": "zstd",  # as catalogs of Iceberg's library set it; without it, Spark writes gzip, which takes 1.7 times as long
    "commit.manifest-merge.enabled": "true",  # otherwise each version adds a manifest that readers must open
    "write.metadata.delete-after-commit.enabled": "true",  # keeps the newest hundred metadata files
}


@dataclass(slots=True)
class _Handle:
    """``table`` is ``None`` if there is none."""

    catalog: Catalog
    table: Table | None


@dataclass(frozen=True, slots=True)
class IcebergSink(TableSink[_Handle]):
    """
    Appends or merges rows into an Iceberg table, in any catalog that pyiceberg supports. Any Iceberg reader can read the table. Other writers may append
    to it, compact it and delete from it.

    The first batch with rows creates the table. An existing table is used if its columns and partitions fit. If the transform adds a column, the sink
    adds it to the table. If a column gets a wider type to which Iceberg promotes the old type, the table's type changes. A reprocessing run replaces the
    files of the version that it reprocesses.

    :param path: location of the staged files, which are below its ``data/``: an absolute path, ``file:///path`` or ``s3://bucket/prefix``. In mode
        ``append`` these files become files of the table. A new table gets this location
    :param table: ``namespace.table``; a namespace may have several levels
    :param catalog: the catalog's name in pyiceberg
    :param properties: properties of the catalog in pyiceberg's form (``type``, ``uri``, ``warehouse`` …), without secrets
    :param conn_id: an Airflow connection with more properties in its extra, including secrets. Its host is the ``uri``; login and password are the
        ``credential`` of a REST catalog
    :param partition_by: the table's partition fields: columns, or with ``engine="spark"`` also transforms of columns: ``year(c)``, ``month(c)``, ``day(c)``,
        ``hour(c)``, ``bucket(n, c)``, ``truncate(n, c)``
    :param mode: ``append`` adds rows. ``upsert`` replaces the row with the same key; of several rows of a batch with the same key, the last is
        used. For ``upsert`` the publisher reads the batch, and each file of the table that it changes, into memory. The rows must have every
        column of the table, and reprocessing is refused
    :param keys: for ``upsert``: the columns that identify a row. Their values must not be null
    :param sequence_by: for ``upsert``: columns that order the rows of a batch with equal keys, ascending; a null comes first. The last row is kept. Default:
        the order of the source. A batch is refused if that order is lost and rows with equal keys differ
    :param engine: for ``upsert``: ``spark`` merges with Spark's MERGE, in the session of the run and on its executors. The rows may lack columns of the table,
        and the table may have any partitions. ``library`` merges in the process of the publisher, without Iceberg's Spark package. ``auto`` uses Spark for a
        batch of more than 1,000,000 rows, if the session has the package, else the library. For ``append``: ``spark`` writes the rows with Spark into a table
        with any features that Spark supports, and reprocessing is refused
    :param changes: applies change data: each row upserts or deletes the row with the same keys, or truncates the table. Sets ``mode``, ``keys`` and
        ``sequence_by``
    :param contract: which changes of the table's columns a batch may make: a mode, or :class:`Contract`. Default: ``evolve``
    :param expect: name of a rule → :class:`Expect`, for the rows that the transform returns
    :param expire_after_s: age in seconds, 1 or more, at which the publishing commit expires snapshots of this sink. Default: the sink expires none.
        Publishing takes longer with each snapshot that the table keeps
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "iceberg"
    table_format: ClassVar[str] = "Iceberg"
    once: ClassVar[str] = (
        "each version is one commit of the table, which contains {holds} and the pipeline's marker; the catalog refuses the commit if the branch main has moved"
    )
    spark_package: ClassVar[str] = "iceberg"
    path: str
    table: str
    catalog: str = "default"
    properties: Mapping[str, str] = field(default_factory=dict)
    conn_id: str | None = None
    partition_by: Sequence[str] = ()
    expire_after_s: int | None = None
    mode: str = "append"
    keys: Sequence[str] = ()
    sequence_by: Sequence[str] = ()
    engine: str = "auto"
    changes: Changes | None = None
    contract: Contract | None = None
    expect: Mapping[str, Expect] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = "sink iceberg:"
        arguments.text(f"{where} path", self.path, pattern=r"[^#?]*", accepted="a location without # and ?")
        arguments.text(f"{where} table", self.table, pattern=r"[^.\s]+(\.[^.\s]+)+", accepted="namespace.table")
        arguments.text(f"{where} catalog", self.catalog)
        object.__setattr__(self, "properties", arguments.options(f"{where} properties", self.properties))
        iceberg_catalog.check_properties(where, self.properties)
        if self.conn_id is not None:
            arguments.text(f"{where} conn_id", self.conn_id)
        if self.expire_after_s is not None:
            arguments.integer(f"{where} expire_after_s", self.expire_after_s, least=1)
        self.validate_arguments(where)
        parsed = [Partition.parse(where, text) for text in self.partition_by]
        object.__setattr__(self, "partition_by", tuple(part.text for part in parsed))
        if self.engine != "spark" and not all(part.is_identity for part in parsed):
            summary = (
                f"{where} partition_by with transforms needs engine spark, which writes the rows into their partitions"
            )
            raise InvalidError(summary, given=[part.text for part in parsed if not part.is_identity])
        if any("." in key for key in self.keys):
            summary = "the keys of an Iceberg table must not have a dot in their names"
            raise InvalidError(summary, given=list(self.keys))

    @property
    def _partitions(self) -> list[Partition]:
        return [Partition.parse("", text) for text in self.partition_by]

    @property
    def _partition_columns(self) -> list[str]:
        return [part.column for part in self._partitions]

    @property
    def plain_partitions(self) -> Sequence[str]:
        return [part.column for part in self._partitions if part.is_identity]

    def check_table(self) -> None:
        """Refuse a table with requirements that this sink does not satisfy."""
        with self._opened() as catalog:
            table = self._read(catalog, refusal=DataError)
            if table is None:
                self.refuse_missing()
            else:
                self._check_requirements(table)

    def existing_columns(self) -> str | None:
        """Return the columns of the table."""
        with self._opened() as catalog:
            table = self._read(catalog, refusal=DataError)
        return None if table is None else json.dumps(iceberg_columns.spark_type(table.schema().as_struct()))

    def immutable_config(self) -> Json:
        """The properties of the catalog are not included and may change."""
        return {
            "type": "iceberg",
            "path": normalised(self.path),
            "catalog": self.catalog,
            "table": self.table,
            "partition_by": list(self.partition_by),
            **self.immutable_mode,
        }

    def resolve_schema(self, schema: str) -> str:
        """Also refuse a table with requirements that this sink does not satisfy."""
        with self._opened() as catalog:
            table = self._read(catalog, refusal=DataError)
            if table is None:
                self.refuse_missing()
            else:
                schema = self._fitted(table, schema)
            named, _ = column_types.typed(schema)
            columns = iceberg_columns.iceberg_schema(named, self._partitions)
            if table is None:
                partitions.check(self._partitions, columns)
            fields = json.loads(named)["fields"]
            keyed_rows.check_keys(fields, self.keys)
            if self.changes is not None:
                keyed_rows.check_sequence_types(fields, self.sequence_by)
            self.check_names(field["name"] for field in fields)
            if table is not None:
                self._check_lacking(table, columns)
                if self.engine == "spark":
                    iceberg_columns.check_required(table.metadata, [field["name"] for field in fields])
            return schema

    def attempts_in_use(self) -> set[tuple[int, str]]:
        """Return ``(version, attempt_id)`` of the attempts whose data files the current snapshot, a branch or a tag references."""
        with self._opened() as catalog:
            table = self._read(catalog, refusal=UnavailableError)
            return set() if table is None else attempts_named(iceberg_files.data_files(table))

    def check_removable(self, files: Sequence[DataFile]) -> None:
        """Check that the table still has the files."""
        if not files:
            return
        with self._opened() as catalog:
            table = self._read(catalog, refusal=InvalidError)
            if table is not None and iceberg_files.has_equality_deletes(table):
                summary = (
                    f"{_EQUALITY_DELETES}, so versions can be neither reprocessed nor rolled back; nothing was written"
                )
                raise InvalidError(summary, table=self.table).advising(_DO_COMPACT)
            changed = [] if table is None else self._changed(table, files)[0]
        if table is None:
            summary = (
                "the Iceberg table is missing, so its rows cannot be removed; nothing was reprocessed or rolled back"
            )
            raise InvalidError(summary, table=self.table).advising(RESTORE_TABLE)
        if changed:
            summary = "another writer rewrote or deleted files of this pipeline in the Iceberg table, so their rows cannot be removed; nothing was written"
            raise InvalidError(summary, table=self.table, files=changed).advising(RESTORE_TABLE)

    def compact_table(
        self, *, target_file_bytes: int, max_bytes: int, dry_run: bool, before_commit: Callable[[], None]
    ) -> list[TableRewrite]:
        """Compact the table in snapshots with the operation ``replace``."""
        with self._opened() as catalog:
            if self._read(catalog, refusal=InvalidError) is None:
                return []
            from airflow_provider_streamsem.connectors.iceberg.compact import Compaction

            compaction = Compaction(
                load=lambda: self._rewritable(catalog, "compaction", _DO_REWRITE),
                target_file_bytes=target_file_bytes,
                max_bytes=max_bytes,
                before_commit=before_commit,
            )
            return compaction.preview() if dry_run else compaction.run()

    def erase_rows(
        self, predicate: Predicate, *, dry_run: bool, before_commit: Callable[[], None]
    ) -> TableErasure | None:
        """Erase the rows in one snapshot."""
        with self._opened() as catalog:
            if self._read(catalog, refusal=InvalidError) is None:
                return None
            from airflow_provider_streamsem.connectors.iceberg.erase import erase

            load = partial(self._rewritable, catalog, "erasure", _DO_DELETE)
            return erase(load, predicate, dry_run=dry_run, before_commit=before_commit)

    def _rewritable(self, catalog: Catalog, work: str, advice: str) -> Table:
        table = self._read(catalog, refusal=InvalidError)
        if table is None:
            raise InvalidError(
                f"the Iceberg table is missing: it was deleted or renamed during the {work}", table=self.table
            ).advising(RESTORE_TABLE)
        problems = iceberg_columns.unwritable(table.metadata, expires=False)
        if problems:
            summary = (
                f"the Iceberg table has requirements for writers that the {work} does not satisfy; nothing was written"
            )
            raise InvalidError(summary, table=self.table, requires=problems).advising(advice)
        try:
            iceberg_files.check_writable(table)
            iceberg_columns.check_names(table.metadata)
        except DataError as error:
            summary = "the files of the Iceberg table cannot be rewritten by pyiceberg; nothing was written"
            raise InvalidError(summary, **{"table": self.table, "problem": error.summary, **error.fields}).advising(
                advice
            ) from error
        if iceberg_files.has_equality_deletes(table):
            summary = f"{_EQUALITY_DELETES}; nothing was written"
            raise InvalidError(summary, table=self.table, requires=["equality deletes"]).advising(_DO_COMPACT)
        return table

    def copies_of_erased(self) -> tuple[str, ...]:
        return (
            f"earlier snapshots of the Iceberg table {self.table}: run expire_snapshots in Spark, and then remove_orphan_files",
            *TableSink.copies_of_erased(self),
        )

    def stats(self, parquet: Any) -> str:
        """Return a file's metrics by column path; ``""`` if the rows are written again, with metrics of the new files."""
        if self.rewrites:
            keyed_rows.check_times(parquet)
            return ""
        return iceberg_files.metrics(parquet, partition_by=self.partition_by)

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """Read the table's property. Raises ``MarkerLostError`` after a rollback, which keeps the property but removes the rows."""
        with self._opened() as catalog:
            table = self._read(catalog, refusal=UnavailableError)
            key = _key(pipeline_uuid, sink)
            marker = None if table is None else _marker(table, key)
            if table is not None and marker is not None and _is_rolled_back(table, key):
                raise MarkerLostError(_ROLLED_BACK, table=self.table, sink=sink, marker=marker.version)
            return marker

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """For a write by Spark, also refuse nulls in required columns: after the commit, the batch could only be skipped."""
        if self.engine == "spark":
            with self._opened() as catalog:
                table = self._read(catalog, refusal=DataError)
            if table is not None:
                frame = self.refusing_violations(frame, iceberg_columns.required(table.metadata))
        return TableSink.stage(self, frame, version, attempt_id)

    @contextmanager
    def opened(self, batch: SinkCommit, failure: Failure | None, *, skips: bool) -> Iterator[_Handle]:
        with self._opened() as catalog:
            yield _Handle(catalog, self._read(catalog, refusal=PublishError))

    def marker_in(self, handle: _Handle, batch: SinkCommit) -> SinkMarker | None:
        return None if handle.table is None else _marker(handle.table, _key(batch.pipeline_uuid, batch.sink))

    def check_sink(self, handle: _Handle, batch: SinkCommit, marker: SinkMarker | None) -> None:
        if not batch.is_settled(marker):
            problem = "has no marker of this pipeline: it was deleted and recreated, or replaced"
            if handle.table is None:
                problem = "is missing: it was deleted or renamed"
            summary = f"the log has receipts of rows in the Iceberg table, but the table {problem}"
            batch.check_marker(marker, summary, table=self.table, catalog=self.catalog)
        key = _key(batch.pipeline_uuid, batch.sink)
        if handle.table is not None and marker is not None and _is_rolled_back(handle.table, key):
            raise batch.marker_lost_error(_ROLLED_BACK, marker=marker.version, table=self.table, catalog=self.catalog)

    def commit(self, handle: _Handle, batch: SinkCommit, marker: SinkMarker | None, *, skips: bool) -> bool:
        handle.table = table = handle.table or self._create_table(handle.catalog, batch)
        key = _key(batch.pipeline_uuid, batch.sink)
        self._commit_once(table, batch, key, "skipped" if skips else "applied")
        return batch.is_settled(_marker(table, key))

    def detail(self, handle: _Handle, batch: SinkCommit) -> Json:
        """Return the id of the snapshot with the marker; ``None`` if the snapshot has expired."""
        assert handle.table is not None
        key = _key(batch.pipeline_uuid, batch.sink)
        mark = handle.table.properties[key]
        snapshot_ids = [
            snapshot.snapshot_id
            for snapshot in handle.table.snapshots()
            if snapshot.summary is not None and snapshot.summary.additional_properties.get(key) == mark
        ]
        return {"snapshot": str(snapshot_ids[-1])} if snapshot_ids else None

    def table_state(self, handle: _Handle) -> object:
        return "" if handle.table is None else handle.table.metadata_location

    def is_refusal(self, error: Exception) -> bool:
        """Return ``True`` for every error that does not come from the catalog or the store."""
        return not is_transient(error)

    @property
    def table_name(self) -> str:
        return self.table

    def _commit_once(self, table: Table, batch: SinkCommit, key: str, state: str) -> None:
        """Only a commit with a snapshot lets the catalog check that ``main`` has not moved. ``state`` is ``applied`` or ``skipped``."""
        from airflow_provider_streamsem.connectors.iceberg.commit import OneCommit

        mark = {key: f"{batch.version} {state} {batch.outcome}"}
        files: list[IcebergFile] = []
        removed: list[IcebergFile] = []
        commit = OneCommit(table)
        if state == "applied":
            self._fit(commit, table, batch)
            self.check_staged(batch)
        if state == "applied" and not self.rewrites:
            metadata = commit.table_metadata
            files = [
                iceberg_files.iceberg_file(metadata, file, self._uri(file.key))
                for file in self.with_stats(batch.committable)
            ]
            removed = self._files_to_replace(table, batch)
        if self.expire_after_s is not None:
            commit.expire(older_than_ms=SYSTEM_CLOCK.now_ms() - self.expire_after_s * 1000, marked=key)
        commit.set_properties(mark)
        if state == "applied" and self.rewrites and batch.committable.rows:
            self._write(commit, batch, mark)
        else:
            commit.add_snapshot(files, removed, mark)
        commit.commit_transaction()

    def _write(self, commit: OneCommit, batch: SinkCommit, mark: dict[str, str]) -> None:
        written = self.written_by_spark(batch, lambda session: self._written(session, commit, batch))
        if written is not None:
            commit.add_written(written, mark)
            return
        from airflow_provider_streamsem.connectors.iceberg.merge import merge

        merge(commit, self.location, batch, self.keys, self.changes, mark)

    def _written(self, session: SparkSession, commit: OneCommit, batch: SinkCommit) -> dict[str, Any]:
        """Write the rows with Spark into a private copy of the table, and return the new snapshot."""
        from airflow_provider_streamsem.connectors.iceberg.private_copy import PrivateCopy
        from airflow_provider_streamsem.connectors.staged_parquet import spark_write

        metadata = commit.table_metadata
        given = {field["name"] for field in json.loads(batch.staged_schema)["fields"]}
        lacking = [field.name for field in metadata.schema().fields if field.name not in given]
        copy = PrivateCopy.create(session, metadata, commit.loaded.io)
        spark_write.write(session, copy.name, self, batch, defaults=lacking, keeps_source=True)
        return copy.written(self.table)

    def _fit(self, commit: Transaction, table: Table, batch: SinkCommit) -> None:
        """Check the table again, because it may have changed. Readers need the name mapping, because the files have no field ids."""
        try:
            fitted = self._fitted(table, batch.staged_schema)
            iceberg_columns.check_staged_types(table.metadata, batch.staged_schema)
            columns = iceberg_columns.iceberg_schema(fitted, self._partitions)
            self._check_lacking(table, columns)
        except (ConflictError, DataError) as error:
            refusal = PublishError(
                "the Iceberg table was changed after the batch was staged and no longer accepts its rows; nothing of the batch is in it",
                table=self.table,
                version=batch.version,
                problem=error.summary,
                **{name: value for name, value in error.fields.items() if name not in ("table", "version")},
            )
            has_specific_advice = error.do != type(error).do
            raise (refusal.advising(error.do) if has_specific_advice else refusal) from error
        with commit.update_schema() as update:  # no change if the table has all columns
            update.union_by_name(iceberg_columns.as_required(columns, table.schema()))
        if table.name_mapping() is None:
            mapping = commit.table_metadata.schema().name_mapping
            commit.set_properties({"schema.name-mapping.default": mapping.model_dump_json()})
        if not self.rewrites and batch.staged_schema:
            recorded = iceberg_columns.recorded_names(commit.table_metadata, batch.staged_schema)
            if recorded != table.properties.get(iceberg_columns.COLUMNS):
                commit.set_properties({iceberg_columns.COLUMNS: recorded})

    def _files_to_replace(self, table: Table, batch: SinkCommit) -> list[IcebergFile]:
        """If the table does not have all of them unchanged, another writer has copied their rows to other files, which would stay."""
        replaced = batch.replaced_files
        if not replaced:
            return []
        if iceberg_files.has_equality_deletes(table):
            summary = f"{_EQUALITY_DELETES}, so the version cannot remove files; nothing of it was applied"
            raise PublishError(summary, table=self.table, version=batch.version).advising(_DO_COMPACT)
        changed, current_output = self._changed(table, replaced)
        if changed:
            raise PublishError(
                "another writer rewrote or deleted files that this reprocessing run or rollback must remove from the Iceberg table; "
                "the table was not changed, and the commit stays in the log",
                table=self.table,
                version=batch.version,
                files=changed,
            )
        return current_output

    def _changed(self, table: Table, files: Sequence[DataFile]) -> tuple[list[str], list[IcebergFile]]:
        """Return the files that are missing from the table or have row-level deletes, and those that are unchanged."""
        uris = [self._uri(file.key) for file in files]
        existing = {task.file.file_path: task for task in table.scan().plan_files()}
        changed = [uri for uri in uris if uri not in existing or existing[uri].delete_files]
        return changed, [existing[uri].file for uri in uris if uri not in changed]

    def _create_table(self, catalog: Catalog, batch: SinkCommit) -> Table:
        """Create an empty table. If another process creates it concurrently, pyiceberg raises an error, and the publish loop tries again."""
        columns = self._columns(batch)
        spec = spec_of(self._partitions, columns)
        catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
        return catalog.create_table(
            self.table, columns, location=self._uri(""), partition_spec=spec, properties=_NEW_TABLE
        )

    def _columns(self, batch: SinkCommit) -> Schema:
        return iceberg_columns.iceberg_schema(batch.schema, self._partitions)

    def _read(self, catalog: Catalog, *, refusal: type[StreamsemError]) -> Table | None:
        return iceberg_catalog.table(catalog, self.table, refusal=refusal)

    def _fitted(self, table: Table, schema: str) -> str:
        """Refuse a table whose requirements this sink does not satisfy, and return the columns with its types."""
        self._check_requirements(table)
        if not self.rewrites:
            iceberg_columns.check_names(table.metadata)
        return iceberg_columns.fitted(table.metadata, schema, self._partition_columns, lacks=not self.rewrites)

    def _check_requirements(self, table: Table) -> None:
        self._check_partitions(table)
        self.refuse_requirements(lambda by_spark: self._unwritable(table, by_spark=by_spark))
        if self.merges and self.engine != "spark":
            self._check_mergeable(table)

    def _unwritable(self, table: Table, *, by_spark: bool) -> list[str]:
        newest = self._newest_format(table) if by_spark else 2
        expires = self.expire_after_s is not None
        return iceberg_columns.unwritable(table.metadata, expires=expires, newest_format=newest, by_spark=by_spark)

    def _newest_format(self, table: Table) -> int:
        """Pyiceberg commits metadata of format 3 only through a REST catalog, whose server writes it."""
        from airflow_provider_streamsem.connectors.iceberg.commit import is_rest

        return 3 if is_rest(table) else 2

    def _check_partitions(self, table: Table) -> None:
        """Spark writes rows into any partitions."""
        if self.engine == "spark" and not self.partition_by:
            return
        found = [part for part in of_table(table) if self.engine != "spark" or part.transform != "void"]
        if found != self._partitions:
            do = "set partition_by of the sink to the partition fields in `found`, or use another table."
            if not all(part.is_identity for part in found):
                do = f"{do} Transforms need engine='spark', with which partition_by may also be left out."
            raise ConflictError(
                "the Iceberg table has other partitions than the sink",
                table=self.table,
                partition_by=list(self.partition_by),
                found=[part.text for part in found],
            ).advising(do)

    def _check_mergeable(self, table: Table) -> None:
        """Refuse a table whose files pyiceberg cannot rewrite."""
        iceberg_files.check_writable(table)
        if iceberg_files.has_equality_deletes(table):
            summary = f"{_EQUALITY_DELETES}, so rows cannot be merged"
            raise DataError(summary, table=self.table, requires=["equality deletes"]).advising(_DO_COMPACT)
        if formats := iceberg_files.other_formats(table):
            summary = "the Iceberg table has data files that are not Parquet, so rows cannot be merged"
            raise DataError(summary, table=self.table, formats=formats).advising(_DO_REWRITE)

    def _check_lacking(self, table: Table, columns: Schema) -> None:
        """A row that the library merges replaces a whole row, so the values of columns that it lacks would be lost."""
        names = {field.name for field in columns.fields}
        missing = [field.name for field in table.schema().fields if field.name not in names]
        if self.merges and self.engine != "spark" and names and missing:
            raise DataError(
                "the rows lack columns of the Iceberg table, whose values a merge would lose",
                table=self.table,
                missing=missing,
            )

    def _opened(self) -> AbstractContextManager[Catalog]:
        return iceberg_catalog.opened(self.catalog, self.properties, self.conn_id, self.path)

    def _uri(self, key: str) -> str:
        """Return the URI of a key. The spelling is always the same, because Iceberg compares URIs as text."""
        scheme, rest = split_url(self.path)
        return f"{scheme}://{rest}/{key}".rstrip("/")


def _key(pipeline_uuid: str, sink: str) -> str:
    return f"streamsem.{pipeline_uuid}.{sink}"


def _marker(table: Table, key: str) -> SinkMarker | None:
    """Parse the marker from the table's property: ``<version> <state> <sha256 of the outcome>``."""
    if key not in table.properties:
        return None
    version, state, outcome = f"{table.properties[key]} ".split(" ")[:3]
    return SinkMarker(int(version), state, outcome)


def _is_rolled_back(table: Table, key: str) -> bool:
    """The marker's snapshot exists, but is not an ancestor of the head of ``main``."""
    mark = table.properties[key]
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    marked = [
        snapshot
        for snapshot in snapshots.values()
        if snapshot.summary is not None and snapshot.summary.additional_properties.get(key) == mark
    ]
    if not marked:
        return False  # the marker's snapshot has expired
    newest, at = marked[-1], table.current_snapshot()
    while at is not None:
        if at.snapshot_id == newest.snapshot_id:
            return False
        parent = at.parent_snapshot_id
        if parent is not None and parent not in snapshots:
            # The parent has expired, so the ancestry is not known further. Sequence numbers increase from parent to child.
            return (at.sequence_number or 0) < (newest.sequence_number or 0)
        at = None if parent is None else snapshots[parent]
    return True
