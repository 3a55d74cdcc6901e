"""Converts columns of staged rows to Iceberg's types, and checks whether they fit the columns of an Iceberg table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.columns.identifiers import more_than_once, quoted
from airflow_provider_streamsem.connectors.columns.types import bare, widened
from airflow_provider_streamsem.errors import DataError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import MappedField, NameMapping
    from pyiceberg.types import IcebergType, NestedField

    from airflow_provider_streamsem.connectors.iceberg.partitions import Partition

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
_SPARK_NAMES = {name: spark for spark, name in _PRIMITIVES.items() if spark not in ("byte", "short")}
_PROMOTED = {
    ("integer", "long"),
    ("byte", "integer"),
    ("short", "integer"),
    ("byte", "long"),
    ("short", "long"),
    ("float", "double"),
}
_NEWEST_FORMAT = 2


def iceberg_schema(schema: str, partitions: Sequence[Partition]) -> Schema:
    """
    Convert the columns of the staged rows (Spark schema JSON; ``""``: none) to an Iceberg schema. Every column is optional.

    The field ids are temporary, because the table assigns other ids. Types that Iceberg lacks, or that cannot partition, raise ``DataError``.
    """
    from pyiceberg.schema import Schema

    ids = count(1)
    columns = json.loads(schema)["fields"] if schema else []
    fields = _fields(columns, ids)
    duplicates = more_than_once(field.name for field in fields)
    if duplicates:
        raise DataError("columns differ only in upper and lower case", columns=duplicates)
    types = {field.name: field.field_type for field in fields}
    missing = [part.column for part in partitions if fields and part.column not in types]
    if missing:
        summary = "the transform's result lacks partition columns"
        raise DataError(summary, missing=missing, columns=list(types))
    plain = [part.column for part in partitions if part.is_identity]
    unsupported = [name for name in plain if name in types and not _partitions(types[name])]
    if unsupported:
        raise DataError("columns of this type cannot partition an Iceberg table", columns=unsupported)
    try:
        return Schema(*fields)
    except ValueError as error:
        summary = "an Iceberg table cannot hold these columns together, because two of them have one path"
        raise DataError(summary, columns=sorted(field.name for field in fields), problem=str(error)).advising(
            "rename one of the columns in the transform, then run again."
        ) from None


def _partitions(kind: IcebergType) -> bool:
    return kind.is_primitive and str(kind) not in _NO_PARTITION


def _fields(columns: Sequence[Any], ids: Any) -> list[NestedField]:
    from pyiceberg.types import NestedField

    return [
        NestedField(
            field_id=next(ids), name=item["name"], field_type=_type(item["type"], item["name"], ids), required=False
        )
        for item in columns
    ]


def _type(spark: Any, column: str, ids: Any) -> IcebergType:
    from pyiceberg.types import DecimalType, IcebergType, ListType, MapType, StructType

    kind = spark.get("type") if isinstance(spark, dict) else spark
    if kind == "struct":
        return StructType(*_fields(spark["fields"], ids))
    if kind == "array":
        return ListType(next(ids), _type(spark["elementType"], column, ids), element_required=False)
    if kind == "map":
        key, value = next(ids), next(ids)
        of_key, of_value = _type(spark["keyType"], column, ids), _type(spark["valueType"], column, ids)
        return MapType(key, of_key, value, of_value, value_required=False)
    if isinstance(kind, str) and kind in _PRIMITIVES:
        return IcebergType.model_validate(_PRIMITIVES[kind])
    decimal = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    if decimal is None:
        raise DataError("a column has a type that Iceberg does not have", column=column, given=kind)
    return DecimalType(int(decimal[1]), int(decimal[2]))


def unwritable(
    table: TableMetadata, *, expires: bool, newest_format: int = _NEWEST_FORMAT, by_spark: bool = False
) -> list[str]:
    """
    Return the requirements of a table that this sink does not satisfy, by their Iceberg names; empty if the table is accepted.

    :param newest_format: the newest format version that the writer and the catalog support
    :param by_spark: whether Spark writes the rows. Then columns and struct fields may be required, because :func:`required` is checked

    Other properties (``write.*``) do not change the values of rows, so they are accepted. A sort order is accepted too, because the manifest does not
    mark the staged files as sorted.
    """
    requirements = []
    if table.format_version > newest_format:  # default values, row lineage, variant, deletion vectors
        requirements.append(f"format-version {table.format_version}")
    checked = {".".join(path) for path in _required_paths(table.schema())} if by_spark else set()
    is_refused = [name for name, required in _required(table.schema()) if required and name not in checked]
    requirements += [f"{name}: must not be null" for name in is_refused]
    requirements += [
        name for name in table.properties if name.startswith("encryption.") or name == "write.py-location-provider.impl"
    ]
    if expires and table.properties.get("gc.enabled", "true").lower() == "false":
        requirements.append("gc.enabled=false, and expire_after_s is set")
    return sorted(requirements)


def required(table: TableMetadata) -> dict[str, str]:
    """Return the columns and struct fields that must not be null: name → SQL expression. As in Iceberg's writers, a null struct has no fields."""
    conditions = {}
    for path in _required_paths(table.schema()):
        names = [quoted(name) for name in path]
        above = [f"{'.'.join(names[:n])} IS NULL" for n in range(1, len(names))]
        conditions[f"{'.'.join(path)} IS NOT NULL"] = " OR ".join([*above, f"{'.'.join(names)} IS NOT NULL"])
    return conditions


