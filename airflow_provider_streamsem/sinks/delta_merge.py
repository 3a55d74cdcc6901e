"""
Rows merged into a Delta table by key (extra ``delta``): delta-rs rewrites the files that hold the keys, in one entry of the table's log.

Unlike an appended batch, a merged one is read and written once more, by the publisher: whoever publishes it holds its rows in memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.keyed_rows import last_of_each

NULL_TEXTS = ("", "__HIVE_DEFAULT_PARTITION__")
"""what delta-rs writes as the value of a partition that is null"""


_PARTITION_TYPES = ("boolean", "byte", "date", "integer", "long", "short", "string")
_EXACTLY_BOUND = ("byte", "date", "integer", "long", "short", "string")
_OWN_COLUMNS = "__delta_rs_"


def check_columns(fields: Sequence[Any], partition_by: Sequence[str]) -> None:
    """
    Refuse what delta-rs would write wrongly, or not at all, after the decision.

    :param fields: columns in Delta's form
    :raises DataError: names them
    """
    odd = [f["name"] for f in fields if f["name"] in partition_by and f["type"] not in _PARTITION_TYPES]
    if odd:
        what = "columns of this type cannot partition a Delta table that is merged by key; nothing became visible"
        raise DataError(what, columns=odd, accepted=list(_PARTITION_TYPES))
    own = [field["name"] for field in fields if field["name"].startswith(_OWN_COLUMNS)]
    if own:
        raise DataError("columns have names that merging uses itself; nothing became visible", columns=own)


def unmergeable(table: Any) -> list[str]:
    """What a table asks that a merge does not keep: only appends, columns and parts of them without nulls, names that merging uses itself."""
    only = ["delta.appendOnly"] if table.metadata().configuration.get("delta.appendOnly", "").lower() == "true" else []
    fields = json.loads(table.schema().to_json())["fields"]
    full = [f"{field['name']}: NOT NULL" for field in fields if not _may_be_null(field)]
    return [*only, *full, *(field["name"] for field in fields if field["name"].startswith(_OWN_COLUMNS))]


def _may_be_null(kind: Any) -> bool:
    """Whether a field or type may be null in each of its parts."""
    if isinstance(kind, list):
        return all(_may_be_null(item) for item in kind)
    if not isinstance(kind, dict):
        return True
    marks = ("nullable", "containsNull", "valueContainsNull")
    return all(kind.get(mark, True) for mark in marks) and all(_may_be_null(part) for part in kind.values())


def merge(table: Any, place: str, batch: Batch, keys: Sequence[str], properties: Any) -> bool:
    """
    Write one entry in which each row of a batch stands in the place of that with its keys; whether it was written.

    :param table: a ``deltalake.DeltaTable``; its version is what is merged into
    :param properties: ``deltalake.CommitProperties`` with the marker and without retries
    """
    rows = last_of_each(place, batch, keys)
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in keys)
    values = {f"t.{_quoted(name)}": f"s.{_quoted(name)}" for name in rows.schema.names}
    before = table.version()
    types = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
    # Only where it is not streamed, files are passed over by their bounds. Those of decimals are floats, and of times milliseconds: not exact.
    streamed = any(types[name] not in _EXACTLY_BOUND for name in keys)
    merger = table.merge(
        rows, same, source_alias="s", target_alias="t", commit_properties=properties, streamed_exec=streamed
    )
    merger.when_matched_update(values).when_not_matched_insert(values).execute()
    return bool(table.version() > before)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
