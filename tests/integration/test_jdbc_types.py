"""Every column type of Postgres and MariaDB: the source reads each value as the server writes it as text."""

from __future__ import annotations

import datetime
import json
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg
import pymysql
import pytest

from airflow_provider_streamsem.errors import DataError
from tests.integration.jdbc_column import read
from tests.integration.parts.mariadb import MariaDB
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import home_for_others, running

pytestmark = pytest.mark.integration

Run = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[Postgres]:
    with home_for_others() as home, running(server := Postgres(home / "server")):
        run_postgres(server)("CREATE ROLE odd LOGIN SUPERUSER")
        yield server


@pytest.fixture(scope="module")
def mariadb_server() -> Iterator[MariaDB]:
    with home_for_others() as home, running(server := MariaDB(home / "server")):
        yield server


def run_postgres(server: Postgres) -> Run:
    def run(statement: str) -> list[Any]:
        with psycopg.connect(server.dsn, autocommit=True, options="-c timezone=UTC") as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def postgres(postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The connection ``db`` is that of a role with settings that change how the server writes values."""
    run = run_postgres(postgres_server)
    for setting in ("extra_float_digits = -10", "DateStyle = German", "IntervalStyle = iso_8601", "bytea_output = escape", "timezone = 'Asia/Tokyo'"):  # fmt: skip
        run(f"ALTER ROLE odd SET {setting}")
    fields = {"conn_type": "postgres", "host": "127.0.0.1", "port": postgres_server.port, "login": "odd", "schema": "postgres"}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(fields))
    return run


@pytest.fixture
def mariadb(mariadb_server: MariaDB, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The connection ``db`` asks for a character set that lacks most characters."""

    def run(statement: str) -> list[Any]:
        with closing(
            pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="me", password="hunter2", database="test", autocommit=True)
        ) as connection:  # fmt: skip
            cursor = connection.cursor()
            cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
            cursor.execute(statement)
            return list(cursor.fetchall())

    fields = {"conn_type": "mysql", "host": "127.0.0.1", "port": mariadb_server.port, "login": "me", "password": "hunter2", "schema": "test", "extra": {"charset": "latin1"}}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(fields))
    return run


def parsed(text: str | None, kind: str) -> Any:
    """Parse the server's text of a value. Integers of more than one word are decimals, and bytes are in hexadecimal form."""
    if text is None or kind == "string":
        return text
    if kind == "float":
        return struct.unpack("f", struct.pack("f", float(text)))[0]
    parsers: dict[str, Callable[[str], Any]] = {
        "boolean": {"true": True, "false": False}.__getitem__, "double": float,
        "binary": lambda value: bytes.fromhex(value.removeprefix("\\x")), "date": datetime.date.fromisoformat,
        "timestamp": lambda value: datetime.datetime.fromisoformat(value).replace(tzinfo=datetime.timezone.utc),
        "timestamp_ntz": datetime.datetime.fromisoformat,
    }  # fmt: skip
    return parsers.get(kind, Decimal if kind.startswith("decimal") else int)(text)


