"""Delta tables that delta-rs or hand-written log entries create."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from deltalake import write_deltalake


def append(path: Path, *ids: int, **columns: list[Any]) -> None:
    rows = pyarrow.table({"id": pyarrow.array(ids, pyarrow.int64()), **columns})
    write_deltalake(str(path), rows, mode="append", schema_mode="merge")


def create_table(path: Path, versions: int = 1, **properties: str) -> Path:
    """Create a table whose version ``n`` appends the row ``n``."""
    write_deltalake(str(path), pyarrow.table({"id": [0]}), configuration=properties)
    for n in range(1, versions):
        append(path, n)
    return path


def commit(path: Path, version: int, *actions: dict[str, Any]) -> None:
    """Write an entry of the table's log as another writer does."""
    (path / "_delta_log").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"commitInfo": {"operation": "WRITE"}}), *map(json.dumps, actions)]
    (path / "_delta_log" / f"{version:020d}.json").write_text("\n".join(lines))


def definition(fields: list[dict[str, Any]], *, features: Sequence[str] = (), **metadata: Any) -> list[dict[str, Any]]:
    """Return the actions that define a table with these reader features."""
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata_of_table = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "partitionColumns": [],
        "configuration": {},
    }
    protocol: dict[str, Any] = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [*features], "writerFeatures": [*features]}  # fmt: skip
    return [{"protocol": protocol}, {"metaData": {**metadata_of_table, "schemaString": schema, **metadata}}]


def added(table: Path, name: str, rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Write a data file, and return the action that adds it."""
    table.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(rows), table / name)
    stats = json.dumps({"numRecords": len(next(iter(rows.values())))})
    size = (table / name).stat().st_size
    return {"add": {"path": name, "size": size, "partitionValues": {}, "modificationTime": 1, "dataChange": True, "stats": stats, **more}}  # fmt: skip


def field(name: str, type: str = "long", **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "nullable": True, "metadata": metadata}


# The deletion vector of row 3, as Spark's Delta writes it.
VECTOR = {"storageType": "u", "pathOrInlineDv": "4)2^e+7Az#JM/u%{cr-=", "offset": 1, "sizeInBytes": 34, "cardinality": 1}  # fmt: skip
VECTOR_NAME = "deletion_vector_0f3a8fdf-ca83-4d63-8dcc-c532f64074eb.bin"
VECTOR_BYTES = base64.b64decode("AQAAACLR0zlkAQAAAAAAAAAAAAAAOjAAAAEAAAAAAAAAEAAAAAMA3Ivndg==")


def with_deletion_vector(table: Path, **properties: str) -> None:
    features = ["deletionVectors"]
    first = added(table, "f 0.parquet", {"id": [0, 1, 2, 3, 4]})
    first["add"]["path"] = "f%200.parquet"
    commit(table, 0, *definition([field("id")], features=features, configuration=properties), first)
    removed = {"path": "f%200.parquet", "dataChange": True, "size": first["add"]["size"], "partitionValues": {}}
    commit(table, 1, {"remove": removed}, {"add": {**first["add"], "deletionVector": VECTOR}})
    commit(table, 2, added(table, "g.parquet", {"id": [5, 6, 7, 8]}))
    (table / VECTOR_NAME).write_bytes(VECTOR_BYTES)
