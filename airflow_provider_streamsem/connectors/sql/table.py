"""Queries on the table of a JDBC source: its newest row, numbers of rows, boundaries of ranges, and digests of row versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.clock import Clock
from airflow_provider_streamsem.connectors.sql import columns as sql_columns
from airflow_provider_streamsem.connectors.sql import database, settled
from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.connectors.sql.cursor import Cursor, cursor_of
from airflow_provider_streamsem.errors import SourceChangedError, StreamsemError, UnavailableError

if TYPE_CHECKING:
    import sqlalchemy as sa

MYSQL_UTC = "SET SESSION time_zone = '+00:00'"
"""Lets MySQL and MariaDB convert ``TIMESTAMP`` columns to UTC in a session."""
# Each new version of a row has the id of the transaction that wrote it. Reading it does not read the row's large values.
_POSTGRES_DIGEST = "coalesce(sum(hashint8extended(xmin::text::bigint, 0)), 0)::text"


@contextmanager
def open_table(conn_id: str, table: str) -> Iterator[tuple[sa.Connection, Target]]:
    """Connect to the database, read the description of a table, and map the database's errors within the block to errors of this package."""
    failure: Exception | None = None
    try:
        with database.connected(conn_id) as connection:
            if connection.dialect.name in ("mysql", "mariadb"):
                _read_times_in_utc(connection)
            target = sql_columns.describe(connection, table)
            if target is None:
                raise SourceChangedError(
                    "the database has no such table, or the user has no privilege on it (names are case-sensitive, no views); nothing was written",
                    **database.server(conn_id),
                    table=table,
                ).advising("create the table, or correct `table`; then run again.")
            yield connection, target
    except Exception as error:
        failure = error
        if not isinstance(error, StreamsemError):
            failure = database.translated_read(error, **database.server(conn_id), table=table)
    if failure is not None:
        raise failure from None  # the text of the driver may contain values of rows


def _read_times_in_utc(connection: sa.Connection) -> None:
    """As the readers on executors do. Otherwise the server converts ``TIMESTAMP`` columns to its own time zone."""
    with connection.begin():
        connection.exec_driver_sql(MYSQL_UTC)


@contextmanager
def opened(conn_id: str, table: str, cursor: Sequence[str], *, utc_offset: timedelta) -> Iterator[SourceTable]:
    """Connect to the database as :func:`open_table` does, and describe the cursor."""
    with open_table(conn_id, table) as (connection, target):
        yield SourceTable(connection, target, cursor_of(target, cursor, utc_offset))


@contextmanager
def snapshot(connection: sa.Connection) -> Iterator[None]:
    """Begin a transaction whose queries all see the same rows, if the database supports that. It writes nothing."""
    if connection.dialect.name in ("postgresql", "mysql", "mariadb"):
        connection.execution_options(isolation_level="REPEATABLE READ")
    with connection.begin():
        yield


def count_and_digest(
    connection: sa.Connection, table: sa.Table, *conditions: Any, with_digest: bool
) -> tuple[int, str]:
    """Return the number of rows that satisfy all conditions, and a digest of their versions; ``""`` without ``with_digest``, or if not on Postgres."""
    import sqlalchemy as sa

    has_digest = with_digest and connection.dialect.name == "postgresql"
    columns: list[Any] = [sa.func.count()] + ([sa.literal_column(_POSTGRES_DIGEST)] if has_digest else [])
    count, *digests = connection.execute(sa.select(*columns).select_from(table).where(*conditions)).one()
    return int(count), str(digests[0]) if digests else ""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table in an open connection."""

    connection: sa.Connection
    target: Target
    cursor: Cursor

    def unavailable(self, summary: str) -> UnavailableError:
        return UnavailableError(summary, table=self.target.name)

    def snapshot(self) -> AbstractContextManager[None]:
        """Within the block all queries see the same rows, if the database supports that. Writes nothing."""
        return snapshot(self.connection)

    def settled_end(self, *, lag: int | None, wait_s: int, clock: Clock) -> int | None:
        """See ``settled.settled_end``."""
        return settled.settled_end(self.connection, self.target, self.cursor, lag=lag, wait_s=wait_s, clock=clock)

    def has_index(self) -> bool:
        """Whether the columns of an index over all rows begin with the cursor."""
        import sqlalchemy as sa

        names = [column.name for column in self.cursor.columns]
        schema, table = self.target.schema, self.target.name
        with database.reading(self.connection):
            inspector = sa.inspect(self.connection)
            keys: list[Any] = [inspector.get_pk_constraint(table, schema)["constrained_columns"]]
            keys += [constraint["column_names"] for constraint in inspector.get_unique_constraints(table, schema)]
            for index in inspector.get_indexes(table, schema):
                partial = any(option.endswith("_where") and predicate for option, predicate in index.get("dialect_options", {}).items())  # fmt: skip
                keys += [] if partial else [index["column_names"]]
        return any(list(key[: len(names)]) == names for key in keys)

    def has_unreadable(self) -> bool:
        """Whether a row has no offset."""
        import sqlalchemy as sa

        query = sa.select(sa.literal(1)).select_from(self.cursor.table)
        return self.connection.execute(query.where(self.cursor.unreadable()).limit(1)).first() is not None

    def end_before(self, bound: int) -> int:
        """The offset after the newest row below ``bound``; 0 if there is none."""
        newest = self._offset_of_row(*self._range(0, bound), is_last=True)
        return 0 if newest is None else newest + 1

    def first_offset(self, start: int) -> int | None:
        """The offset of the first row from ``start`` (inclusive)."""
        return self._offset_of_row(self.cursor.from_offset(start))

    def fitting(self, start: int, end: int, rows: int) -> int:
        """The greatest end up to ``end`` with at most ``rows`` (1 or more) rows. If the first cursor value alone has more rows, its end."""
        within = self._range(start, end)
        beyond = self._offset_of_row(*within, skip=rows)
        if beyond is None:
            return end
        first = self._offset_of_row(*within)
        if first is None or beyond > first:
            return beyond
        following = self._offset_of_row(*self._range(first + 1, end))
        return end if following is None else following

    def rows(self, start: int, end: int | None) -> int:
        """From ``start`` (inclusive) to ``end`` (exclusive; ``None``: without end)."""
        return count_and_digest(self.connection, self.cursor.table, *self._range(start, end), with_digest=False)[0]

    def count_and_digest(self, start: int, end: int, *, with_digest: bool) -> tuple[int, str]:
        return count_and_digest(self.connection, self.cursor.table, *self._range(start, end), with_digest=with_digest)

    def _range(self, start: int, end: int | None) -> list[Any]:
        return [self.cursor.from_offset(start), *([] if end is None else [self.cursor.before_offset(end)])]

    def _offset_of_row(self, *conditions: Any, skip: int = 0, is_last: bool = False) -> int | None:
        """The first row in the order of the cursor, the one after ``skip`` rows, or the last one."""
        import sqlalchemy as sa

        columns = list(self.cursor.table.c)
        order = [column.desc() if is_last else column for column in columns]
        query = sa.select(*columns).where(*conditions).order_by(*order).limit(1)
        row = self.connection.execute(query.offset(skip) if skip else query).first()
        return None if row is None else self.cursor.offset_of(row)