def check(run: Run, declared: str, values: Sequence[str], kind: str, text: str) -> None:
    """Check that the source reads a column of the declared type as ``kind``, with the values of the SQL expression ``text`` of the server."""
    table = f"t{uuid.uuid4().hex[:8]}"
    run(f"CREATE TABLE {table} (id int, c {declared})")
    for at, value in enumerate([*values, "NULL"]):
        run(f"INSERT INTO {table} VALUES ({at}, {value})")
    expected = [parsed(value, kind) for (value,) in run(f"SELECT {text} FROM {table} ORDER BY id")]
    found, read_values = read(table)
    assert found == kind
    exact = [value.astimezone(datetime.timezone.utc) if kind == "timestamp" and value else value for value in read_values]  # fmt: skip
    assert [repr(value) for value in exact] == [repr(value).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc") for value in expected]  # fmt: skip


POSTGRES: dict[str, tuple[str, list[str]]] = {
    "bit": ("string", ["B'1'"]),
    "bit(70)": ("string", ["(repeat('01', 35))::bit(70)", "0::bit(70)"]),
    "varbit": ("string", ["B''", "B'0101'"]),
    "bits": ("string", ["B'101'"]),
    "boolean": ("boolean", ["true", "false"]),
    "smallint": ("short", ["-32768", "32767"]),
    "integer": ("int", ["-2147483648", "2147483647"]),
    "bigint": ("long", ["-9223372036854775808", "9223372036854775807"]),
    "real": ("float", ["'NaN'", "'-Infinity'", "'-0'", "1e-45", "16777217", "0.1", "1.1754944e-38"]),
    "double precision": ("double", ["'NaN'", "'Infinity'", "'-0'", "5e-324", "0.1", "1.7976931348623157e308", "1234567.890123456"]),
    "numeric(38,0)": ("decimal(38,0)", ["99999999999999999999999999999999999999", "-1"]),
    "numeric(10,2)": ("decimal(10,2)", ["1.5", "-0.05"]),
    "numeric(39,2)": ("string", ["1.5"]),
    "numeric(3,5)": ("string", ["0.00123"]),
    "numeric(5,-2)": ("string", ["12345"]),
    "numeric": ("string", ["'NaN'", "'Infinity'", "1e-30", "100"]),
    "date": ("date", ["'0001-01-01'", "'9999-12-31'"]),
    "timestamp": ("timestamp_ntz", ["'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'2026-03-29 02:30:00.1'"]),
    "timestamp(0)": ("timestamp_ntz", ["'2026-01-01 00:00:01.9'"]),
    "timestamptz": ("timestamp", ["'2026-03-29 02:30:00.123456+02'", "'1900-01-01 00:00:00+00'"]),
    "time": ("string", ["'24:00:00'", "'12:00:00.5'"]),
    "timetz": ("string", ["'12:00:00+05:30'"]),
    "interval": ("string", ["'1 year 2 mons -3 days 04:05:06.7'", "'-1 day'"]),
    "text": ("string", ["''", "E'é😀\\n'"]),
    "varchar(3)": ("string", ["'a  '"]),
    "char(3)": ("string", ["'a'"]),
    "bpchar": ("string", ["'a  '"]),
    '"char"': ("string", ["'x'", "''"]),
    "name": ("string", ["'n'"]),
    "citext": ("string", ["'Ab'"]),
    "bytea": ("binary", ["'\\x00ff'", "''"]),
    "json": ("string", ["""'{"a": 1.50,  "a":2}'"""]),
    "jsonb": ("string", ["""'{"b":1,"a":1.50}'"""]),
    "xml": ("string", ["'<a>x</a>'"]),
    "uuid": ("string", ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"]),
    "money": ("string", ["12.34", "-5"]),
    "inet": ("string", ["'10.0.0.1/8'", "'::1'"]),
    "macaddr": ("string", ["'08:00:2b:01:02:03'"]),
    "point": ("string", ["'(0.1,2)'"]),
    "polygon": ("string", ["'((1,2),(3,4))'"]),
    "tsvector": ("string", ["'a b'"]),
    "pg_lsn": ("string", ["'0/16B3748'"]),
    "oid": ("string", ["4294967295"]),
    "xid8": ("string", ["'7'"]),
    "int4range": ("string", ["'[1,5)'", "'empty'"]),
    "tstzrange": ("string", ["'[2026-01-01 00:00+02,)'"]),
    "int4multirange": ("string", ["'{[1,2),[5,6)}'"]),
    "integer[][]": ("string", ["ARRAY[[1],[NULL::int]]"]),
    "text[]": ("string", ["""ARRAY['a,b', '"', NULL, 'NULL']"""]),
    "bit(2)[]": ("string", ["ARRAY[B'01']"]),
    "timestamptz[]": ("string", ["ARRAY['2026-12-31 00:00+02'::timestamptz]"]),
    "bytea[]": ("string", ["ARRAY['\\x00'::bytea]"]),
    "float8[]": ("string", ["ARRAY[0.1::float8, 1234567.890123456]"]),
    "interval[]": ("string", ["ARRAY['1 day'::interval]"]),
    "mood": ("string", ["'ok'"]),
    "pair": ("string", ["ROW(1, 'a b')"]),
    "short_text": ("string", ["'ab'"]),
    "cents": ("decimal(5,2)", ["1.25"]),
    "instant": ("timestamp", ["'2026-01-01 00:00:00.5+00'"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def _types_of_users(postgres_server: Postgres) -> None:
    run = run_postgres(postgres_server)
    run("CREATE EXTENSION citext")
    run("CREATE TYPE mood AS ENUM ('ok', 'bad')")
    run("CREATE TYPE pair AS (a int, b text)")
    for name, base in {"bits": "bit(3)", "short_text": "varchar(3)", "cents": "numeric(5,2)", "instant": "timestamptz"}.items():  # fmt: skip
        run(f"CREATE DOMAIN {name} AS {base}")


@pytest.mark.usefixtures("_types_of_users")
@pytest.mark.parametrize("declared", POSTGRES)
def test_every_postgres_type_is_read_as_the_server_writes_it_whatever_the_settings_of_the_role(
    postgres: Run, declared: str
) -> None:
    kind, values = POSTGRES[declared]
    check(postgres, declared, values, kind, "textin(bpcharout(c))" if declared == "char(3)" else "c::text")


UNREADABLE_IN_POSTGRES = [
    ("date", "'infinity'", "infinity"),
    ("date", "'0044-03-15 BC'", "0044-03-15 BC"),
    ("date", "'10000-01-01'", "10000-01-01"),
    ("timestamp", "'-infinity'", "-infinity"),
    ("timestamptz", "'infinity'", "infinity"),
    ("timestamptz", "'10000-01-01 00:00+00'", "10000-01-01 00:00:00+00"),
    ("numeric(10,2)", "'NaN'", "NaN"),
]


@pytest.mark.parametrize(("declared", "value", "text"), UNREADABLE_IN_POSTGRES)
def test_postgres_value_that_spark_cannot_hold_is_refused_by_column_and_read_as_text(
    postgres: Run, declared: str, value: str, text: str
) -> None:
    refuse_and_read_as_text(postgres, declared, value, text)


def refuse_and_read_as_text(run: Run, declared: str, value: str, text: str) -> None:
    table = f"t{uuid.uuid4().hex[:8]}"
    run(f"CREATE TABLE {table} (id int, c {declared})")
    for at, each in enumerate(["NULL", "NULL", "NULL", value]):
        run(f"INSERT INTO {table} VALUES ({at}, {each})")
    with pytest.raises(ValueError, match=r"streamsem-read data: column 'c' has a value that the type .* cannot hold") as refused:  # fmt: skip
        read(table)
    assert text not in str(refused.value)
    assert read(table, ["c"]) == ("string", [None, None, None, text])


MARIADB: dict[str, tuple[str, list[str]]] = {
    "bit": ("binary", ["b'1'"]),
    "bit(9)": ("binary", ["b'100000001'"]),
    "bit(64)": ("binary", ["~0"]),
    "boolean": ("byte", ["true", "2"]),
    "tinyint unsigned zerofill": ("short", ["7"]),
    "smallint": ("short", ["-32768"]),
    "mediumint unsigned": ("int", ["16777215"]),
    "int": ("int", ["-2147483648"]),
    "int(6) zerofill": ("long", ["42", "4294967295"]),
    "bigint": ("long", ["-9223372036854775808"]),
    "bigint unsigned": ("decimal(20,0)", ["18446744073709551615"]),
    "float": ("float", ["0.1", "16777217", "1.17549435e-38"]),
    "float(7,2)": ("float", ["1.25"]),
    "double": ("double", ["0.1", "5e-324", "1.7976931348623157e308"]),
    "double(10,2)": ("double", ["1.25"]),
    "decimal(38,18)": ("decimal(38,18)", ["1.5", "-99999999999999999999.999999999999999999"]),
    "decimal(65,30)": ("string", ["1.5"]),
    "decimal(5,2) unsigned zerofill": ("decimal(5,2)", ["1.5"]),
    "date": ("date", ["'0001-01-01'", "'9999-12-31'"]),
    "datetime": ("timestamp_ntz", ["'2026-03-29 02:30:00'"]),
    "datetime(3)": ("timestamp_ntz", ["'2026-01-01 01:02:03.1'"]),
    "timestamp(6) null": ("timestamp", ["'2026-03-29 02:30:00.000001'"]),
    "time": ("string", ["'-838:59:59'", "'838:59:59'"]),
    "time(6)": ("string", ["'12:00:00.000005'"]),
    "year": ("int", ["2026", "0"]),
    "char(5)": ("string", ["'a  '"]),
    "varchar(5)": ("string", ["'a  '"]),
    "varchar(9) character set utf8mb4": ("string", ["'é😀'"]),
    "varchar(5) character set ucs2": ("string", ["'éł'"]),
    "longtext character set utf8mb4": ("string", ["'ł'"]),
    "binary(4)": ("binary", ["'a'"]),
    "varbinary(4)": ("binary", ["x'00ff'"]),
    "varchar(4) character set binary": ("binary", ["x'00ff'"]),
    "tinyblob": ("binary", ["x'00ff'"]),
    "longblob": ("binary", ["x''"]),
    "enum('a','b,c','')": ("string", ["'b,c'", "''"]),
    "set('a','b')": ("string", ["'a,b'", "''"]),
    "json": ("string", ["""'{"a": 1.50}'"""]),
    "uuid": ("string", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"]),
}  # fmt: skip


@pytest.mark.parametrize("declared", MARIADB)
def test_every_mariadb_type_is_read_as_the_server_writes_it(mariadb: Run, declared: str) -> None:
    kind, values = MARIADB[declared]
    # CAST(FLOAT AS CHAR) rounds to 6 digits, and bytes are no text.
    text = {"binary": "HEX(IF(c IS NULL, NULL, CAST(c AS BINARY)))", "float": "CAST(CAST(c AS DOUBLE) AS CHAR)"}
    check(mariadb, declared, values, kind, text.get(kind, "CAST(c AS CHAR)"))


@pytest.mark.parametrize(
    ("declared", "value", "text"),
    [
        ("date", "'0000-00-00'", "0000-00-00"),
        ("date", "'2026-00-00'", "2026-00-00"),
        ("datetime(3)", "'0000-00-00'", "0000-00-00 00:00:00.000"),
        ("timestamp null", "0", "0000-00-00 00:00:00"),
    ],
)
def test_zero_date_of_mariadb_is_refused_by_column_and_read_as_text(
    mariadb: Run, declared: str, value: str, text: str
) -> None:
    refuse_and_read_as_text(mariadb, declared, value, text)


def test_type_without_an_equal_in_spark_is_read_as_text_on_request(mariadb: Run) -> None:
    mariadb("CREATE TABLE addresses (id int, c inet6)")
    mariadb("INSERT INTO addresses VALUES (1, '::1')")
    with pytest.raises(DataError, match="as_text"):
        read("addresses")
    assert read("addresses", ["c"]) == ("string", ["::1"])


@pytest.mark.parametrize("declared", ["float", "bit(8)", "blob", "varbinary(4)", "binary(4)"])
def test_column_that_mariadb_would_change_by_a_cast_is_not_read_as_text(mariadb: Run, declared: str) -> None:
    table = f"t{uuid.uuid4().hex[:8]}"
    mariadb(f"CREATE TABLE {table} (id int, c {declared})")
    with pytest.raises(DataError, match="change the values"):
        read(table, ["c"])
