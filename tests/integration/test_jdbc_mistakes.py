"""Ordinary mistakes in a connection or in privileges, made against real servers: each error names the cause and the database, and never the password."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from airflow_provider_streamsem import JdbcSink, JdbcSource
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    SourceChangedError,
    StoreRefusedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.integration.jdbc_column import read
from tests.integration.parts.mariadb import MariaDB
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import free_port, home_for_others, running

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server that asks every user for a password. Only ``postgres`` needs none."""
    with home_for_others() as home, running(server := Postgres(home / "server")):
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE ROLE reader LOGIN PASSWORD 'hunter2'")
            connection.execute("CREATE ROLE locked NOLOGIN PASSWORD 'hunter2'")
            connection.execute("CREATE ROLE busy LOGIN PASSWORD 'hunter2' CONNECTION LIMIT 0")
            connection.execute("CREATE DATABASE closed")
            connection.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
            connection.execute("CREATE TABLE allowed (id bigserial PRIMARY KEY, v bigint)")
            connection.execute("GRANT SELECT ON allowed TO reader")
            connection.execute("CREATE TABLE half (id bigserial PRIMARY KEY, c bigint)")
            connection.execute("GRANT SELECT (id) ON half TO reader")
            connection.execute("CREATE TABLE forbidden (id bigserial PRIMARY KEY, v bigint)")
            connection.execute(
                "CREATE SCHEMA s; CREATE TABLE s.t (id bigserial PRIMARY KEY); GRANT SELECT ON s.t TO reader"
            )
            (path,) = connection.execute("SHOW hba_file").fetchone() or ("",)
            Path(path).write_text(
                "host all postgres 127.0.0.1/32 trust\nhost all reader,locked,busy,nobody 127.0.0.1/32 scram-sha-256\n"
            )
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    with home_for_others() as home, running(server := MariaDB(home / "server")):
        with closing(
            pymysql.connect(host="127.0.0.1", port=server.port, user="me", password="hunter2", database="test")
        ) as connection:
            connection.cursor().execute("CREATE TABLE allowed (id bigint PRIMARY KEY, v bigint)")
        yield server


