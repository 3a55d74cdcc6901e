"""Text to columns on Spark, such that every value that does not fit is told apart. Imports pyspark: only engines reach this."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from airflow_provider_streamsem.errors import InvalidError

RECORD = "__streamsem_record"


def struct(ddl: str, where: str) -> StructType:
    """
    Columns from Spark DDL.

    :raises InvalidError: it is no DDL, or uses names that are kept
    """
    try:
        columns = StructType.fromDDL(ddl)
    except Exception as error:
        raise InvalidError(f"{where}: schema is not Spark DDL", given=ddl) from error
    reserved = [f.name for f in columns.fields if f.name.lower().startswith("__streamsem")]
    if reserved:
        raise InvalidError(f"{where}: schema uses names that are kept for this package", given=reserved)
    return columns


def parsed_json(raw: Column, columns: StructType, options: Mapping[str, str]) -> Column:
    """A struct of ``columns`` and, last, :data:`RECORD`, which :func:`is_bad_json` reads."""
    wanted = StructType([*columns.fields]).add(RECORD, StringType())
    return F.from_json(raw, wanted, {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": RECORD})


def is_bad_json(raw: Column, parsed: Column) -> Column:
    """Whether a text is anything but one JSON object that fits the columns, in UTF-8."""
    return parsed.isNull() | parsed[RECORD].isNotNull() | ~_one_value(raw) | ~F.is_valid_utf8(raw)


def _one_value(raw: Column) -> Column:
    """
    Whether a text holds one JSON value and nothing after it: Spark's reader drops what follows without a word.

    A text whose only ``}`` is its last character does; any other is read as an array that must then have exactly two elements: the text's value and a
    random word, which no text can hold in advance.
    """
    word = secrets.token_hex(16)
    elements = F.from_json(F.concat(F.lit("["), raw, F.lit(f',"{word}"]')), "array<string>")
    exactly = F.coalesce(F.size(elements) == 2, F.lit(False)) & F.coalesce(
        F.element_at(elements, -1) == word, F.lit(False)
    )
    return F.when(raw.rlike(r"^[^}]*\}\s*$"), F.lit(True)).otherwise(exactly)
