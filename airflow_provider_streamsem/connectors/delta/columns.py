"""
Describes the columns of a Delta table to read: their logical and physical names, their types, and the text of partition values.

With column mapping, a data file and a partition value have the physical name of a column, which never changes. Renaming a column changes its logical name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from airflow_provider_streamsem.errors import SourceChangedError

CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
_PHYSICAL = "delta.columnMapping.physicalName"
_FEATURES = ("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck")
_NEWEST_READER = 3
_NULLABILITY = ("nullable", "containsNull", "valueContainsNull")
_ZONE = re.compile(r".*(Z|[+-][0-9]{2}:?[0-9]{2})")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table at one version, with the physical names of mapped columns in ``schema``, and logical names in ``partition_by``."""

    schema: str
    partition_by: tuple[str, ...]
    has_feed: bool

    @property
    def partition_keys(self) -> dict[str, Any]:
        """Physical name of each partition column → its type in Delta's form."""
        return {physical_name(f): f["type"] for f in fields_of(self.schema) if f["name"] in self.partition_by}


def columns_of(table: Any, location: str, *, reads_changes: bool) -> Columns:
    """Return the columns of a ``deltalake.DeltaTable`` at its version. Refuses features that this source cannot read (``SourceChangedError``)."""
    protocol, metadata = table.protocol(), table.metadata()
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    features = set(protocol.reader_features or ()) - {*_FEATURES}
    if protocol.min_reader_version > _NEWEST_READER:
        features.add(f"reader version {protocol.min_reader_version}")
    if metadata.configuration.get("delta.columnMapping.mode", "none") not in ("none", "name"):
        features.add("columnMapping by id")
    if features:
        summary = "the Delta table has features that this source cannot read; nothing was written"
        raise SourceChangedError(summary, table=location, version=table.version(), features=sorted(features)).advising(
            "copy the rows into a table without these features, for example with Spark, and read that table."
        )
    partition_by = tuple(metadata.partition_columns)
    binary = [f["name"] for f in fields if f["name"] in partition_by and f["type"] == "binary"]
    reserved = [f["name"] for f in fields if reads_changes and f["name"].lower() in CHANGE_COLUMNS]
    for summary, names in (
        ("the Delta table has binary partition columns, which this source cannot read", binary),
        ("the Delta table has columns with the names of the columns of its change data feed", reserved),
    ):
        if names:
            raise SourceChangedError(f"{summary}; nothing was written", table=location, columns=names).advising(
                "rename the columns or change their type, and run again."
            )
    has_feed = metadata.configuration.get("delta.enableChangeDataFeed", "").lower() == "true"
    pinned = {"type": "struct", "fields": [_pinned(field) for field in fields]}
    return Columns(json.dumps(pinned, separators=(",", ":")), partition_by, has_feed)


def fields_of(schema: str) -> list[dict[str, Any]]:
    """Return the columns of a schema in Delta's form."""
    fields: list[dict[str, Any]] = json.loads(schema)["fields"]
    return fields


def physical_name(field: dict[str, Any]) -> str:
    """Return the name of a column in data files and partition values."""
    return str(field["metadata"].get(_PHYSICAL, field["name"]))


def spark_type(kind: Any, *, physical: bool) -> Any:
    """Return a type in the form of Spark's schema JSON. Everything may be null, as Spark's readers of files return it."""
    if isinstance(kind, list):
        return [spark_type(item, physical=physical) for item in kind]
    if not isinstance(kind, dict):
        return kind
    converted = {
        name: True if name in _NULLABILITY else spark_type(part, physical=physical) for name, part in kind.items()
    }
    if "metadata" in kind:
        converted |= {"name": physical_name(kind) if physical else kind["name"], "metadata": {}}
    return converted


def _pinned(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_pinned(item) for item in kind]
    if not isinstance(kind, dict):
        return kind
    pinned = {name: _pinned(part) for name, part in kind.items()}
    if "metadata" in kind:
        pinned["metadata"] = {name: text for name, text in kind["metadata"].items() if name == _PHYSICAL}
    return pinned


def partition_text(value: Any) -> str | None:
    """Return a partition value that deltalake has decoded as text that Spark casts to the same value."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    return str(value)


def with_zone(value: str | None, kind: Any) -> str | None:
    """Return a partition value as text that does not depend on a session's time zone. A timestamp without a zone is in UTC."""
    return f"{value}Z" if value is not None and kind == "timestamp" and not _ZONE.fullmatch(value) else value


def has_other_partitions(partition: Sequence[str], columns: Columns) -> bool:
    """Return whether a file has other partition columns than the table, by their physical names."""
    return {*partition} != {*columns.partition_keys}
