"""An Iceberg table in a SQL catalog, written by pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from airflow_provider_streamsem.connectors.iceberg.source import IcebergSource

ID = NestedField(1, "id", LongType(), required=False)


class Tables:
    """A SQL catalog with the table ``lake.rows``, whose files are in ``root/table``."""

    def __init__(self, root: Path, schema: Schema | None = None, **arguments: Any) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.path = root, root / "table"
        self.properties = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"}
        self.catalog = SqlCatalog("default", **self.properties)
        self.catalog.create_namespace_if_not_exists("lake")
        self.table = self.catalog.create_table(
            "lake.rows", schema or Schema(ID), location=f"file://{self.path}", **arguments
        )

    def source(self, **arguments: Any) -> IcebergSource:
        return IcebergSource(path=str(self.path), table="lake.rows", properties=self.properties, **arguments)

    def append(self, *ids: int, branch: str = "main", **columns: list[Any]) -> int:
        """Append rows with these ids, and return the id of the snapshot."""
        rows = pyarrow.table({"id": pyarrow.array(ids, pyarrow.int64()), **columns})
        table = self.loaded()
        table.append(rows, branch=branch)
        snapshot = table.snapshot_by_name(branch)
        assert snapshot is not None
        return snapshot.snapshot_id

    def loaded(self) -> Table:
        return self.catalog.load_table("lake.rows")

    def files(self) -> list[str]:
        """Return the keys of the files of the current snapshot."""
        return [task.file.file_path.removeprefix(f"file://{self.path}/") for task in self.loaded().scan().plan_files()]
