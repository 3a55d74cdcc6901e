"""The types in which the JDBC source reads the columns of a table. A type whose values Spark cannot hold exactly is read as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.errors import DataError

_MYSQL = ("mysql", "mariadb")
_MOST_DIGITS = 38
_MYSQL_BYTES = ("TINYBLOB", "MEDIUMBLOB", "LONGBLOB", "BIT")
_INTEGERS = {"SMALLINT": "short", "INTEGER": "int", "BIGINT": "long"}
_MYSQL_INTEGERS = {
    "TINYINT": ("byte", "short"),
    "SMALLINT": ("short", "int"),
    "MEDIUMINT": ("int", "int"),
    "INTEGER": ("int", "long"),
    "BIGINT": ("long", "decimal(20,0)"),
}
"""MySQL's integer types → the type of signed and of unsigned values."""


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column to read, of a type in Spark DDL. ``cast`` is the SQL type to which the database casts its values before it sends them."""

    name: str
    type: str
    cast: Any = None


def read_columns(target: Target, names: Sequence[str], as_text: Sequence[str] = ()) -> list[ReadColumn]:
    """Return the columns (no names: all) in the order of the table. Those in ``as_text`` are cast to text; a cast that would change values is refused."""
    missing = sorted({*names, *as_text} - {*target.columns})
    if missing:
        raise DataError(
            "the table lacks columns (names are case-sensitive)", table=target.name, columns=missing
        ).advising("correct `columns`, or add them to the table; then run again.")  # fmt: skip
    selected = [name for name in target.columns if name in names or not names]
    if len({name.lower() for name in selected}) < len(selected):
        summary = "the table has columns whose names differ only in case"
        raise DataError(summary, table=target.name).advising("choose one of them with `columns`, and run again.")
    changed = sorted(name for name in as_text if _is_changed_by_cast(target.columns[name]["type"], target.dialect))
    if changed:
        summary = "the database would change the values of bytes and `float` columns if it cast them to text"
        raise DataError(summary, table=target.name, columns=changed).advising(
            "remove them from `as_text`, and run again."
        )
    columns_by_name = {
        name: _text(name, target.dialect)
        if name in as_text
        else _column(name, target.columns[name]["type"], target.dialect)
        for name in selected
    }
    unknown = {
        name: type(target.columns[name]["type"]).__name__ for name, column in columns_by_name.items() if column is None
    }
    if unknown:
        raise DataError(
            "columns have types that the source does not read", table=target.name, columns=unknown
        ).advising("read them as text with `as_text`, or leave them out with `columns`; then run again.")  # fmt: skip
    return [column for column in columns_by_name.values() if column is not None]


def _text(name: str, dialect: str) -> ReadColumn:
    """Values of SQLite have types of their own, and the reader formats them."""
    import sqlalchemy as sa

    casts = {"sqlite": None, "mysql": sa.CHAR(), "mariadb": sa.CHAR()}
    return ReadColumn(name, "string", casts.get(dialect, sa.Text()))


def _is_changed_by_cast(kind: Any, dialect: str) -> bool:
    """MySQL reads bytes as characters, and rounds ``FLOAT`` to 6 digits."""
    return dialect in _MYSQL and (_is_binary(kind, dialect) or type(kind).__name__ == "FLOAT")


def _column(name: str, kind: Any, dialect: str) -> ReadColumn | None:
    import sqlalchemy as sa

    while hasattr(kind, "data_type"):  # a domain of Postgres
        kind = kind.data_type
    if dialect == "sqlite":
        return _of_sqlite(name, kind)
    if isinstance(kind, sa.Integer):
        return ReadColumn(name, _integer(kind, dialect))
    if isinstance(kind, sa.Float):
        return _float(name, kind, dialect)
    if isinstance(kind, sa.Numeric):
        return _numeric(name, kind, dialect)
    if isinstance(kind, sa.DateTime):
        is_zoned = bool(kind.timezone) or (dialect in _MYSQL and isinstance(kind, sa.TIMESTAMP))
        return ReadColumn(name, "timestamp" if is_zoned else "timestamp_ntz")
    if isinstance(kind, sa.Boolean):
        return ReadColumn(name, "boolean")
    if isinstance(kind, sa.Date):
        return ReadColumn(name, "date")
    if _is_binary(kind, dialect):
        return ReadColumn(name, "binary")
    if isinstance(kind, sa.String) and not isinstance(kind, sa.Enum):
        return ReadColumn(name, "string")
    if dialect == "postgresql" or isinstance(kind, (sa.Enum, sa.JSON, sa.Time, sa.Uuid)):
        return _text(name, dialect)
    return ReadColumn(name, "int") if type(kind).__name__ == "YEAR" else None


def _is_binary(kind: Any, dialect: str) -> bool:
    import sqlalchemy as sa

    is_bytes_of_mysql = dialect in _MYSQL and type(kind).__name__ in _MYSQL_BYTES
    return is_bytes_of_mysql or isinstance(kind, (sa.LargeBinary, sa.BINARY, sa.VARBINARY))


def _float(name: str, kind: Any, dialect: str) -> ReadColumn:
    import sqlalchemy as sa

    if dialect in _MYSQL and type(kind).__name__ == "FLOAT":
        return ReadColumn(name, "float", sa.Double())  # without the cast, the server sends only 6 digits
    return ReadColumn(name, "float" if dialect == "postgresql" and type(kind).__name__ == "REAL" else "double")


def _integer(kind: Any, dialect: str) -> str:
    name = type(kind).__name__.upper()
    if dialect in _MYSQL:
        return _MYSQL_INTEGERS.get(name, ("long", "decimal(20,0)"))[bool(getattr(kind, "unsigned", False))]
    return _INTEGERS.get(name, "long")


def _numeric(name: str, kind: Any, dialect: str) -> ReadColumn:
    digits, scale = kind.precision, kind.scale or 0
    if digits is None or digits > _MOST_DIGITS or not 0 <= scale <= digits:
        return _text(name, dialect)
    return ReadColumn(name, f"decimal({digits},{scale})")


def _of_sqlite(name: str, kind: Any) -> ReadColumn:
    """SQLite stores dates and times as text, and decimals as floating-point numbers or integers."""
    import sqlalchemy as sa

    if isinstance(kind, sa.Boolean):
        return ReadColumn(name, "boolean")
    if isinstance(kind, sa.Integer):
        return ReadColumn(name, "long")
    if isinstance(kind, (sa.Numeric, sa.Float)):
        return ReadColumn(name, "double")
    return ReadColumn(name, "binary" if isinstance(kind, sa.LargeBinary) else "string")
