"""
Builds the function by which Spark's executors read the parts of a table.

The function refers to no other module. So Spark pickles it by value, and executors need SQLAlchemy, the driver and pyarrow, but not this package. The
pickled function contains the password of the connection. Spark's plans, event logs and web UI show only its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_HELD = "column {!r} has a value that the type {} cannot hold"
Query = tuple[str, Any]
"""A statement in the driver's form, and its parameters."""


@dataclass(frozen=True, slots=True)
class Access:
    """How executors connect: SQLAlchemy's URL, arguments of the driver, and statements to execute first in each transaction."""

    url: Any
    options: dict[str, Any]
    settings: tuple[str, ...]


def reader(
    access: Access, queries: Sequence[Query], names: Sequence[str], types: Sequence[Any], *, rows_per_batch: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """
    Return a function for ``mapInArrow``. For each number in its input, it yields the rows of the query with this number as Arrow batches.

    Its errors contain no values, statements or addresses. They begin with ``streamsem-read`` and a kind, from which the engine derives its error: ``setup``,
    ``data``, ``refused`` or ``database``.
    """
    url, options, settings = access.url, access.options, access.settings
    to_batch, problem_of, streaming_cursor = _to_batch(list(names), list(types)), _problem_of(), _streaming_cursor()
    unreadable_column = _unreadable_column()

    def rows_of(engine: Any, query: str, parameters: Any) -> Iterator[Any]:
        with engine.connect() as connection, connection.begin():
            for statement in settings:
                connection.exec_driver_sql(statement)
            # SQLAlchemy's result would build an object for each row, which takes longer than the read.
            cursor = streaming_cursor(connection.connection.driver_connection)
            try:
                cursor.execute(query, parameters)
                while rows := cursor.fetchmany(rows_per_batch):
                    yield rows
            except engine.dialect.loaded_dbapi.DataError as error:
                error.streamsem_column = unreadable_column(cursor)
                raise
            finally:
                with suppress(Exception):  # an error of a lost connection is raised by the read
                    cursor.close()

    def read_table(numbers: Iterator[Any]) -> Iterator[Any]:
        missing = ""
        try:
            import pyarrow  # noqa: F401
            import sqlalchemy as sa

            engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args=options, hide_parameters=True)
        except ImportError as error:
            missing = str(error.name)
        if missing:
            raise ValueError(f"streamsem-read setup: an executor lacks the module {missing}")
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                problem = ""
                try:
                    for rows in rows_of(engine, *queries[number]):
                        yield to_batch(rows)
                except (sa.exc.DBAPIError, engine.dialect.loaded_dbapi.Error) as error:
                    at = getattr(error, "streamsem_column", None)
                    problem = problem_of(error) if at is None else f"data: {_HELD.format(names[at], types[at])}"
                if problem:
                    raise ValueError(f"streamsem-read {problem}")

    return read_table


def _to_batch(names: list[str], types: list[Any]) -> Callable[[Any], Any]:
    def array(values: list[Any], kind: Any) -> Any:
        import pyarrow as pa

        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError):
            if not pa.types.is_string(kind):
                raise
        # A column of SQLite may hold numbers too.
        return pa.array([str(value) if isinstance(value, (int, float)) else value for value in values], kind)

    def to_batch(rows: Any) -> Any:
        import pyarrow as pa

        arrays = []
        for at, (name, kind) in enumerate(zip(names, types, strict=True)):
            values: Any = [row[at] for row in rows]
            problem = ""
            try:
                if pa.types.is_boolean(kind):  # SQLite stores 0 and 1
                    values = [bool(value) if value in (0, 1) else value for value in values]
                arrays.append(array(values, kind))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                problem = type(error).__name__
            if problem:
                raise ValueError(f"streamsem-read data: {_HELD.format(name, kind)} ({problem})")
        return pa.RecordBatch.from_arrays(arrays, names=names)

    return to_batch


def _streaming_cursor() -> Callable[[Any], Any]:
    """Drivers that would fetch the whole result at once get a server-side cursor."""

    def streaming_cursor(connection: Any) -> Any:
        from importlib import import_module

        module = type(connection).__module__.partition(".")[0]
        if module in ("psycopg", "psycopg2"):
            return connection.cursor(name="streamsem")
        if module in ("pymysql", "MySQLdb"):
            return connection.cursor(import_module(f"{module}.cursors").SSCursor)
        return connection.cursor()

    return streaming_cursor


def _unreadable_column() -> Callable[[Any], int | None]:
    """The function finds the column of a value that psycopg cannot hold in Python; ``None`` for other drivers and errors."""

    def unreadable_column(cursor: Any) -> int | None:
        result = getattr(cursor, "pgresult", None)
        if result is None:
            return None
        from psycopg import DataError
        from psycopg.adapt import Transformer

        transformer = Transformer(cursor)
        for at in range(result.nfields):
            load = transformer.get_loader(result.ftype(at), result.fformat(at)).load
            try:
                for row in range(result.ntuples):
                    value = result.get_value(row, at)
                    if value is not None:
                        load(value)
            except DataError:
                return at
        return None

    return unreadable_column


def _problem_of() -> Callable[[Any], str]:
    def problem_of(error: Any) -> str:
        cause = getattr(error, "orig", error)  # SQLAlchemy's error has the driver's
        codes = (getattr(cause, "sqlstate", None), getattr(cause, "sqlite_errorname", None), *cause.args[:1])
        code = next((str(code) for code in codes if code and len(str(code)) <= 20), "")
        # A driver raises DataError for a value that Python cannot hold, such as a date after 9999.
        if any(each.__name__ == "DataError" for each in type(error).__mro__):
            return f"data: the driver cannot read a value: {type(cause).__name__} {code}".strip()
        # No such table or column, no privilege on it, or another user or database than that of the planner.
        is_refused = len(code) == 5 and code[:2] in ("28", "3D", "3F", "42")
        if is_refused or code in ("1044", "1045", "1049", "1054", "1142", "1143", "1146", "SQLITE_ERROR"):
            return f"refused: the database refuses the query: {type(cause).__name__} {code}"
        return f"database: the database did not answer: {type(cause).__name__} {code}".strip()

    return problem_of
