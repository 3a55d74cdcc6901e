"""
Reads the planned files of an Iceberg table with Spark. Imports pyspark, so only engines import this module.

Iceberg identifies a column by its field id, even after the column was renamed. The footer of each file maps its columns to field ids. For files without ids,
the table's name mapping does so (Iceberg specification, *Column Projection*). Spark then reads these columns by the names that they have in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, parse_mapping_from_json
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField
from pyspark.sql.types import StructType as SparkStruct

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.data_files import ordered
from airflow_provider_streamsem.connectors.iceberg.columns import spark_type
from airflow_provider_streamsem.connectors.iceberg.pins import FilePin, TablePin
from airflow_provider_streamsem.connectors.source import ParsedRecords
from airflow_provider_streamsem.connectors.table_files import rows
from airflow_provider_streamsem.errors import DataError

_FIELD_ID = b"PARQUET:field_id"


class IcebergRecords(rows.TableRecords):
    """
    The rows of the planned files, with ``in_order`` distributed by snapshot.

    Files that lack field ids or partition columns, or whose footer contradicts the table's metadata, are refused (``DataError``).
    """

    def __init__(
        self, spark: SparkSession, location: str, table: TablePin, files: Sequence[FilePin], *, in_order: bool
    ) -> None:
        self._spark, self._location, self._table, self._files = spark, location, table, files
        self._positions = (ordered.FILE, ordered.BLOCK) if in_order else ()
        self._schema = Schema.model_validate_json(table.schema)
        self._mapping = list(parse_mapping_from_json(table.mapping)) if table.mapping else None
        groups: dict[bytes, tuple[Any, list[FilePin]]] = {}
        footers = rows.footers(location, files)
        for file in files:
            footer = footers[file.key]
            if footer.rows != file.rows:
                summary = (
                    "the footer of a planned file has another number of rows than the metadata of the Iceberg table"
                )
                raise DataError(summary, file=file.key, footer=footer.rows, metadata=file.rows)
            key = footer.columns.serialize().to_pybytes()
            groups.setdefault(key, (footer.columns, []))[1].append(file)
        frames = [self._read(columns, group) for columns, group in groups.values()]
        self.frame = reduce(DataFrame.unionByName, frames) if frames else without_rows(spark, self._schema).frame
        if self._positions:
            self.frame, self.groups = rows.in_groups(self.frame, location, files, [file.sequence for file in files])

    def check_read(self, read: int) -> None:
        """Compares with the number in the metadata of the table, which the footers confirmed."""
        rows.check_read(self._location, self._files, read, snapshots=(self._table.start, self._table.end))

    def _read(self, file_columns: Any, files: Sequence[FilePin]) -> DataFrame:
        """All files have the columns ``file_columns``, a ``pyarrow.Schema``."""
        mapping = None if any(_has_id(column) for column in file_columns) else self._mapping
        if mapping is None and not any(_has_id(column) for column in file_columns):
            summary = (
                "a planned file has no field ids, and the Iceberg table has no name mapping, so its columns are unknown"
            )
            raise DataError(summary, file=files[0].key).advising(
                "set the table property schema.name-mapping.default, then run again."
            )
        stored: list[dict[str, Any]] = []
        selected = []
        absent = set()
        for field in self._schema.fields:
            target = StructField.fromJson(_field(field.name, field.field_type))
            column = _find(field, file_columns, mapping)
            if column is None:
                absent.add(field.field_id)
                selected.append(F.lit(None).cast(target.dataType).alias(field.name))
                continue
            below = _below(mapping, field.field_id)
            stored.append(_json(column.name, _stored(field.field_type, column.type, below)))
            selected.append(F.col(quoted(column.name)).cast(target.dataType).alias(field.name))
        self._check_partitions(files, absent)
        read = SparkStruct.fromJson({"type": "struct", "fields": stored})
        frame = rows.read(self._spark, self._location, files, read, positions=bool(self._positions))
        return frame.select(*selected, *self._positions)

    def _check_partitions(self, files: Sequence[FilePin], absent: set[int]) -> None:
        """Iceberg takes the values of a missing partition column from the table's metadata."""
        for file in files:
            missing = [self._schema.find_column_name(id) for id in file.identity if id in absent]
            if missing:
                summary = "a planned file lacks columns by which it is partitioned, as files imported from Hive do"
                raise DataError(summary, file=file.key, columns=missing).advising(
                    "rewrite the file with Spark's procedure rewrite_data_files, and start a new pipeline."
                )


def without_rows(spark: SparkSession, schema: Schema) -> ParsedRecords:
    """Return the columns of a table, without rows."""
    columns = SparkStruct.fromJson(spark_type(schema.as_struct()))
    return ParsedRecords(spark.createDataFrame([], columns))


def _field(name: str, kind: IcebergType) -> dict[str, Any]:
    return _json(name, spark_type(kind))


def _json(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _has_id(column: Any) -> bool:
    return _FIELD_ID in (column.metadata or {})


def _find(field: NestedField, columns: Iterable[Any], mapping: Sequence[MappedField] | None) -> Any:
    """``mapping`` is the name mapping at the level of the field; ``None`` if the file has field ids."""
    if mapping is None:
        field_id = str(field.field_id).encode()
        return next((column for column in columns if (column.metadata or {}).get(_FIELD_ID) == field_id), None)
    names = {name for mapped in mapping if mapped.field_id == field.field_id for name in mapped.names}
    matches = [column for column in columns if column.name in names]
    if len(matches) > 1:
        summary = "several columns of a planned file have names of one column in the Iceberg table's name mapping"
        raise DataError(summary, column=field.name, found=[column.name for column in matches])
    return matches[0] if matches else None


def _below(mapping: Sequence[MappedField] | None, field_id: int) -> Sequence[MappedField] | None:
    if mapping is None:
        return None
    return next((mapped.fields for mapped in mapping if mapped.field_id == field_id), [])


def _stored(kind: IcebergType, file_type: Any, mapping: Sequence[MappedField] | None) -> Any:
    """Return the table's type with the names that the file has. A field that the file lacks gets a name that no file has: Spark reads null."""
    if isinstance(kind, StructType):
        parts = [file_type.field(at) for at in range(file_type.num_fields)]
        fields = []
        for field in kind.fields:
            part = _find(field, parts, mapping)
            if part is None:
                fields.append(_field(f"__streamsem_absent_{field.field_id}", field.field_type))
            else:
                inner = _stored(field.field_type, part.type, _below(mapping, field.field_id))
                fields.append(_json(part.name, inner))
        return {"type": "struct", "fields": fields}
    if isinstance(kind, ListType):
        element = _stored(kind.element_type, file_type.value_type, _below(mapping, kind.element_id))
        return {"type": "array", "elementType": element, "containsNull": True}
    if isinstance(kind, MapType):
        key = _stored(kind.key_type, file_type.key_type, _below(mapping, kind.key_id))
        value = _stored(kind.value_type, file_type.item_type, _below(mapping, kind.value_id))
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return spark_type(kind)
