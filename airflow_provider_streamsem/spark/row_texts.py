"""The text of a row, by which rows are compared. The module imports pyspark only when a function is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EXACT = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options with which different values have different texts. Spark's defaults leave out microseconds."""


def row_text(frame: DataFrame, columns: Sequence[str]) -> Column:
    """Return a column of text that is the same for equal rows: a JSON object with these columns of the DataFrame."""
    from pyspark.sql import functions as F

    return F.to_json(F.struct(*[_comparable(frame, name) for name in columns]), _EXACT)


def _comparable(frame: DataFrame, name: str) -> Any:
    """Return a column whose JSON text is the same for equal values: each map in it is the array of its sorted entries."""
    from pyspark.sql import functions as F

    return _with_sorted_maps(F.col(f"`{name.replace('`', '``')}`"), frame.schema[name].dataType).alias(name)


def _with_sorted_maps(column: Any, kind: Any) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if '"type":"map"' not in kind.json():
        return column
    if isinstance(kind, MapType):
        entries = F.transform(
            F.map_entries(column),
            lambda entry: F.struct(entry["key"], _with_sorted_maps(entry["value"], kind.valueType).alias("value")),
        )
        return F.array_sort(entries)
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda element: _with_sorted_maps(element, kind.elementType))
    if isinstance(kind, StructType):
        fields = [_with_sorted_maps(column[field.name], field.dataType).alias(field.name) for field in kind]
        return F.when(column.isNotNull(), F.struct(*fields))
    return column
