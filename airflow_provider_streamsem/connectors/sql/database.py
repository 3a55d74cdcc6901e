"""
Access to the database of an Airflow connection by SQLAlchemy: connections, the marker table, and the mapping of errors.

Errors of drivers contain row values, statements and addresses. The errors that this module raises contain only codes and names, and have no cause.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import connections
from airflow_provider_streamsem.connectors.sink import SinkMarker
from airflow_provider_streamsem.connectors.sql import refusals
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    PublishError,
    StoreRefusedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol.entries import Json

if TYPE_CHECKING:
    import sqlalchemy as sa

_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "sqlite": "sqlite",
}
_EXTRAS = {
    # Names of libpq. Only these fields of the connection's extra are read, so no other field reaches the driver.
    "postgresql+psycopg": ("sslmode", "sslrootcert", "sslcert", "sslkey", "options", "application_name", "target_session_attrs"),
    # Without `charset`: in another one than utf8mb4, the driver's default, the server replaces characters by question marks.
    "mysql+pymysql": ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key"),
}  # fmt: skip
_CONNECT_S = 10
_BUSY_S = 30
_CONSTRAINT = re.compile(r"(?:(?:UNIQUE|NOT NULL|CHECK) constraint failed: |for key )'?([\w., ]{1,200})'?$")


def name_parts(table: str) -> tuple[str | None, str]:
    """Split ``table`` or ``schema.table`` into schema and name."""
    schema, dot, name = table.rpartition(".")
    return (schema if dot else None), name


@contextmanager
def connected(conn_id: str) -> Iterator[sa.Connection]:
    """Open a new connection for the block, at whose end an open transaction is rolled back."""
    import sqlalchemy as sa

    url, options = address(conn_id)
    if url.drivername.startswith("sqlite") and not os.path.exists(url.database or ""):  # the driver would create it
        raise InvalidError(
            "the database file does not exist; nothing was written", conn_id=conn_id, file=url.database
        ).advising("correct the path in the Airflow connection, or create the database; then run again.")
    problem = ""
    try:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args=options, hide_parameters=True)
    except (ImportError, sa.exc.ArgumentError) as error:
        problem = type(error).__name__
    if problem:
        raise InvalidError(
            "no driver for the connection's database is installed",
            conn_id=conn_id,
            driver=url.drivername,
            problem=problem,
        ).advising("run `pip install 'airflow-provider-streamsem[jdbc]'`, or install the driver that `driver` names.")
    failure: StreamsemError | None = None
    try:
        connection = engine.connect()
    except Exception as error:
        failure = _login_error(error, conn_id)
    if failure is not None:
        raise failure
    try:
        if connection.dialect.name in ("mysql", "mariadb"):
            _set_strict_mode(connection)
        yield connection
    finally:
        connection.close()
        engine.dispose()


def server(conn_id: str) -> dict[str, object]:
    """Return the fields of an error that name the database of a connection: its host, database and user."""
    url, _ = address(conn_id)
    port = f":{url.port}" if url.port else ""
    fields = {"host": f"{url.host}{port}" if url.host else "", "database": url.database, "user": url.username}
    return {"conn_id": conn_id, **{name: value for name, value in fields.items() if value}}


def _login_error(error: Exception, conn_id: str) -> StreamsemError:
    """Quotes the text of the driver, which names hosts and users, but never the password."""
    code, reason = refusals.code_of(error), refusals.login_reason(error, address(conn_id)[0].password)
    fields: Json = {**server(conn_id), "problem": f"{type(refusals.driver_error(error)).__name__} {code}".strip()}
    fields |= {"reason": reason} if reason else {}
    if refusals.is_refused_login(error):
        return StoreRefusedError("the database refuses the connection; no statement was sent", **fields).advising(
            "correct what `reason` names, in the Airflow connection or in the database, then run again."
        )
    return UnavailableError("the database cannot be reached; no statement was sent", **fields).advising(
        "check the host and port of the Airflow connection, and whether the database runs and accepts connections; then run again."
    )


def _set_strict_mode(connection: sa.Connection) -> None:
    """Otherwise a server may store another value in place of one that does not fit, and generates a number for 0 in an AUTO_INCREMENT column."""
    import sqlalchemy as sa

    with connection.begin():
        connection.execute(
            sa.text("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO')")
        )


def address(conn_id: str) -> tuple[sa.URL, dict[str, Any]]:
    """Return SQLAlchemy's URL of the database, with the password, and the arguments of the driver."""
    import sqlalchemy as sa

    airflow_connection = connections.connection(conn_id)
    driver = _DRIVERS.get(
        airflow_connection.conn_type,
        airflow_connection.extra.get("sqlalchemy_scheme", "") if airflow_connection.conn_type == "generic" else "",
    )
    if not re.fullmatch(r"[A-Za-z0-9_]+(\+[A-Za-z0-9_]+)?", str(driver)):
        raise InvalidError(
            "the connection is not of the type of a supported database",
            conn_id=conn_id,
            conn_type=airflow_connection.conn_type,
            accepted=["postgres", "mysql", "sqlite", 'generic with the extra {"sqlalchemy_scheme": "dialect+driver"}'],
        )
    options: dict[str, Any] = {
        n: airflow_connection.extra[n] for n in _EXTRAS.get(driver, ()) if n in airflow_connection.extra
    }
    if driver.startswith("sqlite"):
        # In Airflow's URIs (sqlite:///relative, sqlite:////absolute) the path of the file is the schema. In a JSON connection it is the host.
        path = airflow_connection.host or airflow_connection.schema
        if path in ("", ":memory:"):
            raise InvalidError(
                "an in-memory database loses the rows and markers when the process ends",
                conn_id=conn_id,
                accepted="the path of a file",
            )
        return sa.URL.create(driver, database=path), {"timeout": _BUSY_S}
    if driver == "postgresql+psycopg":
        # A pooler may assign another session to each transaction, so statements are not prepared.
        options |= {"connect_timeout": _CONNECT_S, "prepare_threshold": None}
    url = sa.URL.create(
        driver,
        username=airflow_connection.login or None,
        password=airflow_connection.password or None,
        host=airflow_connection.host or None,
        port=airflow_connection.port,
        database=airflow_connection.schema or None,
    )
    return url, options


