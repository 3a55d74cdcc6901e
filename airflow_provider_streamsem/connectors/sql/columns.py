"""
Reads the description of a database table, and checks whether staged columns fit it.

The sink checks before the commit, because after the commit a batch that the table refuses can only be skipped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.sql import postgres_copy
from airflow_provider_streamsem.connectors.sql.database import name_parts, reading
from airflow_provider_streamsem.errors import DataError

if TYPE_CHECKING:
    import sqlalchemy as sa

_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_BYTES = {"byte": 1, "short": 2, "integer": 4, "long": 8}
_EXACT_DIGITS_OF_A_FLOAT = 15
_FITTING = {
    "postgresql": {
        "boolean": "BOOLEAN", "byte": "SMALLINT", "short": "SMALLINT", "integer": "INTEGER", "long": "BIGINT", "float": "REAL", "double": "DOUBLE PRECISION",
        "string": "TEXT", "binary": "BYTEA", "date": "DATE", "timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP", "nested": "JSONB",
    },
    "mysql": {
        "boolean": "BOOLEAN", "byte": "TINYINT", "short": "SMALLINT", "integer": "INTEGER", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
        "string": "LONGTEXT", "binary": "LONGBLOB", "date": "DATE", "timestamp": "DATETIME(6)", "timestamp_ntz": "DATETIME(6)", "nested": "JSON",
    },
    "sqlite": {
        "boolean": "BOOLEAN", "byte": "INTEGER", "short": "INTEGER", "integer": "INTEGER", "long": "INTEGER", "float": "REAL", "double": "REAL",
        "string": "TEXT", "binary": "BLOB", "date": "DATE", "timestamp": "DATETIME", "timestamp_ntz": "DATETIME", "nested": "JSON",
    },
}  # fmt: skip
"""Database → type of Spark → the type of a column that holds its values."""
_MYSQL = ("mysql", "mariadb")


@dataclass(frozen=True, slots=True)
class Target:
    """
    The description of a table in the database's catalog.

    :param columns: name → column in the form of SQLAlchemy's inspector
    :param uniques: sets of columns that are unique over their whole values, by the primary key, a unique constraint or a unique index without a predicate
    :param prefix_indexes: sets of columns of MySQL's unique indexes that compare only prefixes of values, or a computed value
    :param max_packet_bytes: MySQL's ``max_allowed_packet``, in bytes; ``None`` for other databases
    """

    schema: str | None
    name: str
    dialect: str
    columns: dict[str, Any]
    uniques: tuple[frozenset[str], ...]
    primary: frozenset[str]
    prefix_indexes: tuple[frozenset[str], ...] = ()
    max_packet_bytes: int | None = None

    @property
    def digest(self) -> str:
        """Changes if the name, type or nullability of a column changes."""
        columns = sorted((name, repr(column["type"]), self.never_null(name)) for name, column in self.columns.items())
        return hashlib.sha256(repr(columns).encode()).hexdigest()[:16]

    def never_null(self, name: str) -> bool:
        return not self.columns[name]["nullable"] or name in self.primary

    def _bound(self, name: str) -> Any:
        """In JSON columns, null is bound as SQL NULL, and not as the JSON value ``null``."""
        import sqlalchemy as sa

        kind = self.columns[name]["type"] if name in self.columns else None
        return sa.JSON(none_as_null=True) if isinstance(kind, sa.JSON) else kind

    def table(self, names: Sequence[str]) -> sa.Table:
        """The key of the n-th column is ``c<n>``: SQLAlchemy would derive the same parameter name from the keys ``unit price`` and ``unit_price``."""
        import sqlalchemy as sa

        return sa.Table(
            sa.quoted_name(self.name, True),
            sa.MetaData(),
            *[sa.Column(sa.quoted_name(name, True), self._bound(name), key=f"c{n}") for n, name in enumerate(names)],
            schema=None if self.schema is None else sa.quoted_name(self.schema, True),
        )


def named(connection: sa.Connection, table: str) -> Target:
    """Return a target that contains only the table's name. Does not read the database's catalog."""
    schema, name = name_parts(table)
    return Target(schema or connection.dialect.default_schema_name, name, connection.dialect.name, {}, (), frozenset())


def describe(connection: sa.Connection, table: str) -> Target | None:
    """Read the description of a table from the database's catalog. Returns ``None`` if there is no such table, or if the name is that of a view."""
    import sqlalchemy as sa

    explicit_schema, name = name_parts(table)
    schema = explicit_schema or connection.dialect.default_schema_name
    with reading(connection):
        inspector = sa.inspect(connection)
        if (
            explicit_schema and explicit_schema not in inspector.get_schema_names()
        ) or name not in inspector.get_table_names(schema):
            return None
        columns = {column["name"]: column for column in inspector.get_columns(name, schema)}
        if connection.dialect.name == "postgresql":
            for domain, base in postgres_copy.domains(connection, schema, name).items():
                columns[domain]["type"] = _bounded(columns[domain]["type"], base)
        primary = frozenset(inspector.get_pk_constraint(name, schema)["constrained_columns"])
        uniques = {primary} if primary else set()
        uniques |= {
            frozenset(constraint["column_names"]) for constraint in inspector.get_unique_constraints(name, schema)
        }
        for index in inspector.get_indexes(name, schema):
            partial = any(option.endswith("_where") for option in index.get("dialect_options", {}))
            if index["unique"] and not partial and not index.get("expressions") and None not in index["column_names"]:
                uniques.add(frozenset(str(column) for column in index["column_names"]))
        prefix_indexes: set[frozenset[str]] = set()
        max_packet_bytes = None
        if connection.dialect.name in _MYSQL:
            uniques, prefix_indexes = _mysql_uniques(connection, schema, name)
            max_packet_bytes = connection.execute(sa.text("SELECT @@max_allowed_packet")).scalar_one()
    return Target(
        schema, name, connection.dialect.name, columns, tuple(uniques), primary, tuple(prefix_indexes), max_packet_bytes
    )


