"""Erases rows of a database table by one ``DELETE``, in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import TableErasure
from airflow_provider_streamsem.connectors.sql import columns as sql_columns
from airflow_provider_streamsem.connectors.sql import database
from airflow_provider_streamsem.connectors.sql.changes import inexact_keys
from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError, StreamsemError, UnavailableError

if TYPE_CHECKING:
    import sqlalchemy as sa

_DO = "delete the rows by a statement of your own, and run the erasure again."


def erase(
    connect: Callable[[], AbstractContextManager[sa.Connection]], table: str, predicate: Predicate, *, dry_run: bool
) -> TableErasure | None:
    """Erase the selected rows of a table, as :meth:`PublishingSink.erase_rows` describes."""
    failure: StreamsemError | None = None
    try:
        with connect() as connection:
            target = sql_columns.describe(connection, table)
            if target is None or not {*predicate.columns} <= target.columns.keys():
                return None
            _check_columns(connection, target, predicate)
            with connection.begin():
                return TableErasure(rows=_erase(connection, target, predicate, dry_run=dry_run))
    except Exception as error:
        failure = _translated(error, table)
    raise failure from None  # the text of the driver may contain values of rows


def _check_columns(connection: sa.Connection, target: Target, predicate: Predicate) -> None:
    """A comparison in the database must select the same rows as one in Spark."""
    import sqlalchemy as sa

    for term in predicate.terms:
        kind = target.columns[term.column]["type"]
        is_text = isinstance(kind, sa.String) and not isinstance(kind, sa.Enum)
        predicate.check_type(term, target.name, is_text=is_text, is_integer=isinstance(kind, sa.Integer))
    if inexact := inexact_keys(connection, target, predicate.columns):
        summary = "the database compares values of a column of the predicate without regard to case, accents or trailing spaces; nothing was erased"
        raise InvalidError(summary, table=target.name, columns=inexact).advising(_DO)


def _erase(connection: sa.Connection, target: Target, predicate: Predicate, *, dry_run: bool) -> int:
    import sqlalchemy as sa

    table = target.table(predicate.columns)
    is_selected: Any = sa.and_(
        *(column.in_(term.values) for column, term in zip(table.columns, predicate.terms, strict=True))
    )
    count = sa.select(sa.func.count()).select_from(table).where(is_selected)
    rows = int(connection.execute(count).scalar_one())
    if rows and not dry_run:
        connection.execute(sa.delete(table).where(is_selected))
        if connection.execute(count).scalar_one():
            summary = "rows are still in the table after their deletion: a trigger or rule of the table keeps them; no rows were erased"
            raise InvalidError(summary, table=target.name).advising("drop the trigger, then erase again.")
    return rows


def _translated(error: Exception, table: str) -> StreamsemError:
    translated = database.translated(error, table=table)
    if translated is error:
        return translated
    if isinstance(translated, PublishError):
        summary = "the database refuses to delete the rows; no rows were erased from the table"
        return DataError(summary, **translated.fields).advising(
            f"grant DELETE, or remove what `constraint` or `reason` names; or {_DO}"
        )
    summary = "the database did not report the result of the deletion; whether rows were erased is unknown"
    return UnavailableError(summary, **translated.fields).advising("repeat the command: it erases what is left.")
