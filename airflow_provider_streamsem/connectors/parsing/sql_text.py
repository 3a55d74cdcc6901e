"""
Functions that build Spark SQL expressions as text. Imports pyspark, so only engines import this module.

The DataFrame API needs one JVM call for each node of an expression, and thousands of calls take a second. SQL text needs one call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, TimestampType

from airflow_provider_streamsem.identifiers import quoted

_MANY = 200
"""Above this number of columns, planning one expression for each column takes seconds."""
UNFIT, MISSING = "values that do not fit", "required values that are missing"
_PLAIN = re.compile(r"[ -&(-\[\]-~]*")  # printable ASCII except the single quote and the backslash


@dataclass(frozen=True, slots=True)
class Parsed:
    """
    The result of a parse: a frame with the columns of the records.

    The values are separate columns, because Spark needs seconds to extract thousands of fields from a struct.

    :param values: name of each declared column → SQL of its value in the frame
    :param bad: name of the boolean column that marks bad records
    :param reason: SQL of the reason why a record is bad, without values of the record; empty if it is not known
    """

    frame: DataFrame
    values: Mapping[str, str]
    bad: str
    reason: str

    @property
    def columns(self) -> list[str]:
        """SQL of the declared columns, each under its name."""
        return [f"{value} AS {quoted(name)}" for name, value in self.values.items()]


def with_sql(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """
    Add or replace columns of the frame.

    :param columns: name → SQL
    """
    return frame.withColumns({name: F.expr(value) for name, value in columns.items()})


def literal(text: str) -> str:
    """
    Return a SQL string literal that has the same meaning under every session configuration.

    Backslashes, single quotes, ``${`` and characters other than printable ASCII make the text hexadecimal. With ``spark.sql.parser.escapedStringLiterals``,
    Spark interprets neither escapes nor the prefix ``r`` in its default way.
    """
    return f"'{text}'" if _PLAIN.fullmatch(text) and "${" not in text else f"CAST(X'{text.encode().hex()}' AS STRING)"


def type_name(kind: DataType) -> str:
    """Return the SQL name of a type. Timestamps are ``timestamp_ltz``, because the session configuration defines the meaning of ``TIMESTAMP``."""
    return "timestamp_ltz" if isinstance(kind, TimestampType) else kind.simpleString()


def try_cast(value: str, kind: DataType) -> str:
    """Cast a value to a type; null if the cast fails."""
    return f"TRY_CAST({value} AS {type_name(kind)})"


def rlike(text: str, pattern: str) -> str:
    """Return a condition that is true if a substring matches a Java regular expression."""
    return f"rlike({text}, {literal(pattern)})"


def when(*branches: tuple[str, str], otherwise: str = "NULL") -> str:
    """Return the value of the first ``(condition, value)`` branch whose condition is true."""
    cases = " ".join(f"WHEN {condition} THEN {value}" for condition, value in branches)
    return f"CASE {cases} ELSE {otherwise} END"


def null_as_false(condition: str) -> str:
    """Return a condition that is false if ``condition`` is null."""
    return f"coalesce({condition}, false)"


def any_of(conditions: Sequence[str]) -> str:
    """
    Combine conditions with ``OR``, as a tree of small depth.

    Spark traverses expressions recursively, and a file may have thousands of columns.
    """
    if len(conditions) < 2:
        return conditions[0] if conditions else "false"
    middle = len(conditions) // 2
    return f"({any_of(conditions[:middle])} OR {any_of(conditions[middle:])})"


def struct_of(values: Mapping[str, str]) -> str:
    """
    Build a struct.

    :param values: name → SQL of the value
    """
    return f"struct({', '.join(f'{value} AS {quoted(name)}' for name, value in values.items())})"


def reason_of(*texts: str) -> str:
    """
    Return SQL of the text of a reason.

    :param texts: SQL of texts; a text that does not apply is null
    """
    return f"array_join(array({', '.join(texts)}), '; ')"


def names_where(names: Sequence[str], applies: Callable[[str, str], str]) -> str:
    """
    Return SQL of an array of those names for which a condition is true; of an empty array if there are too many names to test.

    :param applies: receives SQL of a name and of its position, and returns the condition
    """
    if not names or len(names) > _MANY:
        return "CAST(array() AS ARRAY<STRING>)"
    return f"filter(array({', '.join(map(literal, names))}), (n, i) -> {applies('n', 'i')})"


def listed(label: str, names: str) -> str:
    """
    Return SQL of a text that lists names; null if there are none.

    :param label: what the names have in common
    :param names: SQL of an array of names
    """
    return when((f"size({names}) > 0", f"concat({literal(label + ': ')}, array_join({names}, ', '))"))


def map_of(options: Mapping[str, str]) -> str:
    """Build a map of string literals, the form in which parsing functions accept options."""
    return f"map({', '.join(f'{literal(name)}, {literal(text)}' for name, text in options.items())})"


def for_each(function: str, values: str, result_of: Callable[[str], str]) -> str:
    """
    Apply a higher-order function to an array.

    :param result_of: receives the name of the element and returns SQL of the result
    """
    element = _free("e", values)
    return f"{function}({values}, {element} -> {result_of(element)})"


def for_each_value(values: str, result_of: Callable[[str], str]) -> str:
    """
    Apply a function to each value of a map. The keys stay unchanged.

    :param result_of: receives the name of the value and returns SQL of the result
    """
    key, value = _free("k", values), _free("v", values)
    return f"transform_values({values}, ({key}, {value}) -> {result_of(value)})"


def _free(letter: str, text: str) -> str:
    """Return a name for a lambda variable that does not occur in a text."""
    number = 0
    while f"{letter}{number}" in text:
        number += 1
    return f"{letter}{number}"
