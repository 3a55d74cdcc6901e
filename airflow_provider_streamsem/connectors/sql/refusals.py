"""Which errors of a database a retry cannot fix, and the parts of their texts that hold no values of rows and no secrets."""

from __future__ import annotations

import re
import ssl
from typing import Any

# SQLSTATE classes of permanent refusals: the database refuses the same statement again.
_REFUSALS = (
    "01",
    "0A",
    "21",
    "22",
    "23",
    "28",
    "2F",
    "38",
    "39",
    "3D",
    "3F",
    "40002",
    "42",
    "44",
    "45",
    "54",
    "55000",
    "P0",
)
# MySQL errors without a class: no privilege on a database, table, column or routine, no such column or table, packet too long, no default value, incorrect
# value, no matching partition, failed check.
_MYSQL_REFUSALS = (1044, 1142, 1143, 1227, 1370, 1054, 1146, 1153, 1364, 1366, 1526, 1748, 3819)
# SQLite: error in the statement, no permission, read-only, damaged, disk full, cannot open, not authorized, not a database.
_SQLITE_REFUSALS = (1, 3, 8, 11, 13, 14, 23, 26)
_REFUSING = {"IntegrityError", "DataError", "ProgrammingError", "NotSupportedError"}
_CLIENT_ERRORS = (TypeError, ValueError, OverflowError, ArithmeticError)

# MySQL: access denied to a database or for a user, no such database, host or user not allowed, unknown login method, expired password, locked account.
_MYSQL_REFUSED_LOGINS = (
    1044,
    1045,
    1049,
    1130,
    1227,
    1251,
    1275,
    1524,
    1698,
    1820,
    1862,
    2026,
    2059,
    2061,
    3118,
    3159,
    4151,
)
# A failed connection to Postgres has no SQLSTATE, so its text decides. A text in another language counts as one that a retry may fix.
_POSTGRES_REFUSED_LOGIN = re.compile(
    r"authentication failed|(role|database|user) \"[^\"]*\" does not exist|not permitted to log in|not currently accepting connections|"
    r"permission denied for database|pg_hba\.conf|no password supplied|no such (user|database)|unrecognized configuration parameter|"
    r"unsupported startup parameter|invalid (\S+ value|value for parameter|connection option|port number|integer value)|does not support SSL|"
    r"valid client certificate|certificate verify failed|certificate file|private key file|does not match host name|CERTIFICATE_VERIFY_FAILED"
)
_SETTINGS_ERRORS = (FileNotFoundError, PermissionError, ssl.SSLError, RuntimeError, TypeError, ValueError, ImportError)
"""Exceptions of drivers for settings that cannot be used: a missing certificate, a host that is no name, a library that the login needs."""
_SAFE_STATES = ("28", "3D", "3F", "42", "53", "57")
_SAFE_MYSQL = (*_MYSQL_REFUSED_LOGINS, 1040, 1054, 1142, 1143, 1146, 1203, 2002, 2003, 2013)
"""Errors whose texts name users, hosts, tables and columns, and no values of rows."""
_LONGEST = 300


def driver_error(error: BaseException) -> Any:
    """Return the driver's exception in an exception of SQLAlchemy, or the exception itself."""
    return getattr(error, "orig", None) or error


def code_of(error: BaseException) -> str:
    """Return the SQLSTATE, SQLite's name of the error, or the driver's number of it; ``""`` if there is none."""
    cause = driver_error(error)
    state = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None)
    if state in (None, "HY000") and cause.args and isinstance(cause.args[0], int):  # MySQL reports HY000 for any error
        return str(cause.args[0])
    return str(state or "")


def is_refusal(cause: BaseException) -> bool:
    """Return whether the database would refuse the same statement again."""
    state = getattr(cause, "sqlstate", None)
    if state and state != "HY000":
        return str(state).startswith(_REFUSALS)
    if cause.args and cause.args[0] in _MYSQL_REFUSALS:
        return True
    if isinstance(cause, _CLIENT_ERRORS):
        return True  # the driver could not encode a value
    if (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF in _SQLITE_REFUSALS:
        return True
    return bool(_REFUSING & {kind.__name__ for kind in type(cause).__mro__})


def is_refused_login(error: BaseException) -> bool:
    """Return whether a retry of a failed connection attempt cannot succeed: the settings of the connection or of the server must change first."""
    cause = driver_error(error)
    if isinstance(cause, _SETTINGS_ERRORS) or (cause.args and cause.args[0] in _MYSQL_REFUSED_LOGINS):
        return True
    is_sqlite = getattr(cause, "sqlite_errorcode", None) is not None
    return is_refusal(cause) if is_sqlite else bool(_POSTGRES_REFUSED_LOGIN.search(str(cause)))


def login_reason(error: BaseException, password: str | None) -> str:
    """Return the text of a failed connection attempt in one line of at most 300 characters; ``""`` if it contains the password."""
    cause = driver_error(error)
    words = str(cause.args[-1] if cause.args else cause).split()
    text = " ".join(words).removeprefix("connection failed: ")
    return "" if password and password in text else text[:_LONGEST]


def statement_reason(cause: Any) -> str:
    """Return the text of a refused statement, if texts of its code hold no values of rows; else ``""``."""
    state, diagnosis = str(getattr(cause, "sqlstate", None) or ""), getattr(cause, "diag", None)
    if diagnosis is not None and state.startswith(_SAFE_STATES):
        return str(diagnosis.message_primary or "")[:_LONGEST]
    if len(cause.args) > 1 and cause.args[0] in _SAFE_MYSQL:
        return str(cause.args[1])[:_LONGEST]
    return ""
