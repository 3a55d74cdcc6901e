"""Walks the parts of nested columns. Imports pyspark: only sources and sinks that engines load import this."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def holds(kind: DataType, sought: type[DataType]) -> bool:
    """Whether a type is the sought one, or made of such."""
    return isinstance(kind, sought) or any(holds(inner, sought) for inner in _inner(kind))


def _inner(kind: DataType) -> list[DataType]:
    if isinstance(kind, ArrayType):
        return [kind.elementType]
    if isinstance(kind, MapType):
        return [kind.keyType, kind.valueType]
    return [field.dataType for field in kind.fields] if isinstance(kind, StructType) else []


def anywhere(value: Column, kind: DataType, sought: type[DataType], is_bad: Callable[[Column], Column]) -> Column:
    """Whether a value, or a part of it, is of the sought type and bad. The type holds such parts."""
    found = [is_bad(value)] if isinstance(kind, sought) else []

    def look_at_each(parts: Column, inner: DataType) -> None:
        if holds(inner, sought):
            found.append(F.exists(parts, lambda part: anywhere(part, inner, sought, is_bad)))

    if isinstance(kind, ArrayType):
        look_at_each(value, kind.elementType)
    elif isinstance(kind, MapType):
        look_at_each(F.map_keys(value), kind.keyType)
        look_at_each(F.map_values(value), kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            if holds(field.dataType, sought):
                found.append(anywhere(value.getField(field.name), field.dataType, sought, is_bad))
    return reduce(or_, found)
