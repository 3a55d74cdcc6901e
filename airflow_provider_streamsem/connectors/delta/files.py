"""
Lists the files that a Delta source reads, as pins: the files of the table at one version, or of one entry of the table's log.

This module reads no data file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from airflow_provider_streamsem.connectors.delta.columns import (
    Columns,
    fields_of,
    has_other_partitions,
    partition_text,
    physical_name,
)
from airflow_provider_streamsem.connectors.delta.history import Entry
from airflow_provider_streamsem.connectors.delta.pins import Change, FilePin
from airflow_provider_streamsem.connectors.delta.table import error_class
from airflow_provider_streamsem.errors import SourceChangedError
from airflow_provider_streamsem.protocol.codec import sha256
from airflow_provider_streamsem.stores.contract import normalised


def of_version(
    table: Any, columns: Columns, location: str, *, committed_ms: int, change: Change
) -> list[tuple[FilePin, int]]:
    """Return the pins of the files of the open table, ordered by the times when they were written (milliseconds UTC, returned with each pin), then by path."""
    import pyarrow

    physical = {field["name"]: physical_name(field) for field in fields_of(columns.schema)}
    actions = pyarrow.table(table.get_add_actions(flatten=False))
    names = ["path", "size_bytes", "num_records", "modification_time", *(["partition"] if columns.partition_by else [])]
    deleted = deleted_rows(table, location)
    pins = []
    for add in actions.select(names).to_pylist():
        values = add.get("partition") or {}
        pin = FilePin(
            path=add["path"],
            bytes=add["size_bytes"],
            rows=-1 if add["num_records"] is None else add["num_records"],
            deleted=len(deleted.get(unquote(add["path"]), ())),
            partition={physical[name]: partition_text(values[name]) for name in columns.partition_by},
            version=table.version(),
            committed_ms=committed_ms,
            change=change,
        )
        pins.append((pin, add["modification_time"]))
    _refuse_outside((pin for pin, _ in pins), location)
    return sorted(pins, key=lambda item: (item[1], item[0].path))


def deleted_rows(table: Any, location: str) -> dict[str, Any]:
    """Return path (relative to the table, without escapes) → numbers of the rows that deletion vectors remove, ascending, as a numpy array."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    import numpy
    import pyarrow

    root = normalised(location).rstrip("/") + "/"
    try:
        vectors = pyarrow.table(table.deletion_vectors())
    except Exception as error:
        summary = (
            "a deletion vector of the Delta table cannot be read, for example because of VACUUM; nothing became visible"
        )
        facts = {"table": location, "version": table.version(), "problem": type(error).__name__}
        raise error_class(error, SourceChangedError)(summary, **facts) from error
    deleted = {}
    for file in vectors.to_batches():
        for uri, kept in zip(file["filepath"], file["selection_vector"], strict=True):
            key = unquote(uri.as_py()).removeprefix("file://").removeprefix(root)
            deleted[key] = numpy.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
    return {key: rows for key, rows in deleted.items() if len(rows)}


def digest_of_deleted(table: Any, location: str) -> str:
    """Return the sha256 of the rows that deletion vectors remove from the table at the version at which it is opened. See :func:`deleted_rows`."""
    deleted = deleted_rows(table, location)
    return sha256(json.dumps({key: rows.tolist() for key, rows in deleted.items()}, sort_keys=True).encode())


def of_entry(entry: Entry, location: str, *, changes: str, committed_ms: int) -> list[FilePin]:
    """Return the files that hold the new rows, or the changes, of one version. Refuses changed rows if ``changes`` is ``refuse`` (``SourceChangedError``)."""
    facts = {"table": location, "version": entry.version, "operation": entry.operation or "unknown"}
    if entry.changes_rows and changes == "refuse":
        summary = "a version of the Delta table changes, deletes or restores rows; nothing was written"
        raise SourceChangedError(summary, **facts).advising(
            'set changes="skip" to ignore such versions. Or set changes="read" in a new pipeline, with delta.enableChangeDataFeed on the table. A table '
            "into which DeltaSink merges by key cannot have the feed: there, also write the rows to a FilesSink, and read them with PipelineSource."
        )
    if entry.changes_rows and changes == "skip":
        return []
    kinds: tuple[tuple[Change, Iterable[dict[str, Any]]], ...]
    if changes != "read":
        kinds = (("", entry.added),)
    elif entry.feed:
        kinds = (("in_file", entry.feed),)
    else:
        kinds = (("insert", entry.added), ("delete", entry.removed))
    read_ms = committed_ms if changes == "read" else 0
    pins = [_pin(action, entry, change, read_ms) for change, actions in kinds for action in actions]
    _refuse_outside(pins, location)
    return pins


def check(entry: Entry, pins: Sequence[FilePin], columns: Columns, location: str) -> None:
    """Refuse a version that changes rows of a table without a change data feed, or a file with other partition columns (``SourceChangedError``)."""
    facts = {"table": location, "version": entry.version, "operation": entry.operation or "unknown"}
    if pins and entry.changes_rows and not columns.has_feed:
        summary = (
            "a version of the Delta table changes rows, and the table has no change data feed; nothing was written"
        )
        raise SourceChangedError(summary, **facts).advising(
            "set delta.enableChangeDataFeed=true on the table, and start a new pipeline after this version. A table into which DeltaSink merges by key cannot "
            "have the feed: there, also write the rows to a FilesSink, and read them with PipelineSource."
        )
    mismatched = next((pin.path for pin in pins if has_other_partitions([*pin.partition], columns)), None)
    if mismatched is not None:
        summary = "a file of the Delta table has other partition columns than the table; nothing was written"
        raise SourceChangedError(summary, **facts, file=mismatched)


def _pin(action: Mapping[str, Any], entry: Entry, change: Change, committed_ms: int) -> FilePin:
    vector = action.get("deletionVector") or {}
    stats = json.loads(action.get("stats") or "{}")
    return FilePin(
        path=action["path"],
        bytes=-1 if action.get("size") is None else action["size"],
        rows=stats.get("numRecords", -1),
        deleted=int(vector.get("cardinality", 0)),
        partition={name: value or None for name, value in (action.get("partitionValues") or {}).items()},
        version=entry.version,
        committed_ms=committed_ms,
        change=change,
    )


def _refuse_outside(pins: Iterable[FilePin], location: str) -> None:
    for pin in pins:
        if not pin.is_inside:
            summary = (
                "a file of the Delta table is outside the table's location, as in a shallow clone; nothing was written"
            )
            raise SourceChangedError(summary, table=location, version=pin.version, file=pin.path).advising(
                "read the table from which it was cloned, or a deep clone."
            )