def _mysql_uniques(
    connection: sa.Connection, schema: str | None, name: str
) -> tuple[set[frozenset[str]], set[frozenset[str]]]:
    """Unique indexes over whole values, and others. SQLAlchemy reports no prefix lengths of a primary key."""
    import sqlalchemy as sa

    query = sa.text(
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics"
        " WHERE table_schema = :schema AND table_name = :name AND non_unique = 0"
    )
    columns: dict[str, set[str]] = {}
    partial = set()
    for index, column, length in connection.execute(query, {"schema": schema, "name": name}):
        columns.setdefault(index, set()).add(str(column))
        if length is not None or column is None:
            partial.add(index)
    whole = {frozenset(names) for index, names in columns.items() if index not in partial}
    return whole, {frozenset(names) for index, names in columns.items() if index in partial}


def _bounded(kind: Any, base: str) -> Any:
    """SQLAlchemy omits length and digits of a domain. ``base`` is in Postgres's form: ``character varying(3)``, ``numeric(5,2)``."""
    import sqlalchemy as sa

    while hasattr(kind, "data_type"):
        kind = kind.data_type
    bound = re.search(r"\((\d+)(?:,(-?\d+))?\)", base)
    if bound is None:
        return kind
    kind = copy(kind)
    if isinstance(kind, sa.String):
        kind.length = int(bound[1])
    elif isinstance(kind, sa.Numeric):
        kind.precision, kind.scale = int(bound[1]), int(bound[2] or 0)
    elif isinstance(kind, sa.DateTime):
        kind.precision = int(bound[1])  # type: ignore[attr-defined]
    return kind


def fields_of(schema: str) -> list[dict[str, Any]]:
    """Return the columns of a schema JSON in Spark's form, reduced to names and types."""
    return [
        {"name": field["name"], "type": field["type"]} for field in json.loads(schema or '{"fields": []}')["fields"]
    ]


