"""
Writes rows to an Iceberg table with Spark, so that the table accepts the result once (ADR 0024; extra ``iceberg``).

Spark writes into a *private copy* of the table: a copy of its metadata in a new directory, which no other process uses, with the same data files. So Spark
needs no access to the table's catalog. The snapshot that Spark adds to the copy then becomes a snapshot of the table, in one commit with the marker. The
catalog accepts the commit only if no other writer has moved the branch ``main``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.errors import PublishError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import SparkSession

_METADATA_PATH = "write.metadata.path"
_DELETES_METADATA = "write.metadata.delete-after-commit.enabled"
_UNSET = ("spark.wap.id", "spark.wap.branch")
"""With these settings, Spark would not write to the branch ``main``."""
_HINT = "version-hint.text"
_COPIED, _WRITTEN = "v1.metadata.json", "v2.metadata.json"
_KEPT = (
    "current-schema-id",
    "default-sort-order-id",
    "default-spec-id",
    "format-version",
    "last-column-id",
    "last-partition-id",
    "location",
    "table-uuid",
)
"""The fields of the metadata that a write must not change."""


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """
    A private copy of the metadata of a table.

    :param directory: the directory of the copy, below the table's directory for metadata. Manifests that Spark writes there become manifests of the table
    """

    io: FileIO
    metadata: Mapping[str, Any]
    directory: str
    catalog: str

    @classmethod
    def create(cls, session: SparkSession, metadata: TableMetadata, io: FileIO) -> PrivateCopy:
        """
        Create the copy, and a catalog in which Spark finds it.

        :param session: a session for this publisher only, because the settings of the session are changed
        :param metadata: the metadata of the table, with the changes that the same commit makes
        """
        from airflow_provider_streamsem.connectors.iceberg.internals import metadata_json

        own = json.loads(metadata_json(metadata))
        root = own["properties"].pop(_METADATA_PATH, f"{metadata.location.rstrip('/')}/metadata").rstrip("/")
        # Spark must delete no metadata file of the table. It deletes files that this list names.
        own["metadata-log"], own["properties"][_DELETES_METADATA] = [], "false"
        name = f"streamsem-{SYSTEM_CLOCK.new_id()}"
        copy = cls(io, own, f"{root}/{name}", name.replace("-", "_"))
        copy._write(_COPIED, json.dumps(own))
        copy._write(_HINT, "1")
        prefix = f"spark.sql.catalog.{copy.catalog}"
        settings = {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.type": "hadoop",
            f"{prefix}.warehouse": root,
            f"{prefix}.cache-enabled": "false",
            "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",  # a table's metadata names its files with the scheme s3
        }
        for setting, value in settings.items():
            session.conf.set(setting, value)
        for setting in _UNSET:
            session.conf.unset(setting)
        return copy

    @property
    def name(self) -> str:
        """The name of the copy in Spark SQL."""
        return f"{self.catalog}.{quoted(self.directory.rpartition('/')[2])}"

    def written(self, table: str) -> dict[str, Any]:
        """
        Return the snapshot that Spark has added, as JSON of the table's metadata, and delete the copy of the metadata.

        :param table: the name of the table in errors
        :raises PublishError: Spark has changed more than rows
        """
        with self.io.new_input(self._path(_WRITTEN)).open() as file:
            written = json.loads(file.read())
        changed = [name for name in _KEPT if written.get(name) != self.metadata.get(name)]
        known = {snapshot["snapshot-id"] for snapshot in self.metadata.get("snapshots") or ()}
        added = [snapshot for snapshot in written["snapshots"] if snapshot["snapshot-id"] not in known]
        if changed or len(added) != 1 or added[0]["snapshot-id"] != written["current-snapshot-id"]:
            summary = "the write by Spark changes more than the rows of the Iceberg table; nothing of the batch is in the table"
            raise PublishError(summary, table=table, changed=changed, snapshots=len(added))
        self._delete((_COPIED, _WRITTEN, _HINT))
        return dict(added[0])

    def _path(self, name: str) -> str:
        return f"{self.directory}/metadata/{name}"

    def _write(self, name: str, text: str) -> None:
        with self.io.new_output(self._path(name)).create() as file:
            file.write(text.encode())

    def _delete(self, names: Sequence[str]) -> None:
        """The table does not reference these files."""
        for name in names:
            with suppress(Exception):
                self.io.delete(self._path(name))