def failure(connect: Any, monkeypatch: pytest.MonkeyPatch, *, table: str = "allowed", **changes: Any) -> StreamsemError:
    """Poll a source, and return its error."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_DB", json.dumps({"host": "127.0.0.1", "password": "hunter2", **connect, **changes})
    )
    source = JdbcSource(
        conn_id="db", table=table, cursor="id", wait_s=0, lag=None if connect["conn_type"] == "postgres" else 0
    )
    with pytest.raises(StreamsemError) as failed:
        source.open(CommitLog(MemoryStore()), None).poll(None)
    error = failed.value
    assert "hunter2" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__  # the text of the driver may contain values
    return error


Mistake = tuple[dict[str, Any], type[StreamsemError], str]

POSTGRES: dict[str, Mistake] = {
    "password": ({"password": "wrong"}, StoreRefusedError, 'password authentication failed for user "reader"'),
    "no password": ({"password": None}, StoreRefusedError, "no password supplied"),
    "user": ({"login": "nobody"}, StoreRefusedError, 'password authentication failed for user "nobody"'),
    "user without a rule": ({"login": "stranger"}, StoreRefusedError, "no pg_hba.conf entry"),
    "user who may not log in": ({"login": "locked"}, StoreRefusedError, "not permitted to log in"),
    "database": ({"schema": "nothing"}, StoreRefusedError, 'database "nothing" does not exist'),
    "database without the privilege": ({"schema": "closed"}, StoreRefusedError, "permission denied for database"),
    "TLS that the server lacks": ({"extra": {"sslmode": "require"}}, StoreRefusedError, "does not support SSL"),
    "TLS mode": ({"extra": {"sslmode": "on"}}, StoreRefusedError, "invalid sslmode value"),
    "option": ({"extra": {"options": "-c nothing=1"}}, StoreRefusedError, "unrecognized configuration parameter"),
    "table": ({"table": "absent"}, SourceChangedError, "no such table"),
    "privilege": ({"table": "forbidden"}, DataError, "permission denied for table forbidden"),
    "privilege on the schema": ({"table": "s.t"}, DataError, "permission denied for schema s"),
    "host that does not resolve": ({"host": "no.such.host.invalid"}, UnavailableError, "no.such.host.invalid"),
    "host that is no name": ({"host": "a..b"}, StoreRefusedError, "host='a..b:"),
    "connection limit": ({"login": "busy"}, UnavailableError, "too many connections for role"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", POSTGRES)
def test_mistake_with_postgres_is_named_and_retried_only_if_that_can_help(
    postgres: Postgres, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, kind, text = POSTGRES[mistake]
    connect = {"conn_type": "postgres", "port": postgres.port, "login": "reader", "schema": "postgres"}
    error = failure(connect, monkeypatch, **changes)
    assert type(error) is kind
    assert text in str(error)
    expected = {**connect, "host": "127.0.0.1", **changes}
    named = {"conn_id": "db", "host": f"{expected['host']}:{postgres.port}", "database": expected["schema"], "user": expected["login"]}  # fmt: skip
    assert named.items() <= error.fields.items()


MARIADB: dict[str, Mistake] = {
    "password": ({"password": "wrong"}, StoreRefusedError, "problem='OperationalError 28000', reason="),
    "user": ({"login": "nobody"}, StoreRefusedError, "Access denied for user 'nobody'"),
    "database": ({"schema": "nothing"}, StoreRefusedError, "'nothing'"),
    "TLS that the server lacks": ({"extra": {"ssl_ca": str(Path(pymysql.__file__))}}, StoreRefusedError, "SSL"),
    "certificate": ({"extra": {"ssl_ca": "/none"}}, StoreRefusedError, "No such file"),
    "table": ({"table": "absent"}, SourceChangedError, "no such table"),
    "host that does not resolve": ({"host": "no.such.host.invalid"}, UnavailableError, "no.such.host.invalid"),
}


@pytest.mark.parametrize("mistake", MARIADB)
def test_mistake_with_mariadb_is_named_and_retried_only_if_that_can_help(
    mariadb: MariaDB, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, kind, text = MARIADB[mistake]
    connect = {"conn_type": "mysql", "port": mariadb.port, "login": "me", "schema": "test"}
    error = failure(connect, monkeypatch, **changes)
    assert type(error) is kind
    assert text in str(error)
    expected = {**connect, "host": "127.0.0.1", **changes}
    named = {"conn_id": "db", "host": f"{expected['host']}:{mariadb.port}", "database": expected["schema"], "user": expected["login"]}  # fmt: skip
    assert named.items() <= error.fields.items()


@pytest.mark.parametrize("conn_type", ["postgres", "mysql"])
def test_port_that_nothing_listens_on_is_named_and_retried(conn_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    error = failure({"conn_type": conn_type, "port": port, "login": "me", "schema": "shop"}, monkeypatch)
    assert type(error) is UnavailableError
    assert error.fields["host"] == f"127.0.0.1:{port}"
    assert "Connection refused" in str(error)


def test_database_file_that_does_not_exist_is_refused_and_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "absent.sqlite"
    error = failure({"conn_type": "sqlite", "host": str(path)}, monkeypatch)
    assert type(error) is InvalidError
    assert error.fields["file"] == str(path)
    assert not path.exists()


def test_file_that_is_no_database_is_refused_and_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.sqlite"
    path.write_text("no database " * 200)
    error = failure({"conn_type": "sqlite", "host": str(path)}, monkeypatch)
    assert (type(error), error.fields["sqlstate"]) == (DataError, "SQLITE_NOTADB")


def test_column_that_the_user_may_not_read_is_refused_on_executors(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = {"conn_type": "postgres", "host": "127.0.0.1", "port": postgres.port, "login": "reader", "password": "hunter2", "schema": "postgres"}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connect))
    with pytest.raises(ValueError, match=r"^streamsem-read refused: the database refuses the query: .* 42501$"):
        read("half")


def test_sink_without_access_is_refused_without_retries(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = {"conn_type": "postgres", "host": "127.0.0.1", "port": postgres.port, "login": "reader", "password": "wrong", "schema": "postgres"}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connect))
    sink = JdbcSink("db", "allowed", str(tmp_path / "staged"))
    with pytest.raises(StoreRefusedError, match="password authentication failed"):
        sink.marker("uuid", "sink")
