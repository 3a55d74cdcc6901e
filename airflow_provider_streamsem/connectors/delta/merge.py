"""
Merges rows into a Delta table by key (extra ``delta``): rewrites the files that contain the keys, in one entry of the table's log. Imports pyarrow, so only the
sink imports this module, when it publishes.

For a merge, the publisher reads the batch into memory and writes its rows a second time. It also reads the files that it changes. Appending a batch needs none
of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_streamsem.connectors.changes import END, Changes
from airflow_provider_streamsem.connectors.data_files.contents import row_texts
from airflow_provider_streamsem.connectors.data_files.rewrite import RowsDifferError
from airflow_provider_streamsem.connectors.delta.rewrite import (
    AddedFile,
    NewFile,
    RewrittenTable,
    actions,
)
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet import partial_changes
from airflow_provider_streamsem.connectors.staged_parquet.batch_changes import applied_to_table
from airflow_provider_streamsem.connectors.staged_parquet.changed_rows import Selection
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import last_of_each, staged_rows
from airflow_provider_streamsem.connectors.staged_parquet.old_times import misread_columns, refuse_misread
from airflow_provider_streamsem.errors import PublishError
from airflow_provider_streamsem.stores.contract import ObjectStat

_READERS = 16


def merge(
    table: Any, location: str, batch: SinkCommit, keys: Sequence[str], changes: Changes | None, properties: Any
) -> bool:
    """
    Each row replaces the row of the table with the same keys, or is inserted, in one entry on top of the version of ``table``.

    With ``changes``, a row that is older than that of the table, or than a tombstone, changes nothing, and a delete deletes the row of the table.

    Returns ``True`` if the entry was committed, and raises otherwise.

    ``properties`` (``deltalake.CommitProperties``) has the marker, and no retries. Raises ``PublishError`` if the number of staged rows differs from that at
    staging, if the merge would change dates or times of the table, or if the rows of the new files differ from those that were to be written.
    """
    from deltalake import Schema

    rows = staged_rows(location, batch)
    target = RewrittenTable(location, table)
    kinds = pa.schema([target.schema.field(name) for name in keys])
    read, applied = kinds.names, None
    if changes is None:
        rows = last_of_each(rows, keys)
    else:
        applied = applied_to_table(rows, kinds, partial(_of_keys, target, batch, kinds), batch, changes)
        rows, kinds = applied.rows, pa.schema([target.schema.field(name) for name in changes.row_keys])
        read = sorted({*changes.required, *kinds.names})
    merged_keys = row_texts(rows, kinds)
    is_replaced: Selection = lambda part: pc.is_in(row_texts(part, kinds), value_set=merged_keys)  # noqa: E731
    is_removed = is_replaced if applied is None else applied.or_truncated(is_replaced)
    possible = (
        target.files() if applied is not None and applied.truncate is not None else _possible(target, rows, kinds)
    )
    chosen = _chosen(target, batch, possible, read, is_removed)
    if applied is not None:
        rows = applied.upserts
    rows = _completed(target, chosen, read, is_replaced, rows, kinds)
    new: list[NewFile] = []
    try:
        for file in chosen:
            kept = partial(_kept, target, file, is_removed)
            new += target.written(kept, target.partition_of(file))
        new += target.written(lambda: [rows], None)
    except RowsDifferError as error:
        target.delete(new)
        summary = "the rows of the new files differ from the rows to merge or to keep; nothing of the batch is in the Delta table"
        raise PublishError(summary, table=location, version=batch.version, **error.facts).advising(
            "report this error with its fields. To continue without these rows: `streamsem skip PIPELINE.toml N --sink S --reason TEXT`."
        ) from error
    table.create_write_transaction(
        actions(new, chosen, target, changes_data=True),
        "append",
        Schema.from_json(table.schema().to_json()),
        list(target.partition_by),
        commit_properties=properties,
    )
    return True


def _kept(target: RewrittenTable, file: AddedFile, is_removed: Selection) -> Iterator[Any]:
    return (part.filter(pc.invert(is_removed(part))) for part in target.rows(file))


def _bounds(rows: Any, kinds: Any) -> dict[str, dict[str, Any]]:
    """Return least and greatest key of the batch, for key columns of types whose bounds in the table's log are exact. No file excludes a null."""
    return {
        kind.name: pc.min_max(rows[kind.name].cast(kind.type)).as_py()
        for kind in kinds
        if _is_exact(kind.type) and not rows[kind.name].null_count
    }


