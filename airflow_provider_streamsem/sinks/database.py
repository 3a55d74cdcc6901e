"""
A database behind an Airflow connection, by SQLAlchemy: how it is reached, the table of markers, and what its errors mean.

Errors of drivers hold row values, statements and addresses. None of that gets out: what is raised here carries codes and names, and no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import connections
from airflow_provider_streamsem.errors import InvalidError, PublishError, StreamsemError, UnavailableError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.sinks.contract import SinkMarker

if TYPE_CHECKING:
    import sqlalchemy as sa

_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "sqlite": "sqlite",
}
_EXTRAS = {
    # libpq's own names; each is read by its name, so that nothing else of the connection's extra gets anywhere
    "postgresql+psycopg": ("sslmode", "sslrootcert", "sslcert", "sslkey", "options", "application_name", "target_session_attrs"),
    "mysql+pymysql": ("charset", "unix_socket", "ssl_ca", "ssl_cert", "ssl_key"),
}  # fmt: skip
_CONNECT_S = 10
_BUSY_S = 30
# SQLSTATE classes by which a database says that it will not take these rows: asking again changes nothing.
_REFUSALS = ("01", "0A", "21", "22", "23", "2F", "38", "39", "3F", "40002", "42", "44", "45", "54", "55000", "P0")
# MySQL has no class for these: a packet that is too long, no default or no value of the column, no partition, a check that failed.
_MYSQL_REFUSALS = (1153, 1364, 1366, 1526, 1748, 3819)
_REFUSING = {"IntegrityError", "DataError", "ProgrammingError", "NotSupportedError"}
_MADE_HERE = (TypeError, ValueError, OverflowError, ArithmeticError)
_NAMED = re.compile(r"(?:(?:UNIQUE|NOT NULL|CHECK) constraint failed: |for key )'?([\w., ]{1,200})'?$")


def name_parts(table: str) -> tuple[str | None, str]:
    """Schema and name of ``table`` or ``schema.table``."""
    schema, dot, name = table.rpartition(".")
    return (schema if dot else None), name


@contextmanager
def connected(conn_id: str) -> Iterator[sa.Connection]:
    """
    A connection of its own, closed at the end; what is not committed then is rolled back.

    :raises InvalidError: there is no such Airflow connection, it is of a type without a driver, or the driver is not installed
    :raises UnavailableError: the database cannot be reached, or does not let this user in
    """
    import sqlalchemy as sa

    url, options = _address(conn_id)
    failed = ""
    try:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args=options, hide_parameters=True)
    except (ImportError, sa.exc.ArgumentError) as error:
        failed = type(error).__name__
    if failed:
        raise InvalidError(
            "there is no driver for the connection's database",
            conn_id=conn_id,
            driver=url.drivername,
            problem=failed,
            accepted="pip install 'airflow-provider-streamsem[jdbc]', or the driver that is named",
        )
    try:
        connection = engine.connect()
    except Exception as error:
        failed = f"{type(error).__name__} {code_of(error)}".strip()
    if failed:
        raise UnavailableError("the database cannot be reached, or does not let us in", conn_id=conn_id, problem=failed)
    try:
        if connection.dialect.name in ("mysql", "mariadb"):
            _be_strict(connection)
        yield connection
    finally:
        connection.close()
        engine.dispose()


def _be_strict(connection: sa.Connection) -> None:
    """A server may replace a value that does not fit by another one without an error, and makes a number of its own of a 0 in an AUTO_INCREMENT column."""
    import sqlalchemy as sa

    with connection.begin():
        connection.execute(
            sa.text("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO')")
        )


def _address(conn_id: str) -> tuple[sa.URL, dict[str, Any]]:
    import sqlalchemy as sa

    found = connections.connection(conn_id)
    driver = _DRIVERS.get(
        found.conn_type, found.extra.get("sqlalchemy_scheme", "") if found.conn_type == "generic" else ""
    )
    if not re.fullmatch(r"[A-Za-z0-9_]+(\+[A-Za-z0-9_]+)?", str(driver)):
        raise InvalidError(
            "a connection is not of a type that names a database",
            conn_id=conn_id,
            conn_type=found.conn_type,
            accepted=["postgres", "mysql", "sqlite", 'generic with the extra {"sqlalchemy_scheme": "dialect+driver"}'],
        )
    options: dict[str, Any] = {n: found.extra[n] for n in _EXTRAS.get(driver, ()) if n in found.extra}
    if driver.startswith("sqlite"):
        # Airflow writes sqlite:///relative and sqlite:////absolute; as JSON the file is the host.
        path = found.host or found.schema
        if path in ("", ":memory:"):
            raise InvalidError(
                "a database in memory forgets what was published", conn_id=conn_id, accepted="the path of a file"
            )
        return sa.URL.create(driver, database=path), {"timeout": _BUSY_S}
    if driver == "postgresql+psycopg":
        options |= {
            "connect_timeout": _CONNECT_S,
            "prepare_threshold": None,
        }  # a pooler may hand each transaction another session
    url = sa.URL.create(
        driver,
        username=found.login or None,
        password=found.password or None,
        host=found.host or None,
        port=found.port,
        database=found.schema or None,
    )
    return url, options


def markers_table(connection: sa.Connection, markers: str) -> sa.Table:
    """
    The table of markers: ``(pipeline_uuid, sink) → (version, state, outcome)``.

    :param markers: ``table`` or ``schema.table``
    """
    import sqlalchemy as sa

    schema, name = name_parts(markers)
    return sa.Table(
        sa.quoted_name(name, True),
        sa.MetaData(),
        sa.Column("pipeline_uuid", sa.String(64), primary_key=True),
        sa.Column("sink", sa.String(64), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(64)),
        schema=sa.quoted_name(schema or connection.dialect.default_schema_name or "", True) or None,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def reading(connection: sa.Connection) -> AbstractContextManager[object]:
    """A transaction to read in: the one that the connection is in, else one of its own."""
    return nullcontext() if connection.in_transaction() else connection.begin()


def make_markers(connection: sa.Connection, table: sa.Table) -> None:
    """
    Make the table of markers where it is missing. Publishing never makes it: a table that somebody dropped would forget what is published.

    :raises UnavailableError: it is not there, and could not be made
    """
    import sqlalchemy as sa

    def is_there() -> bool:
        with connection.begin():
            return sa.inspect(connection).has_table(table.name, schema=table.schema)

    if is_there():
        return
    problem = ""
    try:
        with connection.begin():
            table.create(connection)
    except sa.exc.DBAPIError as error:  # another process made it meanwhile, or this one may not
        problem = f"{type(error).__name__} {code_of(error)}".strip()
    if not is_there():
        raise UnavailableError(
            "the table of markers is not there and could not be made; nothing became visible. Make it by the statement in docs/sinks/jdbc.md",
            table=table.name,
            schema=table.schema,
            problem=problem,
        )


def read_marker(connection: sa.Connection, table: sa.Table, pipeline_uuid: str, sink: str) -> SinkMarker | None:
    """The marker of a pipeline and sink, read in a transaction of its own."""
    import sqlalchemy as sa

    with connection.begin():
        found = connection.execute(
            sa.select(table.c.version, table.c.state, table.c.outcome).where(
                table.c.pipeline_uuid == pipeline_uuid, table.c.sink == sink
            )
        ).first()
    return None if found is None else SinkMarker(int(found.version), str(found.state), str(found.outcome or ""))


def marker_row(name: tuple[str, str], marker: SinkMarker) -> dict[str, object]:
    """The row of a marker: column → value."""
    values = {"version": marker.version, "state": marker.state, "outcome": marker.outcome}
    return {"pipeline_uuid": name[0], "sink": name[1], **values}


def set_marker(
    connection: sa.Connection, table: sa.Table, name: tuple[str, str], new: SinkMarker, found: SinkMarker | None
) -> bool:
    """
    Set a marker in the place of the one that was read, and hold its row to the transaction's end: another publisher waits here, and then finds it set.

    :param name: ``(pipeline_uuid, sink)``
    :param found: the marker that was read; ``None``: there was none
    :returns: whether it was set; where not, another publisher has set it since it was read
    :raises UnavailableError: another publisher made the row meanwhile
    """
    import sqlalchemy as sa

    row = marker_row(name, new)
    if found is not None:
        this = sa.and_(table.c.pipeline_uuid == name[0], table.c.sink == name[1], table.c.version == found.version)
        same = sa.func.coalesce(table.c.outcome, "") == found.outcome
        done = connection.execute(sa.update(table).where(this, same).values(row)).rowcount
        if done not in (0, 1):
            raise UnavailableError("the database's driver does not count the rows that an update changed", sink=name[1])
        return done == 1
    was_there = False
    try:
        connection.execute(sa.insert(table).values(row))
    except sa.exc.IntegrityError:
        was_there = True
    if was_there:
        raise UnavailableError("another publisher made the marker meanwhile", sink=name[1], version=new.version)
    return True


def code_of(error: BaseException) -> str:
    """SQLSTATE, or the driver's own code; ``""`` where it has none."""
    cause: Any = getattr(error, "orig", None) or error
    code = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None)
    if not code and cause.args and isinstance(cause.args[0], int):
        code = cause.args[0]
    return str(code or "")


