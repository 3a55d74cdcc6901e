"""
The non-public names of pyiceberg that this package uses. Tried with pyiceberg 0.10.0, 0.11.0 and 0.12.0.

:class:`airflow_provider_streamsem.connectors.iceberg.commit.OneCommit` uses two more, as a subclass of ``Transaction``: ``_updates`` and ``_apply``. This
module imports pyiceberg, so other modules import it on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _get_parquet_writer_kwargs as parquet_options
from pyiceberg.io.pyarrow import _read_all_delete_files as deleted_positions
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import RemoveSnapshotsUpdate, UpdatesAndRequirements, UpdateTableMetadata
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, IcebergBaseModel

__all__ = ["Expiry", "ReplaceFiles", "check_file_io", "deleted_positions", "metadata_json", "parquet_options"]


class ReplaceFiles(_OverwriteFiles):
    """Adds and removes files as an overwrite does. pyiceberg computes no totals for the operation ``replace``, so the operation is set afterwards."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        summary = super()._summary(snapshot_properties)
        return Summary(operation=Operation.REPLACE, **summary.additional_properties)


class Expiry(UpdateTableMetadata["Expiry"]):
    """Expires snapshots. In pyiceberg 0.10, ``ExpireSnapshots`` would also expire those of the process's earlier commits."""

    def __init__(self, transaction: Transaction, ids: list[int]) -> None:
        super().__init__(transaction)
        self._ids = ids

    def _commit(self) -> UpdatesAndRequirements:
        return (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": self._ids}),), ()


def check_file_io(catalog: Catalog, check: Callable[[Mapping[str, Any]], None]) -> None:
    """Call ``check`` with the properties of a table before pyiceberg loads the code that reads its files."""
    load = catalog._load_file_io

    def checked(properties: Mapping[str, Any] = EMPTY_DICT, location: str | None = None) -> Any:
        check(properties)
        return load(dict(properties), location)

    catalog._load_file_io = checked  # type: ignore[method-assign]


def metadata_json(metadata: TableMetadata) -> str:
    """Return the content of a metadata file. pyiceberg refuses to write metadata of format 3 itself."""
    return IcebergBaseModel.model_dump_json(metadata)
