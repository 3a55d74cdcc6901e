"""
A lookup table in a database (extra ``jdbc``). A database keeps no old versions of its rows, so a pin can at most detect that they have changed.

On Postgres the pin has the number of rows and a digest of their versions. For other databases, or on request, every attempt reads the current rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.lookup import Lookup, checking_pin
from airflow_provider_streamsem.connectors.pins import decoded_pin
from airflow_provider_streamsem.connectors.sql import database
from airflow_provider_streamsem.connectors.sql.column_types import read_columns
from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.connectors.sql.source import TABLE
from airflow_provider_streamsem.connectors.sql.table import count_and_digest, open_table, snapshot
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, SourceChangedError
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pyspark.sql import DataFrame, SparkSession

ROWS = ("unchanged", "current")
_SERVER = """
    SELECT pg_catalog.pg_is_in_recovery(), EXISTS (
        WITH RECURSIVE t(oid) AS (
            SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = :schema AND c.relname = :name
            UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN t ON i.inhparent = t.oid)
        SELECT FROM t JOIN pg_catalog.pg_class f ON f.oid = t.oid WHERE f.relkind = 'f')
"""
_RULE = {
    "unchanged": "the plan pins the number of rows and a digest of their versions; if a row changes before the commit, the batch is planned again",
    "current": "the rows are not pinned, because the database keeps no old versions: each attempt, and each task that reads them, sees the rows of its time",
}


@dataclass(frozen=True, slots=True)
class RowsPin:
    """
    The columns (name → type in Spark) and, if they are pinned, the rows. ``rows`` is -1 and ``digest`` ``""`` if they are not.

    :param digest: a number that changes if a row changes
    """

    columns: Mapping[str, str]
    rows: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcTable(Lookup):
    """
    A lookup table in a database. One task of Spark reads the whole table, so it is for tables of up to some million rows.

    :param conn_id: Airflow connection, as in :class:`JdbcSource`
    :param table: ``table`` or ``schema.table``; without a schema, the default schema of the connection. Names are quoted, so they are case-sensitive. Views
        are not read
    :param columns: the columns to read; empty: all columns
    :param as_text: columns that the database casts to text, as in :class:`JdbcSource`
    :param rows: ``unchanged``, only on Postgres: all attempts of a version read the same rows. If a row of the table changes between the plan and the commit,
        the batch is planned again. ``current``: each attempt reads the current rows, so a retry or a reprocessing run may read other rows than the first
        attempt
    :raises InvalidError: an argument is not valid
    """

    extra: ClassVar[str] = "jdbc"
    location: ClassVar[None] = None  # A dataset cannot overlap a database.
    conn_id: str
    table: str
    columns: Sequence[str] = ()
    as_text: Sequence[str] = ()
    rows: str = "unchanged"

    def __post_init__(self) -> None:
        where = "lookup jdbc:"
        arguments.text(f"{where} conn_id", self.conn_id)
        arguments.text(f"{where} table", self.table, pattern=TABLE, accepted="table or schema.table")
        object.__setattr__(self, "columns", arguments.text_list(f"{where} columns", self.columns))
        object.__setattr__(self, "as_text", arguments.text_list(f"{where} as_text", self.as_text))
        arguments.choice(f"{where} rows", self.rows, ROWS)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The part of the table that the pin fixes: the rows or, with ``rows="current"``, only the columns."""
        return (_RULE[self.rows],)

    def lineage(self) -> list[tuple[str, str]]:
        return [database.lineage_name(self.conn_id, self.table)]

    def pin(self, now_ms: int) -> Json:
        """A pin of rows reads every row of the table in the database. Raises ``InvalidError`` if the database cannot detect changed rows."""
        with open_table(self.conn_id, self.table) as (connection, target), snapshot(connection):
            columns = {column.name: column.type for column in read_columns(target, self.columns, self.as_text)}
            if self.rows == "current":
                return plain(RowsPin(columns, -1, ""))
            _check_server(connection, target)
            return plain(RowsPin(columns, *count_and_digest(connection, target.table([]), with_digest=True)))

    def check_pin(self, pin: Json) -> None:
        """
        Check that the table has the pinned columns and rows. A digest value never recurs. So an equal digest before and after a read shows that the read
        found the pinned rows. With ``rows="current"``, only the form of the pin is checked.
        """
        pinned = self._read(pin)
        if self.rows == "current":
            return
        with checking_pin():
            if not pinned.digest:
                summary = 'the rows of a lookup are not pinned, because the version was planned with rows="current"'
                raise SourceChangedError(summary, table=self.table)
            with open_table(self.conn_id, self.table) as (connection, target), snapshot(connection):
                _check_server(connection, target)
                self._check_columns(pinned, target)
                rows, digest = count_and_digest(connection, target.table([]), with_digest=True)
            if (rows, digest) != (pinned.rows, pinned.digest):
                summary = "rows of the lookup table were inserted, changed or deleted after they were planned"
                raise SourceChangedError(summary, table=self.table, planned=pinned.rows, found=rows)

    def _check_columns(self, pin: RowsPin, target: Target) -> None:
        present = [name for name in pin.columns if name in target.columns]
        as_text = [name for name in self.as_text if name in present]
        current = {column.name: column.type for column in read_columns(target, present, as_text)} if present else {}
        changed = sorted(name for name, kind in pin.columns.items() if current.get(name) != kind)
        if changed:
            summary = "columns of the lookup table were changed or dropped after they were planned"
            raise SourceChangedError(summary, table=self.table, columns=changed)

    def load(self, spark: SparkSession, pin: Json) -> DataFrame:
        """Spark reads the rows when it needs them, and again if it needs them again."""
        from airflow_provider_streamsem.connectors.sql import records

        pinned = self._read(pin)
        with open_table(self.conn_id, self.table) as (connection, target):
            columns = read_columns(target, [*pinned.columns], self.as_text)
            return records.load_all(spark, connection, target, self.conn_id, columns)

    def _read(self, pin: Json) -> RowsPin:
        summary = "the pin of a lookup is not that of a database table; nothing was read"
        pinned = decoded_pin(RowsPin, pin, summary, table=self.table)
        if not pinned.columns or (pinned.rows < 0) != (pinned.digest == ""):
            raise LogDamagedError(summary, invariant="R6", table=self.table)
        return pinned


def _check_server(connection: sa.Connection, target: Target) -> None:
    """One connection may reach several replicas that lag differently. So a check of one replica proves nothing about a read from another."""
    import sqlalchemy as sa

    problem = "only Postgres can detect changed rows"
    if connection.dialect.name == "postgresql":
        name = {"schema": target.schema, "name": target.name}
        is_replica, has_foreign = connection.execute(sa.text(_SERVER), name).one()
        if not is_replica and not has_foreign:
            return
        problem = "the server is a replica" if is_replica else "a partition of the table is a foreign table"
    summary = 'lookup jdbc: rows="unchanged" is not possible, because changed rows would not be detected; nothing became visible'
    raise InvalidError(summary, table=target.name, problem=problem).advising(
        'set rows="current": each attempt then reads the rows of its time. On Postgres, name a table of the primary.'
    )
