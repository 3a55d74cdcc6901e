"""
Records of many columns on Spark. Imports pyspark: only engines reach this.

An expression for each of thousands of columns takes Spark minutes to plan. Columns of one type are therefore handled as one array.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from airflow_provider_streamsem.sources.sql import quoted, struct_of, when

_FEW = 2
"""columns of one type, up to which each keeps an expression of its own"""


class Grouped:
    """
    Columns with an array in the place of those of one type, where these are many.

    :attr columns: the declared columns. If a type has many columns: the columns of the other types, then one array for each such type
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
        """Whether there are so many columns of one type."""
        return bool(self._arrays)

    def of(self, record: str, *others: str) -> str:
        """
        SQL of a record of the declared columns as one of :attr:`columns`; null where it is null.

        :param record: name of a column: a struct of the declared columns and of ``others``, which are kept
        """
        single = {name: f"{record}.{quoted(name)}" for name in (*self._single, *others)}
        arrays = {
            group: f"array({', '.join(f'{record}.{quoted(name)}' for name in names)})"
            for group, names in self._arrays.items()
        }
        return when((f"{record} IS NOT NULL", struct_of({**single, **arrays})))

    def values(self, held: Mapping[str, str]) -> dict[str, str]:
        """
        The declared columns, in order: name → SQL of the value.

        :param held: name in :attr:`columns` → name of the column that holds it
        """
        found = {name: held[name] for name in self._single}
        for group, names in self._arrays.items():
            found |= {name: f"get({held[group]}, {n})" for n, name in enumerate(names)}
        return {field.name: found[field.name] for field in self._declared.fields}