def _is_exact(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))


def _chosen(
    target: RewrittenTable,
    batch: SinkCommit,
    possible: Sequence[AddedFile],
    columns: Sequence[str],
    is_removed: Selection,
) -> list[AddedFile]:
    """Return the files with rows to remove. Reads these columns of the possible files."""

    def has_removed(file: AddedFile) -> bool:
        stat = _existing(target, batch, file)
        if not any(pc.any(is_removed(part)).as_py() for part in target.rows(file, columns)):
            return False
        with target.dataset.open(stat) as opened:
            refuse_misread(target.location, batch, file["path"], misread_columns(opened))
        return True

    with ThreadPoolExecutor(_READERS) as pool:
        return [file for file, found in zip(possible, pool.map(has_removed, possible), strict=True) if found]


def _existing(target: RewrittenTable, batch: SinkCommit, file: AddedFile) -> ObjectStat:
    stat = target.dataset.stat(unquote(file["path"]))
    if stat is None:
        summary = "a file of the Delta table was not found below the table's path, so it cannot be merged; nothing of the batch is in the table"
        raise PublishError(summary, table=target.location, version=batch.version, file=file["path"])
    return stat


def _of_keys(
    target: RewrittenTable, batch: SinkCommit, kinds: Any, rows: Any, columns: Sequence[str], since: Any = None
) -> Iterator[Any]:
    """See :class:`airflow_provider_streamsem.connectors.staged_parquet.batch_changes.Existing`."""
    for file in _possible(target, rows, kinds):
        if not _ends_before(file, since) and _existing(target, batch, file):
            yield from target.rows(file, columns)


def _ends_before(file: AddedFile, since: Any) -> bool:
    """Return whether all versions in a file end before a sequence."""
    most = file.get(f"max.{END}")
    if since is None or most is None or file.get(f"null_count.{END}") != 0 or not _is_exact(since.type):
        return False
    return bool(most < since.as_py())


def _possible(target: RewrittenTable, rows: Any, kinds: Any) -> list[AddedFile]:
    """Return the files whose bounds do not exclude the keys of the rows."""
    bounds = _bounds(rows, kinds)
    return [file for file in target.files() if rows.num_rows and _may_hold(file, bounds)]


def _completed(
    target: RewrittenTable,
    files: Sequence[AddedFile],
    columns: Sequence[str],
    is_replaced: Selection,
    rows: Any,
    kinds: Any,
) -> Any:
    """A row that replaces another one keeps its values of the columns that the batch lacks, or that a change does not change."""
    lacking = [name for name in target.schema.names if name not in rows.schema.names]
    kept = partial_changes.kept_columns(rows)
    wanted = [*columns, *lacking, *(name for name in kept if name in target.schema.names)]
    parts = (part.filter(is_replaced(part)) for file in files for part in target.rows(file, wanted))
    replaced = (
        pa.table({}) if not files or not (lacking or kept) else pa.concat_tables(parts, promote_options="permissive")
    )
    rows = partial_changes.with_kept_values(rows, replaced, kinds)
    if not lacking or not files:
        return rows
    at = pc.index_in(row_texts(rows, kinds), value_set=row_texts(replaced, kinds))
    for name in lacking:
        if name in replaced.schema.names:
            rows = rows.append_column(name, replaced[name].take(at))
    return rows


def _may_hold(file: dict[str, Any], bounds: dict[str, dict[str, Any]]) -> bool:
    for key, batch_bounds in bounds.items():
        least, most = file.get(f"min.{key}"), file.get(f"max.{key}")
        if least is not None and most is not None and (most < batch_bounds["min"] or least > batch_bounds["max"]):
            return False
    return True
