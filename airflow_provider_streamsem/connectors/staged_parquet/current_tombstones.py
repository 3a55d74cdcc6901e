"""Returns the tombstones of a sink with ``changes`` that have not expired."""

from __future__ import annotations

import json
from dataclasses import replace

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.connectors.changes import Changes
from airflow_provider_streamsem.connectors.columns.types import widened
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.state.layers import Tombstones, newer_than

_logger = telemetry.log_of(__name__)
RESTORE_TOMBSTONES = (
    "restore the file below the log from a backup, then run again. A skip does not help, because later versions need the file, too. Without a backup, fork the "
    "pipeline at -1 into a new table."
)
"""Advice for a log that lacks a file with tombstones."""


def types_of(schema: str | None, changes: Changes) -> tuple[str, ...]:
    """Return the types of the columns of keys and sequence, from schema JSON in Spark's form; empty if there are no columns yet."""
    types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]} if schema else {}
    return tuple(str(types[name]) for name in changes.required) if types else ()


def current_tombstones(
    sink: str, stored: Tombstones | None, changes: Changes, types: tuple[str, ...], now_ms: int
) -> Tombstones:
    """
    Return the tombstones of a sink that are not expired.

    An alter or a fork may have replaced the sink by one with other columns or other types. The former tombstones have no meaning for it, and are left out.

    :param types: those of the batch (:func:`types_of`)
    :param now_ms: when the batch was planned, in milliseconds UTC
    """
    new = Tombstones(keys=(*changes.keys,), sequence_by=(*changes.sequence_by,), types=types)
    if stored is None:
        return new
    if (stored.keys, stored.sequence_by) != (new.keys, new.sequence_by) or not _widen(stored.types, types):
        _logger.warning(
            "sink %s: the tombstones are dropped, because changes.keys, changes.sequence_by or their types changed. A late change may insert a deleted row",
            sink,
        )
        return new
    return replace(new, types=types or stored.types, layers=tuple(newer_than(stored.layers, changes.cutoff_ms(now_ms))))


def _widen(recorded: tuple[str, ...], types: tuple[str, ...]) -> bool:
    """Return whether each type is the recorded one or wider. No types: a batch without rows."""
    try:
        return not types or all(widened(before, now, "") == now for before, now in zip(recorded, types, strict=True))
    except DataError:
        return False
