"""Columns of staged rows, in Spark's form, against the columns of an Iceberg table."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.sinks.column_names import more_than_once

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField

_PRIMITIVES = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NO_PARTITION = {"float", "double", "binary"}


def iceberg_schema(schema: str, partition_by: Sequence[str]) -> Schema:
    """
    The columns of the staged rows as Iceberg has them; every one may be null. Their ids are of no account: the table gives its own.

    :param schema: schema JSON in Spark's form; ``""`` is no columns
    :raises DataError: a type that Iceberg does not have; columns that cannot partition, or are not there
    """
    from pyiceberg.schema import Schema

    ids = count(1)
    given = json.loads(schema)["fields"] if schema else []
    fields = _fields(given, ids)
    twice = more_than_once(field.name for field in fields)
    if twice:
        raise DataError("columns differ only in upper and lower case; nothing became visible", columns=twice)
    types = {field.name: field.field_type for field in fields}
    missing = [name for name in partition_by if fields and name not in types]
    if missing:
        raise DataError("the transform's result lacks partition columns", missing=missing, columns=list(types))
    odd = [name for name in partition_by if name in types and not _partitions(types[name])]
    if odd:
        raise DataError("columns of this type cannot partition an Iceberg table; nothing became visible", columns=odd)
    return Schema(*fields)


def _partitions(kind: IcebergType) -> bool:
    return kind.is_primitive and str(kind) not in _NO_PARTITION


def _fields(given: Sequence[Any], ids: Any) -> list[NestedField]:
    from pyiceberg.types import NestedField

    return [
        NestedField(
            field_id=next(ids), name=item["name"], field_type=_type(item["type"], item["name"], ids), required=False
        )
        for item in given
    ]


def _type(given: Any, column: str, ids: Any) -> IcebergType:
    from pyiceberg.types import DecimalType, IcebergType, ListType, MapType, StructType

    kind = given.get("type") if isinstance(given, dict) else given
    if kind == "struct":
        return StructType(*_fields(given["fields"], ids))
    if kind == "array":
        return ListType(next(ids), _type(given["elementType"], column, ids), element_required=False)
    if kind == "map":
        key, value = next(ids), next(ids)
        of_key, of_value = _type(given["keyType"], column, ids), _type(given["valueType"], column, ids)
        return MapType(key, of_key, value, of_value, value_required=False)
    if isinstance(kind, str) and kind in _PRIMITIVES:
        return IcebergType.model_validate(_PRIMITIVES[kind])
    decimal = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    if decimal is None:
        raise DataError(
            "a column is of a type that Iceberg does not have; nothing became visible", column=column, given=kind
        )
    return DecimalType(int(decimal[1]), int(decimal[2]))


def new_columns(table: TableMetadata, columns: Schema) -> list[NestedField]:
    """
    The columns that the table lacks.

    :raises DataError: a column is of another type or spelling there, was renamed there, or the table requires what the rows may lack
    """
    current, mapping = table.schema(), table.name_mapping()
    there = {field.name.lower(): field for field in current.fields}
    # Files name their columns, and have no ids: the mapping says which is which.
    mapped = {} if mapping is None else {name: field.field_id for field in mapping for name in field.names}
    new = []
    for field in columns.fields:
        known = there.get(field.name.lower())
        if known is None and field.name in mapped:
            raise DataError(
                "a column was renamed or dropped in the Iceberg table; nothing became visible", column=field.name
            )
        if known is None:
            new.append(field)
        elif known.name != field.name or _shape(known.field_type) != _shape(field.field_type):
            raise DataError(
                "a column is of another type or spelling in the Iceberg table; nothing became visible",
                column=field.name,
                given=str(field.field_type),
                found=f"{known.name}: {known.field_type}",
            )
        elif mapping is not None and mapped.get(field.name) != known.field_id:
            raise DataError(
                "the Iceberg table's name mapping does not lead to a column; nothing became visible", column=field.name
            )
    required = [name for name, kind in _required(current) if kind]
    if required:
        raise DataError(
            "the Iceberg table has columns that must not be null, which Spark's rows may be; nothing became visible",
            columns=required,
        )
    return new


def _required(schema: Schema) -> list[tuple[str, bool]]:
    """Every field of a schema by its full name, but for keys of maps, which are never null."""
    from pyiceberg.types import MapType

    fields = {schema.find_column_name(field.field_id): field for field in _every(schema)}
    keys = {field.field_type.key_id for field in fields.values() if isinstance(field.field_type, MapType)}
    return [(str(name), field.required and field.field_id not in keys) for name, field in fields.items()]


def _every(schema: Schema) -> list[NestedField]:
    from pyiceberg.schema import index_by_id

    return list(index_by_id(schema).values())


def _shape(kind: IcebergType) -> Any:
    """A type without ids and without what may be null."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        return [(field.name, _shape(field.field_type)) for field in kind.fields]
    if isinstance(kind, ListType):
        return "list", _shape(kind.element_type)
    if isinstance(kind, MapType):
        return "map", _shape(kind.key_type), _shape(kind.value_type)
    return str(kind)
