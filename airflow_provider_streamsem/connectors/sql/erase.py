"""Erases rows of a database table by one ``DELETE``, in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.predicate import Predicate, Term
from airflow_provider_streamsem.connectors.sink import TableErasure
from airflow_provider_streamsem.connectors.sql import columns as sql_columns
from airflow_provider_streamsem.connectors.sql import database
from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError, StreamsemError, UnavailableError

if TYPE_CHECKING:
    import sqlalchemy as sa


def erase(
    connect: Callable[[], AbstractContextManager[sa.Connection]],
    table: str,
    predicate: Predicate,
    *,
    dry_run: bool,
    before_commit: Callable[[], None],
) -> TableErasure | None:
    """Erase the selected rows of a table, as :meth:`PublishingSink.erase_rows` describes."""
    failure: StreamsemError | None = None
    try:
        with connect() as connection:
            target = sql_columns.describe(connection, table)
            if target is None or not {*predicate.columns} <= target.columns.keys():
                return None
            _check_columns(target, predicate)
            with connection.begin():
                rows = _erase(connection, target, predicate, dry_run=dry_run)
                if rows and not dry_run:
                    before_commit()
                return TableErasure(rows=rows)
    except Exception as error:
        failure = _translated(error, table)
    raise failure from None  # the text of the driver may contain values of rows


def _check_columns(target: Target, predicate: Predicate) -> None:
    import sqlalchemy as sa

    for term in predicate.terms:
        kind = target.columns[term.column]["type"]
        is_text = isinstance(kind, sa.String) and not isinstance(kind, sa.Enum)
        predicate.check_type(term, target.name, is_text=is_text, is_integer=isinstance(kind, sa.Integer))


def _erase(connection: sa.Connection, target: Target, predicate: Predicate, *, dry_run: bool) -> int:
    import sqlalchemy as sa

    table = target.table(predicate.columns)
    is_selected = sa.and_(
        *(_has_value(target, column, term) for column, term in zip(table.columns, predicate.terms, strict=True))
    )
    count = sa.select(sa.func.count()).select_from(table).where(is_selected)
    rows = int(connection.execute(count).scalar_one())
    if rows and not dry_run:
        connection.execute(sa.delete(table).where(is_selected))
        if connection.execute(count).scalar_one():
            summary = "rows are still in the table after their deletion: a trigger or rule of the table keeps them; no rows were erased"
            raise InvalidError(summary, table=target.name).advising("disable the trigger or rule, then erase again.")
    return rows


def _has_value(target: Target, column: Any, term: Term) -> Any:
    """The collation of a column may ignore case, accents or trailing spaces. So texts that it considers equal are compared by their bytes, too."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql

    found = column.in_(term.values)
    if not term.is_text:
        return found
    if target.dialect == "postgresql":
        stored = sa.func.upper(sa.func.encode(sa.func.convert_to(sa.cast(column, sa.Text), "UTF8"), "hex"))
    elif target.dialect == "sqlite":
        stored = sa.func.hex(sa.cast(column, sa.LargeBinary))
    else:
        stored = sa.func.hex(sa.cast(column, mysql.CHAR(charset="utf8mb4")))
    return sa.and_(found, stored.in_([str(value).encode().hex().upper() for value in term.values]))


def _translated(error: Exception, table: str) -> StreamsemError:
    translated = database.translated(error, table=table)
    if translated is error:
        return translated
    if isinstance(translated, PublishError):
        summary = "the database refuses to delete the rows; no rows were erased from the table"
        return DataError(summary, **translated.fields).advising(
            "grant DELETE, or remove what `constraint` or `reason` names; or delete the rows with your own SQL statement. Then erase again."
        )
    summary = "the database did not report the result of the deletion; whether rows were erased is unknown"
    return UnavailableError(summary, **translated.fields).advising("repeat the command: it erases what is left.")
