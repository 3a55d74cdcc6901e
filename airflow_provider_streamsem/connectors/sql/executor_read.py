"""
Builds the function by which Spark's executors read the parts of a table.

The function refers to nothing outside itself. So Spark pickles it by value, and executors need SQLAlchemy, the driver and pyarrow, but not this package. The
pickled function contains the password of the connection. Spark's plans, event logs and web UI show only its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Query = tuple[str, Any]
"""A statement in the driver's form, and its parameters."""


@dataclass(frozen=True, slots=True)
class Access:
    """
    How executors connect.

    :param url: SQLAlchemy's URL
    :param options: arguments of the driver
    :param settings: statements to execute first in each transaction
    """

    url: Any
    options: dict[str, Any]
    settings: tuple[str, ...]


def reader(
    access: Access, queries: Sequence[Query], names: Sequence[str], types: Sequence[Any], *, rows_per_batch: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """
    Return a function for ``mapInArrow``. For each number in its input, it yields the rows of the query with this number as Arrow batches.

    Its errors contain no values, statements or addresses. They begin with ``streamsem-read`` and a kind, from which the
    engine derives its error: ``setup``, ``data`` or ``database``.

    :param names: names of the columns
    :param types: pyarrow type of each column
    :param rows_per_batch: maximum number of rows of a batch
    """
    url, options, settings = access.url, access.options, access.settings

    def read_table(numbers: Iterator[Any]) -> Iterator[Any]:
        try:
            import pyarrow as pa
            import sqlalchemy as sa

            engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args=options, hide_parameters=True)
        except ImportError as error:
            what = f"streamsem-read setup: an executor lacks the module {error.name}"
            raise RuntimeError(what) from None

        def array(name: str, kind: Any, values: Any) -> Any:
            problem = ""
            try:
                if pa.types.is_boolean(kind):  # SQLite stores 0 and 1
                    values = [bool(value) if value in (0, 1) else value for value in values]
                return pa.array(values, kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                problem = type(error).__name__
            raise RuntimeError(f"streamsem-read data: column {name!r} has a value that is not of the type {kind} ({problem})")  # fmt: skip

        def batches(query: Any, parameters: Any) -> Iterator[Any]:
            with engine.connect() as connection, connection.begin():
                for statement in settings:
                    connection.exec_driver_sql(statement)
                streaming = connection.execution_options(stream_results=True, max_row_buffer=rows_per_batch)
                result = streaming.exec_driver_sql(query, parameters)
                while rows := result.fetchmany(rows_per_batch):
                    columns = zip(*rows, strict=True)
                    arrays = [array(name, kind, values) for name, kind, values in zip(names, types, columns, strict=True)]  # fmt: skip
                    yield pa.RecordBatch.from_arrays(arrays, names=list(names))

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                problem = ""
                try:
                    yield from batches(*queries[number])
                except sa.exc.DBAPIError as error:
                    cause: Any = error.orig
                    codes = (
                        getattr(cause, "sqlstate", None),
                        getattr(cause, "sqlite_errorname", None),
                        *cause.args[:1],
                    )
                    code = next((str(code) for code in codes if code and len(str(code)) <= 20), "")
                    # A driver raises DataError for a value that Python cannot hold, such as a date after 9999.
                    kind = "data" if isinstance(error, sa.exc.DataError) else "database"
                    problem = f"{kind}: the database did not answer a query with values that Python can hold: {type(cause).__name__} {code}"
                if problem:
                    raise RuntimeError(f"streamsem-read {problem.strip()}")

    return read_table
