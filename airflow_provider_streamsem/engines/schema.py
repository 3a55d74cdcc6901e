"""The columns of each sink as the log records them, folded from batch to batch."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.sinks.column_types import widened


def evolve(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """
    The schemas to record: sink → Spark schema JSON.

    :raises DataError: see :func:`folded`
    """
    return {**before, **{sink: folded(sink, before.get(sink), given) for sink, given in now.items()}}


def folded(sink: str, recorded: str | None, given: str) -> str:
    """
    The columns of a sink's earlier batches and of a new one.

    They are the recorded columns, each with the type that :func:`airflow_provider_streamsem.sinks.column_types.widened` gives, then the new ones. Files of
    earlier batches read back as null in new columns, and with their values in wider ones.

    :param recorded: ``None`` before the first batch
    :param given: the columns of the new batch; both are schema JSON in Spark's form
    :raises DataError: a column changed to a type that does not hold the values of both, or a recorded column is missing
    """
    if recorded is None:
        return given
    names = [field["name"] for field in json.loads(given)["fields"]]
    if len(set(names)) < len(names):
        return given  # the sink refuses it, and names the columns
    try:
        result = widened(json.loads(recorded), json.loads(given))
    except DataError as error:
        raise DataError(error.truth, sink=sink, **error.fields) from None
    return recorded if result == json.loads(recorded) else json.dumps(result, separators=(",", ":"))
