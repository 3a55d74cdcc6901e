"""
Finds the offset below which no transaction can still commit a row.

A transaction obtains its cursor value before it commits. So a row with a smaller value may become visible after a row with a greater one. A reader that
continues after the greatest visible value would never read the smaller one.

On Postgres, the writers must follow two rules. (1) The transaction that writes a row also obtains its cursor value. (2) The generator never goes back: a
sequence, which gives each integer to one transaction, or the server's clock (``now()``, ``clock_timestamp()``). The proof that :func:`settled_end` is
correct:

* Integers with a default sequence, by an identity or ``DEFAULT nextval(...)``. ``B`` is the greatest committed value. A smaller value was obtained before
  ``B``, from this sequence or, because a writer may override the default, from another one. Its transaction holds the lock of that sequence until it ends,
  because ``nextval`` locks the sequence. So ``settled_end`` first reads ``B``, then lists the transactions that hold the lock of any sequence of the database,
  and waits for their end. Then every value up to ``B`` is visible or will never be committed. It also waits for the transactions that have written the table,
  in case their values come from another generator. It does not wait for other transactions, such as a backup.
* Integers without a default sequence. The same, but with all open transactions of the database. Each holds the lock of its virtual transaction id, even before
  it has a transaction id. Every user may read these locks.
* Times. ``settled_end`` first reads the server's clock, ``T``, then lists the open transactions. A transaction that begins later obtains a value of ``T`` or
  later. A transaction that is open obtains no value before its own start, ``xact_start``. So the bound is the earliest of these times. Users without
  ``pg_read_all_stats`` do not see ``xact_start`` of other users, so ``settled_end`` waits for those transactions. A server process takes the time of
  ``now()`` shortly before it locks its virtual transaction id, so the bound is one second before ``T``.

A transaction releases its locks after its commit is visible. A prepared transaction counts as open. It is listed before the locks of its session are released,
so ``settled_end`` lists prepared transactions again after the sessions' transactions have ended. A subtransaction is part of its transaction.

Other databases do not show enough about open transactions. There, the caller gives a ``lag``: the bound is that far before the greatest value, or before the
current time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.clock import Clock
from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.connectors.sql.cursor import Cursor
from airflow_provider_streamsem.errors import InvalidError

if TYPE_CHECKING:
    import sqlalchemy as sa

logger = logging.getLogger(__name__)

_MYSQL = ("mysql", "mariadb")
_BEGIN_US = 1_000_000
"""Maximum time between the time of ``now()`` and the lock of the virtual transaction id of a transaction, in microseconds."""
_OLD_S = 60
_FIRST_POLL_S, _LAST_POLL_S = 0.02, 1.0

# Partitions and tables that inherit may have sequences of their own.
_TREE = """
    WITH RECURSIVE tables(oid) AS (
        SELECT CAST(:oid AS oid) UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tables ON i.inhparent = tables.oid)
"""
_SEQUENCES = f"""{_TREE},
    columns(oid, number) AS (
        SELECT a.attrelid, a.attnum FROM pg_catalog.pg_attribute a JOIN tables ON a.attrelid = tables.oid WHERE a.attname = :column)
    SELECT s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle
    FROM pg_catalog.pg_sequence s WHERE s.seqrelid IN (
        SELECT d.objid FROM pg_catalog.pg_depend d JOIN columns c ON d.refobjid = c.oid AND d.refobjsubid = c.number
        WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.deptype = 'i'
        UNION SELECT d.refobjid FROM pg_catalog.pg_attrdef a JOIN columns c ON a.adrelid = c.oid AND a.adnum = c.number
        JOIN pg_catalog.pg_depend d
            ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = a.oid AND d.refclassid = 'pg_catalog.pg_class'::regclass)
"""
_TABLE = """
    SELECT c.oid::bigint, EXISTS (
        SELECT FROM pg_catalog.pg_subscription_rel r
        WHERE r.srrelid = c.oid OR r.srrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree(c.oid))),
        EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) p JOIN pg_catalog.pg_class f ON f.oid = p.relid WHERE f.relkind = 'f')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = :column
    WHERE n.nspname = :schema AND c.relname = :name
"""
_WRITERS = f"""{_TREE}
    SELECT DISTINCT l.virtualtransaction, CAST(NULL AS timestamptz), l.pid IS NULL
    FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation
    WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted AND (c.relkind = 'S' OR c.oid IN (SELECT oid FROM tables))
        AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        AND l.pid IS DISTINCT FROM pg_backend_pid()