def translated(error: Exception, **fields: object) -> StreamsemError:
    """
    What an error of the database means, in words that hold no row values: :class:`PublishError` where the same rows will be refused again,
    :class:`UnavailableError` for everything else. Whether the transaction was applied, neither says: the marker does.
    """
    if isinstance(error, StreamsemError):
        return error
    cause: Any = getattr(error, "orig", None) or error
    facts: Json = {**fields, "problem": type(cause).__name__, "sqlstate": code_of(error)}
    diagnosis = getattr(cause, "diag", None)
    if diagnosis is not None:
        facts |= {"constraint": diagnosis.constraint_name, "column": diagnosis.column_name, "of": diagnosis.table_name}
    else:
        named = _NAMED.search(str(cause.args[-1]) if cause.args else "")
        facts |= {"constraint": named[1] if named else None}
    facts = {name: value for name, value in facts.items() if value not in (None, "")}
    if _is_refusal(cause):
        return PublishError("the database refuses the rows; nothing of the batch is in the table", **facts)
    return UnavailableError("the database gave no clear answer; whether the batch is in the table is unknown", **facts)


def unanswered(table: str, version: int) -> UnavailableError:
    """Publishers overtook each other until patience ended."""
    return UnavailableError(
        "the marker was in the hands of other publishers all the time", table=table, version=version
    )


def _is_refusal(cause: BaseException) -> bool:
    state = getattr(cause, "sqlstate", None)
    if state and state != "HY000":  # MySQL's word for anything
        return str(state).startswith(_REFUSALS)
    if cause.args and cause.args[0] in _MYSQL_REFUSALS:
        return True
    if isinstance(cause, _MADE_HERE):
        return True  # a value that the driver could not send
    if getattr(cause, "sqlite_errorcode", None) == 1:
        return True  # SQLITE_ERROR: no such table or column
    return bool(_REFUSING & {kind.__name__ for kind in type(cause).__mro__})
