"""
Decides which statistics of a file an entry of a Delta table's log may have.

delta-rs builds a filter for each file from the bounds of all columns that the table's properties select. If a file has bounds for some of these columns,
delta-rs takes the missing bounds for null, and returns no row of the file for a filter by such a column. So a file has bounds for all of these columns, or for
none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_streamsem.connectors.data_files.bounds import MAX_COLUMNS

_COLUMNS = "delta.dataSkippingStatsColumns"
_NUMBER = "delta.dataSkippingNumIndexedCols"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")
_BOUNDED = ("byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz")


def properties(fields: Sequence[Mapping[str, Any]], partition_by: Sequence[str]) -> dict[str, str]:
    """Return the properties of a new table that select the columns whose bounds are always known. Columns that are added later have no statistics."""
    names = selected([field for field in fields if field["name"] not in partition_by])
    return {_COLUMNS: ",".join(names[:MAX_COLUMNS])} if names else {_NUMBER: "0"}


def selected(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns whose bounds are always known."""
    return [field["name"] for field in fields if _has_bounds(field["type"]) and _PLAIN_NAME.fullmatch(field["name"])]


def _has_bounds(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in _BOUNDED or kind.startswith("decimal("))


def accepted(table: Any, stats: str) -> str:
    """Return the result of ``bounds.delta_stats`` without its bounds if a column that the properties of the ``deltalake.DeltaTable`` select lacks them."""
    recorded = json.loads(stats)
    rows, nulls = recorded["numRecords"], recorded["nullCount"]
    bounded = {name for name in recorded.get("minValues", {}) if name in nulls}
    all_null = {name for name, count in nulls.items() if count == rows}
    if _selected(table) <= bounded | all_null:
        return stats
    return json.dumps({"numRecords": rows, "nullCount": nulls}, separators=(",", ":"), ensure_ascii=False)


def _selected(table: Any) -> set[str]:
    metadata = table.metadata()
    listed, number = (metadata.configuration.get(name) for name in (_COLUMNS, _NUMBER))
    names = [] if listed is None else listed.split(",")
    if names and all(map(_PLAIN_NAME.fullmatch, names)):
        return {*names} - {*metadata.partition_columns}
    if listed is None and number == "0":
        return set()
    fields = json.loads(table.schema().to_json())["fields"]
    return {f["name"] for f in fields if f["name"] not in metadata.partition_columns and not _is_list(f["type"])}


def _is_list(kind: Any) -> bool:
    return kind == "binary" or (isinstance(kind, dict) and kind["type"] in ("array", "map"))