"""
# A vacuum and the processes that send the log to replicas write no rows, but may take hours.
_OPEN = """
    SELECT l.virtualtransaction, a.xact_start, false
    FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND a.datname = current_database() AND l.pid <> pg_backend_pid()
        AND a.backend_type IS DISTINCT FROM 'autovacuum worker' AND a.backend_type IS DISTINCT FROM 'walsender'
        AND l.pid NOT IN (SELECT pid FROM pg_catalog.pg_stat_progress_vacuum)
"""
_PREPARED = "SELECT transaction::text, NULL, true FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()"


@dataclass(frozen=True, slots=True)
class Transactions:
    """Open transactions: id → begin, ``None`` if this user may not see it. Prepared ones wait for ``COMMIT PREPARED``."""

    running: Mapping[str, datetime | None] = field(default_factory=dict)
    prepared: Mapping[str, datetime | None] = field(default_factory=dict)


def settled_end(
    connection: sa.Connection, target: Target, cursor: Cursor, *, lag: int | None, wait_s: int, clock: Clock
) -> int | None:
    """
    Return the offset below which every row is visible or will never be committed; ``None`` if this could not be shown within ``wait_s``.

    :param lag: seconds if the cursor is a time, else values of the cursor. May be ``None`` for Postgres only, and there not for every table (``InvalidError``)
    """
    if target.dialect != "postgresql":
        return _end_by_lag(connection, target, cursor, lag)
    wait = Waiting(connection, _checked_table(connection, target, cursor, lag), wait_s, clock)
    if not cursor.is_time:
        newest = _newest(connection, cursor)
        is_settled = newest is None or wait.until_ended(wait.list())
        return None if not is_settled else _before(newest, lag or 0, cursor)
    now_us = _postgres_now_us(connection, cursor)
    open_transactions = wait.list()
    known = {name: begin for name, begin in open_transactions.running.items() if begin is not None}
    unknown = {name: None for name, begin in open_transactions.running.items() if begin is None}
    if not wait.until_ended(Transactions(unknown, open_transactions.prepared)):
        return None
    begins_us = [cursor.instant_us(begin) for begin in known.values()]
    _warn_of_old(now_us, begins_us)
    bound = min([now_us - max(_BEGIN_US, (lag or 0) * 1_000_000), *begins_us])
    return cursor.at_instant(bound)


def _end_by_lag(connection: sa.Connection, target: Target, cursor: Cursor, lag: int | None) -> int:
    import sqlalchemy as sa

    if lag is None:
        raise InvalidError(
            "this database does not show which transactions are open, and `lag` of the source is not set; nothing was written",
            table=target.name,
            dialect=target.dialect,
        ).advising(
            "set lag: the longest time in seconds from obtaining a cursor value to its commit, or for an integer cursor, a number of values. "
            "Rows that are committed later are lost. For SQLite, lag=0 is safe, because its writers do not overlap."
        )
    if target.dialect == "sqlite":
        _refuse_repeated_ids(connection, target, cursor)
    if not cursor.is_time:
        return _before(_newest(connection, cursor), lag, cursor)
    with connection.begin():
        now = connection.execute(sa.text("SELECT UTC_TIMESTAMP(6)")).scalar_one()
    return cursor.at_instant(cursor.instant_us(now) - lag * 1_000_000)


def _refuse_repeated_ids(connection: sa.Connection, target: Target, cursor: Cursor) -> None:
    """SQLite may assign a row id again: after the newest rows were deleted, a new row gets the id of one of them."""
    import sqlalchemy as sa

    table = {"name": target.name}
    with connection.begin():
        keys = connection.execute(sa.text("SELECT name, type FROM pragma_table_info(:name) WHERE pk > 0"), table).all()
        text = connection.execute(
            sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name"), table
        ).scalar()
    is_id = [(name, kind.upper()) for name, kind in keys] == [(cursor.columns[0].name, "INTEGER")]
    if is_id and "AUTOINCREMENT" not in str(text).upper():
        raise InvalidError(
            "SQLite may assign the ids of deleted rows to new rows, which would never be read; nothing was written",
            table=target.name,
            cursor=cursor.columns[0].name,
        ).advising("declare the column as INTEGER PRIMARY KEY AUTOINCREMENT, or use another cursor.")


def _newest(connection: sa.Connection, cursor: Cursor) -> int | None:
    import sqlalchemy as sa

    newest = sa.select(sa.func.max(cursor.table.c[0])).where(cursor.from_offset(0))
    with connection.begin():
        value = connection.execute(newest).scalar()
    return None if value is None else int(value)


def _before(newest: int | None, lag: int, cursor: Cursor) -> int:
    return 0 if newest is None else max(0, newest + 1 - lag) * cursor.step


def _postgres_now_us(connection: sa.Connection, cursor: Cursor) -> int:
    import sqlalchemy as sa

    with connection.begin():
        return cursor.instant_us(connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one())


def _warn_of_old(now_us: int, begins_us: Sequence[int]) -> None:
    oldest_s = (now_us - min(begins_us, default=now_us)) // 1_000_000
    if oldest_s >= _OLD_S:
        message = "source jdbc: a transaction of the database has been open for %d s; rows with later cursor values are read after it has ended"
        logger.warning(message, oldest_s)


def _checked_table(connection: sa.Connection, target: Target, cursor: Cursor, lag: int | None) -> int | None:
    """Return the oid of the table if a sequence generates the cursor, else ``None``."""
    import sqlalchemy as sa

    name = {"schema": target.schema, "name": target.name, "column": cursor.columns[0].name}
    with connection.begin():
        if connection.execute(sa.text("SELECT pg_is_in_recovery()")).scalar_one():
            raise InvalidError(
                "the server is a replica, which does not show the open transactions of its primary; nothing was written", table=target.name
            ).advising("let the connection name the primary.")  # fmt: skip
        oid, is_replicated, has_foreign = connection.execute(sa.text(_TABLE), name).one()
        sequences = connection.execute(sa.text(_SEQUENCES), {"oid": oid, "column": cursor.columns[0].name}).all()
    if has_foreign:
        raise InvalidError(
            "a partition of the table is a foreign table, and the transactions of its server are not visible; nothing was written",
            table=target.name,
        ).advising("read the tables of each server as a separate source.")
    if lag is None and is_replicated:
        raise InvalidError(
            "a subscription of logical replication writes the table, and commits rows with older cursor values later; nothing was written",
            table=target.name,
        ).advising("set lag, or read the table from the publishing server.")
    if cursor.is_time:
        return None
    for sequence, cache, increment, cycles in sequences:
        if lag is None and (cache != 1 or increment != 1 or cycles):
            raise InvalidError(
                "the sequence of the cursor does not generate values in ascending order in all sessions; nothing was written",
                sequence=sequence, cache=cache, increment=increment, cycle=cycles,
            ).advising("set lag; or ALTER SEQUENCE ... CACHE 1 INCREMENT BY 1 NO CYCLE, if no application allocates blocks of values.")  # fmt: skip
    return int(oid) if sequences else None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waits until transactions of a Postgres database have ended: those that use a sequence or write ``table`` (an oid); ``None``: all."""

    connection: sa.Connection
    table: int | None
    wait_s: int
    clock: Clock

    def list(self) -> Transactions:
        """Prepared transactions are listed last, because a transaction may be prepared in between."""
        import sqlalchemy as sa

        statements: list[tuple[str, dict[str, Any]]] = [(_OPEN, {}), (_PREPARED, {})]
        if self.table is not None:
            statements = [(_WRITERS, {"oid": self.table})]
        running: dict[str, datetime | None] = {}
        prepared: dict[str, datetime | None] = {}
        for statement, values in statements:
            with self.connection.begin():  # a new transaction, because Postgres caches pg_stat_activity within one
                for name, begin, is_prepared in self.connection.execute(sa.text(statement), values):
                    (prepared if is_prepared else running)[str(name)] = begin
        return Transactions(running, prepared)

    def until_ended(self, transactions: Transactions) -> bool:
        """Return whether the transactions have ended, including those that are prepared in the meantime. If not, a warning was logged."""
        deadline_ms = self.clock.now_ms() + self.wait_s * 1000
        if not transactions.running and not transactions.prepared:
            return True
        if transactions.running and not self._wait_for({*transactions.running}, lambda now: now.running, deadline_ms):
            return False
        prepared = {*self.list().prepared}
        return self._wait_for(prepared, lambda now: now.prepared, deadline_ms)

    def _wait_for(
        self, names: set[str], of: Callable[[Transactions], Mapping[str, datetime | None]], deadline_ms: int
    ) -> bool:
        pause_s = _FIRST_POLL_S
        while names:
            names &= of(self.list()).keys()
            if names and self.clock.now_ms() >= deadline_ms:
                message = (
                    "source jdbc: %d transactions are open since %d s or longer; nothing is read until they have ended"
                )
                logger.warning(message, len(names), self.wait_s)
                return False
            if names:
                self.clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_POLL_S)
        return True
