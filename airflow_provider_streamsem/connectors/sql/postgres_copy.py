"""
Writes rows to Postgres by ``COPY``: directly into the table, or through a temporary table for an upsert.

``COPY`` reads CSV that Arrow writes. Arrow always quotes text and bytes, and never quotes nulls. So an empty string stays distinct from null.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.json_rows.text import json_text
from airflow_provider_streamsem.errors import DataError

if TYPE_CHECKING:
    import sqlalchemy as sa

_STAGED = "_streamsem_staged"
_ORDER = "_streamsem_order"
_SETTINGS = """
    SELECT set_config('lock_timeout', '30s', true),
           set_config('idle_in_transaction_session_timeout', '60s', true),
           CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
"""


def configure_transaction(connection: sa.Connection) -> None:
    """
    With the timeouts, a publisher that hangs cannot block other publishers forever.

    With ``synchronous_commit = off``, the server would acknowledge a commit that a crash can lose, so it is set to ``on``.
    """
    _cursor(connection).execute(_SETTINGS)


def check(connection: sa.Connection, schema: str | None, name: str, *, deletes: bool = False) -> None:
    """
    Refuse unlogged tables (emptied after a crash), temporary and foreign ones, also as partitions, and rules for ``INSERT``, which ``COPY`` ignores.

    :param deletes: also refuse rules for ``UPDATE`` and ``DELETE``, which could keep a row that a change deletes
    """
    rows = (
        _cursor(connection)
        .execute(
            "WITH it AS (SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s)"
            " SELECT c.relname::text, c.relkind, c.relpersistence,"
            " EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type::text = ANY (%s))"
            " FROM pg_catalog.pg_class c WHERE c.oid IN (SELECT oid FROM it)"
            " OR c.oid IN (SELECT p.relid FROM it, pg_catalog.pg_partition_tree(it.oid) p)",
            (schema, name, ["2", "3", "4"] if deletes else ["3"]),
        )
        .fetchall()
    )
    tables = [(relname, _text(kind), _text(persistence), has_rule) for relname, kind, persistence, has_rule in rows]
    for relname, kind, persistence, has_rule in tables or [(name, "", "", False)]:
        if kind not in ("r", "p") or persistence != "p":
            raise DataError(
                "a table of the sink, or a partition of it, is not an ordinary or partitioned table, or it is unlogged or temporary",
                table=name,
                schema=schema,
                found=relname,
                relkind=kind,
                relpersistence=persistence,
            ).advising(
                "use ordinary or partitioned tables, and convert unlogged ones with ALTER TABLE ... SET LOGGED; then run again."
            )
        if has_rule:
            raise DataError(
                "a table of the sink has a rule for INSERT, UPDATE or DELETE, which could keep a row that a change deletes"
                if deletes
                else "a table of the sink has a rule for INSERT, which COPY ignores",
                table=name,
                schema=schema,
                found=relname,
            ).advising("drop the rule, or write to another table; then run again.")


def inexact(connection: sa.Connection, schema: str | None, name: str, columns: Sequence[str]) -> list[str]:
    """Return those of the columns that have a nondeterministic collation, such as one without regard to case or accents."""
    rows = _cursor(connection).execute(
        "SELECT a.attname::text FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation"
        " JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND a.attname = ANY (%s) AND NOT o.collisdeterministic",
        (schema, name, list(columns)),
    )
    return [_text(column) for (column,) in rows.fetchall()]


def has_child_tables(connection: sa.Connection, schema: str | None, name: str) -> bool:
    """Return whether other tables inherit from the (not partitioned) table. A unique constraint of the table does not apply to their rows."""
    result = _cursor(connection).execute(
        "SELECT FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhparent"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'r'",
        (schema, name),
    )
    return result.fetchone() is not None


def domains(connection: sa.Connection, schema: str | None, name: str) -> dict[str, str]:
    """Return column → base type of its domain, with the length or digits that SQLAlchemy omits, to detect that the database would round a number."""
    result = _cursor(connection).execute(
        "WITH RECURSIVE below AS ("
        " SELECT a.attname, t.typbasetype, t.typtypmod FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid"
        " JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND t.typtype = 'd'"
        " UNION ALL SELECT b.attname, t.typbasetype, t.typtypmod FROM below b JOIN pg_catalog.pg_type t ON t.oid = b.typbasetype WHERE t.typtype = 'd')"
        " SELECT b.attname::text, pg_catalog.format_type(b.typbasetype, b.typtypmod) FROM below b"
        " JOIN pg_catalog.pg_type t ON t.oid = b.typbasetype WHERE t.typtype <> 'd'",
        (schema, name),
    )
    return {_text(column): _text(base) for column, base in result.fetchall()}


def has_deferrable(connection: sa.Connection, table: sa.Table, keys: Iterable[str]) -> bool:
    """Return whether a unique constraint over exactly these columns is deferrable. ``ON CONFLICT`` then fails, but only for a batch with rows."""
    constraints = (
        _cursor(connection)
        .execute(
            "SELECT ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (k.conkey))"
            " FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s AND k.condeferrable AND k.contype IN ('p', 'u')",
            (str(table.schema), str(table.name)),
        )
        .fetchall()
    )
    return any(frozenset(row[0]) == frozenset(keys) for row in constraints)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def append(connection: sa.Connection, table: sa.Table, names: Sequence[str], chunks: Iterable[bytes]) -> None:
    """Write rows by ``COPY`` directly into the table."""
    from psycopg import sql

    _copy(connection, _target(table), [sql.Identifier(name) for name in names], chunks)


def upsert(
    connection: sa.Connection, table: sa.Table, names: Sequence[str], keys: Sequence[str], chunks: Iterable[bytes]
) -> None:
    """Write rows by ``COPY`` into a temporary table. Then upsert the last row of each key from it into the table."""
    from psycopg import sql

    staged, order, target = sql.Identifier("pg_temp", _STAGED), sql.Identifier(_ORDER), _target(table)
    columns, key_columns = [sql.Identifier(name) for name in names], [sql.Identifier(key) for key in keys]
    listed, keyed = sql.SQL(", ").join(columns), sql.SQL(", ").join(key_columns)
    cursor = _cursor(connection)
    cursor.execute(
        sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            sql.Identifier(_STAGED), listed, target
        )
    )
    cursor.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} bigint GENERATED ALWAYS AS IDENTITY").format(staged, order))
    _copy(connection, staged, columns, chunks)
    others = [sql.Identifier(name) for name in names if name not in keys]
    new_values = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in others)
    cursor.execute(
        sql.SQL(
            "INSERT INTO {target} ({listed}) SELECT DISTINCT ON ({keyed}) {listed} FROM {staged} ORDER BY {keyed}, {order} DESC"
            " ON CONFLICT ({keyed}) DO {action}"
        ).format(
            target=target,
            listed=listed,
            keyed=keyed,
            staged=staged,
            order=order,
            action=sql.SQL("UPDATE SET ") + new_values if others else sql.SQL("NOTHING"),
        )
    )


class ChangedTable:
    """
    Applies changes to a table: writes them by ``COPY`` into a temporary table, and from it into the table. A delete, an upsert or an update changes nothing if
    the row of the table has a greater sequence. No two changes of a batch have equal keys. An empty ``sequence_by`` compares no sequences.
    """

    def __init__(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], sequence_by: Sequence[str]
    ) -> None:
        from psycopg import sql

        self._connection, self._keys, self._sequence, self._sql = connection, keys, sequence_by, sql
        self._target, self._row = _target(table), sql.Identifier("_streamsem_row")
        self._changed, self._tables = sql.Identifier("_streamsem_changed"), 0
        same = (sql.SQL("{0}.{2} = {1}.{2}").format(self._row, self._changed, sql.Identifier(key)) for key in keys)
        self._same = sql.SQL(" AND ").join(same)

    def truncate(self, chunks: Iterable[bytes]) -> bool:
        """
        Delete the rows with a smaller sequence. Return ``False`` if some are still in the table, because a trigger has kept them.

        :param chunks: CSV with the columns of the sequence: at most one row
        """
        staged = self._staged(self._sequence, chunks)
        return self._delete(staged, self._compared(self._row, "<", self._changed))

    def delete(self, chunks: Iterable[bytes]) -> bool:
        """
        Delete rows; returns as :meth:`truncate` does.

        :param chunks: CSV with the columns of the key and of the sequence. A delete lacks other columns, which may have a domain that refuses null
        """
        staged = self._staged([*self._keys, *self._sequence], chunks)
        return self._delete(staged, self._sql.SQL("{} AND {}").format(self._same, self._is_newer()))

    def _delete(self, staged: Any, condition: Any) -> bool:
        places = self._target, self._row, staged, self._changed, condition
        self._run("DELETE FROM {} AS {} USING {} AS {} WHERE {}", *places)
        return self._run("SELECT FROM {} AS {}, {} AS {} WHERE {} LIMIT 1", *places).fetchone() is None

    def upsert(self, names: Sequence[str], chunks: Iterable[bytes]) -> None:
        """Insert or replace rows. ``chunks`` is CSV with the columns ``names``: all columns of the rows."""
        staged = self._staged(names, chunks)
        listed, keyed = self._listed(names), self._listed(self._keys)
        self._run(
            "INSERT INTO {} AS {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO UPDATE SET {} WHERE {}",
            self._target, self._row, listed, listed, staged, keyed, self._new_values(names, self._sql.SQL("EXCLUDED")),
            self._compared(self._sql.SQL("EXCLUDED"), ">=", self._row),
        )  # fmt: skip

    def update(self, names: Sequence[str], chunks: Iterable[bytes]) -> None:
        """Set some columns of rows of the table."""
        staged = self._staged(names, chunks)
        self._run(
            "UPDATE {} AS {} SET {} FROM {} AS {} WHERE {} AND {}",
            self._target, self._row, self._new_values(names, self._changed), staged, self._changed, self._same, self._is_newer(),
        )  # fmt: skip

    def _staged(self, columns: Sequence[str], chunks: Iterable[bytes]) -> Any:
        self._tables += 1
        name, listed = f"{_STAGED}_{self._tables}", [self._sql.Identifier(column) for column in columns]
        create = "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
        self._run(create, self._sql.Identifier(name), self._listed(columns), self._target)
        staged = self._sql.Identifier("pg_temp", name)
        _copy(self._connection, staged, listed, chunks)
        return staged

    def _new_values(self, names: Sequence[str], of: Any) -> Any:
        others = [self._sql.Identifier(name) for name in names if name not in self._keys]
        return self._sql.SQL(", ").join(self._sql.SQL("{0} = {1}.{0}").format(name, of) for name in others)

    def _is_newer(self) -> Any:
        return self._compared(self._changed, ">=", self._row)

    def _compared(self, first: Any, operator: str, second: Any) -> Any:
        """The comparison is null if the row of the table has a null, which is before every value. Without a sequence, it is true."""
        if not self._sequence:
            return self._sql.SQL("true")
        names = [self._sql.Identifier(name) for name in self._sequence]
        mine, theirs = (
            self._sql.SQL(", ").join(self._sql.SQL("{}.{}").format(of, name) for name in names)
            for of in (first, second)
        )
        return self._sql.SQL("COALESCE(ROW({}) {} ROW({}), true)").format(mine, self._sql.SQL(operator), theirs)

    def _listed(self, names: Sequence[str]) -> Any:
        return self._sql.SQL(", ").join(map(self._sql.Identifier, names))

    def _run(self, statement: str, *places: Any) -> Any:
        return _cursor(self._connection).execute(self._sql.SQL(statement).format(*places))


def _target(table: sa.Table) -> Any:
    from psycopg import sql

    return sql.Identifier(*([str(table.schema)] if table.schema else []), str(table.name))


def _copy(connection: sa.Connection, target: Any, columns: Sequence[Any], chunks: Iterable[bytes]) -> None:
    from psycopg import sql

    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')")
    with _cursor(connection).copy(statement.format(target, sql.SQL(", ").join(columns))) as copy:
        for chunk in chunks:
            copy.write(chunk)


def _cursor(connection: sa.Connection) -> Any:
    driver: Any = connection.connection.driver_connection
    return driver.cursor()


def csv_of(record_batch: Any, fields: Sequence[dict[str, Any]], constants: dict[str, int]) -> bytes:
    """Convert a record batch to CSV without a header: the fields (with Spark types) in this order, then constant integer columns."""
    import pyarrow
    import pyarrow.csv

    arrays = [_printable(record_batch.column(field["name"]), field["type"]) for field in fields]
    arrays += [
        pyarrow.repeat(pyarrow.scalar(value, pyarrow.int64()), len(record_batch)) for value in constants.values()
    ]
    out = io.BytesIO()
    table = pyarrow.Table.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])
    pyarrow.csv.write_csv(table, out, pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed"))
    return out.getvalue()


def _printable(column: Any, kind: Any) -> Any:
    """Arrow must write the column as CSV that Postgres reads as the same value."""
    import pyarrow
    import pyarrow.compute

    if not isinstance(kind, str):
        texts = [json_text(value, column.type) for value in column.to_pylist()]
        return pyarrow.array(texts, pyarrow.string())
    if kind == "binary":
        values = column.to_pylist()
        return pyarrow.array([None if v is None else f"\\x{v.hex()}" for v in values], pyarrow.string())
    if kind == "float":
        return column.cast(pyarrow.float64())  # keeps the exact binary value: float32 0.1 is not 0.1
    if kind == "timestamp":
        # Arrow formats timestamps with a time zone ten times more slowly than those without.
        utc = column.cast(pyarrow.timestamp("us", "UTC")).cast(pyarrow.timestamp("us")).cast(pyarrow.string())
        return pyarrow.compute.binary_join_element_wise(utc, "Z", "")
    if kind == "timestamp_ntz":
        return column.cast(pyarrow.timestamp("us"))
    return column.cast(pyarrow.string()) if kind == "string" else column
