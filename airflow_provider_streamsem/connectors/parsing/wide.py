"""
Groups the columns of records with many columns. Imports pyspark, so only engines import this module.

Spark needs minutes to plan thousands of expressions, one for each column. So columns of the same type are processed as one array.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from airflow_provider_streamsem.connectors.parsing.sql_text import struct_of, when
from airflow_provider_streamsem.identifiers import quoted

_FEW = 2
"""Maximum number of columns of one type that are not grouped into an array."""


class Grouped:
    """
    The declared columns of records, with one array in place of the columns of each type that more than two columns have.

    :attr columns: the columns of the other types, then the arrays; the declared columns if there are no arrays
    """

    def __init__(self, declared: StructType) -> None:
        members: dict[DataType, list[str]] = {}
        for field in declared.fields:
            members.setdefault(field.dataType, []).append(field.name)
        many = {kind: names for kind, names in members.items() if len(names) > _FEW}
        self._declared = declared
        self._single = [field.name for field in declared.fields if field.dataType not in many]
        self._arrays = {f"__streamsem_group_{n}": names for n, names in enumerate(many.values())}
        arrays = [StructField(group, ArrayType(kind)) for group, kind in zip(self._arrays, many, strict=True)]
        single = [field for field in declared.fields if field.dataType not in many]
        self.columns = StructType([*single, *arrays]) if many else declared

    @property
    def has_arrays(self) -> bool:
        """Whether any type has enough columns for an array."""
        return bool(self._arrays)

    def converted(self, record: str, *others: str) -> str:
        """
        Return SQL that converts a record of the declared columns to a record of :attr:`columns`; null if the record is null.

        :param record: name of a struct column with the declared columns and ``others``
        :param others: further fields, which the result keeps
        """
        single = {name: f"{record}.{quoted(name)}" for name in (*self._single, *others)}
        arrays = {
            group: f"array({', '.join(f'{record}.{quoted(name)}' for name in names)})"
            for group, names in self._arrays.items()
        }
        return when((f"{record} IS NOT NULL", struct_of({**single, **arrays})))

    def values(self, columns: Mapping[str, str]) -> dict[str, str]:
        """
        Return name → SQL of the value for each declared column, in order.

        :param columns: name in :attr:`columns` → SQL of the column
        """
        values = {name: columns[name] for name in self._single}
        for group, names in self._arrays.items():
            values |= {name: f"get({columns[group]}, {n})" for n, name in enumerate(names)}
        return {field.name: values[field.name] for field in self._declared.fields}
