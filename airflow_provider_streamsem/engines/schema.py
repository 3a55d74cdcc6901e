"""How a sink's columns may change from batch to batch: by added nullable columns, and not otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_provider_streamsem.errors import DataError


def names(schema: str | None) -> list[str]:
    """Column names of a schema in Spark's JSON form; none where nothing was recorded."""
    return [] if schema is None else [field["name"] for field in json.loads(schema)["fields"]]


def evolve(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """
    The schemas to record: sink → Spark schema JSON.

    A sink's columns are those of the log with new ones added at the end; files of earlier batches read back as null there.

    :raises DataError: a column changed its type, or a recorded one is missing; nothing became visible
    """
    return {**before, **{sink: _evolve(sink, before.get(sink), given) for sink, given in now.items()}}


def _evolve(sink: str, before: str | None, now: str) -> str:
    if before is None:
        return now
    old = {field["name"]: field for field in json.loads(before)["fields"]}
    new = {field["name"]: field for field in json.loads(now)["fields"]}
    for name, field in new.items():
        if name in old and old[name]["type"] != field["type"]:
            raise DataError(
                "a column changed its type", sink=sink, column=name, recorded=old[name]["type"], found=field["type"]
            )
    missing = [name for name in old if name not in new]
    if missing:
        raise DataError("columns of earlier batches are missing", sink=sink, columns=missing)
    added = [{**field, "nullable": True} for name, field in new.items() if name not in old]
    return (
        before
        if not added
        else json.dumps({"type": "struct", "fields": [*old.values(), *added]}, separators=(",", ":"))
    )
