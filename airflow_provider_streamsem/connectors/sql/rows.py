"""Writes rows to a database by SQLAlchemy, many rows per statement. For Postgres see ``postgres_copy.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.json_rows.text import json_text, json_value

if TYPE_CHECKING:
    import sqlalchemy as sa

UPSERTING = ("postgresql", "sqlite", "mysql", "mariadb")
"""Dialects of databases that insert or update by key in one statement, and for which mode ``upsert`` is supported."""


def insert(connection: sa.Connection, table: sa.Table, record_batches: Iterable[list[dict[str, Any]]]) -> None:
    """Insert rows."""
    import sqlalchemy as sa

    # A constraint in SQLite may specify ON CONFLICT IGNORE or REPLACE, which drops rows without an error.
    statement = sa.insert(table).prefix_with("OR ABORT", dialect="sqlite")
    for rows in record_batches:
        connection.execute(statement, rows)


def upsert(
    connection: sa.Connection, table: sa.Table, keys: Sequence[str], record_batches: Iterable[list[dict[str, Any]]]
) -> None:
    """Insert rows in order. Each row replaces the row with the same keys, so the table has the last row of each key."""
    import sqlalchemy.dialects.mysql
    import sqlalchemy.dialects.sqlite

    unique = [column for column in table.columns if column.name in keys]
    others = [column for column in table.columns if column.name not in keys]
    statement: Any
    if connection.dialect.name == "sqlite":
        added = sqlalchemy.dialects.sqlite.insert(table).prefix_with("OR ABORT")
        new_values = {column: added.excluded[column.key] for column in others}
        statement = (
            added.on_conflict_do_update(unique, set_=new_values) if others else added.on_conflict_do_nothing(unique)
        )
    else:
        inserted = sqlalchemy.dialects.mysql.insert(table)
        new_values = {column: inserted.inserted[column.key] for column in others or unique}
        statement = inserted.on_duplicate_key_update(new_values)
    for rows in record_batches:
        connection.execute(statement, rows)


def rows_of(
    record_batch: Any, fields: Sequence[dict[str, Any]], table: sa.Table, constants: dict[str, int]
) -> list[dict[str, Any]]:
    """Return key of the column in ``table`` → value. ``constants`` are additional integer columns."""
    columns = {column.name: column for column in table.columns}
    values = [
        _values(record_batch.column(field["name"]), field["type"], columns[field["name"]].type) for field in fields
    ]
    keys = [columns[name].key for name in [*(field["name"] for field in fields), *constants]]
    return [dict(zip(keys, [*row, *constants.values()], strict=True)) for row in zip(*values, strict=True)]


def chosen(fields: Sequence[dict[str, Any]], table: sa.Table, rows: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return :func:`rows_of` for some columns of a pyarrow table."""
    own = [field for field in fields if field["name"] in names]
    return [row for part in rows.to_batches() for row in rows_of(part, own, table, {})]


def _values(column: Any, kind: Any, into: Any) -> list[Any]:
    import sqlalchemy as sa

    values = column.to_pylist()
    if not isinstance(kind, str):
        if isinstance(into, sa.JSON):
            return [json_value(v, column.type) for v in values]  # None is bound as SQL NULL
        return [json_text(v, column.type) for v in values]
    if kind in ("float", "double") and any(v != v for v in values):
        raise ValueError("NaN")  # SQLite would store null without an error
    if kind == "timestamp":  # these databases have no time zones, so times are stored in UTC
        return [v if v is None or v.tzinfo is None else v.astimezone(timezone.utc).replace(tzinfo=None) for v in values]
    return values  # type: ignore[no-any-return]
