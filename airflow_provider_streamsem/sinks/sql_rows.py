"""Rows into a database by SQLAlchemy, one statement for many rows. For Postgres see ``postgres_copy.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.sinks.json_text import json_text, json_value

if TYPE_CHECKING:
    import sqlalchemy as sa

UPSERTING = ("postgresql", "sqlite", "mysql", "mariadb")
"""Dialects that insert or update by key in one statement"""


def insert(connection: sa.Connection, table: sa.Table, record_batches: Iterable[list[dict[str, Any]]]) -> None:
    """Add rows."""
    import sqlalchemy as sa

    # A constraint of SQLite may say ON CONFLICT IGNORE or REPLACE, which drops rows without an error.
    statement = sa.insert(table).prefix_with("OR ABORT", dialect="sqlite")
    for rows in record_batches:
        connection.execute(statement, rows)


def upsert(
    connection: sa.Connection, table: sa.Table, keys: Sequence[str], record_batches: Iterable[list[dict[str, Any]]]
) -> None:
    """Add rows, one after the other, each in place of that of its key: so the last one of a key stays."""
    import sqlalchemy.dialects.mysql
    import sqlalchemy.dialects.sqlite

    others = [column.name for column in table.columns if column.name not in keys]
    statement: Any
    if connection.dialect.name == "sqlite":
        added = sqlalchemy.dialects.sqlite.insert(table).prefix_with("OR ABORT")
        where = [table.c[key] for key in keys]
        taken = {name: added.excluded[name] for name in others}
        statement = added.on_conflict_do_update(where, set_=taken) if others else added.on_conflict_do_nothing(where)
    else:
        inserted = sqlalchemy.dialects.mysql.insert(table)
        statement = inserted.on_duplicate_key_update({name: inserted.inserted[name] for name in others or keys})
    for rows in record_batches:
        connection.execute(statement, rows)


def rows_of(
    record_batch: Any, fields: Sequence[dict[str, Any]], table: sa.Table, constants: dict[str, int]
) -> list[dict[str, Any]]:
    """
    One record batch as rows that SQLAlchemy takes.

    :param fields: the columns and their Spark types
    :param constants: further columns, of one number each
    """
    columns = {
        field["name"]: _values(record_batch.column(field["name"]), field["type"], table.c[field["name"]].type)
        for field in fields
    }
    names = [*columns, *constants]
    return [dict(zip(names, [*row, *constants.values()], strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(column: Any, kind: Any, into: Any) -> list[Any]:
    import sqlalchemy as sa

    values = column.to_pylist()
    if not isinstance(kind, str):
        if isinstance(into, sa.JSON):
            return [json_value(v, column.type) for v in values]  # null stays SQL's
        return [json_text(v, column.type) for v in values]
    if kind in ("float", "double") and any(v != v for v in values):
        raise ValueError("NaN")  # SQLite would store null, and say nothing
    if kind == "timestamp":  # these databases have no time zones: UTC
        return [v if v is None or v.tzinfo is None else v.astimezone(timezone.utc).replace(tzinfo=None) for v in values]
    return values  # type: ignore[no-any-return]
