"""Applies change data to a database table by SQLAlchemy. For Postgres see ``postgres_copy.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.changes import UNCHANGED
from airflow_provider_streamsem.connectors.sql import database, postgres_copy
from airflow_provider_streamsem.connectors.sql import rows as sql_rows
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import last_of_each

if TYPE_CHECKING:
    import sqlalchemy as sa

    from airflow_provider_streamsem.connectors.sql.columns import Target


_KEYS_PER_QUERY = 200
_OTHERS = ("A", "á", "a ")
"""Texts that some collations consider equal to ``a``."""


def inexact_keys(connection: sa.Connection, target: Target, keys: Sequence[str]) -> list[str]:
    """Return the key columns of text whose comparison ignores case, accents or trailing spaces, by the type or the collation of the column."""
    import sqlalchemy as sa

    kinds = {name: target.columns[name]["type"] for name in keys if name in target.columns}
    texts = [name for name, kind in kinds.items() if isinstance(kind, sa.String) and not isinstance(kind, sa.Enum)]
    with database.reading(connection):
        if target.dialect == "postgresql":
            return postgres_copy.inexact(connection, target.schema, target.name, texts)
        return [name for name in texts if any(_are_equal(connection, target, name, other) for other in _OTHERS)]


def _are_equal(connection: sa.Connection, target: Target, name: str, other: str) -> bool:
    """Compare ``a`` with another text by the collation of a column."""
    import sqlalchemy as sa

    (column,) = target.table([name]).columns
    texts = sa.union_all(sa.select(column.label("text")).where(sa.false()), sa.select(sa.literal("a"))).subquery()
    query = sa.select(sa.func.count()).select_from(texts).where(texts.c.text == other)
    return bool(connection.execute(query).scalar())


def truncate(connection: sa.Connection, table: sa.Table, sequence: Sequence[str], values: Sequence[Any]) -> None:
    """Delete the rows before a sequence. A null is before every value."""
    import sqlalchemy as sa

    connection.execute(sa.delete(table).where(~_is_at_least([table.columns[name] for name in sequence], values)))


def delete(
    connection: sa.Connection,
    table: sa.Table,
    keys: Sequence[str],
    sequence: Sequence[str],
    rows: Sequence[dict[str, Any]],
) -> None:
    """
    Delete rows, unless the row of the table with the same keys has a greater sequence. An empty ``sequence`` compares no sequences.

    :param keys: SQLAlchemy's ``Column.key`` of each key column; ``sequence``: of the columns of the sequence
    :param rows: key of the column → value, for the columns of ``keys`` and ``sequence``. No two rows have equal keys
    """
    import sqlalchemy as sa

    deleted = sa.delete(table).where(*[table.columns[name] == sa.bindparam(f"_{name}") for name in keys])
    in_table = [table.columns[name] for name in sequence]
    deleted = deleted.where(~_is_more(in_table, [sa.bindparam(f"_{name}", type_=table.columns[name].type) for name in sequence]))  # fmt: skip
    if rows:
        connection.execute(deleted, [{f"_{name}": row[name] for name in (*keys, *sequence)} for row in rows])


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    keys: Sequence[str],
    sequence: Sequence[str],
    rows: Sequence[dict[str, Any]],
) -> None:
    """Insert or replace rows; arguments as of :func:`delete`, with every column."""
    if rows:
        connection.execute(_upsert(connection.dialect.name, table, keys, sequence), list(rows))


def update(
    connection: sa.Connection,
    table: sa.Table,
    keys: Sequence[str],
    sequence: Sequence[str],
    rows: Sequence[dict[str, Any]],
) -> None:
    """
    Set some columns of rows of the table; arguments as of :func:`delete`.

    :param rows: key of the column → value, of the same columns for every row
    """
    import sqlalchemy as sa

    bound = {name: sa.bindparam(f"_{name}", type_=table.columns[name].type) for name in rows[0]}
    changed = sa.update(table).values({name: value for name, value in bound.items() if name not in keys})
    changed = changed.where(*[table.columns[name] == bound[name] for name in keys])
    changed = changed.where(~_is_more([table.columns[name] for name in sequence], [bound[name] for name in sequence]))
    connection.execute(changed, [{f"_{name}": value for name, value in row.items()} for row in rows])


def by_columns(upserts: Any, names: Sequence[str]) -> tuple[Any, dict[tuple[str, ...], Any]]:
    """Divide upserts (a pyarrow table) into those that set all columns, and those that keep values of the table's row: columns that are set → rows."""
    if UNCHANGED not in upserts.schema.names:
        return upserts, {}
    import pyarrow as pa

    positions: dict[tuple[str, ...], list[int]] = {}
    for at, kept in enumerate(upserts[UNCHANGED].to_pylist()):
        positions.setdefault(tuple(name for name in names if name not in (kept or ())), []).append(at)
    rows = upserts.drop_columns([UNCHANGED])
    complete = rows.take(pa.array(positions.pop(tuple(names), []), pa.int64()))
    return complete, {columns: rows.take(own).select(columns) for columns, own in positions.items()}


