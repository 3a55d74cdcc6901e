"""Reads the snapshots of a branch of an Iceberg table, and the files that each of them added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.iceberg.catalog import error_class
from airflow_provider_streamsem.connectors.iceberg.columns import spark_type
from airflow_provider_streamsem.connectors.iceberg.pins import FilePin, key_of
from airflow_provider_streamsem.errors import SourceChangedError
from airflow_provider_streamsem.stores.concurrency import in_threads

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_FORMATS = (2, 3)
MAIN = "main"


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """
    The snapshots of a branch that the table's metadata still has: from the newest back to the first, or to a snapshot whose parent has expired.

    It is unknown whether the oldest of them has a parent, because pyiceberg removes the parent's id when it expires the parent.

    :param snapshots: sequence number → snapshot, in ascending order. From parent to child, sequence numbers increase. Snapshots of format version 1 all have
        the number 0, and only the newest of them is included
    :param elsewhere: sequence numbers of all other snapshots of the table
    """

    snapshots: Mapping[int, Snapshot]
    elsewhere: frozenset[int] = frozenset()

    @property
    def end(self) -> int:
        """One past the newest sequence number; 0 without snapshots."""
        return max(self.snapshots, default=-1) + 1

    @property
    def oldest(self) -> int:
        """0 without snapshots."""
        return min(self.snapshots, default=0)

    def lacks(self, number: int) -> bool:
        """Return whether the branch was rewritten and does not have this sequence number any more. One below the oldest may have expired instead."""
        return number > 0 and number not in self.snapshots and (number in self.elsewhere or number >= self.oldest)

    def expired(self, start: int, end: int) -> list[int]:
        """Return the sequence numbers of ``[start, end)`` whose snapshots may have been on the branch and have expired."""
        if start - 1 in self.snapshots:
            return []
        return [number for number in range(max(start, 1), min(end, self.oldest)) if number not in self.elsewhere]


def lineage(table: Table, branch: str) -> BranchHistory:
    """Return the snapshots of a branch."""
    from pyiceberg.table.refs import SnapshotRefType
    from pyiceberg.table.snapshots import ancestors_of

    ref = table.metadata.refs.get(branch)
    if ref is None and branch == MAIN:  # the branch begins with the first snapshot
        return BranchHistory({})
    if ref is None or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        known = sorted(n for n, r in table.metadata.refs.items() if r.snapshot_ref_type == SnapshotRefType.BRANCH)
        summary = "the Iceberg table has no branch of this name; nothing was written"
        raise SourceChangedError(summary, branch=branch, branches=known).advising(
            "create the branch, or correct the source's branch; then run again."
        )
    chain = list(ancestors_of(table.metadata.snapshot_by_id(ref.snapshot_id), table.metadata))
    snapshots = {s.sequence_number or 0: s for s in reversed(chain)}
    return BranchHistory(snapshots, frozenset(s.sequence_number or 0 for s in table.snapshots()) - {*snapshots})


def check_table(table: Table) -> None:
    """Refuse a table that this source cannot read."""
    metadata = table.metadata
    problems = [] if metadata.format_version in _FORMATS else [f"format-version {metadata.format_version}"]
    problems += [name for name in metadata.properties if name.startswith("encryption.")]
    if problems:
        summary = "the Iceberg table has requirements that this source cannot read; nothing was written"
        raise SourceChangedError(summary, requires=sorted(problems)).advising(
            "upgrade a table of version 1 with the table property format-version=2; copy other tables with Spark."
        )


def schema_of(table: Table, snapshot: Snapshot | None) -> Schema:
    """Return the columns at the time of a snapshot (``None``: now). Types that Spark lacks, and default values, are refused (``SourceChangedError``)."""
    at = None if snapshot is None else snapshot.schema_id
    schema = table.schema() if at is None else table.schemas()[at]
    unsupported = sorted({*_unknown(spark_type(schema.as_struct())), *_with_default(schema)})
    if unsupported:
        summary = "the Iceberg table has columns of types that this source cannot read, or with a default value for older rows; nothing was written"
        raise SourceChangedError(summary, columns=unsupported).advising(
            "drop the columns, or copy the rows with Spark into a table without them, and read that table."
        )
    return schema


def _unknown(kind: Any, above: str = "") -> Iterator[str]:
    """Columns for which Spark has no type."""
    if isinstance(kind, str):
        if kind.startswith("iceberg "):
            yield f"{above}: {kind.removeprefix('iceberg ')}"
        return
    for field in kind.get("fields", []):
        yield from _unknown(field["type"], f"{above}.{field['name']}" if above else field["name"])
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            yield from _unknown(kind[part], f"{above}.{part.removesuffix('Type')}")


def _with_default(schema: Schema) -> list[str]:
    from pyiceberg.schema import index_by_id

    fields = index_by_id(schema).values()
    return [f"{field.name}: initial-default" for field in fields if field.initial_default is not None]


def appended(table: Table, snapshot: Snapshot, location: str) -> list[FilePin]:
    """Return the files that a snapshot added. A file elsewhere, or not of Parquet, is refused (``SourceChangedError``)."""
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

    manifests = [
        manifest
        for manifest in _manifests(table, snapshot)
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
    ]
    added = [
        (manifest, entry)
        for manifest, entries in _entries(table, manifests)
        for entry in entries
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]
    return [_pin(table, snapshot, manifest, entry, location) for manifest, entry in added]


def at_snapshot(table: Table, snapshot: Snapshot, location: str) -> list[FilePin]:
    """Return the files at a snapshot, ordered by the snapshots that added them, then by key. Row-level deletes are refused (``SourceChangedError``)."""
    from pyiceberg.manifest import ManifestContent

    manifests = _manifests(table, snapshot)
    deletes = [manifest for manifest in manifests if manifest.content == ManifestContent.DELETES]
    if any(entries for _, entries in _entries(table, deletes)):
        summary = "the Iceberg table has delete files (merge-on-read), so its rows cannot be read from its data files; nothing was written"
        raise SourceChangedError(summary, snapshot=str(snapshot.snapshot_id), requires=["delete files"]).advising(
            'rewrite the files, for example with Spark\'s procedure rewrite_data_files and delete-file-threshold 1. A source can also set starting="latest".'
        )
    data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    live = [(manifest, entry) for manifest, entries in _entries(table, data) for entry in entries]
    pins = [(entry.sequence_number or 0, _pin(table, snapshot, manifest, entry, location)) for manifest, entry in live]
    return [pin for _, pin in sorted(pins, key=lambda item: (item[0], item[1].key))]


def _manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    return _read(snapshot.manifest_list, lambda: snapshot.manifests(table.io))  # type: ignore[no-any-return]


def _entries(table: Table, manifests: Sequence[ManifestFile]) -> list[tuple[ManifestFile, list[ManifestEntry]]]:
    def entries(manifest: ManifestFile) -> list[ManifestEntry]:
        return _read(manifest.manifest_path, lambda: manifest.fetch_manifest_entry(table.io))  # type: ignore[no-any-return]

    return [*zip(manifests, in_threads(entries, manifests), strict=True)]


def _read(path: str, call: Any) -> Any:
    try:
        return call()
    except FileNotFoundError as error:
        summary = "a metadata file of the Iceberg table is missing; nothing was written"
        raise SourceChangedError(summary, file=path) from error
    except Exception as error:
        summary = "a metadata file of the Iceberg table cannot be read; nothing was written"
        raise error_class(error, SourceChangedError)(summary, file=path, problem=type(error).__name__) from error


def _pin(table: Table, snapshot: Snapshot, manifest: ManifestFile, entry: ManifestEntry, location: str) -> FilePin:
    from pyiceberg.manifest import FileFormat
    from pyiceberg.transforms import IdentityTransform

    file = entry.data_file
    key = key_of(file.file_path, location)
    facts = {"snapshot": str(snapshot.snapshot_id), "file": file.file_path}
    if key is None:
        summary = "a file of the Iceberg table is not below the source's path; nothing was written"
        raise SourceChangedError(summary, **facts, path=location).advising(
            "set the source's path to a location that contains every file of the table, and run again."
        )
    if file.file_format != FileFormat.PARQUET:
        summary = (
            "a file of the Iceberg table is not a Parquet file, which this source cannot read; nothing was written"
        )
        raise SourceChangedError(summary, **facts, format=str(file.file_format))
    parts = table.specs()[manifest.partition_spec_id].fields
    identity = tuple(part.source_id for part in parts if isinstance(part.transform, IdentityTransform))
    return FilePin(key, file.file_size_in_bytes, file.record_count, snapshot.sequence_number or 0, identity)
