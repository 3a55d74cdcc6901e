"""
The pins of a Delta source (D5): the state of the table, and each file to read.

Pins come from the log, which is not trusted, so their paths are checked against the table (R6).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import unquote

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import build
from airflow_provider_streamsem.protocol.entries import Json

Change: TypeAlias = Literal["", "insert", "delete", "in_file"]


@dataclass(frozen=True, slots=True)
class TablePin:
    """
    The state of the table with which all files of a plan are read. It is the first pin of a plan.

    :param table_id: id of the table, from its metadata
    :param start: first version of the table whose files are read, inclusive. For a part of a snapshot: the version of the snapshot
    :param end: end of these versions, exclusive
    :param schema: columns in Delta's form, with the physical names of mapped columns
    :param partition_by: names of the partition columns
    :param reader: ``parquet``: Spark's Parquet reader reads the files; ``delta``: Spark's Delta package reads the change data feed of the versions
    """

    table_id: str
    start: int
    end: int
    schema: str
    partition_by: tuple[str, ...]
    reader: Literal["parquet", "delta"]


@dataclass(frozen=True, slots=True)
class FilePin:
    """
    A planned file of the table. Delta's files never change.

    :param path: relative to the table, percent-encoded as in the table's log
    :param bytes: size in bytes; -1 if the table's log does not state it
    :param rows: number of rows in the file; -1 if the table's log does not state it
    :param deleted: number of these rows that a deletion vector removes
    :param partition: physical name of each partition column → its value as text, or ``None``
    :param version: version of the table that added or removed the file; for a snapshot: the version of the snapshot
    :param committed_ms: when that version was committed, in milliseconds UTC; 0 if the source does not read changes
    :param change: what the version did to the rows of the file: ``insert`` or ``delete``, or ``in_file`` if the file has a column ``_change_type``. ``""`` if
        the source does not read changes
    """

    path: str
    bytes: int
    rows: int
    deleted: int
    partition: Mapping[str, str | None]
    version: int
    committed_ms: int
    change: Change

    @property
    def key(self) -> str:
        """The path relative to the table, without escapes."""
        return unquote(self.path)


Pin: TypeAlias = TablePin | FilePin


def read_pins(pins: Json, *, table: str) -> tuple[Pin, ...]:
    """
    Decode the pins of a plan.

    :raises LogDamagedError: the pins have another form, or name a file outside the table
    """
    summary = "the pins of a plan are not those of a Delta table; nothing was read"
    if pins == []:
        return ()
    try:
        items = list(pins) if isinstance(pins, list) else [pins]
        first = build(TablePin, items[0], "pins")
        files = [build(FilePin, pin, "pins") for pin in items[1:]]
    except LogDamagedError as error:
        raise LogDamagedError(summary, invariant="R6", table=table) from error
    if not _is_schema(first.schema) or not all(is_inside(file.path) for file in files):
        raise LogDamagedError(summary, invariant="R6", table=table)
    return (first, *files)


def is_inside(path: str) -> bool:
    """Return whether a path of the table's log is a file below the table, and not in its ``_delta_log``."""
    key = unquote(path)
    return ":/" not in path and keys.is_relative(key) and not key.startswith("_delta_log/")


def _is_schema(text: str) -> bool:
    try:
        parsed = json.loads(text)
    except ValueError:
        return False
    return isinstance(parsed, dict) and isinstance(parsed.get("fields"), list)


def split(pins: Sequence[Pin]) -> tuple[TablePin, list[FilePin]]:
    """Return the pin of the table and the pins of the files. There must be pins."""
    table, *files = pins
    assert isinstance(table, TablePin)
    return table, [file for file in files if isinstance(file, FilePin)]
