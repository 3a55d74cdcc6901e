"""
The Delta sink: writes rows to a Delta table (extra ``delta``). The files that Spark staged become the data files of the table.

Publishing commits one entry of the table's log. It writes no data, unless it merges rows by key
(:mod:`airflow_provider_streamsem.connectors.delta.merge`).

The marker is a transaction identifier of the table (Delta protocol, *Transaction Identifiers*). One entry contains the files and the identifier
``<pipeline uuid>/<sink>`` with the version. If two writers commit the same entry, one of them fails. After a failed commit, the sink does not interpret
the error. It opens the table again and reads the transaction identifier.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.changes import Changes
from airflow_provider_streamsem.connectors.columns.identifiers import more_than_once
from airflow_provider_streamsem.connectors.columns.types import VOID, bare, widened
from airflow_provider_streamsem.connectors.contract import Contract
from airflow_provider_streamsem.connectors.data_files.bounds import delta_stats
from airflow_provider_streamsem.connectors.delta import mergeable, statistics
from airflow_provider_streamsem.connectors.delta.entry import entry
from airflow_provider_streamsem.connectors.delta.history import key_of
from airflow_provider_streamsem.connectors.delta.requirements import (
    Requirements,
    check_constraints,
    is_append_only,
    not_null_constraints,
    unwritable,
    unwritable_by_spark,
)
from airflow_provider_streamsem.connectors.delta.table import (
    OWN_ENTRY,
    CachedTable,
    checked_path,
    create,
    create_clustered,
    is_transient,
    open_newest,
)
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
)
from airflow_provider_streamsem.expectations import Expect
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json
from airflow_provider_streamsem.stores.contract import normalised

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PRIMITIVES = frozenset(
    [
        "string",
        "long",
        "integer",
        "short",
        "byte",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
)
_DIGITS = 15
_MOST_CLUSTERING = 4
"""The most clustering columns of a Delta table."""
_CHECKPOINT_INTERVAL = 100
"""As in deltalake, which writes checkpoints only after its own commits."""

_Changes = tuple[dict[str, Any], list[dict[str, Any]]]
"""The commit information of an entry, and its actions."""


@dataclass(slots=True)
class _Handle:
    """``cached`` is ``None`` if there is no table, and ``entry`` if this try has committed no entry."""

    cached: CachedTable | None
    entry: int | None = None


@dataclass(frozen=True, slots=True)
class DeltaSink(TableSink[_Handle]):
    """
    Appends or merges rows into a Delta table. Any Delta reader can read the table. Other writers may append to it, compact it and delete from it.

    The first batch with rows creates the table. An existing table is used if its columns and partition columns fit. If the transform adds a column, the
    sink adds it to the table. Column types of the table never change, and values of a narrower type are cast. A reprocessing run replaces the files of
    the version that it reprocesses.

    :param path: location of the table: an absolute path, ``file:///path`` or ``s3://bucket/prefix``; files are staged below its ``data/``
    :param partition_by: the table's partition columns
    :param cluster_by: with ``engine="spark"``: the columns by which a table that the sink creates is clustered (liquid clustering). An existing table keeps its
        clustering columns
    :param mode: ``append`` adds rows. ``upsert`` replaces the row with the same keys; of several rows of a batch with the same keys, the
        last is used. For ``upsert`` the publisher reads the batch into memory, and reprocessing is refused
    :param keys: for ``upsert``: the columns that identify a row. Their values must not be null
    :param sequence_by: for ``upsert``: columns that order the rows of a batch with equal keys, ascending; a null comes first. The last row is kept. Default:
        the order of the source. A batch is refused if that order is lost and rows with equal keys differ
    :param engine: for ``upsert``: ``spark`` merges with Spark's MERGE, in the session of the run and on its executors. ``library`` merges in the process of the
        publisher, without Delta's Spark package. ``auto`` uses Spark for a batch of more than 1,000,000 rows, if the session has the package, else the library.
        For ``append``: ``spark`` writes the rows with Spark into a table with any features that Spark supports, and reprocessing is refused
    :param changes: applies change data: each row upserts or deletes the row with the same keys, or truncates the table. Sets ``mode``, ``keys`` and
        ``sequence_by``
    :param contract: which changes of the table's columns a batch may make: a mode, or :class:`Contract`. Default: ``evolve``
    :param expect: name of a rule → :class:`Expect`, for the rows that the transform returns
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "delta"
    table_format: ClassVar[str] = "Delta"
    once: ClassVar[str] = (
        "each version is one entry of the table's log, which contains {holds} and the pipeline's transaction number; no second entry has the same number"
    )
    null_texts: ClassVar[Sequence[str]] = mergeable.NULL_TEXTS
    reopens: ClassVar[bool] = False
    spark_package: ClassVar[str] = "delta"
    path: str
    partition_by: Sequence[str] = ()
    mode: str = "append"
    keys: Sequence[str] = ()
    sequence_by: Sequence[str] = ()
    engine: str = "auto"
    changes: Changes | None = None
    contract: Contract | None = None
    expect: Mapping[str, Expect] = field(default_factory=dict)
    cluster_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.validate_arguments("sink delta:")
        object.__setattr__(self, "cluster_by", arguments.text_list("sink delta: cluster_by", self.cluster_by))
        if self.cluster_by and (self.engine != "spark" or self.partition_by):
            raise InvalidError("sink delta: cluster_by needs engine spark, and excludes partition_by")
        if len(self.cluster_by) > _MOST_CLUSTERING:
            raise InvalidError(
                f"sink delta: cluster_by has more than {_MOST_CLUSTERING} columns", given=list(self.cluster_by)
            )
        checked_path("sink delta: path", self.path)

    def immutable_config(self) -> Json:
        location = {"path": normalised(self.path), "partition_by": list(self.partition_by)}
        return {"type": "delta", **location, **self.immutable_mode}

    def resolve_schema(self, schema: str) -> str:
        """Also refuse a table with requirements that this sink does not satisfy."""
        fields = _fields(schema)
        names = {field["name"] for field in fields}
        for kind, columns in (("partition", self.partition_by), ("clustering", self.cluster_by)):
            if fields and (lacking := sorted({*columns} - names)):
                raise DataError(f"the rows lack {kind} columns", missing=lacking)
        cached = open_newest(self.path, refusal=DataError)
        if cached is None:
            self.refuse_missing()
        else:
            table = cached.table
            self._check_requirements(table)
            Requirements.of(table).check_columns([field["name"] for field in fields])
            fields = self._with_table_types(table, fields)
            self._check_can_add(table, self._missing_columns(table, fields))
            cached.keep()
        keyed_rows.check_keys(fields, self.keys)
        if self.changes is not None:
            keyed_rows.check_sequence_types(fields, self.sequence_by)
        self.check_names(field["name"] for field in fields)
        if self.cluster_by:
            mergeable.check_clustering(fields, self.cluster_by)
        if self.engine == "spark":
            own = [] if cached is None else _columns(cached.table)
            mergeable.check_names([*fields, *own], {} if cached is None else cached.table.metadata().configuration)
            mergeable.check_for_spark(fields, own, self.partition_by)
        elif self.rewrites:
            mergeable.check_columns(fields, self.partition_by)
        return _with_types(schema, fields)

    def check_table(self) -> None:
        """Refuse a table with requirements that this sink does not satisfy."""
        cached = open_newest(self.path, refusal=DataError)
        if cached is None:
            self.refuse_missing()
            return
        self._check_requirements(cached.table)
        cached.keep()

    def existing_columns(self) -> str | None:
        """Return the columns of the table."""
        cached = open_newest(self.path, refusal=DataError)
        if cached is None:
            return None
        cached.keep()
        return json.dumps({"type": "struct", "fields": _columns(cached.table)})

    def _check_requirements(self, table: Any) -> None:
        self._check_partitions(table)
        self.refuse_requirements(lambda by_spark: self._problems(table, by_spark=by_spark))

    def attempts_in_use(self) -> set[tuple[int, str]]:
        cached = open_newest(self.path)
        return set() if cached is None else attempts_named(cached.table.get_add_actions()["path"].to_pylist())

    def check_removable(self, files: Sequence[DataFile]) -> None:
        """Check that the table allows removing rows, and still has the files."""
        if not files:
            return
        cached = open_newest(self.path, refusal=InvalidError)
        if cached is None:
            summary = (
                "the Delta table is missing, so its rows cannot be removed; nothing was reprocessed or rolled back"
            )
            raise InvalidError(summary, table=self.path).advising(RESTORE_TABLE)
        if is_append_only(cached.table):
            summary = "the Delta table accepts only appends (delta.appendOnly=true), so it cannot remove rows of a version; nothing was written"
            raise InvalidError(summary, table=self.path)
        if missing := _missing_files(cached.table, files):
            summary = "another writer rewrote or deleted files of this pipeline in the Delta table, so their rows cannot be removed; nothing was written"
            raise InvalidError(summary, table=self.path, files=missing).advising(RESTORE_TABLE)
        cached.keep()

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """For a write by Spark, also refuse rows that violate CHECK constraints of the table: after the commit, the batch could only be skipped."""
        cached = open_newest(self.path, refusal=DataError) if self.engine == "spark" else None
        if cached is not None:
            constraints = check_constraints(cached.table, frame.columns)
            # In other batches, footers count the nulls, which is cheaper.
            constraints |= not_null_constraints(cached.table) if self.changes is not None else {}
            frame = self.refusing_violations(frame, constraints)
            cached.keep()
        return TableSink.stage(self, frame, version, attempt_id)

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """Also refuse the empty string as a partition value. Delta has no representation for it, and some readers return null."""
        staged = TableSink.collect(self, version, attempt_id, accepted)
        empty = sorted({name for file in staged.files for name, value in file.partition.items() if value == ""})
        if empty:
            raise DataError(
                "an empty string cannot be a partition value of a Delta table, because some readers return it as null",
                table=self.path,
                columns=empty,
            )
        cached = open_newest(self.path, refusal=DataError)
        if cached is not None:
            self._requirements(cached.table).check_values(self.path, staged)
            cached.keep()
        return staged

    def compact_table(
        self, *, target_file_bytes: int, max_bytes: int, dry_run: bool, before_commit: Callable[[], None]
    ) -> list[TableRewrite]:
        """Compact the table in one entry of its log. ``max_bytes`` is not used."""
        from airflow_provider_streamsem.connectors.delta.compact import compact

        return compact(self.path, target_file_bytes=target_file_bytes, dry_run=dry_run, before_commit=before_commit)

    def erase_rows(
        self, predicate: Predicate, *, dry_run: bool, before_commit: Callable[[], None]
    ) -> TableErasure | None:
        """Erase the rows in one entry of the table's log."""
        from airflow_provider_streamsem.connectors.delta.erase import erase

        return erase(self.path, predicate, dry_run=dry_run, before_commit=before_commit)

    def copies_of_erased(self) -> tuple[str, ...]:
        return (
            f"earlier versions of the Delta table {self.path}: run VACUUM after delta.deletedFileRetentionDuration (default: 7 days). The table's log contains "
            "the minimum and maximum of columns until delta.logRetentionDuration has passed (default: 30 days)",
            *TableSink.copies_of_erased(self),
        )

    def stats(self, parquet: Any) -> str:
        """
        Return Delta's statistics of the file; ``""`` if the rows are written again, with statistics of the new files. Refuse dates, times and decimals
        that delta-rs cannot read. In a partition column, one such value makes the whole table unreadable for it.
        """
        if self.rewrites:
            keyed_rows.check_times(parquet)
            return ""
        keyed_rows.check_times(parquet, self.partition_by)
        _check_decimals(parquet, self.partition_by)
        return delta_stats(parquet, without=frozenset(self.partition_by))

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """Read the transaction identifiers. Raises ``MarkerLostError`` after a RESTORE, which keeps them but removes the rows."""
        cached = open_newest(self.path)
        app = f"{pipeline_uuid}/{sink}"
        marker = None if cached is None else _marker(cached, app)
        if cached is None or marker is None:
            return None
        restored = cached.restored_since(app)
        if restored is not None:
            raise MarkerLostError(_restored(marker.version, restored), table=self.path, sink=sink)
        return marker

    @contextmanager
    def opened(self, batch: SinkCommit, failure: Failure | None, *, skips: bool) -> Iterator[_Handle]:
        yield _Handle(open_newest(self.path, refusal=PublishError))

    def marker_in(self, handle: _Handle, batch: SinkCommit) -> SinkMarker | None:
        return None if handle.cached is None else _marker(handle.cached, _app(batch))

    def check_sink(self, handle: _Handle, batch: SinkCommit, marker: SinkMarker | None) -> None:
        if not batch.is_settled(marker):
            problem = "has no transaction identifier of this pipeline: it was deleted and recreated, or replaced"
            if handle.cached is None:
                problem = "is missing: it was deleted or renamed"
            summary = f"the log has receipts of rows in the Delta table, but the table {problem}"
            batch.check_marker(marker, summary, table=self.path)
        if handle.cached is not None and marker is not None:
            self._check_not_restored(batch, handle.cached, marker)

    def commit(self, handle: _Handle, batch: SinkCommit, marker: SinkMarker | None, *, skips: bool) -> bool:
        handle.cached = cached = handle.cached or self._created(_fields(batch.schema))
        app = _app(batch)
        number = cached.table.version() + 1  # retries of deltalake are disabled, so it commits this entry or fails
        if not self._commit_entry(cached.table, batch, app, skipped=skips):
            return False
        if self.engine == "spark" and number % _CHECKPOINT_INTERVAL == 0 and not unwritable(cached.table):
            cached.create_checkpoint()
        cached.record_commit(_marks(batch, app, skipped=skips), app, number)
        cached.keep()
        handle.entry = number
        return True

    def _created(self, fields: Sequence[dict[str, Any]]) -> CachedTable:
        if self.cluster_by:
            return create_clustered(self.path, fields, self.cluster_by)
        return create(self.path, fields, self.partition_by)

    def _written(self, session: SparkSession, batch: SinkCommit, table: Any) -> _Changes:
        """Write the rows with Spark into a private copy of the table."""
        from airflow_provider_streamsem.connectors.delta.private_copy import PrivateCopy
        from airflow_provider_streamsem.connectors.staged_parquet import spark_write

        copy = PrivateCopy.create(session, self.location, table.version())
        try:
            spark_write.write(session, copy.name, self, batch)
            return copy.written()
        except Exception:
            copy.delete()
            raise

    def detail(self, handle: _Handle, batch: SinkCommit) -> Json:
        """Return the version of the table that contains the marker."""
        assert handle.cached is not None
        return {"table_version": handle.cached.table.version() if handle.entry is None else handle.entry}

    def table_state(self, handle: _Handle) -> object:
        return -1 if handle.cached is None else handle.cached.table.version()

    def is_refusal(self, error: Exception) -> bool:
        """Return ``True`` for every error that does not come from the store."""
        return not is_transient(error)

    @property
    def table_name(self) -> str:
        return self.path

    def _check_not_restored(self, batch: SinkCommit, cached: CachedTable, marker: SinkMarker) -> None:
        """RESTORE keeps the transaction identifiers but removes the rows."""
        restored = cached.restored_since(_app(batch))
        if restored is not None:
            raise batch.marker_lost_error(_restored(marker.version, restored), table=self.path)

    def _commit_entry(self, table: Any, batch: SinkCommit, app: str, *, skipped: bool) -> bool:
        """Commit the entry, and return whether it was committed. If the table lacks columns, commit only the columns and return ``False``."""
        from deltalake import CommitProperties, Schema
        from deltalake.transaction import Transaction

        marks = _marks(batch, app, skipped=skipped)
        actions: list[Any] = []
        if not skipped:
            if not self._prepare(table, batch):
                return False
            self.check_staged(batch)
            actions = [] if self.rewrites else self._changes(table, batch)
        rewrites = self.rewrites and batch.committable.rows > 0 and not skipped
        written: _Changes | None = ({"operation": "STREAMSEM MARKER"}, []) if self.engine == "spark" else None
        if rewrites:
            newest = self.dataset().stat(key_of(table.version()))
            written = self.written_by_spark(batch, lambda session: self._written(session, batch, table))
            if written is not None and self.dataset().stat(key_of(table.version())) != newest:
                return False  # the table was dropped or recreated in the meantime
        if written is not None:
            return self.dataset().create(key_of(table.version() + 1), entry(table, self.location, marks, app, *written))
        transactions = [Transaction(name, number) for name, number in marks.items()]
        own = {OWN_ENTRY: app}
        properties = CommitProperties(app_transactions=transactions, max_commit_retries=0, custom_metadata=own)
        if rewrites:
            from airflow_provider_streamsem.connectors.delta.merge import merge

            return merge(table, self.location, batch, self.keys, self.changes, properties)
        schema = Schema.from_json(table.schema().to_json())
        table.create_write_transaction(actions, "append", schema, list(self.partition_by), commit_properties=properties)
        return True

    def _prepare(self, table: Any, batch: SinkCommit) -> bool:
        """Other writers may have changed the table since the batch was staged. Returns ``False`` after it has added missing columns in an entry."""
        from deltalake import CommitProperties
        from deltalake.schema import Field

        if problems := self._problems(table, by_spark=self.engine == "spark"):
            raise PublishError(
                "the Delta table was changed and now has requirements for writers that this sink does not satisfy; nothing of the batch is in it",
                table=self.path,
                version=batch.version,
                requires=problems,
            )
        try:
            self._check_partitions(table)
            self._requirements(table).check_values(self.path, batch.committable)
            missing_columns = self._missing_columns(table, _fields(batch.staged_schema))
            self._check_can_add(table, missing_columns)
        except (ConflictError, DataError) as error:
            raise PublishError(
                "the Delta table was changed after the batch was staged and no longer accepts its rows; nothing of the batch is in it",
                version=batch.version,
                problem=error.summary,
                **{"table": self.path, **error.fields},
            ) from error
        if missing_columns:
            table.alter.add_columns(
                [Field.from_json(json.dumps(field)) for field in missing_columns],
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        return not missing_columns

    def _changes(self, table: Any, batch: SinkCommit) -> list[Any]:
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = SYSTEM_CLOCK.now_ms()
        added = [
            AddAction(file.key, file.bytes, dict(file.partition), now_ms, True, statistics.accepted(table, file.stats))
            for file in self.with_stats(batch.committable)
        ]
        removed = [
            RemoveAction(file.key, True, now_ms, size=file.bytes, partition_values=dict(file.partition))
            for file in self._files_to_replace(table, batch)
        ]
        return [*added, *removed]

    def _files_to_replace(self, table: Any, batch: SinkCommit) -> Sequence[DataFile]:
        """If the table does not reference all of them, another writer has copied their rows to other files, which would stay in the table."""
        files = batch.replaced_files
        if files and is_append_only(table):
            summary = "the Delta table accepts only appends (delta.appendOnly=true), but the version must remove rows; nothing of it was applied"
            raise PublishError(summary, table=self.path, version=batch.version)
        if missing := _missing_files(table, files):
            raise PublishError(
                "another writer rewrote or deleted files that this reprocessing run or rollback must remove from the Delta table; "
                "the table was not changed, and the commit stays in the log",
                table=self.path,
                version=batch.version,
                files=missing,
            )
        return files

    def _with_table_types(self, table: Any, fields: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        existing = {column["name"].lower(): column for column in _columns(table)}
        fitted = []
        for column in fields:
            known = existing.get(column["name"].lower())
            if known is not None and known["name"] != column["name"]:
                summary = "a column's name is spelled differently in the Delta table"
                raise DataError(summary, table=self.path, column=column["name"], found=known["name"])
            kind = column["type"] if known is None else self._type_in_table(known, column["type"])
            fitted.append({**column, "type": kind})
        return fitted

    def _type_in_table(self, known: dict[str, Any], given: Any) -> Any:
        try:
            return widened(_nullable(known["type"]), given, known["name"], grows=_never, lacks=not self.rewrites)
        except DataError as error:
            raise DataError(
                "a column has another type in the Delta table",
                table=self.path,
                column=error.fields.get("column", known["name"]),
                given=error.fields.get("found", given),
                found=error.fields.get("recorded", known["type"]),
            ) from error

    def _missing_columns(self, table: Any, fields: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        existing = {field["name"]: field for field in _columns(table)}
        for column, fitted in zip(fields, self._with_table_types(table, fields), strict=True):
            # The files are already written, and no reader casts them. So the types must be equal: the reverse direction is checked too.
            self._type_in_table(column, fitted["type"])
        return [new for field in fields if (new := _added(existing.get(field["name"]), field)) is not None]

    def _check_can_add(self, table: Any, columns: Sequence[dict[str, Any]]) -> None:
        """Deltalake adds the columns, also if Spark writes the rows."""
        if columns and (problems := unwritable(table)):
            names = sorted(field["name"] for field in columns)
            summary = "the Delta table lacks columns of the rows, and has requirements with which this sink cannot add columns"
            raise DataError(summary, table=self.path, columns=names, requires=problems).advising(
                "add the columns with Spark: ALTER TABLE … ADD COLUMNS. Then run again."
            )

    def _problems(self, table: Any, *, by_spark: bool) -> list[str]:
        if by_spark:
            refused = ["delta.appendOnly"] if self.merges and is_append_only(table) else []
            return [*unwritable_by_spark(table), *refused]
        return [*unwritable(table), *(mergeable.unmergeable(table) if self.merges else [])]

    def _requirements(self, table: Any) -> Requirements:
        """With ``changes``, the write refuses upserts with nulls, because footers count the nulls of deletes, too. The library merges into no such table."""
        requirements = Requirements.of(table)
        return requirements if self.changes is None else replace(requirements, never_null=())

    def _check_partitions(self, table: Any) -> None:
        partition_columns = list(table.metadata().partition_columns)
        if partition_columns != list(self.partition_by):
            raise ConflictError(
                "the Delta table has other partition columns than the sink",
                table=self.path,
                partition_by=list(self.partition_by),
                found=partition_columns,
            ).advising("set partition_by of the sink to the columns in `found`, or use another table.")


def _check_decimals(parquet: Any, partition_by: Sequence[str]) -> None:
    """delta-rs writes the partition value ``-0.05`` as ``0.-5``, and then reads no row of the whole table."""
    refused = set()
    for group in range(parquet.num_row_groups):
        for index in range(parquet.num_columns):
            chunk = parquet.row_group(group).column(index)
            if chunk.path_in_schema not in partition_by or parquet.schema.column(index).logical_type.type != "DECIMAL":
                continue
            least = chunk.statistics.min if chunk.statistics is not None and chunk.statistics.has_min_max else 0
            if least < 0 and least % 1:
                refused.add(chunk.path_in_schema)
    if refused:
        summary = "a negative decimal with a fraction cannot partition a Delta table, because delta-rs then fails to read the table"
        raise DataError(summary, columns=sorted(refused)).advising(
            "partition by another column, or cast the column to a string in the transform and write to a new table."
        )


def _app(batch: SinkCommit) -> str:
    return f"{batch.pipeline_uuid}/{batch.sink}"


def _restored(marker: int, entry: int) -> str:
    return f"the Delta table was restored, by entry {entry} of its log, to a state from before version {marker} of this pipeline was published"


def _marks(batch: SinkCommit, app: str, *, skipped: bool) -> dict[str, int]:
    """
    Checkpoints keep transaction numbers, but not an entry's commit information. A number has 63 bits, so the outcome is stored as the first 15 hexadecimal
    digits of its sha256.
    """
    marks = {app: batch.version, f"{app}#outcome": int(batch.outcome[:_DIGITS], 16)}
    return {**marks, f"{app}#skipped": batch.version} if skipped else marks


def _marker(cached: CachedTable, app: str) -> SinkMarker | None:
    version, outcome, skipped = (cached.transaction(name) for name in (app, f"{app}#outcome", f"{app}#skipped"))
    if version is None:
        return None
    state = "skipped" if skipped == version else "applied"
    return SinkMarker(version, state, "" if outcome is None else f"{outcome:0{_DIGITS}x}")


def _fields(schema: str) -> list[dict[str, Any]]:
    """In Delta's form: that of Spark's schema JSON, with every column nullable. ``""`` has no columns."""
    fields: list[dict[str, Any]] = [_nullable(field) for field in json.loads(schema)["fields"]] if schema else []
    unsupported = [field["name"] for field in fields if not _is_known(field["type"])]
    if unsupported:
        raise DataError("columns have types that Delta does not have", columns=unsupported)
    duplicates = more_than_once(field["name"] for field in fields)
    if duplicates:
        raise DataError("columns differ only in upper and lower case", columns=duplicates)
    return fields


def _is_known(kind: Any) -> bool:
    """According to the Delta protocol, *Schema Serialization Format*."""
    if isinstance(kind, dict):
        parts = [field["type"] for field in kind.get("fields", [])]
        parts += [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
        return kind["type"] in ("struct", "array", "map") and all(_is_known(part) for part in parts)
    return kind in _PRIMITIVES or kind == VOID or kind.startswith("decimal(")


def _nullable(kind: Any) -> Any:
    """Some Delta clients cannot use a table with fields that are not nullable."""
    if isinstance(kind, list):
        return [_nullable(item) for item in kind]
    if not isinstance(kind, dict):
        return kind
    marks = {"nullable", "containsNull", "valueContainsNull"}
    return {
        name: True if name in marks else ({} if name == "metadata" else _nullable(item)) for name, item in kind.items()
    }


def _columns(table: Any) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def _never(column: str, recorded: str, wider: str) -> bool:
    """A column changes its type only with the table feature typeWidening, which this sink does not support."""
    return False


def _with_types(schema: str, fields: Sequence[dict[str, Any]]) -> str:
    """Returns the same text if the types are unchanged."""
    original = json.loads(schema)
    types = [field["type"] for field in fields]
    if all(bare(field["type"]) == bare(kind) for field, kind in zip(original["fields"], types, strict=True)):
        return schema
    typed = [{**field, "type": kind} for field, kind in zip(original["fields"], types, strict=True)]
    return json.dumps({**original, "fields": typed}, separators=(",", ":"))


def _added(existing: dict[str, Any] | None, field: dict[str, Any]) -> dict[str, Any] | None:
    """Return the parts of a column that the table lacks, for example a field of a struct; ``None`` if the table has the whole column."""
    if existing is None:
        return field
    kind = _added_type(existing["type"], field["type"])
    return None if kind is None else {**existing, "type": kind}


def _added_type(existing: Any, kind: Any) -> Any:
    if not isinstance(kind, dict):
        return None
    if kind["type"] == "struct":
        known = {field["name"]: field for field in existing["fields"]}
        added = [part for field in kind["fields"] if (part := _added(known.get(field["name"]), field)) is not None]
        return {**existing, "fields": added} if added else None
    parts = {name: _added_type(existing[name], kind[name]) for name in ("elementType", "keyType", "valueType") if name in kind}  # fmt: skip
    added_parts = {name: part for name, part in parts.items() if part is not None}
    return {**existing, **added_parts} if added_parts else None


def _missing_files(table: Any, files: Sequence[DataFile]) -> list[str]:
    # The location before the key may be spelled with another scheme or with escapes. A key begins with `data/`.
    existing = {f"data/{uri.rpartition('/data/')[2]}" for uri in table.file_uris()} if files else set()
    return [file.key for file in files if file.key not in existing]