def existing(
    connection: sa.Connection,
    target: Target,
    keys: Sequence[str],
    fields: Sequence[dict[str, Any]],
    rows: Any,
    columns: Sequence[str],
    since: Any = None,
) -> Iterator[Any]:
    """
    See :class:`airflow_provider_streamsem.connectors.staged_parquet.batch_changes.Existing`. ``columns`` are those of keys and sequences. The transaction locks
    these rows until it ends. It ignores ``since``.

    :param fields: fields of Spark's schema of the columns of the key
    """
    import pyarrow as pa
    import sqlalchemy as sa

    names = columns
    table = target.table(names)
    column_of = {column.name: column for column in table.columns}
    distinct = last_of_each(rows.select(keys), keys)
    if target.dialect == "postgresql":
        wanted = distinct.to_pylist()
    else:
        key_of = {column.key: column.name for column in table.columns}
        own = [field for field in fields if field["name"] in keys]
        wanted = [{key_of[key]: v for key, v in row.items()} for row in sql_rows.chosen(own, table, distinct, keys)]
    for start in range(0, len(wanted), _KEYS_PER_QUERY):
        some = wanted[start : start + _KEYS_PER_QUERY]
        matches = [sa.and_(*(column_of[name] == value for name, value in key.items())) for key in some]
        query = sa.select(*(column_of[name] for name in names)).where(sa.or_(*matches)).with_for_update()
        found = [*zip(*connection.execute(query).fetchall(), strict=True)] or [()] * len(names)
        arrays = [_array(values, rows.schema.field(name).type) for name, values in zip(names, found, strict=True)]
        yield pa.Table.from_arrays(arrays, names=names)


def _array(values: Sequence[Any], kind: Any) -> Any:
    """Return the values of a database as a pyarrow array of the type of the staged values. A decimal may have more digits."""
    import pyarrow as pa

    given = [None if value is None else _value(value, kind) for value in values]
    is_wider = pa.types.is_decimal(kind) or pa.types.is_integer(kind)  # rows of other writers may have larger values
    return pa.array(given) if is_wider and any(value is not None for value in given) else pa.array(given, kind)


def _value(value: Any, kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None and value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)  # databases without time zones have times in UTC
    if pa.types.is_date(kind) and isinstance(value, datetime):
        return value.date()
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_boolean(kind):
        return bool(value)
    return str(value) if pa.types.is_string(kind) else value


def _upsert(dialect: str, table: sa.Table, keys: Sequence[str], sequence: Sequence[str]) -> Any:
    import sqlalchemy as sa
    import sqlalchemy.dialects.mysql
    import sqlalchemy.dialects.sqlite

    in_table = [table.columns[name] for name in sequence]
    # The columns of the sequence come last: MySQL assigns one column after the other, and compares with the values assigned so far.
    others = [column for column in table.columns if column.key not in (*keys, *sequence)]
    others += [table.columns[name] for name in reversed(sequence)]
    if dialect == "sqlite":
        added = sqlalchemy.dialects.sqlite.insert(table).prefix_with("OR ABORT")
        applies = ~_is_more(in_table, [added.excluded[name] for name in sequence])
        unique = [table.columns[name] for name in keys]
        values = {column: added.excluded[column.key] for column in others}
        return added.on_conflict_do_update(index_elements=unique, set_=values, where=applies)
    inserted = sqlalchemy.dialects.mysql.insert(table)
    applies = ~_is_more(in_table, [inserted.inserted[name] for name in sequence])
    return inserted.on_duplicate_key_update(
        [(c.key, sa.func.if_(applies, inserted.inserted[c.key], c)) for c in others]
    )


def _is_more(columns: Sequence[Any], values: Sequence[Any]) -> Any:
    """A null in the table is before every value, so the result is never null."""
    return _compared(columns, values, least=False)


def _is_at_least(columns: Sequence[Any], values: Sequence[Any]) -> Any:
    return _compared(columns, values, least=True)


def _compared(columns: Sequence[Any], values: Sequence[Any], *, least: bool) -> Any:
    """Return whether columns are more than values, compared in the order of the columns; with ``least``, more or equal."""
    import sqlalchemy as sa

    result: Any = sa.true() if least else sa.false()
    for column, value in reversed([*zip(columns, values, strict=True)]):
        result = sa.or_(column > value, sa.and_(column == value, result))
        result = sa.and_(column.is_not(None), result)
    return result
