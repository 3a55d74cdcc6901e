"""The pins of a Delta source (D5): the state of the table, and each file to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from airflow_provider_streamsem.protocol import keys

Change: TypeAlias = Literal["", "insert", "delete", "in_file"]


@dataclass(frozen=True, slots=True)
class TablePin:
    """
    The state of the table with which all files of a plan are read. It is the first pin of a plan.

    :param start: first version whose files are read, inclusive; of a snapshot: its version
    :param end: end of these versions, exclusive
    :param schema: columns in Delta's form, with the physical names of mapped columns
    :param reader: ``parquet``: Spark's Parquet reader reads the files; ``delta``: Spark's Delta package reads the change data feed
    """

    table_id: str
    start: int
    end: int
    schema: str
    partition_by: tuple[str, ...]
    reader: Literal["parquet", "delta"]

    def check(self) -> None:
        schema = json.loads(self.schema)
        if not isinstance(schema, dict) or not isinstance(schema.get("fields"), list):
            raise ValueError("the schema has no fields")


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
        """Without escapes."""
        return unquote(self.path)

    @property
    def is_inside(self) -> bool:
        """Whether the path is that of a file below the table, and not in its ``_delta_log``."""
        return ":/" not in self.path and keys.is_relative(self.key) and not self.key.startswith("_delta_log/")

    @property
    def facts(self) -> dict[str, Any]:
        return {"version": self.version, "file": self.key}
