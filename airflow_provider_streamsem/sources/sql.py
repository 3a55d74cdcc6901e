"""
Spark SQL as text. Imports pyspark: only engines import this.

An expression that is built call by call costs a call of the JVM for each of its nodes; thousands of them take a second. As text it is sent once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, TimestampType

_PLAIN = re.compile(r"[ -&(-~]*")  # printable ASCII without the single quote


@dataclass(frozen=True, slots=True)
class Parsed:
    """
    Texts that were parsed, as columns of a frame.

    A struct of thousands of columns would take Spark seconds to take apart again.

    :param values: name of each declared column → SQL of its value in the frame
    :param bad: name of the boolean column that says whether the record is bad
    """

    frame: DataFrame
    values: Mapping[str, str]
    bad: str

    @property
    def columns(self) -> list[str]:
        """The declared columns as SQL, under their names."""
        return [f"{value} AS {quoted(name)}" for name, value in self.values.items()]


def with_sql(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The frame with these columns added or replaced: name → SQL."""
    return frame.withColumns({name: F.expr(value) for name, value in columns.items()})


def quoted(name: str) -> str:
    """The name of a column or field."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text, whatever characters it has and however the session reads escapes and ``${variables}``."""
    if _PLAIN.fullmatch(text) is None or "${" in text:
        return f"CAST(X'{text.encode().hex()}' AS STRING)"
    return f"r'{text}'" if "\\" in text else f"'{text}'"


def type_name(kind: DataType) -> str:
    """A type of values; ``TIMESTAMP`` alone is what the session makes of it."""
    return "timestamp_ltz" if isinstance(kind, TimestampType) else kind.simpleString()


def try_cast(value: str, kind: DataType) -> str:
    """The value of a type, or null where it has none."""
    return f"TRY_CAST({value} AS {type_name(kind)})"


def rlike(text: str, pattern: str) -> str:
    """Whether a part of a text matches a Java pattern."""
    return f"rlike({text}, {literal(pattern)})"


def when(*branches: tuple[str, str], otherwise: str = "NULL") -> str:
    """The value of the first branch (condition, value) whose condition is true."""
    cases = " ".join(f"WHEN {condition} THEN {value}" for condition, value in branches)
    return f"CASE {cases} ELSE {otherwise} END"


def surely(condition: str) -> str:
    """A condition that is false where it is null."""
    return f"coalesce({condition}, false)"


def any_of(conditions: Sequence[str]) -> str:
    """Whether one of the conditions is true, as a tree of small depth: Spark walks an expression recursively, and a file may have thousands of columns."""
    if len(conditions) < 2:
        return conditions[0] if conditions else "false"
    middle = len(conditions) // 2
    return f"({any_of(conditions[:middle])} OR {any_of(conditions[middle:])})"


def struct_of(values: Mapping[str, str]) -> str:
    """A struct: name → value."""
    return f"struct({', '.join(f'{value} AS {quoted(name)}' for name, value in values.items())})"


def map_of(given: Mapping[str, str]) -> str:
    """A map of texts, as functions that read text take their options."""
    return f"map({', '.join(f'{literal(name)}, {literal(text)}' for name, text in given.items())})"


def for_each(function: str, values: str, of: Callable[[str], str]) -> str:
    """
    A higher-order function over an array.

    :param of: what is computed of the element, whose name it is given
    """
    element = _free("e", values)
    return f"{function}({values}, {element} -> {of(element)})"


def for_each_value(values: str, of: Callable[[str], str]) -> str:
    """A map with the same keys, each value as ``of`` makes it."""
    key, value = _free("k", values), _free("v", values)
    return f"transform_values({values}, ({key}, {value}) -> {of(value)})"


def _free(letter: str, text: str) -> str:
    """A name of a variable that a text does not have."""
    number = 0
    while f"{letter}{number}" in text:
        number += 1
    return f"{letter}{number}"
