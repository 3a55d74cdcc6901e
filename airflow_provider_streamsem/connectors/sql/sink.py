"""
The JDBC sink: writes rows to a database table (extra ``jdbc``). Uses ``COPY`` for Postgres, and SQLAlchemy for MySQL, SQLite and others.

One transaction first replaces the marker that was read, and then writes the rows. It locks the marker's row until it commits. So of two publishers, one
waits, and then finds that the version is marked as applied. After a failed transaction, the sink does not interpret the error. It reads the marker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.changes import START, UNCHANGED, Changes
from airflow_provider_streamsem.connectors.contract import Contract
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import SinkCommit, SinkMarker, TableErasure
from airflow_provider_streamsem.connectors.sql import changes as sql_changes
from airflow_provider_streamsem.connectors.sql import columns as sql_columns
from airflow_provider_streamsem.connectors.sql import database, postgres_copy
from airflow_provider_streamsem.connectors.sql import rows as sql_rows
from airflow_provider_streamsem.connectors.sql import values as sql_values
from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.connectors.sql.erase import erase
from airflow_provider_streamsem.connectors.staged_parquet import keyed_rows
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink, record_batches
from airflow_provider_streamsem.connectors.staged_parquet.transactions import Failure, TransactionalSink
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    PublishError,
    StreamsemError,
)
from airflow_provider_streamsem.expectations import Expect, set_expectations
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.dataset import open_dataset

if TYPE_CHECKING:
    import sqlalchemy as sa

    from airflow_provider_streamsem.connectors.staged_parquet.changed_rows import Applied

_MODES = ("append", "upsert", "replace_version")
_NAME = r"[^.\x00]+(\.[^.\x00]+)?"
_VERSIONS_PER_DELETE = 500
"""Maximum number of versions whose rows one statement deletes, because databases limit the bound values of a statement."""


@dataclass(frozen=True, slots=True)
class _Handle:
    connection: sa.Connection
    markers: sa.Table


_COLLATIONS = (
    "keys are equal if their values are. If a collation of the database also considers other texts equal (upper and lower case, accents, trailing spaces), "
    "such rows of a batch are not refused, and the table keeps that which is staged last: any of them, if the order is unknown"
)

_NEED_VALUES = (
    "ignore_null_updates",
    "unchanged_columns",
    "track_history_column_list",
    "track_history_except_column_list",
)


@dataclass(frozen=True, slots=True)
class JdbcSink(TransactionalSink[_Handle]):
    """
    Writes rows to an existing table of a SQL database. Other writers may read, change and delete any rows of it.

    :param conn_id: Airflow connection of type ``postgres``, ``mysql``, ``sqlite``, or ``generic`` with the extra ``sqlalchemy_scheme``
    :param table: ``table`` or ``schema.table``; without a schema, the default schema of the connection. Names are quoted, so they are case-sensitive
    :param staging: location in which rows are staged as Parquet until they are published: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param mode: ``append`` adds rows. ``upsert`` replaces the row with the same keys; of several rows of a batch with the same keys, the last is
        used. ``replace_version`` adds rows with their version, so that reprocessing can replace them. The other modes refuse
        reprocessing
    :param keys: for ``upsert``: exactly the columns of the primary key, or of one unique constraint or index
    :param sequence_by: for ``upsert``: columns that order the rows of a batch with equal keys, ascending; a null comes first. The last row is kept. Default:
        the order of the source. A batch is refused if that order is lost and rows with equal keys differ
    :param version_column: for ``replace_version``: a ``bigint`` column for the version, which only this pipeline writes. Without an index on it,
        reprocessing scans the table
    :param markers: the marker table, in the same database: ``table`` or ``schema.table``. The first run of a new log creates it if it is missing, and so
        does a skip
    :param changes: applies change data: each row upserts or deletes the row with the same keys, or truncates the table. Sets ``mode``, ``keys`` and
        ``sequence_by``. The publisher reads the batch into memory
    :param contract: which changes of the columns a batch may make: a mode, or :class:`Contract`. The table itself never changes
    :param expect: name of a rule → :class:`Expect`, for the rows that the transform returns
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "jdbc"
    tries: ClassVar[int] = 6
    first_wait_s: ClassVar[float] = 0.1
    conn_id: str
    table: str
    staging: str
    mode: str = "append"
    keys: Sequence[str] = ()
    sequence_by: Sequence[str] = ()
    version_column: str = "_streamsem_version"
    markers: str = "streamsem_markers"
    changes: Changes | None = None
    contract: Contract | None = None
    expect: Mapping[str, Expect] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = "sink jdbc:"
        arguments.text(f"{where} conn_id", self.conn_id)
        keyed_rows.set_changes(where, self)
        set_expectations(where, self)
        if self.contract is not None:
            object.__setattr__(self, "contract", Contract.of(where, self.contract))
        for name in ("table", "markers"):
            arguments.text(f"{where} {name}", getattr(self, name), pattern=_NAME, accepted="table or schema.table")
        open_dataset(arguments.text(f"{where} staging", self.staging))
        arguments.choice(f"{where} mode", self.mode, _MODES)
        arguments.text(f"{where} version_column", self.version_column)
        for name in ("keys", "sequence_by"):
            object.__setattr__(self, name, arguments.text_list(f"{where} {name}", getattr(self, name)))
        if bool(self.keys) != (self.merges):
            raise InvalidError(
                "mode upsert requires keys, and other modes do not accept them", mode=self.mode, keys=list(self.keys)
            )
        keyed_rows.check_sequence(where, self.sequence_by, merges=self.merges)
        if self.changes is not None and self.changes.keeps_history:
            self._check_history(where, self.changes)
        if self.table == self.markers:
            raise InvalidError("table and markers must be different tables", given=self.table)

    def _check_history(self, where: str, changes: Changes) -> None:
        """Values that a database returns may differ from those that Spark has staged, for example in the scale of a decimal, so they are not compared."""
        given = [name for name in _NEED_VALUES if getattr(changes, name) not in (None, False)]
        if given:
            raise InvalidError(
                f"{where} changes with stored_as_scd_type=2 must not have arguments that compare or copy values of the table",
                given=given,
            ).advising("remove the arguments, or keep the history in a Delta or Iceberg table.")

    @property
    def location(self) -> str:
        return self.staging

    @property
    def replaced_rows(self) -> str | None:
        """The connection, table and version column of mode ``replace_version``."""
        return f"{self.conn_id}: {self.table}.{self.version_column}" if self.can_remove_rows else None

    @property
    def can_remove_rows(self) -> bool:
        """Whether the rows have a version by which reprocessing runs and rollbacks can remove them: mode ``replace_version``."""
        return self.mode == "replace_version"

    @property
    def reasons(self) -> tuple[str, ...]:
        reasons = (
            "one database transaction writes the rows of a version and its marker, and the marker prevents a second transaction of the version",
            "rows passed to the writer = rows in the staged files = rows in the manifest, or the attempt is discarded",
        )
        if not self.merges:
            return reasons
        return (*reasons, keyed_rows.last_stays(self), *([_COLLATIONS] if self.changes is None else []))

    @property
    def merges(self) -> bool:
        return self.mode == "upsert"

    @property
    def last_of(self) -> Sequence[str]:
        return self.keys

    def immutable_config(self) -> Json:
        return {
            "type": "jdbc",
            "conn_id": self.conn_id,
            "table": self.table,
            "markers": self.markers,
            "staging": normalised(self.staging),
            "mode": self.mode,
            "version_column": self.version_column if self.can_remove_rows else None,
            **({} if self.changes is None else {"keys": list(self.keys), **self.changes.immutable}),
        }

    def resolve_schema(self, schema: str) -> str:
        """Also run the publishing transaction without rows, and roll it back. A statement that the database refuses is a ``DataError``."""
        failure: StreamsemError | None = None
        try:
            with self._connected() as connection:
                target = self._target(connection)
                if target is None:
                    raise DataError("the database has no such table", table=self.table)
                self._check_markers(connection)
                self._check_table(connection, target, schema)
                self._rehearse(connection, target, schema)
        except Exception as error:
            failure = database.translated(error, table=self.table)
        if isinstance(failure, PublishError):
            raise DataError("the database refuses a statement that publishing uses", **failure.fields)
        if failure is not None:
            raise failure
        return schema

    def check_removable(self, files: Sequence[DataFile]) -> None:
        """Check that the database has the table."""
        if not files:
            return
        failure: StreamsemError | None = None
        try:
            with self._connected() as connection:
                if self._target(connection) is None:
                    summary = "the database has no such table, so its rows cannot be removed; nothing was reprocessed or rolled back"
                    raise InvalidError(summary, table=self.table).advising("restore the table, or rename it back.")
        except Exception as error:
            failure = database.translated(error, table=self.table)
        if failure is not None:
            raise failure

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """If the log is new, also create the marker table."""
        StagedSink.claim(self, pipeline_uuid, log, new=new)
        if not new:
            return
        failure: StreamsemError | None = None
        try:
            with self._connected() as connection:
                database.create_markers_table(connection, database.markers_table(connection, self.markers))
        except Exception as error:
            failure = database.translated(error, table=self.markers)
        if failure is not None:
            raise failure

    def _check_markers(self, connection: sa.Connection) -> None:
        markers = sql_columns.describe(connection, self.markers)
        if markers is None:
            summary = "the marker table was deleted or renamed"
            raise DataError(summary, markers=self.markers, table=self.table).advising(
                "restore the table, or create it with the statement in docs/connectors/sql-sink.md, and run again. If the sink has published before, "
                "that run fails before it writes a row, and its error names the marker to write into the table."
            )
        if frozenset(("pipeline_uuid", "sink")) not in markers.uniques:
            raise DataError(
                "the marker table lacks its primary key (pipeline_uuid, sink), so two publishers could write one version",
                table=self.markers,
            )

    def _check_table(self, connection: sa.Connection, target: Target, schema: str) -> None:
        constant = self.version_column if self.can_remove_rows else None
        if self.changes is not None:
            keyed_rows.check_keys(sql_columns.fields_of(schema), self.keys)
            keyed_rows.check_sequence_types(sql_columns.fields_of(schema), self.sequence_by, of_database=True)
        sql_columns.check(target, schema, keys=self._row_keys, version_column=constant)
        self._check_dialect(connection, target)
        if self.changes is not None and (loose := sql_changes.inexact_keys(connection, target, self.keys)):
            summary = "the database considers different texts of key columns equal, so a delete would delete the row of another key"
            raise DataError(summary, table=self.table, columns=loose).advising(
                "give the columns a collation that compares every character, upper and lower case, accents and trailing spaces included; then run again."
            )

    def _check_dialect(self, connection: sa.Connection, target: Target) -> None:
        if self.merges and target.dialect not in sql_rows.UPSERTING:
            raise DataError(
                "the sink does not support mode upsert for this database",
                dialect=target.dialect,
                accepted=sql_rows.UPSERTING,
            )
        if target.dialect == "postgresql":
            with database.reading(connection):
                for schema, name in ((target.schema, target.name), database.name_parts(self.markers)):
                    postgres_copy.check(
                        connection,
                        schema or connection.dialect.default_schema_name,
                        name,
                        deletes=self.changes is not None,
                    )
                if self.keys and postgres_copy.has_child_tables(connection, target.schema, target.name):
                    raise DataError(
                        "other tables inherit from the table, and the unique constraint of the keys does not cover their rows",
                        table=self.table,
                    ).advising("write to a table without child tables, or use a partitioned table; then run again.")
                if self.keys and postgres_copy.has_deferrable(connection, target.table([]), self._row_keys):
                    raise DataError("the unique constraint of the keys is deferrable", table=self.table).advising(
                        "create it as NOT DEFERRABLE; then run again."
                    )
        if target.dialect in ("mysql", "mariadb"):
            sql_columns.check_engine(connection, self.table, self.markers)

    def _rehearse(self, connection: sa.Connection, target: Target, schema: str) -> None:
        """Run the publishing transaction without rows, and roll it back. It fails if privileges are missing, or if rules or triggers forbid the writes."""
        import sqlalchemy as sa

        markers = database.markers_table(connection, self.markers)
        with connection.begin() as transaction:
            self._configure_transaction(connection)
            self._rehearse_marker(connection, markers)
            if self.can_remove_rows or self.changes is not None:
                names = list(self.keys) or [self.version_column]
                connection.execute(sa.delete(target.table(names)).where(sa.false()))
            if sql_columns.fields_of(schema) and self.changes is not None:
                self._apply(connection, target, schema, None)
            elif sql_columns.fields_of(schema):
                self._write_rows(connection, target, schema, (), 0)
            transaction.rollback()

    def _rehearse_marker(self, connection: sa.Connection, markers: sa.Table) -> None:
        """Some drivers do not report how many rows an update changed. Some databases do not enforce a primary key. The caller rolls back."""
        import sqlalchemy as sa

        name = (SYSTEM_CLOCK.new_id(), "rehearsal")
        first, second = SinkMarker(0, "applied", ""), SinkMarker(1, "applied", "")
        is_set = database.set_marker(connection, markers, name, first, None)
        set_twice = [database.set_marker(connection, markers, name, second, first) for _ in range(2)]
        is_unique = False
        try:
            with connection.begin_nested():
                connection.execute(sa.insert(markers).values(database.marker_row(name, second)))
        except sa.exc.IntegrityError:
            is_unique = True
        if not is_set or set_twice != [True, False] or not is_unique:
            raise DataError(
                "this database cannot store markers safely: its driver does not report how many rows an update changed, or it does not enforce primary keys; "
                "nothing became visible",
                table=self.markers,
            ).advising(
                "use a driver that reports the number of changed rows, and a database that enforces primary keys; then run again."
            )

    @property
    def erases_rows(self) -> bool:
        return True

    def erase_rows(
        self, predicate: Predicate, *, dry_run: bool, before_commit: Callable[[], None]
    ) -> TableErasure | None:
        """Erase the rows in one transaction."""
        return erase(self._connected, self.table, predicate, dry_run=dry_run, before_commit=before_commit)

    def copies_of_erased(self) -> tuple[str, ...]:
        return (f"backups, replicas and the transaction log of the database of the table {self.table}",)

    def stats(self, parquet: Any) -> str:
        """Return the names of the columns with nulls as a JSON list; ``""`` if the footer shows none."""
        return sql_columns.columns_with_nulls(parquet)

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """
        Also refuse nulls and values that the table would refuse. The ``stats`` of each file is the digest of the table's columns. If the digest is the same
        when the batch is published, the values are not checked again.
        """
        staged = StagedSink.collect(self, version, attempt_id, accepted)
        if not staged.rows:
            return staged
        if self.changes is not None:
            keyed_rows.check_values(self.location, staged, self.keys, (), changes=self.changes)
        failure: StreamsemError | None = None
        try:
            with self._connected() as connection:
                target = self._target(connection)
        except Exception as error:
            failure = database.translated(error, table=self.table)
        if failure is not None:
            raise failure
        if target is not None:
            with_nulls = {name for file in staged.files for name in json.loads(file.stats or "[]")}
            if self.changes is not None:
                with_nulls = keyed_rows.nulls_of_upserts(self.location, staged, with_nulls, self.changes)
            sql_columns.refuse_nulls(target, with_nulls)
            sql_values.refuse_misfits(self.location, staged, target, of_changes=self.changes is not None)
            return replace(staged, files=tuple(replace(file, stats=target.digest) for file in staged.files))
        return staged

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """Read the marker from the marker table; ``None`` if it has no row of this pipeline and sink, or if the marker table is missing."""
        try:
            with self._connected() as connection:
                if sql_columns.describe(connection, self.markers) is None:
                    return None
                return database.read_marker(
                    connection, database.markers_table(connection, self.markers), pipeline_uuid, sink
                )
        except Exception as error:
            failure = database.translated(error, table=self.markers)
        raise failure

    @contextmanager
    def opened(self, batch: SinkCommit, failure: Failure | None, *, skips: bool) -> Iterator[_Handle]:
        """Open a connection. A skip also creates a missing marker table."""
        with self._connected() as connection:
            markers = database.markers_table(connection, self.markers)
            if skips:
                database.create_markers_table(connection, markers)
            yield _Handle(connection, markers)

    def marker_in(self, handle: _Handle, batch: SinkCommit) -> SinkMarker | None:
        return self._read_marker(handle.connection, handle.markers, batch)

    def check_sink(self, handle: _Handle, batch: SinkCommit, marker: SinkMarker | None) -> None:
        summary = "the marker table has no row of this pipeline, but the log has receipts of published rows: the marker table was emptied or recreated"
        if not batch.is_settled(marker):
            batch.check_marker(marker, summary, table=self.table, markers=self.markers)

    def commit(self, handle: _Handle, batch: SinkCommit, marker: SinkMarker | None, *, skips: bool) -> bool:
        """A reprocessing run first deletes the rows whose version column is ``batch.root``. A rollback deletes those of all versions that it rolls back."""
        new = SinkMarker(batch.version, "skipped" if skips else "applied", batch.outcome)
        return self._commit(handle.connection, handle.markers, batch, new, marker)

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(database.translated(error), PublishError)

    def refused_error(self, batch: SinkCommit, cause: Exception) -> StreamsemError:
        """Return the database's error without row values."""
        return database.translated(cause, table=self.table, version=batch.version)

    def unknown_result_error(self, batch: SinkCommit, cause: Exception | None) -> StreamsemError:
        if cause is None:
            return database.unknown_result_error(self.table, batch.version)
        error = self.refused_error(batch, cause)
        if isinstance(error, PublishError):
            summary = "the database refuses a statement; whether the batch is in the table is unknown"
            return PublishError(summary, **error.fields)
        return error

    def _read_marker(self, connection: sa.Connection, markers: sa.Table, batch: SinkCommit) -> SinkMarker | None:
        import sqlalchemy as sa

        try:
            return database.read_marker(connection, markers, batch.pipeline_uuid, batch.sink)
        except sa.exc.DBAPIError:
            if sql_columns.describe(connection, self.markers) is not None:
                raise
        summary = "the marker table was deleted or renamed, and with it the marker that records whether the batch is in the table"
        raise batch.marker_lost_error(summary, table=self.table, markers=self.markers)

    def _commit(
        self,
        connection: sa.Connection,
        markers: sa.Table,
        batch: SinkCommit,
        new: SinkMarker,
        marker: SinkMarker | None,
    ) -> bool:
        """Set the marker and write the rows in one transaction; return whether it replaced the marker that was read."""
        # COPY needs only column names. SQLAlchemy binds values by the columns' types.
        is_copied = connection.dialect.name == "postgresql"
        read = sql_columns.named if is_copied else sql_columns.describe
        target = read(connection, self.table) if new.state == "applied" else None
        # Reading the batch takes time, in which the transaction would hold its locks.
        changed = None if self.changes is None or target is None else self._changed(batch, self.changes)
        if target is not None and not is_copied:
            # The check precedes every write, because a table with a non-transactional engine keeps rows of a transaction that is rolled back.
            self._check_unchanged(connection, target, batch)
        with connection.begin():
            self._configure_transaction(connection)
            if not database.set_marker(connection, markers, (batch.pipeline_uuid, batch.sink), new, marker):
                return False
            if new.state == "applied":
                if target is None:
                    raise PublishError("the sink's table no longer exists", table=self.table, version=batch.version)
                self._delete_replaced(connection, target, batch)
                if batch.committable.files:
                    if changed is not None:
                        self._apply(connection, target, batch.schema, changed(connection, target))
                    else:
                        staged = record_batches(self.location, batch)
                        self._write_rows(connection, target, batch.schema, staged, batch.root)
                    # The transaction has written rows, so it holds a lock, and nobody can alter the table until it ends.
                    current = self._target(connection)
                    assert current is not None, "this transaction has just written rows into the table"
                    self._check_unchanged(connection, current, batch)
        return True

    def _check_unchanged(self, connection: sa.Connection, target: Target, batch: SinkCommit) -> None:
        """The table may have been altered after the commit. It would change values, or replace rows of other writers."""
        try:
            self._check_table(connection, target, batch.staged_schema)
            if any(file.stats != target.digest for file in batch.committable.files):
                sql_values.refuse_misfits(
                    self.location, batch.committable, target, of_changes=self.changes is not None, is_committed=True
                )
        except DataError as error:
            fields = {name: value for name, value in error.fields.items() if name != "table"}
            summary = "the table was altered after the commit and no longer stores the rows unchanged; nothing of the batch is in the table"
            raise PublishError(
                summary, table=self.table, version=batch.version, problem=error.summary.partition(";")[0], **fields
            ) from None

    def _delete_replaced(self, connection: sa.Connection, target: Target, batch: SinkCommit) -> None:
        """The version column selects the rows. If there are more than the pipeline has published, some belong to other writers."""
        import sqlalchemy as sa

        if not batch.replaced_files:
            return
        if not self.can_remove_rows:
            raise PublishError(
                "the sink cannot replace rows in this mode", table=self.table, mode=self.mode, version=batch.version
            )
        table = target.table([self.version_column])
        (version,) = table.columns
        versions = sorted(batch.replaced)
        for at in range(0, len(versions), _VERSIONS_PER_DELETE):
            roots = versions[at : at + _VERSIONS_PER_DELETE]
            is_replaced = version.in_(roots)
            counted = sa.select(version, sa.func.count()).where(is_replaced).group_by(version)
            too_many = {root: n for root, n in connection.execute(counted) if n > batch.replaced[int(root)].rows}
            removed = connection.execute(sa.delete(table).where(is_replaced)).rowcount
            published = sum(batch.replaced[root].rows for root in roots)
            where = {
                "table": self.table,
                "version_column": self.version_column,
                "first_version": roots[0],
                "last_version": roots[-1],
            }
            if too_many or removed > published:
                raise PublishError(
                    "the table has more rows of a version than the pipeline has published: another writer also sets the version column; no rows were deleted",
                    **where,
                    published=published,
                    found=removed,
                    too_many=sorted(too_many),
                )
            if connection.execute(sa.select(version).where(is_replaced).limit(1)).first() is not None:
                raise PublishError(
                    "rows are still in the table after their deletion: a trigger or rule of the table keeps them; no rows were deleted",
                    **where,
                )

    def _write_rows(
        self, connection: sa.Connection, target: Target, schema: str, staged: Iterable[Any], root: int
    ) -> None:
        fields = sql_columns.fields_of(schema)
        constants = {self.version_column: root} if self.can_remove_rows else {}
        names = [*[field["name"] for field in fields], *constants]
        table = target.table(names)
        if target.dialect == "postgresql":
            chunks = (postgres_copy.csv_of(batch, fields, constants) for batch in staged)
            if self.merges:
                postgres_copy.upsert(connection, table, names, self.keys, chunks)
            else:
                postgres_copy.append(connection, table, names, chunks)
        else:
            rows = (sql_rows.rows_of(batch, fields, table, constants) for batch in staged)
            if self.merges:
                sql_rows.upsert(connection, table, self.keys, rows)
            else:
                sql_rows.insert(connection, table, rows)

    def _changed(self, batch: SinkCommit, changes: Changes) -> Callable[[sa.Connection, Target], Applied]:
        """Read the batch, and return a function that returns the changes to apply. It reads the table for a history, or if upserts leave columns unchanged."""
        from airflow_provider_streamsem.connectors.staged_parquet import batch_changes, changed_rows

        rows, stored = keyed_rows.staged_rows(self.location, batch), changed_rows.tombstones(batch)
        if UNCHANGED not in rows.schema.names and not changes.keeps_history:
            newest = changed_rows.Applied.of(keyed_rows.last_of_each(rows, self.keys), stored, changes)
            return lambda connection, target: newest
        kinds = rows.select(self.keys).schema
        fields = [field for field in sql_columns.fields_of(batch.schema) if field["name"] in self.keys]

        def applied(connection: sa.Connection, target: Target) -> Applied:
            existing = partial(sql_changes.existing, connection, target, self.keys, fields)
            found = batch_changes.applied_by_database(rows, kinds, existing, stored, batch, changes)
            if changes.keeps_history and found.rows.num_rows and found.rows[START].null_count:
                summary = "rows of the table have a null __START_AT, by which the sink cannot find them; nothing of the batch is in the table"
                raise PublishError(summary, table=self.table, version=batch.version).advising(
                    "set __START_AT of these rows, then run again."
                )
            return found

        return applied

    @property
    def _row_keys(self) -> list[str]:
        return [*self.keys] if self.changes is None else self.changes.row_keys

    def _apply(self, connection: sa.Connection, target: Target, schema: str, applied: Applied | None) -> None:
        """Write the changes of a batch. Without ``applied``, run the statements on no rows."""
        assert self.changes is not None
        fields = sql_columns.fields_of(schema)
        names = [field["name"] for field in fields]
        row_keys = self._row_keys
        sequence_by = () if self.changes.keeps_history else self.sequence_by  # that of a version that ends is not newer
        of_delete = [*row_keys, *sequence_by]
        upserts, updates = (None, {}) if applied is None else sql_changes.by_columns(applied.upserts, names)
        # A version ends before the next one begins, because a unique index may allow one current version.
        if target.dialect == "postgresql":
            csv = partial(_csv, fields)
            changed = postgres_copy.ChangedTable(connection, target.table(names), row_keys, sequence_by)
            truncate, deletes = (None, None) if applied is None else (applied.truncate, applied.deletes)
            is_truncated = changed.truncate(csv(sequence_by, truncate)) if sequence_by else True
            if not is_truncated or not changed.delete(csv(of_delete, deletes)):
                raise PublishError(
                    "rows are still in the table after their deletion: a trigger of the table keeps them; nothing of the batch is in the table",
                    table=self.table,
                ).advising("drop the trigger, then run again.")
            for columns, rows in updates.items():
                changed.update(columns, csv(columns, rows))
            changed.upsert(names, csv(names, upserts))
        elif applied is not None:
            table = target.table(names)
            key_of = {column.name: column.key for column in table.columns}
            keys, sequence = ([key_of[name] for name in own] for own in (row_keys, sequence_by))
            values = partial(sql_rows.chosen, fields, table)
            if applied.truncate is not None:
                (at,) = values(applied.truncate, sequence_by)
                sql_changes.truncate(connection, table, sequence, [at[name] for name in sequence])
            sql_changes.delete(connection, table, keys, sequence, values(applied.deletes, of_delete))
            for columns, rows in updates.items():
                sql_changes.update(connection, table, keys, sequence, values(rows, columns))
            sql_changes.upsert(connection, table, keys, sequence, values(upserts, names))

    def _connected(self) -> AbstractContextManager[sa.Connection]:
        return database.connected(self.conn_id)

    def _target(self, connection: sa.Connection) -> Target | None:
        return sql_columns.describe(connection, self.table)

    def _configure_transaction(self, connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":
            postgres_copy.configure_transaction(connection)


def _csv(fields: Sequence[dict[str, Any]], names: Sequence[str], rows: Any) -> Iterator[bytes]:
    """Yield some columns of a pyarrow table as CSV for ``COPY``; nothing for ``None``."""
    types = {field["name"]: field for field in fields}
    for part in () if rows is None else rows.to_batches():
        yield postgres_copy.csv_of(part, [types[name] for name in names], {})
