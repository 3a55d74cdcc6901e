"""Checks whether rows can be merged by key into a Delta table. Called before the commit, because after it the batch could only be skipped (extra ``delta``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from airflow_provider_streamsem.connectors.delta import statistics
from airflow_provider_streamsem.connectors.delta.requirements import is_append_only
from airflow_provider_streamsem.errors import DataError

NULL_TEXTS = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that readers of the table's log take for null in a partition column."""
PARTITION_TYPES = ("boolean", "byte", "date", "integer", "long", "short", "string")
"""Types of partition columns whose values every reader parses in the same way."""
_NO_PARTITION = ("binary", "timestamp")
_UNNAMED = " ,;{}()\n\t="
_UNESCAPED = "!$&'()+,-./:;=@_~"
_FEED = "delta.enableChangeDataFeed"


def check_columns(fields: Sequence[Any], partition_by: Sequence[str]) -> None:
    """Refuse partition columns of types whose values readers of the table's log parse in different ways."""
    unsupported = [f["name"] for f in fields if f["name"] in partition_by and f["type"] not in PARTITION_TYPES]
    if unsupported:
        summary = "columns of this type cannot partition a Delta table that is merged by key"
        raise DataError(summary, columns=unsupported, accepted=list(PARTITION_TYPES)).advising(
            "partition by columns of an accepted type: cast them in the transform, and write to a new table."
        )


def check_names(fields: Sequence[Any], configuration: Mapping[str, str]) -> None:
    """Refuse names of columns and nested fields that Spark's Delta writer accepts only in tables with column mapping."""
    if configuration.get("delta.columnMapping.mode", "none").lower() != "none":
        return
    refused = sorted(name for name in _names(fields) if any(character in _UNNAMED for character in name))
    if refused:
        summary = "Spark merges rows into columns with such names only if the Delta table has column mapping"
        raise DataError(summary, columns=refused, refused=f"names with a character of {_UNNAMED!r}").advising(
            "rename the columns in the transform; or create the table with delta.columnMapping.mode=name; or set engine='library'. Then run again."
        )


def check_for_spark(fields: Sequence[Any], own: Sequence[Any], partition_by: Sequence[str]) -> None:
    """
    Refuse rows that Spark would refuse to merge, or would change.

    :param own: the columns of the table; empty if there is no table
    """
    names = {field["name"] for field in fields}
    identity = sorted(field["name"] for field in own if "delta.identity.start" in field["metadata"])
    if given := sorted(names.intersection(identity)):
        raise DataError(
            "the rows have identity columns, whose values Spark's Delta writer sets itself", columns=given
        ).advising("leave the columns out in the transform, then run again.")
    refused = [field["name"] for field in fields if field["name"] in partition_by and field["type"] in _NO_PARTITION]
    if refused:
        summary = "columns of this type cannot partition a Delta table that Spark merges into, because writers and readers convert them in different ways"
        raise DataError(summary, columns=refused, refused=list(_NO_PARTITION)).advising(
            "partition by another column, and write to a new table."
        )


def check_clustering(fields: Sequence[Any], cluster_by: Sequence[str]) -> None:
    """Refuse clustering columns that a new table has no statistics of, by which Delta clusters."""
    clustering = [field for field in fields if field["name"] in cluster_by]
    refused = sorted({field["name"] for field in clustering} - {*statistics.selected(clustering)})
    if refused:
        summary = "columns of these types or names cannot cluster a Delta table, because it has no statistics of them"
        raise DataError(summary, columns=refused).advising(
            "cluster by integers, decimals, strings, dates or timestamps, with letters, digits and underscores in their names."
        )


def _names(kind: Any) -> Iterator[str]:
    if isinstance(kind, list):
        for field in kind:
            yield field["name"]
            yield from _names(field["type"])
    elif isinstance(kind, dict):
        for name in ("fields", "elementType", "keyType", "valueType"):
            yield from _names(kind.get(name))


def misspelt(table: Any) -> list[str]:
    """Return the paths that delta-rs would escape in another way than the table's log does. So an entry of delta-rs cannot remove these files."""
    paths: list[str] = table.get_add_actions()["path"].to_pylist()
    return [path for path in paths if quote(unquote(path), safe=_UNESCAPED) != path]


def forbids_removal(table: Any) -> list[str]:
    """Return the properties of a table because of which this package removes no row of it, by their Delta names."""
    append_only = ["delta.appendOnly"] if is_append_only(table) else []
    feed = [_FEED] if str(table.metadata().configuration.get(_FEED, "")).lower() == "true" else []
    return [*append_only, *feed]


def unmergeable(table: Any) -> list[str]:
    """
    Return the requirements of a table that a merge does not satisfy.

    These are ``delta.appendOnly``, the change data feed, which would need a record for each changed row, columns and nested fields that must not be null, and
    paths of files that an entry cannot remove.
    """
    fields = json.loads(table.schema().to_json())["fields"]
    paths = [f"path {path}" for path in misspelt(table)[:1]]
    return [
        *forbids_removal(table),
        *paths,
        *(f"{field['name']}: NOT NULL" for field in fields if not _may_be_null(field)),
    ]


def _may_be_null(kind: Any) -> bool:
    if isinstance(kind, list):
        return all(_may_be_null(item) for item in kind)
    if not isinstance(kind, dict):
        return True
    marks = ("nullable", "containsNull", "valueContainsNull")
    return all(kind.get(mark, True) for mark in marks) and all(_may_be_null(part) for part in kind.values())
