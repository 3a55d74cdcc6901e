"""
Merges rows into a Delta table by key (extra ``delta``). delta-rs rewrites the files that contain the keys, in one entry of the table's log.

For a merge, the publisher reads the batch into memory and writes its rows a second time. Appending a batch needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

from airflow_provider_streamsem.connectors.contract import SinkCommit
from airflow_provider_streamsem.connectors.delta.requirements import is_append_only
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import last_of_each
from airflow_provider_streamsem.connectors.staged_parquet.old_times import is_near, misread_columns, refuse_misread
from airflow_provider_streamsem.errors import DataError, PublishError
from airflow_provider_streamsem.identifiers import quoted
from airflow_provider_streamsem.stores.dataset import open_dataset

NULL_TEXTS = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that a merge with delta-rs turns into null in a partition column."""


PARTITION_TYPES = ("boolean", "byte", "date", "integer", "long", "short", "string")
"""Types of partition columns whose values delta-rs writes unchanged."""
_EXACTLY_BOUND = ("byte", "date", "integer", "long", "short", "string")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_OWN_COLUMNS = "__delta_rs_"
_READERS = 16


def check_columns(fields: Sequence[Any], partition_by: Sequence[str]) -> None:
    """
    Refuse columns that delta-rs would write incorrectly or would refuse. Called before the commit.

    :param fields: columns in Delta's form
    :raises DataError: names the columns. Nothing became visible
    """
    unsupported = [f["name"] for f in fields if f["name"] in partition_by and f["type"] not in PARTITION_TYPES]
    if unsupported:
        summary = "columns of this type cannot partition a Delta table that is merged by key; nothing became visible"
        raise DataError(summary, columns=unsupported, accepted=list(PARTITION_TYPES)).advising(
            "partition by columns of an accepted type: cast them in the transform, and write to a new table."
        )
    reserved = [field["name"] for field in fields if field["name"].startswith(_OWN_COLUMNS)]
    if reserved:
        raise DataError(
            "columns have names that delta-rs reserves for merges; nothing became visible", columns=reserved
        ).advising("rename them in the transform; then run again.")


def unmergeable(table: Any) -> list[str]:
    """
    Return the requirements of a table that a merge does not satisfy.

    These are ``delta.appendOnly``, columns and nested fields that must not be null, and column names that the merge itself uses.
    """
    append_only = ["delta.appendOnly"] if is_append_only(table) else []
    fields = json.loads(table.schema().to_json())["fields"]
    not_null = [f"{field['name']}: NOT NULL" for field in fields if not _may_be_null(field)]
    return [*append_only, *not_null, *(field["name"] for field in fields if field["name"].startswith(_OWN_COLUMNS))]


def _may_be_null(kind: Any) -> bool:
    """Return whether a field or type and all types nested in it are nullable."""
    if isinstance(kind, list):
        return all(_may_be_null(item) for item in kind)
    if not isinstance(kind, dict):
        return True
    marks = ("nullable", "containsNull", "valueContainsNull")
    return all(kind.get(mark, True) for mark in marks) and all(_may_be_null(part) for part in kind.values())


def merge(table: Any, location: str, batch: SinkCommit, keys: Sequence[str], properties: Any) -> bool:
    """
    Merge a batch into a table in one entry of the table's log: each row replaces the row with the same keys, or is inserted.

    :param table: a ``deltalake.DeltaTable``; the merge applies to its version
    :param keys: the columns that identify a row
    :param properties: ``deltalake.CommitProperties`` with the marker and without retries
    :returns: whether the entry was committed
    :raises PublishError: the staged rows differ from the count at staging, or the merge would change dates or times of the table
    """
    rows = last_of_each(location, batch, keys)
    _refuse_old_times(table, location, batch, keys, rows)
    condition = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in keys)
    values = {f"t.{quoted(name)}": f"s.{quoted(name)}" for name in rows.schema.names}
    before = table.version()
    types = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
    # delta-rs skips files by their bounds only if the merge is not streamed. Bounds of decimals (floats) and times (milliseconds) are not exact.
    streamed = any(types[name] not in _EXACTLY_BOUND for name in keys)
    merger = table.merge(
        rows, condition, source_alias="s", target_alias="t", commit_properties=properties, streamed_exec=streamed
    )
    merger.when_matched_update(values).when_not_matched_insert(values).execute()
    return bool(table.version() > before)


def _refuse_old_times(table: Any, location: str, batch: SinkCommit, keys: Sequence[str], rows: Any) -> None:
    """
    Refuse a merge that may rewrite a file with dates or times that delta-rs reads as different values.

    :param rows: the batch, as a pyarrow table
    :raises PublishError: names such a file and its columns. Nothing of the batch is in the table
    """
    import pyarrow
    import pyarrow.compute

    fields = json.loads(table.schema().to_json())["fields"]
    types = {field["name"]: field["type"] for field in fields}
    stored = {name: kind for name, kind in types.items() if name not in table.metadata().partition_columns}
    bounds = {key: pyarrow.compute.min_max(rows[key]).as_py() for key in keys if types[key] in _EXACTLY_BOUND}
    suspects = [
        file["path"]
        for file in pyarrow.table(table.get_add_actions(flatten=True)).to_pylist()
        if _may_hold(file, bounds) and not has_near_times(file, stored)
    ]
    dataset = open_dataset(location)

    def misread(path: str) -> list[str]:
        stat = dataset.stat(unquote(path))
        if stat is None:
            summary = "a file of the Delta table was not found below the table's path, so the merge cannot be checked; nothing of the batch is in the table"
            raise PublishError(summary, table=location, version=batch.version, file=path)
        with dataset.open(stat) as opened:
            return misread_columns(opened)

    with ThreadPoolExecutor(_READERS) as pool:
        for path, columns in zip(suspects, pool.map(misread, suspects), strict=True):
            refuse_misread(location, batch, path, columns)


def _may_hold(file: dict[str, Any], bounds: dict[str, dict[str, Any]]) -> bool:
    """Return whether a file may contain a key of the batch, according to the file's bounds in the table's log."""
    for key, batch_bounds in bounds.items():
        least, most = file.get(f"min.{key}"), file.get(f"max.{key}")
        if least is not None and most is not None and (most < batch_bounds["min"] or least > batch_bounds["max"]):
            return False
    return True


def has_near_times(file: dict[str, Any], types: dict[str, Any]) -> bool:
    """
    Return whether the bounds in the table's log prove that delta-rs reads all dates and times of a file correctly.

    :param file: an add action of the table, flattened
    :param types: the columns that are stored in the files → type
    """
    for name, kind in types.items():
        if not isinstance(kind, str):
            if any(time in json.dumps(kind) for time in _TIMES):
                return False
        elif kind in _TIMES:
            rows = file["num_records"]
            is_null = rows is not None and file.get(f"null_count.{name}") == rows
            if not is_null and not (is_near(file.get(f"min.{name}")) and is_near(file.get(f"max.{name}"))):
                return False
    return True