def lineage_name(conn_id: str, table: str) -> tuple[str, str]:
    """Return the OpenLineage dataset of a table: the server of the connection, and ``database.table``. Reads the Airflow connection."""
    airflow_connection = connections.connection(conn_id)
    if airflow_connection.conn_type == "sqlite":
        return "file", f"{airflow_connection.host or airflow_connection.schema}/{table}"
    port = f":{airflow_connection.port}" if airflow_connection.port else ""
    return f"{airflow_connection.conn_type}://{airflow_connection.host}{port}", ".".join(
        filter(None, (airflow_connection.schema, table))
    )


def markers_table(connection: sa.Connection, markers: str) -> sa.Table:
    """Return SQLAlchemy's object of the marker table (``table`` or ``schema.table``): ``(pipeline_uuid, sink) → (version, state, outcome)``."""
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
    """Return a context manager that begins a transaction, or does nothing if the connection is in a transaction already."""
    return nullcontext() if connection.in_transaction() else connection.begin()


def create_markers_table(connection: sa.Connection, table: sa.Table) -> None:
    """
    Create the marker table if it is missing.

    Publishing rows never calls this function. If the marker table was dropped, a new table would not record which versions were published.
    """
    import sqlalchemy as sa

    def exists() -> bool:
        with connection.begin():
            return sa.inspect(connection).has_table(table.name, schema=table.schema)

    if exists():
        return
    problem = ""
    try:
        with connection.begin():
            table.create(connection)
    except sa.exc.DBAPIError as error:  # created concurrently by another process, or not permitted
        problem = f"{type(error).__name__} {refusals.code_of(error)}".strip()
    if not exists():
        raise UnavailableError(
            "the marker table is missing and could not be created; nothing became visible",
            table=table.name,
            schema=table.schema,
            problem=problem,
        ).advising("create the table with the statement in docs/connectors/sql-sink.md, then run again.")


