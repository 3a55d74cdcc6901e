"""
Rows of a table in a database: Postgres by ``COPY``; MySQL, SQLite and others by SQLAlchemy (extra ``jdbc``).

One transaction sets the pipeline's marker where it is below the version, and only then brings the rows. The marker's row is locked from there to the commit,
so that of two publishers one waits, and then finds the version marked. What an error says of a transaction is never believed: the marker is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    MarkerConflictError,
    MarkerLostError,
    PublishError,
    StreamsemError,
)
from airflow_provider_streamsem.protocol.entries import Committable, Json, Receipt
from airflow_provider_streamsem.sinks import database, keyed_rows, postgres_copy, sql_columns, sql_rows, sql_values
from airflow_provider_streamsem.sinks.contract import Batch, EffectLedger, SinkMarker
from airflow_provider_streamsem.sinks.sql_columns import Target
from airflow_provider_streamsem.sinks.staged import StagedSink, record_batches
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.dataset import open_dataset

if TYPE_CHECKING:
    import sqlalchemy as sa

_MODES = ("append", "upsert", "replace_version")
_NAME = r"[^.\x00]+(\.[^.\x00]+)?"
_TRIES = 6
_LONGEST_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class JdbcSink(StagedSink):
    """
    Rows of a table that is there already. Others may read, change and delete what they like in it.

    :param conn_id: Airflow connection of type ``postgres``, ``mysql``, ``sqlite``, or ``generic`` with the extra ``sqlalchemy_scheme``
    :param table: ``table`` or ``schema.table``; without a schema that which the connection has by default. Names are taken as they are, case included
    :param staging: where rows wait as Parquet files until they are published: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param mode: ``append``: rows are added. ``upsert``: a row replaces that of its keys; of one batch the last one in the order of the staged files stays.
        ``replace_version``: rows are added and carry their version, so that a redo can replace them; only this mode takes redoes
    :param keys: of ``upsert``: columns that a primary key, or one unique index, is made of
    :param version_column: of ``replace_version``: a ``bigint`` column for the version, which this pipeline alone may write; without an index redoes read all
    :param markers: ``table`` or ``schema.table`` of the markers, in the same database; made where it is missing
    """

    extra: ClassVar[str] = "jdbc"
    delivery: ClassVar[str] = "exactly_once"
    keeps_staged: ClassVar[bool] = False
    conn_id: str
    table: str
    staging: str
    mode: str = "append"
    keys: Sequence[str] = ()
    version_column: str = "_streamsem_version"
    markers: str = "streamsem_markers"

    def __post_init__(self) -> None:
        where = "sink jdbc:"
        arguments.text(f"{where} conn_id", self.conn_id)
        for name in ("table", "markers"):
            arguments.text(f"{where} {name}", getattr(self, name), pattern=_NAME, accepted="table or schema.table")
        open_dataset(arguments.text(f"{where} staging", self.staging))
        arguments.choice(f"{where} mode", self.mode, _MODES)
        arguments.text(f"{where} version_column", self.version_column)
        object.__setattr__(self, "keys", arguments.words(f"{where} keys", self.keys))
        if bool(self.keys) != (self.mode == "upsert"):
            raise InvalidError("keys belong to mode upsert, which needs them", mode=self.mode, keys=list(self.keys))
        if self.table == self.markers:
            raise InvalidError("the rows and the markers need a table each", given=self.table)

    @property
    def place(self) -> str:
        """Where rows are staged."""
        return self.staging

    @property
    def redoes(self) -> bool:
        """Whether rows carry the version by which a redo finds them."""
        return self.mode == "replace_version"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why each record is there once."""
        kept = (
            "one database transaction holds the rows of a version and the marker that lets no second one pass",
            "rows handed to the writer = rows in the staged files = rows in the manifest, or the attempt is void",
        )
        return (*kept, keyed_rows.LAST_STAYS) if self.mode == "upsert" else kept

    def guarded(self) -> Json:
        """The database by its connection's id, the tables, the staging place, and how rows get there."""
        return {
            "type": "jdbc",
            "conn_id": self.conn_id,
            "table": self.table,
            "markers": self.markers,
            "staging": normalised(self.staging),
            "mode": self.mode,
            "version_column": self.version_column if self.redoes else None,
        }

    def accept(self, schema: str) -> str:
        """The database must be there, with a table that the columns fit; the publishing transaction is rehearsed without rows, and rolled back."""
        failure: StreamsemError | None = None
        try:
            with self._connected() as connection:
                target = self._target(connection)
                if target is None:
                    raise DataError("the database has no such table; nothing became visible", table=self.table)
                self._check_markers(connection)
                self._check_table(connection, target, schema)
                self._rehearse(connection, target, schema)
        except Exception as error:
            failure = database.translated(error, table=self.table)
        if isinstance(failure, PublishError):
            raise DataError("the database refuses what publishing does; nothing became visible", **failure.fields)
        if failure is not None:
            raise failure
        return schema

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """As every staged sink. Where the log is new the table of markers is created, and never later: an empty one would say that nothing was published."""
        StagedSink.claim(self, pipeline_uuid, log, new=new)
        if not new:
            return
        failure: StreamsemError | None = None
        try:
            with self._connected() as connection:
                database.make_markers(connection, database.markers_table(connection, self.markers))
        except Exception as error:
            failure = database.translated(error, table=self.markers)
        if failure is not None:
            raise failure

    def _check_markers(self, connection: sa.Connection) -> None:
        found = sql_columns.describe(connection, self.markers)
        if found is None:
            what = (
                "the table of markers was deleted or renamed; nothing became visible. Restore it, or create it by the statement in docs/sinks/jdbc.md and "
                "run again: the run then stops before it applies anything, and names the marker that the table needs"
            )
            raise DataError(what, markers=self.markers, table=self.table)
        if frozenset(("pipeline_uuid", "sink")) not in found.uniques:
            raise DataError(
                "the table of markers lacks its primary key (pipeline_uuid, sink): two publishers could pass it; nothing became visible",
                table=self.markers,
            )

    def _check_table(self, connection: sa.Connection, target: Target, schema: str) -> None:
        constant = self.version_column if self.redoes else None
        sql_columns.check(target, schema, keys=self.keys, version_column=constant)
        self._check_dialect(connection, target)

    def _check_dialect(self, connection: sa.Connection, target: Target) -> None:
        if self.mode == "upsert" and target.dialect not in sql_rows.UPSERTING:
            raise DataError(
                "this database has no upsert that is known here; nothing became visible",
                dialect=target.dialect,
                accepted=sql_rows.UPSERTING,
            )
        if target.dialect == "postgresql":
            with database.reading(connection):
                for schema, name in ((target.schema, target.name), database.name_parts(self.markers)):
                    postgres_copy.check(connection, schema or connection.dialect.default_schema_name, name)
                if self.keys and postgres_copy.has_heirs(connection, target.schema, target.name):
                    raise DataError(
                        "other tables inherit from the table, and the unique constraint of the keys does not see their rows; nothing became visible",
                        table=self.table,
                    )
                if self.keys and postgres_copy.has_deferrable(connection, target.table([]), self.keys):
                    raise DataError(
                        "the unique constraint of the keys is deferrable; nothing became visible", table=self.table
                    )
        if target.dialect in ("mysql", "mariadb"):
            sql_columns.check_engine(connection, self.table, self.markers)

    def _rehearse(self, connection: sa.Connection, target: Target, schema: str) -> None:
        """All that publishing does, without rows, and rolled back: it meets what rights, rules and triggers forbid."""
        import sqlalchemy as sa

        markers = database.markers_table(connection, self.markers)
        with connection.begin() as transaction:
            self._settle(connection)
            self._rehearse_marker(connection, markers)
            if self.redoes:
                connection.execute(sa.delete(target.table([self.version_column])).where(sa.false()))
            if sql_columns.fields_of(schema):
                self._bring(connection, target, schema, (), 0)
            transaction.rollback()

    def _rehearse_marker(self, connection: sa.Connection, markers: sa.Table) -> None:
        """A marker that is set is not set again: some drivers do not count what an update changed, and some databases only declare a primary key."""
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
                "this database does not keep what a marker needs: a count of the rows that an update changed, and an enforced primary key; "
                "nothing became visible",
                table=self.markers,
            )

    def stats(self, parquet: Any) -> str:
        """The columns that hold nulls, as JSON; ``""`` where the footer names none."""
        return sql_columns.columns_with_nulls(parquet)

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """
        Count each file of the attempt; nulls and values that the table would refuse are refused here, before the commit.

        Of each file the table's digest is noted: while it is the same, the values need no second look when they are published.
        """
        staged = StagedSink.collect(self, version, attempt_id, accepted)
        if not staged.rows:
            return staged
        failure: StreamsemError | None = None
        try:
            with self._connected() as connection:
                target = self._target(connection)
        except Exception as error:
            failure = database.translated(error, table=self.table)
        if failure is not None:
            raise failure
        if target is not None:
            sql_columns.refuse_nulls(target, {name for file in staged.files for name in json.loads(file.stats or "[]")})
            sql_values.refuse_misfits(self.place, staged, target)
            return replace(staged, files=tuple(replace(file, stats=target.digest) for file in staged.files))
        return staged

    def publish(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """One transaction with the marker and the rows; of a redo, in place of the rows that carry its root version."""
        return self._until_marked(batch, "applied")

    def skip(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """One transaction with the marker alone."""
        return self._until_marked(batch, "skipped")

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """The row of the table of markers."""
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

    def _until_marked(self, batch: Batch, state: str) -> Receipt | None:
        if batch.is_nothing:
            return Receipt(result="applied", rows=0)
        failure: StreamsemError | None = None
        for attempt in range(_TRIES):
            if attempt:
                SYSTEM_CLOCK.sleep(min(0.05 * 2**attempt, _LONGEST_WAIT_S))
            try:
                with self._connected() as connection:
                    markers = database.markers_table(connection, self.markers)
                    if state == "skipped":
                        database.make_markers(connection, markers)
                    found = self._marker_of(connection, markers, batch)
                    if found is not None and found.version > batch.version:
                        return None
                    if found is not None and batch.is_settled(found):
                        return _receipt(batch, found.state)
                    if state == "applied":
                        what = "the table of markers has no row of this pipeline, whose rows are in the table by its receipts: it was emptied or created again"
                        batch.check_marker(found, what, table=self.table, markers=self.markers)
                    if isinstance(failure, PublishError):
                        break  # the marker bears it out
                    if self._commit(connection, markers, batch, SinkMarker(batch.version, state, batch.outcome), found):
                        return _receipt(batch, state)
            except (MarkerLostError, MarkerConflictError) as error:
                failure = error
                break
            except Exception as error:  # whatever it says, it may have landed
                failure = database.translated(error, table=self.table, version=batch.version)
        raise failure or database.unanswered(self.table, batch.version)

    def _marker_of(self, connection: sa.Connection, markers: sa.Table, batch: Batch) -> SinkMarker | None:
        import sqlalchemy as sa

        try:
            return database.read_marker(connection, markers, batch.pipeline_uuid, batch.sink)
        except sa.exc.DBAPIError:
            if sql_columns.describe(connection, self.markers) is not None:
                raise
        what = "the table of markers was deleted or renamed, and with it the marker that says whether the batch is in the table"
        raise batch.lost(what, table=self.table, markers=self.markers)

    def _commit(
        self, connection: sa.Connection, markers: sa.Table, batch: Batch, new: SinkMarker, found: SinkMarker | None
    ) -> bool:
        """Whether this very transaction set the marker in the place of the one that was found, with the rows."""
        # COPY needs names alone; by SQLAlchemy values are sent by the columns' types.
        is_copied = connection.dialect.name == "postgresql"
        read = sql_columns.named if is_copied else sql_columns.describe
        target = read(connection, self.table) if new.state == "applied" else None
        if target is not None and not is_copied:
            self._check_unchanged(
                connection, target, batch
            )  # a table of another engine would keep rows that are rolled back
        with connection.begin():
            self._settle(connection)
            if not database.set_marker(connection, markers, (batch.pipeline_uuid, batch.sink), new, found):
                return False
            if new.state == "applied":
                if target is None:
                    raise PublishError(
                        "the database has no such table any more", table=self.table, version=batch.version
                    )
                self._take_out(connection, target, batch)
                if batch.committable.files:
                    staged = record_batches(self.place, batch)
                    self._bring(connection, target, batch.schema, staged, batch.root)
                    # Who has brought rows keeps others from altering the table until the transaction ends.
                    now = self._target(connection)
                    assert now is not None, "rows were brought into it a moment ago"
                    self._check_unchanged(connection, now, batch)
        return True

    def _check_unchanged(self, connection: sa.Connection, target: Target, batch: Batch) -> None:
        """
        The table must still take the rows as they are.

        :raises PublishError: it was altered after the commit so that values would change, or rows of others would be replaced
        """
        try:
            self._check_table(connection, target, batch.schema)
            if any(file.stats != target.digest for file in batch.committable.files):
                sql_values.refuse_misfits(self.place, batch.committable, target)
        except DataError as error:
            fields = {name: value for name, value in error.fields.items() if name != "table"}
            what = "the table was altered after the commit and no longer takes the rows as they are; nothing of the batch is in the table"
            raise PublishError(what, table=self.table, version=batch.version, problem=error.truth, **fields) from None

    def _take_out(self, connection: sa.Connection, target: Target, batch: Batch) -> None:
        """The rows that a redo replaces: never more than the pipeline has brought, or others' would go, too."""
        import sqlalchemy as sa

        if batch.replaced is None or not batch.replaced.files:
            return
        if not self.redoes:
            raise PublishError(
                "rows of this mode cannot be replaced", table=self.table, mode=self.mode, version=batch.version
            )
        table = target.table([self.version_column])
        is_replaced = table.c[self.version_column] == batch.root
        gone = connection.execute(sa.delete(table).where(is_replaced)).rowcount
        if gone > batch.replaced.rows:
            raise PublishError(
                "more rows carry the version than were published under it: others write the column of versions, too; none was deleted",
                table=self.table,
                version_column=self.version_column,
                version=batch.root,
                published=batch.replaced.rows,
                found=gone,
            )
        if connection.execute(sa.select(table.c[self.version_column]).where(is_replaced).limit(1)).first() is not None:
            raise PublishError(
                "rows that a redo replaces are still in the table after they were deleted: a trigger or rule of the table keeps them; nothing was replaced",
                table=self.table,
                version_column=self.version_column,
                version=batch.root,
            )

    def _bring(self, connection: sa.Connection, target: Target, schema: str, staged: Iterable[Any], root: int) -> None:
        fields = sql_columns.fields_of(schema)
        constants = {self.version_column: root} if self.redoes else {}
        names = [*[field["name"] for field in fields], *constants]
        table = target.table(names)
        if target.dialect == "postgresql":
            chunks = (postgres_copy.csv_of(part, fields, constants) for part in staged)
            if self.mode == "upsert":
                postgres_copy.upsert(connection, table, names, self.keys, chunks)
            else:
                postgres_copy.append(connection, table, names, chunks)
        else:
            rows = (sql_rows.rows_of(part, fields, table, constants) for part in staged)
            if self.mode == "upsert":
                sql_rows.upsert(connection, table, self.keys, rows)
            else:
                sql_rows.insert(connection, table, rows)

    def _connected(self) -> AbstractContextManager[sa.Connection]:
        return database.connected(self.conn_id)

    def _target(self, connection: sa.Connection) -> Target | None:
        return sql_columns.describe(connection, self.table)

    def _settle(self, connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":
            postgres_copy.settle(connection)


def _receipt(batch: Batch, state: str) -> Receipt:
    if state == "skipped":
        return Receipt(result="skipped", rows=0)
    return Receipt(result="applied", rows=batch.committable.rows)
