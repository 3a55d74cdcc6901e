"""Merges the recorded columns of a sink with the columns of a new batch (schema evolution)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_provider_streamsem.connectors.columns.recorded import fields, is_plain, without_metadata
from airflow_provider_streamsem.connectors.columns.types import Grows, widened, without_dropped
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def names(schema: str | None) -> list[str]:
    """Return the column names of Spark schema JSON; ``[]`` if no schema is recorded."""
    return [] if schema is None else [field["name"] for field in fields(schema)]


def folded(sink: str, recorded: str | None, given: str, *, grows: Grows = lambda column, recorded, wider: True) -> str:
    """
    Merge the recorded columns of a sink with those of a new batch. All are Spark schema JSON; ``recorded`` is ``None`` before the first batch.

    The result has the recorded columns first, with the types that :func:`airflow_provider_streamsem.connectors.columns.types.widened` returns, and then the new
    columns. In files of earlier batches, new columns are null, and widened columns keep their values.

    :param grows: returns whether the sink's format supports widening a column from one type to another
    """
    user_defined = [field["name"] for field in json.loads(given)["fields"] if not is_plain(field["type"])]
    if user_defined:
        summary = "columns have user-defined types, which readers of the log do not load"
        raise DataError(summary, sink=sink, columns=user_defined).advising(
            "convert the columns to plain types in the transform, and run again: the same range is read again."
        )
    now = without_metadata(json.loads(given))
    if recorded is None:
        return _text(now)
    given_names = [field["name"] for field in now["fields"]]
    if len(set(given_names)) < len(given_names):
        return given  # the sink refuses duplicate names, and its error lists them
    try:
        result = widened({"type": "struct", "fields": fields(recorded)}, now, grows=grows)
    except DataError as error:
        raise DataError(error.summary, sink=sink, **error.fields).advising(error.do) from None
    return recorded if result == json.loads(recorded) else _text(result)


def remaining(recorded: str, given: str, existing: str) -> tuple[str, list[str]]:
    """
    Leave out the recorded columns that neither a new batch nor the table has, because they were renamed or dropped in the table.

    :param existing: the columns of the table. All are Spark schema JSON
    :returns: the recorded columns that remain, and the paths of those that were left out, such as ``order.price``
    """
    dropped: list[str] = []
    columns = {"type": "struct", "fields": fields(recorded)}
    kept = without_dropped(columns, json.loads(given), json.loads(existing), dropped)
    return (_text(kept) if dropped else recorded), dropped


def _text(schema: Json) -> str:
    return json.dumps(schema, separators=(",", ":"))


def with_new_columns(recorded: str, frame: DataFrame | None) -> StructType:
    """Return recorded columns, followed by the columns of a DataFrame that are not recorded."""
    from pyspark.sql.types import StructType

    columns = StructType.fromJson(json.loads(recorded))
    known = {name.lower() for name in columns.names}
    new = [] if frame is None else [field for field in frame.schema.fields if field.name.lower() not in known]
    return StructType([*columns.fields, *new])