def read_marker(connection: sa.Connection, table: sa.Table, pipeline_uuid: str, sink: str) -> SinkMarker | None:
    """Read the marker of a pipeline and sink in a new transaction. Returns ``None`` if there is none."""
    import sqlalchemy as sa

    with connection.begin():
        row = connection.execute(
            sa.select(table.c.version, table.c.state, table.c.outcome).where(
                table.c.pipeline_uuid == pipeline_uuid, table.c.sink == sink
            )
        ).first()
    return None if row is None else SinkMarker(int(row.version), str(row.state), str(row.outcome or ""))


def marker_row(name: tuple[str, str], marker: SinkMarker) -> dict[str, object]:
    """Return column → value. ``name``: ``(pipeline_uuid, sink)``."""
    values = {"version": marker.version, "state": marker.state, "outcome": marker.outcome}
    return {"pipeline_uuid": name[0], "sink": name[1], **values}


def set_marker(
    connection: sa.Connection, table: sa.Table, name: tuple[str, str], new: SinkMarker, marker: SinkMarker | None
) -> bool:
    """
    Set the marker of ``(pipeline_uuid, sink)`` if it is still the one that was read (``None``: there was none). Return whether it was.

    The row stays locked until the transaction ends, so a concurrent publisher waits.
    """
    import sqlalchemy as sa

    row = marker_row(name, new)
    if marker is not None:
        has_marker = sa.and_(
            table.c.pipeline_uuid == name[0], table.c.sink == name[1], table.c.version == marker.version
        )
        has_outcome = sa.func.coalesce(table.c.outcome, "") == marker.outcome
        changed_rows = connection.execute(sa.update(table).where(has_marker, has_outcome).values(row)).rowcount
        if changed_rows not in (0, 1):
            summary = (
                "the database driver does not report how many rows an update changed; the transaction was rolled back"
            )
            raise UnavailableError(summary, sink=name[1])
        return changed_rows == 1
    is_conflict = False
    try:
        connection.execute(sa.insert(table).values(row))
    except sa.exc.IntegrityError:
        is_conflict = True
    if is_conflict:
        summary = "another publisher created the marker concurrently; this transaction was rolled back"
        raise UnavailableError(summary, sink=name[1], version=new.version)
    return True


def translated(error: Exception, **fields: object) -> StreamsemError:
    """
    Map a database error to one without row values: ``PublishError`` if the same statement would be refused again, else ``UnavailableError``.

    The result does not show whether the transaction was applied. Only the marker does.
    """
    if isinstance(error, StreamsemError):
        return error
    cause = refusals.driver_error(error)
    facts: Json = {**fields, "problem": type(cause).__name__, "sqlstate": refusals.code_of(error)}
    diagnosis = getattr(cause, "diag", None)
    if diagnosis is not None:
        facts |= {"constraint": diagnosis.constraint_name, "column": diagnosis.column_name, "of": diagnosis.table_name}
    else:
        constraint = _CONSTRAINT.search(str(cause.args[-1]) if cause.args else "")
        facts |= {"constraint": constraint[1] if constraint else None}
    facts |= {"reason": refusals.statement_reason(cause)}
    facts = {name: value for name, value in facts.items() if value not in (None, "")}
    if refusals.is_refusal(cause):
        return PublishError(
            "the database refuses a statement; the transaction was rolled back, so none of its rows are in the table",
            **facts,
        )
    summary = "the database did not report the result of a request; whether it applied the last transaction is unknown"
    return UnavailableError(summary, **facts)


def translated_read(error: Exception, **fields: object) -> StreamsemError:
    """Map an error of a query that only reads, as :func:`translated` does. A query that the database refuses becomes a :class:`DataError`."""
    result = translated(error, **fields)
    if result is error:
        return result
    if isinstance(result, PublishError):
        return DataError("the database refuses a query", **result.fields).advising(
            "grant SELECT on the table, or correct the table or the value that the database names; then run again."
        )
    return UnavailableError(
        "the database did not report the result of a query; nothing became visible", **result.fields
    )


def unknown_result_error(table: str, version: int) -> UnavailableError:
    """Return the error for a publisher whose marker other publishers have changed in every try."""
    summary = "other publishers changed the marker during every try; this publisher wrote no rows"
    return UnavailableError(summary, table=table, version=version)
