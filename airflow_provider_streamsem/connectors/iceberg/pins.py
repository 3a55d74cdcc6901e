"""
The pins of an Iceberg source (D5): the state of the table, and each file to read.

Pins come from the log, which is not trusted, so their paths are checked (R6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import build
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.stores.contract import split_url

_SCHEMES = ("s3", "s3a", "s3n")


@dataclass(frozen=True, slots=True)
class TablePin:
    """
    The state of the table with which all files of a plan are read. It is the first pin of a plan.

    :param uuid: UUID of the table
    :param start: sequence number of the first snapshot, inclusive
    :param end: end of the sequence numbers, exclusive
    :param schema: columns with their field ids, as Iceberg's schema JSON
    :param mapping: the table's name mapping, as Iceberg's JSON; ``""`` if it has none
    """

    uuid: str
    start: int
    end: int
    schema: str
    mapping: str


@dataclass(frozen=True, slots=True)
class FilePin:
    """
    A planned data file. Iceberg's files never change.

    :param key: path relative to the location of the table's files
    :param bytes: size in bytes
    :param rows: number of rows
    :param sequence: sequence number of the snapshot that added the file; for the initial snapshot: that of this snapshot
    :param identity: field ids of the columns by whose values the file is partitioned
    """

    key: str
    bytes: int
    rows: int
    sequence: int
    identity: tuple[int, ...]

    @property
    def deleted(self) -> int:
        """0: files with deleted rows are refused."""
        return 0


Pin: TypeAlias = TablePin | FilePin


def read_pins(pins: Json, *, table: str) -> tuple[Pin, ...]:
    """
    Decode the pins of a plan.

    :raises LogDamagedError: the pins have another form, or name a file outside the location of the table's files
    """
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import parse_mapping_from_json

    summary = "the pins of a plan are not those of an Iceberg table; nothing was read"
    if pins == []:
        return ()
    try:
        items = list(pins) if isinstance(pins, list) else [pins]
        first = build(TablePin, items[0], "pins")
        files = [build(FilePin, pin, "pins") for pin in items[1:]]
        Schema.model_validate_json(first.schema)
        if first.mapping:
            parse_mapping_from_json(first.mapping)
    except (LogDamagedError, ValueError) as error:
        raise LogDamagedError(summary, invariant="R6", table=table) from error
    if not all(keys.is_relative(file.key) for file in files):
        raise LogDamagedError(summary, invariant="R6", table=table)
    return (first, *files)


def split(pins: Sequence[Pin]) -> tuple[TablePin, list[FilePin]]:
    """Return the pin of the table and the pins of the files. There must be pins."""
    table, *files = pins
    assert isinstance(table, TablePin)
    return table, [file for file in files if isinstance(file, FilePin)]


def key_of(uri: str, location: str) -> str | None:
    """
    Return the key of a file of the table, relative to a location; ``None`` if the file is elsewhere.

    :param uri: path of the file in the table's metadata. It is literal, without escapes
    """
    scheme, root = split_url(location)
    file_scheme, _, rest = uri.partition(":") if not uri.startswith("/") else ("file", "", uri)
    if scheme == "file" and file_scheme == "file":
        rest = "/" + rest.lstrip("/")
    elif scheme in _SCHEMES and file_scheme in _SCHEMES:
        rest = rest.removeprefix("//")
    else:
        return None
    prefix = root.rstrip("/") + "/"
    key = rest.removeprefix(prefix)
    return key if rest.startswith(prefix) and keys.is_relative(key) else None
