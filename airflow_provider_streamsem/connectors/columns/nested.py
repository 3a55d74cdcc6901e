"""Searches nested columns for types and values. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def holds(kind: DataType, sought: type[DataType]) -> bool:
    """Return whether a type is the sought type or contains it at any depth."""
    return isinstance(kind, sought) or any(holds(inner, sought) for inner in _inner(kind))


def _inner(kind: DataType) -> list[DataType]:
    if isinstance(kind, ArrayType):
        return [kind.elementType]
    if isinstance(kind, MapType):
        return [kind.keyType, kind.valueType]
    return [field.dataType for field in kind.fields] if isinstance(kind, StructType) else []


def anywhere(value: Column, kind: DataType, sought: type[DataType], is_bad: Callable[[Column], Column]) -> Column:
    """
    Return a condition that is true if a value, or a value inside it, has the sought type and is bad.

    :func:`holds` must be true for ``kind``, the type of ``value``. Otherwise there is no condition to combine.
    """
    conditions = [is_bad(value)] if isinstance(kind, sought) else []

    def check_each(elements: Column, inner: DataType) -> None:
        if holds(inner, sought):
            conditions.append(F.exists(elements, lambda element: anywhere(element, inner, sought, is_bad)))

    if isinstance(kind, ArrayType):
        check_each(value, kind.elementType)
    elif isinstance(kind, MapType):
        check_each(F.map_keys(value), kind.keyType)
        check_each(F.map_values(value), kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            if holds(field.dataType, sought):
                conditions.append(anywhere(value.getField(field.name), field.dataType, sought, is_bad))
    return reduce(or_, conditions)
