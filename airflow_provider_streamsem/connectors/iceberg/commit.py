"""Sends one commit to an Iceberg table, once. Imports pyiceberg, so only the sink imports this module, when it publishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

from airflow_provider_streamsem.connectors.iceberg.internals import Expiry, ReplaceFiles


class OneCommit(Transaction):
    """Changes the table ``loaded`` by a commit that is sent once. After a failure, the caller must load the table to find out whether it was applied."""

    def __init__(self, table: Table) -> None:
        table.catalog = _CatalogWithoutRetry(table.catalog)  # type: ignore[assignment]
        super().__init__(table)
        self.loaded = table
        self._cached: tuple[int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table metadata with all staged updates. Cached, because pyiceberg reads it repeatedly and copies every snapshot each time."""
        if self._cached is None or self._cached[0] != len(self._updates):
            self._cached = (len(self._updates), super().table_metadata)
        return self._cached[1]

    def add_snapshot(self, files: Sequence[DataFile], removed: Sequence[DataFile], properties: dict[str, str]) -> None:
        """Stage one snapshot that adds ``files`` and removes ``removed``."""
        update = self.update_snapshot(snapshot_properties=properties)
        merges = self.table_metadata.properties.get("commit.manifest-merge.enabled", "").lower() == "true"
        producer: Any = update.overwrite() if removed else update.merge_append() if merges else update.fast_append()
        with producer:
            for file in removed:
                producer.delete_data_file(file)
            for file in files:
                producer.append_data_file(file)

    def replace_files(self, files: Sequence[DataFile], removed: Sequence[DataFile], properties: dict[str, str]) -> None:
        """Readers of new rows skip a snapshot with this operation."""
        with ReplaceFiles(Operation.OVERWRITE, self, self.loaded.io, snapshot_properties=properties) as producer:
            for file in removed:
                producer.delete_data_file(file)
            for file in files:
                producer.append_data_file(file)

    def add_written(self, snapshot: Mapping[str, Any], properties: dict[str, str]) -> None:
        """
        Stage a snapshot whose files and manifests exist. It becomes the head of ``main``, which keeps its retention settings.

        :param snapshot: the snapshot as JSON of the table's metadata. Its parent must be the head of ``main``
        """
        main = self.table_metadata.refs.get("main")
        added = Snapshot.model_validate({**snapshot, "summary": {**snapshot["summary"], **properties}})
        retention = {} if main is None else main.model_dump(by_alias=True, exclude_none=True)
        parent = None if main is None else main.snapshot_id
        ref = {**retention, "ref-name": "main", "type": "branch", "snapshot-id": added.snapshot_id}
        self._apply(
            (AddSnapshotUpdate(snapshot=added), SetSnapshotRefUpdate.model_validate(ref)),
            (
                AssertTableUUID(uuid=self.table_metadata.table_uuid),
                AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": parent}),
            ),
        )

    def expire(self, *, older_than_ms: int, marked: str) -> None:
        """Stage the expiry of old snapshots that have the property ``marked`` and that are not the head of a branch or tag."""
        metadata = self.table_metadata
        referenced = {ref.snapshot_id for ref in metadata.refs.values()}
        old = [
            snapshot.snapshot_id
            for snapshot in metadata.snapshots
            if snapshot.timestamp_ms < older_than_ms
            and snapshot.snapshot_id not in referenced
            and snapshot.summary is not None
            and marked in snapshot.summary.additional_properties
        ]
        if old:
            Expiry(self, old).commit()


def is_rest(table: Table) -> bool:
    """Return whether the table is in a REST catalog, whose server writes the metadata."""
    catalog = table.catalog
    return isinstance(catalog.catalog if isinstance(catalog, _CatalogWithoutRetry) else catalog, RestCatalog)


class RefusedError(Exception):
    """The catalog refused a commit. The sink catches this error, and loads the table again to find out whether the commit was applied."""


class _CatalogWithoutRetry:
    """
    Raises :class:`RefusedError` for a refused commit, so that pyiceberg does not handle the refusal.

    pyiceberg treats a refusal as proof that nothing was committed. It sends the commit again on top of other writers' commits, which could publish a batch
    twice. It also deletes the manifests of the refused commit. If an earlier request with the same commit was applied, these manifests belong to the table.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def commit_table(self, *arguments: Any) -> Any:
        try:
            return self.catalog.commit_table(*arguments)
        except (CommitFailedException, ValidationException) as error:
            raise RefusedError from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.catalog, name)