def check(target: Target, schema: str, *, keys: Collection[str], version_column: str | None) -> None:
    """
    Refuse rows (Spark schema JSON) unless the table has every column of them, with a type that can hold its values.

    Columns that the rows lack must be nullable in the table or have a generated or default value. The keys must be unique in the table.

    :param keys: the key columns in mode ``upsert``; empty in other modes
    :param version_column: the version column in mode ``replace_version``; ``None`` in other modes
    """
    kinds = {field["name"]: field["type"] for field in fields_of(schema)}
    wrong: dict[str, str] = {}
    if version_column is not None:
        if version_column in kinds:
            wrong[version_column] = "the rows have a column with the name of the version column"
        kinds = {**kinds, version_column: "long"}
    for name, kind in kinds.items():
        column = target.columns.get(name)
        if column is None:
            wrong.setdefault(name, "is not a column of the table (names are case-sensitive)")
        elif column.get("computed") or (column.get("identity") or {}).get("always"):
            wrong[name] = "the database generates its values"
        elif not _fits(kind, column["type"], target.dialect):
            wrong.setdefault(
                name, f"{_type_text(kind)} does not fit {_sql(column['type'])}: {fitting(kind, target.dialect)}"
            )
        elif keys and target.dialect in _MYSQL and "%" in name:
            wrong.setdefault(name, "MySQL's driver cannot update a column with % in its name")
    if schema and fields_of(schema):
        for name in sorted(set(target.columns) - set(kinds)):
            if not _may_be_left_out(target, name):
                wrong[name] = "is not a column of the rows, but is NOT NULL without a default in the table"
    for key in keys:
        if fields_of(schema) and key not in kinds:
            wrong[key] = "is a key, but not a column of the rows"
        elif key in target.columns and not target.never_null(key):
            wrong.setdefault(
                key, "is a key, but may be null in the table; a row with a null key would never be replaced"
            )
    if wrong:
        raise DataError("columns do not fit the table", table=target.name, columns=wrong)
    _check_keys(target, keys)


def _check_keys(target: Target, keys: Collection[str]) -> None:
    if not keys:
        return
    if frozenset(keys) not in target.uniques:
        raise DataError(
            "no primary key, unique constraint or unique index of the table covers exactly the keys over their whole values",
            table=target.name,
            keys=sorted(keys),
            found=sorted(sorted(unique) for unique in target.uniques),
            **({"prefixes_only": sorted(map(sorted, target.prefix_indexes))} if target.prefix_indexes else {}),
        ).advising(
            "create a unique constraint over exactly the keys, or change the keys of a new sink; then run again."
        )
    if target.dialect in _MYSQL and len(target.uniques) + len(target.prefix_indexes) > 1:
        raise DataError(
            "MySQL would replace rows that are equal in any unique index, not only in the keys",
            table=target.name,
            found=sorted(sorted(unique) for unique in (*target.uniques, *target.prefix_indexes)),
        ).advising("drop the other unique indexes, or write to another table; then run again.")


def check_engine(connection: sa.Connection, *tables: str) -> None:
    """Refuse tables of MySQL with another engine than InnoDB: they would keep rows of a transaction that was rolled back."""
    import sqlalchemy as sa

    for table in tables:
        schema, name = name_parts(table)
        with reading(connection):
            options = sa.inspect(connection).get_table_options(name, schema or connection.dialect.default_schema_name)
        engine = next((value for option, value in options.items() if option.endswith("_engine")), "")
        if str(engine).lower() != "innodb":
            raise DataError("a table is not transactional", table=table, engine=engine, accepted="InnoDB").advising(
                "convert it with ALTER TABLE ... ENGINE=InnoDB; then run again."
            )


def columns_with_nulls(parquet: Any) -> str:
    """Return the top-level columns with nulls, according to the footer of a Parquet file, as a JSON list; ``""`` if there are none."""
    with_nulls = set()
    for group in range(parquet.num_row_groups):
        for at in range(parquet.num_columns):
            path = parquet.schema.column(at)
            statistics = parquet.row_group(group).column(at).statistics
            if (
                path.max_repetition_level == 0
                and path.path == path.name
                and statistics is not None
                and statistics.null_count
            ):
                with_nulls.add(path.name)
    return json.dumps(sorted(with_nulls)) if with_nulls else ""


def refuse_nulls(target: Target, names: Collection[str]) -> None:
    """Refuse columns with nulls that are ``NOT NULL`` in the table."""
    wrong = sorted(name for name in names if name in target.columns and target.never_null(name))
    if wrong:
        raise DataError(
            "rows have nulls in columns that are NOT NULL in the table",
            table=target.name,
            columns=wrong,
        )


def _may_be_left_out(target: Target, name: str) -> bool:
    column = target.columns[name]
    has_value = column.get("default") is not None or column.get("computed") or column.get("identity")
    return bool(column["nullable"] or has_value or column.get("autoincrement") is True)


