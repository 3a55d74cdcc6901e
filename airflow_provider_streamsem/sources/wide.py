"""
Records of many columns on Spark. Imports pyspark: only engines reach this.

An expression for each of thousands of columns takes Spark minutes to plan, and Python minutes to send, one call of the JVM after another. Columns of one type
are therefore handled as one array, and what needs each column is sent as one text.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

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

    def of(self, record: str, *others: str) -> Column:
        """
        A record of the declared columns as one of :attr:`columns`; null where it is null.

        :param record: name of a column: a struct of the declared columns and of ``others``, which are kept
        """
        column = quoted(record)
        single = {name: f"{column}.{quoted(name)}" for name in (*self._single, *others)}
        arrays = {
            group: f"array({', '.join(f'{column}.{quoted(name)}' for name in names)})"
            for group, names in self._arrays.items()
        }
        return F.when(F.expr(f"{column} IS NOT NULL"), F.expr(struct({**single, **arrays})))

    def record(self, values: Mapping[str, str]) -> Column:
        """
        The record of the declared columns, in order.

        :param values: name in :attr:`columns` → name of the column that holds it
        """
        found = {name: quoted(values[name]) for name in self._single}
        for group, names in self._arrays.items():
            found |= {name: f"get({quoted(values[group])}, {n})" for n, name in enumerate(names)}
        return F.expr(struct({field.name: found[field.name] for field in self._declared.fields}))


def struct(values: Mapping[str, str]) -> str:
    """SQL of a struct: name → SQL of its value."""
    return f"struct({', '.join(f'{value} AS {quoted(name)}' for name, value in values.items())})"


def quoted(name: str) -> str:
    """SQL of a column's name."""
    return "`" + name.replace("`", "``") + "`"