def as_required(columns: Schema, existing: Schema) -> Schema:
    """Return the columns in which those are required that are required in the table. Otherwise pyiceberg would make them optional in the table."""
    from pyiceberg.schema import Schema

    return Schema(*(_as_required(field, existing.as_struct()) for field in columns.fields))


def _as_required(field: NestedField, above: Any) -> NestedField:
    own = next((known for known in above.fields if known.name == field.name), None)
    if own is None:
        return field
    return field.model_copy(
        update={"required": own.required, "field_type": _type_as_required(field.field_type, own.field_type)}
    )


def _type_as_required(kind: IcebergType, own: IcebergType) -> IcebergType:
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType) and isinstance(own, StructType):
        return StructType(*(_as_required(field, own) for field in kind.fields))
    if isinstance(kind, ListType) and isinstance(own, ListType):
        element = _type_as_required(kind.element_type, own.element_type)
        return ListType(kind.element_id, element, element_required=own.element_required)
    if isinstance(kind, MapType) and isinstance(own, MapType):
        key, value = (
            _type_as_required(mine, theirs)
            for mine, theirs in ((kind.key_type, own.key_type), (kind.value_type, own.value_type))
        )
        return MapType(kind.key_id, key, kind.value_id, value, value_required=own.value_required)
    return kind


def check_required(table: TableMetadata, names: Sequence[str]) -> None:
    """Refuse rows that lack a required column. No names: a batch without rows."""
    lacking = sorted({path[0] for path in _required_paths(table.schema()) if len(path) == 1} - {*names})
    if names and lacking:
        raise DataError("the rows lack columns that must not be null in the Iceberg table", missing=lacking).advising(
            "return the columns from the transform, then run again."
        )


