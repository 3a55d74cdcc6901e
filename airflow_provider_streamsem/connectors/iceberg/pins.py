"""The pins of an Iceberg source (D5): the state of the table, and each file to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import split_url

_SCHEMES = ("s3", "s3a", "s3n")


@dataclass(frozen=True, slots=True)
class TablePin:
    """
    The state of the table with which all files of a plan are read. It is the first pin of a plan.

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

    def check(self) -> None:
        from pyiceberg.schema import Schema
        from pyiceberg.table.name_mapping import parse_mapping_from_json

        Schema.model_validate_json(self.schema)
        if self.mapping:
            parse_mapping_from_json(self.mapping)


@dataclass(frozen=True, slots=True)
class FilePin:
    """
    A planned data file. Iceberg's files never change. ``key`` is relative to the location of the table's files.

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
        """Files with deleted rows are refused."""
        return 0

    @property
    def is_inside(self) -> bool:
        return keys.is_relative(self.key)

    @property
    def facts(self) -> dict[str, Any]:
        return {"sequence": self.sequence, "file": self.key}


def key_of(uri: str, location: str) -> str | None:
    """Return the key of a file relative to a location; ``None`` if it is elsewhere. ``uri`` is literal, without escapes."""
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
