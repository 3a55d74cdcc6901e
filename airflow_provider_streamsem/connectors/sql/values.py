"""Checks before the commit whether staged values fit the columns of a table, as the database's catalog describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_streamsem.connectors.changes import CHANGE, UPSERT
from airflow_provider_streamsem.connectors.json_rows.text import json_text
from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import is_in_python
from airflow_provider_streamsem.connectors.staged_parquet.sink import parquet_files
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import Committable

Check = tuple[str, Callable[[Any], bool]]
"""A problem, as the predicate of a sentence whose subject is the column; and a function that returns whether a pyarrow array has the problem."""

_MYSQL = ("mysql", "mariadb")
_MYSQL_BYTES = {"TINYTEXT": 255, "TEXT": 65_535, "MEDIUMTEXT": 2**24 - 1, "TINYBLOB": 255, "BLOB": 65_535, "MEDIUMBLOB": 2**24 - 1}  # fmt: skip
_UUID = r"^\{?[0-9a-fA-F]{4}(-?[0-9a-fA-F]{4}){7}\}?$"
_CANONICAL_UUID = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, in days since 1970-01-01
_LAST_DAY_AS_TEXT = 11_248_737  # 32767-12-31: the last day that Arrow can format as text for Postgres
_DAY_US = 86_400_000_000
_NUL_IN_JSON = r"(^|[^\\])(\\\\)*\\u0000"


def refuse_misfits(
    location: str, staged: Committable, target: Target, *, of_changes: bool = False, is_committed: bool = False
) -> None:
    """
    Refuse values that the table's columns cannot hold. The error has no values.

    :param of_changes: whether the rows are change data. If so, deletes may lack values, and the texts of UUIDs must be in the form that the database returns

    Dates and times are checked by the footers of the files. Other columns are read only if the table's column has a limit.
    """
    import pyarrow.compute as pc

    wrong: dict[str, str] = {}
    for parquet in parquet_files(location, staged, is_committed=is_committed):
        wrong |= _unsupported_times(parquet, target)
        checks = {
            field.name: _checks(field.type, target, field.name, uuid=_CANONICAL_UUID if of_changes else _UUID)
            for field in parquet.schema_arrow
            if field.name in target.columns
        }
        bounded = [name for name, column_checks in checks.items() if column_checks and name not in wrong]
        marks = [CHANGE] if of_changes else []
        for rows in parquet.iter_batches(columns=[*bounded, *marks]) if bounded else ():
            rows = rows.filter(pc.equal(rows.column(CHANGE), UPSERT)) if of_changes else rows
            for name in bounded:
                for problem, has_problem in checks[name]:
                    if has_problem(rows.column(name)):
                        wrong[name] = problem
    if wrong:
        raise DataError("values do not fit the table", table=target.name, columns=wrong)


def _checks(kind: Any, target: Target, name: str, *, uuid: str) -> list[Check]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import sqlalchemy as sa

    column = target.columns[name]
    into = column["type"]
    checks: list[Check] = []
    if pa.types.is_nested(kind):
        if target.never_null(name):
            checks.append(("is null, but NOT NULL in the table", lambda v: v.null_count > 0))
        return checks + _json_checks(into, target.dialect)
    if pa.types.is_floating(kind) and target.dialect != "postgresql":
        checks.append(("is NaN, which the database cannot store", lambda v: _any(pc.is_nan(v))))
        if target.dialect in _MYSQL:
            checks.append(("is infinite, which the database cannot store", lambda v: _any(pc.is_inf(v))))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if target.dialect == "postgresql":
            checks.append(("contains the character NUL", lambda v: _any(pc.match_substring(v, "\0"))))
        if isinstance(into, sa.Uuid):
            checks.append(("is not a UUID", lambda v: _any(pc.invert(pc.match_substring_regex(v, uuid)))))
        elif isinstance(into, sa.Enum):
            checks += _enum_checks(into)
        elif isinstance(into, sa.String):
            checks += _length_checks(into, target.dialect, pc.utf8_length)
            if isinstance(into, sa.CHAR) and target.dialect in _MYSQL:
                checks.append(("ends with a space, which CHAR drops", lambda v: _any(pc.ends_with(v, " "))))
            if isinstance(into, sa.CHAR) and target.dialect == "postgresql" and into.length:
                checks.append(
                    (
                        "is shorter than its CHAR column, which pads it",
                        lambda v: _any(pc.less(pc.utf8_length(v), into.length)),
                    )
                )
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        checks += _length_checks(into, target.dialect, pc.binary_length)
    if target.max_packet_bytes is not None and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        checks.append(
            (
                "is longer than max_allowed_packet",
                lambda v: _any(pc.greater(pc.binary_length(v), target.max_packet_bytes)),
            )
        )
    return checks


def _json_checks(into: Any, dialect: str) -> list[Check]:
    """They apply to the JSON text that is sent, if the table's column has a limit."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import sqlalchemy as sa

    checks: list[Check] = []
    if type(into).__name__ == "JSONB":
        checks.append(("contains the character NUL", lambda v: _any(pc.match_substring_regex(v, _NUL_IN_JSON))))
    elif isinstance(into, sa.String):
        checks += _length_checks(into, dialect, pc.utf8_length)

    def of_text(has: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return lambda v: has(pa.array([json_text(value, v.type) for value in v.to_pylist()], pa.string()))

    return [(problem, of_text(has)) for problem, has in checks]


def _enum_checks(into: Any) -> list[Check]:
    import pyarrow as pa
    import pyarrow.compute as pc

    # The comparison is exact. With a MySQL collation, a value could equal another word of the enum, and the table would store that word.
    words = pa.array(list(into.enums))
    return [("is not a value of the enum", lambda v: _any(pc.invert(pc.is_in(v.drop_null(), words))))]


def _length_checks(into: Any, dialect: str, length: Callable[[Any], Any]) -> list[Check]:
    import pyarrow.compute as pc

    if dialect == "sqlite":
        return []  # SQLite enforces no lengths
    limit = getattr(into, "length", None)
    if limit is None and dialect in _MYSQL:
        limit, length = _MYSQL_BYTES.get(type(into).__name__.upper()), pc.binary_length
    if limit is None:
        return []
    return [(f"is longer than {limit}", lambda v: _any(pc.greater(length(v), limit)))]


def _unsupported_times(parquet: Any, target: Target) -> dict[str, str]:
    """Drivers fail on years outside 1 to 9999. For Postgres, top-level dates and times up to the year 32767 are supported."""
    import pyarrow as pa

    units = {}
    for field in parquet.schema_arrow:
        if field.name in target.columns and pa.types.is_date32(field.type):
            units[field.name] = 1
        elif field.name in target.columns and pa.types.is_timestamp(field.type) and field.type.unit == "us":
            units[field.name] = _DAY_US
    problems = {}
    paths = parquet.reader.column_paths  # as lists, because a name may contain dots
    last = _LAST_DAY_AS_TEXT if target.dialect == "postgresql" else _LAST_DAY
    for group in range(parquet.metadata.num_row_groups):
        for at, (name, *below) in enumerate(paths):
            statistics = parquet.metadata.row_group(group).column(at).statistics
            unit = None if below else units.get(name)
            if statistics is None or not statistics.has_min_max:
                continue
            if unit is None:
                is_unsupported = name in target.columns and not is_in_python(statistics)
            else:
                is_unsupported = statistics.max_raw >= (last + 1) * unit or statistics.min_raw < _FIRST_DAY * unit
            if is_unsupported:
                problems[name] = "is outside the supported years"
    return problems


def _any(mask: Any) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(mask).as_py())
