"""
SQL that gives equal values equal bytes, for functions and state stores of Spark that compare bytes.

Two values are equal as in ``GROUP BY``: NaN equals NaN, and 0.0 equals -0.0, in nested values too. This module imports pyspark inside functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_streamsem.connectors.columns.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def normal_form(sql: str, kind: DataType, depth: int = 0) -> str:
    """
    Return SQL for the value of ``sql`` with one bit pattern for NaN, and with 0.0 in place of -0.0; ``sql`` itself if its type has no such values.

    :param sql: an expression. It is repeated in the result, so it must be deterministic
    :param depth: the number of arrays that contain the value
    """
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, StructType

    if isinstance(kind, (DoubleType, FloatType)):
        name = kind.simpleString()
        return f"(nanvl({sql}, {name}('NaN')) + {name}(0))"
    if isinstance(kind, ArrayType):
        item = f"item_{depth}"
        normal = normal_form(item, kind.elementType, depth + 1)
        return sql if normal == item else f"transform({sql}, {item} -> {normal})"
    if isinstance(kind, StructType):
        members = {f.name: f"{sql}.{quoted(f.name)}" for f in kind.fields}
        normals = {f.name: normal_form(members[f.name], f.dataType, depth) for f in kind.fields}
        if normals == members:
            return sql
        return f"IF({sql} IS NULL, NULL, struct({', '.join(f'{normal} AS {quoted(name)}' for name, normal in normals.items())}))"
    return sql


def never_empty(sql: str, kind: DataType) -> str:
    """Return SQL for text or binary with one more byte at its start, because sketches of distinct values skip empty ones; for other types ``sql`` itself."""
    from pyspark.sql.types import BinaryType, StringType

    if isinstance(kind, StringType):
        return f"concat('_', {sql})"
    return f"concat(x'00', {sql})" if isinstance(kind, BinaryType) else sql