def _required_paths(schema: Schema) -> list[tuple[str, ...]]:
    """Return the required columns, and the required fields of structs that are not in arrays or maps."""
    from pyiceberg.types import StructType

    def of(fields: Sequence[NestedField], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for field in fields:
            path = (*above, field.name)
            if field.required:
                yield path
            if isinstance(field.field_type, StructType):
                yield from of(field.field_type.fields, path)

    return [*of(schema.fields, ())]


def fitted(table: TableMetadata, schema: str, partition_by: Sequence[str], *, lacks: bool) -> str:
    """
    Return the columns (Spark schema JSON) with the types of the table; the same text if they have them already.

    A column keeps a wider type to which Iceberg promotes the table's type. Others of another type or spelling, or that were renamed or dropped, are refused.

    :param lacks: whether structs may lack fields that the table has
    """
    if not schema:
        return schema
    current, mapping = table.schema(), table.name_mapping()
    existing = {field.name.lower(): field for field in current.fields}
    # The staged files have column names and no field ids. Readers find the ids by the table's name mapping.
    mapped = {} if mapping is None else {name: field.field_id for field in mapping for name in field.names}

    def grows(column: str, recorded: str, wider: str) -> bool:
        return column not in partition_by and _promotes(recorded, wider)

    original = json.loads(schema)
    types = []
    for field in original["fields"]:
        name, known = field["name"], existing.get(field["name"].lower())
        if known is None and name in mapped:
            raise _former_name(name)
        if known is None:
            types.append(field["type"])
            continue
        if mapping is not None and mapped.get(known.name) != known.field_id:
            raise DataError(
                "the Iceberg table's name mapping does not map a column's name to its field id",
                column=name,
            )
        kind = spark_type(known.field_type)
        try:
            _check_spelling(name, known)
            types.append(widened(kind, field["type"], name, grows=grows, lacks=lacks))
        except DataError as error:
            raise DataError(
                "a column has another type or spelling in the Iceberg table",
                column=error.fields.get("column", name),
                given=error.fields.get("found", field["type"]),
                found=error.fields.get("recorded", f"{known.name}: {known.field_type}"),
            ) from error
        if mapping is not None:
            _check_dropped(mapping, current, types[-1], name)
    if bare(types) == bare([field["type"] for field in original["fields"]]):
        return schema
    fields = [{**field, "type": kind} for field, kind in zip(original["fields"], types, strict=True)]
    return json.dumps({**original, "fields": fields}, separators=(",", ":"))


COLUMNS = "streamsem.columns"
"""The table property in which this package records the columns of the files that it has appended, as JSON: name → field id."""


def check_names(table: TableMetadata) -> None:
    """
    Refuse a table in which a name in appended files now belongs to another column.

    Readers find the columns of files without field ids by name. If column B was renamed to the former name of column A, readers return the values of A for B
    from these files.
    """
    current = table.schema()
    for name, recorded_id in json.loads(table.properties.get(COLUMNS, "{}")).items():
        if name in current.column_names and current.find_field(name).field_id != recorded_id:
            raise DataError(
                "a column of the Iceberg table has the name that another column had when files were appended, so readers return wrong values from these files; "
                "nothing became visible",
                column=name,
                ids=[recorded_id, current.find_field(name).field_id],
            ).advising(
                "rename the new column. Or restore the earlier names, rewrite the table's files with Spark (CALL system.rewrite_data_files with "
                f"rewrite-all), and remove the property {COLUMNS}."
            )


def recorded_names(table: TableMetadata, schema: str) -> str:
    """Return the value of the property :data:`COLUMNS` with the columns of a batch (Spark schema JSON) added."""
    recorded = json.loads(table.properties.get(COLUMNS, "{}"))
    columns = [
        path
        for field in json.loads(schema)["fields"]
        for path in (field["name"], *_paths(field["type"], field["name"]))
    ]
    existing = {
        path: table.schema().find_field(path).field_id for path in columns if path in table.schema().column_names
    }
    return json.dumps({**recorded, **existing}, sort_keys=True)


def check_staged_types(table: TableMetadata, schema: str) -> None:
    """Refuse columns of staged files that have neither the type of the table nor a narrower type that Iceberg promotes to it. Readers do the promotion."""
    types = {field.name: spark_type(field.field_type) for field in table.schema().fields}
    for field in json.loads(schema)["fields"] if schema else []:
        if field["name"] in types:
            promotes = lambda column, recorded, wider: _promotes(recorded, wider)  # noqa: E731
            widened(field["type"], types[field["name"]], field["name"], grows=promotes, lacks=True)


def _check_spelling(name: str, known: NestedField) -> None:
    if name != known.name:
        raise DataError("a column is spelled differently in the Iceberg table", column=name)


def _promotes(narrow: str, wide: str) -> bool:
    """Iceberg specification, *Schema Evolution*."""
    decimals = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    if decimals[0] and decimals[1]:
        return decimals[0][2] == decimals[1][2]
    return (narrow, wide) in _PROMOTED


def _check_dropped(mapping: NameMapping, current: Schema, kind: Any, column: str) -> None:
    """Refuse a struct field that was renamed or dropped in the table, because the name mapping leads to the old field."""
    dropped = set(_mapped(mapping)) - {*current.column_names}
    used = sorted(dropped.intersection(_paths(kind, column)))
    if used:
        raise _former_name(used[0])


def _former_name(column: str) -> DataError:
    return DataError("a column was renamed or dropped in the Iceberg table", column=column).advising(
        "return the new name from the transform, or leave the column out. Then run again."
    )


def _mapped(fields: Iterable[MappedField], above: str = "") -> Iterator[str]:
    for field in fields:
        for name in field.names:
            yield f"{above}{name}"
            yield from _mapped(field.fields, f"{above}{name}.")


def _paths(kind: Any, column: str) -> Iterator[str]:
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", []):
        yield f"{column}.{field['name']}"
        yield from _paths(field["type"], f"{column}.{field['name']}")
    for part, name in (("elementType", "element"), ("keyType", "key"), ("valueType", "value")):
        yield from _paths(kind.get(part), f"{column}.{name}")


def spark_type(kind: IcebergType) -> Any:
    """Return a type of the table in Spark's schema JSON, every part nullable. For a type that Spark lacks, return a string with its Iceberg name."""
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    if isinstance(kind, StructType):
        fields = [
            {"name": field.name, "type": spark_type(field.field_type), "nullable": True, "metadata": {}}
            for field in kind.fields
        ]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, ListType):
        return {"type": "array", "elementType": spark_type(kind.element_type), "containsNull": True}
    if isinstance(kind, MapType):
        key, value = spark_type(kind.key_type), spark_type(kind.value_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK_NAMES.get(str(kind), f"iceberg {kind}")


def _required(schema: Schema) -> list[tuple[str, bool]]:
    """Return the full name of every field of a schema, and whether it is required. Map keys, which are never null, count as not required."""
    from pyiceberg.types import MapType

    fields = {schema.find_column_name(field.field_id): field for field in _all_fields(schema)}
    keys = {field.field_type.key_id for field in fields.values() if isinstance(field.field_type, MapType)}
    return [(str(name), field.required and field.field_id not in keys) for name, field in fields.items()]


def _all_fields(schema: Schema) -> list[NestedField]:
    from pyiceberg.schema import index_by_id

    return list(index_by_id(schema).values())