def _fits(kind: Any, into: Any, dialect: str) -> bool:
    """Apart from lengths of text and ranges of dates (see ``values.py``)."""
    import sqlalchemy as sa

    is_postgres = dialect == "postgresql"
    if not isinstance(kind, str):
        return isinstance(into, (sa.JSON, sa.Text)) or (isinstance(into, sa.String) and not isinstance(into, sa.Enum))
    if kind == "string" or re.fullmatch(r"(var)?char\(\d+\)", kind):
        # COPY accepts the text form of values of any type. A type that SQLAlchemy does not know may round or trim the value, so it is refused.
        other_text_types = (sa.JSON, sa.Uuid) if is_postgres else ()
        # The types name and "char" of Postgres truncate to 63 bytes and 1 byte. For a SET, MySQL interprets digits as a bit mask.
        is_truncated = is_postgres and type(into) is sa.String
        is_set = type(into).__name__ == "SET"
        return isinstance(into, (sa.String, *other_text_types)) and not is_truncated and not is_set
    if kind == "boolean":
        return isinstance(into, sa.Boolean) or (not is_postgres and isinstance(into, sa.Integer))
    if kind in _DIGITS:
        return _holds_integer(kind, into, dialect)
    if kind in ("float", "double"):
        if getattr(into, "scale", None) is not None:
            return False  # MySQL's FLOAT(7,1) rounds
        is_half = isinstance(into, (sa.REAL, sa.FLOAT)) and not isinstance(into, sa.Double) and dialect != "sqlite"
        return isinstance(into, sa.Float) and (kind == "float" or not is_half)
    if decimal := re.fullmatch(r"decimal\((\d+),(-?\d+)\)", kind):
        return _holds_decimal(int(decimal[1]), int(decimal[2]), into, dialect)
    if kind == "binary":
        is_padded = dialect in _MYSQL and isinstance(into, sa.BINARY)
        return isinstance(into, sa.types._Binary) and not is_padded
    if kind == "date":
        return isinstance(into, sa.Date)
    if kind in ("timestamp", "timestamp_ntz"):
        return _holds_time(kind, into, dialect)
    return False


def fitting(kind: Any, dialect: str) -> str:
    """Return what to do with a column of a Spark type that the table's column cannot hold: the type of a column that can, and a cast if none can."""
    decimal = re.fullmatch(r"decimal\((\d+),(-?\d+)\)", kind) if isinstance(kind, str) else None
    if decimal and dialect == "sqlite" and int(decimal[1]) > _EXACT_DIGITS_OF_A_FLOAT:
        return "SQLite keeps only 15 digits of a NUMERIC, so cast the column to string in the transform, and declare it as TEXT"
    name = re.sub(r"^(var)?char\(\d+\)$", "string", kind) if isinstance(kind, str) else "nested"
    fits = dict(_FITTING["postgresql" if dialect == "postgresql" else "mysql" if dialect in _MYSQL else "sqlite"])
    if decimal:
        fits[name] = f"NUMERIC({decimal[1]}, {decimal[2]})"
    if name not in fits:
        return "no column holds it, so cast the column in the transform"
    return f"declare it as {fits[name]}, or cast the column in the transform"


def _holds_integer(kind: str, into: Any, dialect: str) -> bool:
    import sqlalchemy as sa

    if isinstance(into, sa.Integer):
        sizes = {"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 3, "INTEGER": 4, "INT": 4, "BIGINT": 8}
        size = 8 if dialect == "sqlite" else sizes.get(type(into).__name__.upper(), 4)
        return size >= _BYTES[kind] and not getattr(into, "unsigned", False)
    return dialect != "sqlite" and _holds_decimal(_DIGITS[kind], 0, into, dialect)


def _holds_decimal(precision: int, scale: int, into: Any, dialect: str) -> bool:
    import sqlalchemy as sa

    if not isinstance(into, sa.Numeric) or isinstance(into, sa.Float):
        return False
    if dialect == "sqlite":
        return precision <= _EXACT_DIGITS_OF_A_FLOAT  # SQLite stores NUMERIC as a float
    if into.precision is None:
        return dialect == "postgresql"
    places = into.scale or 0
    return places >= scale and into.precision - places >= precision - scale


def _holds_time(kind: str, into: Any, dialect: str) -> bool:
    import sqlalchemy as sa

    if not isinstance(into, sa.DateTime):
        return False
    if dialect == "postgresql":
        return bool(into.timezone) == (kind == "timestamp") and getattr(into, "precision", None) in (None, 6)
    if dialect in _MYSQL:
        # TIMESTAMP depends on the session's time zone. DATETIME without a precision rounds to whole seconds.
        return type(into).__name__ == "DATETIME" and getattr(into, "fsp", None) == 6
    return True


def _type_text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))


def _sql(kind: Any) -> str:
    return str(getattr(kind, "name", "") or type(kind).__name__) if not hasattr(kind, "precision") else repr(kind)
