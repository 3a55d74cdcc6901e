"""The columns of each sink as the log records them, folded from batch to batch."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_provider_streamsem.errors import DataError, LogDamagedError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.sinks.column_types import Grows, widened


def fields(schema: str) -> list[Json]:
    """
    The columns of a recorded schema in Spark's JSON form.

    :raises LogDamagedError: it is not made of plain types alone. A user-defined type names a class or holds a pickled one, which Spark would load (R6)
    """
    try:
        parsed = json.loads(schema)
        is_plain = isinstance(parsed, dict) and parsed.get("type") == "struct" and _is_plain(parsed)
        parsed = _without_metadata(parsed)
    except (ValueError, RecursionError):
        is_plain = False
    if not is_plain:
        raise LogDamagedError("a recorded schema is not a struct of plain types; it was not used", invariant="R6")
    found: list[Json] = parsed["fields"]
    return found


def _without_metadata(kind: Json) -> Json:
    """
    A type or field without what Spark would act on: a field's metadata may hold an SQL expression that Spark evaluates for files without the column, or a
    length to which it fills text up.
    """
    if isinstance(kind, list):
        return [_without_metadata(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    return {name: {} if name == "metadata" else _without_metadata(part) for name, part in kind.items()}


def _is_plain(kind: Json) -> bool:
    """Whether a type is data alone: a word of Spark's, or made of such by struct, array and map."""
    if not isinstance(kind, dict):
        return isinstance(kind, str)
    if kind.get("type") == "struct":
        parts = kind.get("fields")
        return isinstance(parts, list) and all(
            isinstance(part, dict) and isinstance(part.get("name"), str) and _is_plain(part.get("type"))
            for part in parts
        )
    made_of = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(str(kind.get("type")))
    return made_of is not None and all(_is_plain(kind.get(name)) for name in made_of)


def names(schema: str | None) -> list[str]:
    """Column names of a schema in Spark's JSON form; none where nothing was recorded."""
    return [] if schema is None else [field["name"] for field in fields(schema)]


def evolve(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """
    The schemas to record: sink → Spark schema JSON.

    :raises DataError: see :func:`folded`
    """
    return {**before, **{sink: folded(sink, before.get(sink), given) for sink, given in now.items()}}


def folded(sink: str, recorded: str | None, given: str, *, grows: Grows = lambda column, recorded, wider: True) -> str:
    """
    The columns of a sink's earlier batches and of a new one.

    They are the recorded columns, each with the type that :func:`airflow_provider_streamsem.sinks.column_types.widened` gives, then the new ones. Files of
    earlier batches read back as null in new columns, and with their values in wider ones.

    :param recorded: ``None`` before the first batch
    :param given: the columns of the new batch; both are schema JSON in Spark's form
    :param grows: refuses growth of a type that the sink's format does not have
    :raises DataError: a column changed to a type that does not hold the values of both, or a recorded column is missing
    """
    odd = [field["name"] for field in json.loads(given)["fields"] if not _is_plain(field["type"])]
    if odd:
        what = "columns are of user-defined types, which no reader of the log would load; give them as plain columns. Nothing became visible"
        raise DataError(what, sink=sink, columns=odd)
    now = _without_metadata(json.loads(given))
    if recorded is None:
        return _text(now)
    given_names = [field["name"] for field in now["fields"]]
    if len(set(given_names)) < len(given_names):
        return given  # the sink refuses it, and names the columns
    try:
        result = widened({"type": "struct", "fields": fields(recorded)}, now, grows=grows)
    except DataError as error:
        raise DataError(error.truth, sink=sink, **error.fields) from None
    return recorded if result == json.loads(recorded) else _text(result)


def _text(schema: Json) -> str:
    return json.dumps(schema, separators=(",", ":"))
