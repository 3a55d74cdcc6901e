"""
Merges rows into an Iceberg table by key (extra ``iceberg``). This module rewrites the files that contain the keys, in one commit of the table. Imports
pyiceberg, so only the sink imports this module, when it publishes.

For a merge, the publisher reads the batch into memory and writes its rows a second time. It also reads the files that it changes. Appending a batch needs none
of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg.expressions
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.typedef import Record

from airflow_provider_streamsem.connectors.changes import END, START, Changes
from airflow_provider_streamsem.connectors.data_files.contents import row_texts
from airflow_provider_streamsem.connectors.data_files.rewrite import Read, RowsDifferError
from airflow_provider_streamsem.connectors.iceberg.commit import OneCommit
from airflow_provider_streamsem.connectors.iceberg.rewrite import RewrittenTable
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet import partial_changes
from airflow_provider_streamsem.connectors.staged_parquet.batch_changes import applied_to_table
from airflow_provider_streamsem.connectors.staged_parquet.changed_rows import Selection
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import last_of_each, staged_rows
from airflow_provider_streamsem.connectors.staged_parquet.old_times import misread_columns, refuse_misread
from airflow_provider_streamsem.errors import PublishError

_DIRECTORY = "merged"


def merge(
    commit: OneCommit,
    location: str,
    batch: SinkCommit,
    keys: Sequence[str],
    changes: Changes | None,
    mark: dict[str, str],
) -> None:
    """
    Stage a snapshot in which each row of the batch replaces the row with the same keys, or is inserted.

    With ``changes``, a row that is older than that of the table, or than a tombstone, changes nothing, and a delete deletes the row of the table.

    Raises ``PublishError`` if the number of staged rows differs from that at staging, if the merge would change dates or times of the table, or if the rows of
    the new files differ from those that were to be written.
    """
    rows = staged_rows(location, batch)
    table = commit.loaded
    rewritten = RewrittenTable(commit.table_metadata, table.io, _DIRECTORY)
    kinds = pa.schema([rewritten.schema.field(key) for key in keys])
    read, applied = keys, None
    if changes is None:
        rows = last_of_each(rows, keys)
    else:
        applied = applied_to_table(rows, kinds, partial(_of_keys, table, rewritten, keys), batch, changes)
        rows, keys = applied.rows, changes.row_keys
        kinds = pa.schema([rewritten.schema.field(key) for key in keys])
        read = sorted({*changes.required, *keys})
    is_removed = is_replaced = _is_merged(rows, kinds)
    is_truncating = applied is not None and applied.truncate is not None
    tasks = [*table.scan().plan_files()] if is_truncating else _possible(table, rows, keys)
    if applied is not None:
        rows, is_removed = applied.upserts, applied.or_truncated(is_removed)
    files, removed = [], []
    replaced = []
    kept_columns = [name for name in partial_changes.kept_columns(rows) if name in rewritten.schema.names]
    for task in tasks:
        if not any(pc.any(is_removed(part)).as_py() for part in rewritten.rows(task, read)):
            continue
        _refuse_old_times(table, task.file.file_path, batch)
        removed.append(task.file)
        if kept_columns:
            parts = rewritten.rows(task, [*read, *kept_columns])
            replaced += [part.filter(is_replaced(part)) for part in parts]
        kept = partial(_kept, rewritten, task, is_removed)
        files += _written(rewritten, kept, None if _has_other_spec(table, task) else task.file.partition, batch)
    in_table = pa.concat_tables(replaced, promote_options="permissive") if replaced else pa.table({})
    rows = partial_changes.with_kept_values(rows, in_table, kinds)
    files += _written(rewritten, lambda: [rows], None, batch) if rows.num_rows else []
    commit.add_snapshot(files, removed, mark)


def _possible(table: Table, rows: Any, keys: Sequence[str], since: Any = None) -> list[FileScanTask]:
    """Return the files that may have keys of the rows. ``since``: without the files of which all versions end before this sequence."""
    columns = {*table.schema().column_names}  # a column that this commit adds is null in every file
    if not rows.num_rows or not {*keys} - {START} <= columns:
        return []
    wanted = _with_keys(rows, [key for key in keys if key in columns])
    # pyiceberg fails to evaluate the condition for a partition whose value is null.
    sources = {field.source_id for spec in table.specs().values() for field in spec.fields}
    if since is not None and END in columns and table.schema().find_field(END).field_id not in sources:
        expressions: Any = pyiceberg.expressions
        is_current = expressions.Or(expressions.IsNull(END), expressions.GreaterThanOrEqual(END, since.as_py()))
        wanted = expressions.And(wanted, is_current)
    return [*table.scan(row_filter=wanted).plan_files()]


def _kept(rewritten: RewrittenTable, task: FileScanTask, is_removed: Selection) -> Iterator[Any]:
    return (part.filter(pc.invert(is_removed(part))) for part in rewritten.rows(task))


def _of_keys(
    table: Table,
    rewritten: RewrittenTable,
    keys: Sequence[str],
    rows: Any,
    columns: Sequence[str],
    since: Any = None,
) -> Iterator[Any]:
    """See :class:`airflow_provider_streamsem.connectors.staged_parquet.batch_changes.Existing`."""
    for task in _possible(table, rows, keys, since):
        yield from rewritten.rows(task, columns)


def _is_merged(rows: Any, kinds: Any) -> Selection:
    """Return a function that returns for each row of a pyarrow table whether a row of the batch replaces it."""
    merged = row_texts(rows, kinds)
    return lambda part: pc.is_in(row_texts(part, kinds), value_set=merged)


def _has_other_spec(table: Table, task: FileScanTask) -> bool:
    return task.file.spec_id != table.metadata.default_spec_id


def _written(rewritten: RewrittenTable, rows: Read, partition: Record | None, batch: SinkCommit) -> list[DataFile]:
    """``partition`` is the partition of all rows; ``None`` if they must be divided."""
    try:
        return rewritten.write_compared(rows, partition)
    except RowsDifferError as error:
        summary = "the rows of the new files differ from the rows to merge or to keep; nothing of the batch is in the Iceberg table"
        raise PublishError(
            summary, location=rewritten.metadata.location, version=batch.version, **error.facts
        ).advising(
            "report this error with its fields. To continue without these rows: `streamsem skip PIPELINE.toml N --sink S --reason TEXT`."
        ) from error


def _refuse_old_times(table: Table, path: str, batch: SinkCommit) -> None:
    """Arrow reads other dates or times from some files that another engine wrote, and that were added to the table unchanged."""
    with table.io.new_input(path).open() as opened:
        columns = misread_columns(opened)  # type: ignore[arg-type]
    refuse_misread(".".join(table.name()), batch, path, columns)


def _with_keys(rows: Any, keys: Sequence[str]) -> pyiceberg.expressions.BooleanExpression:
    """The predicate has the minimum and maximum of each key too, because pyiceberg skips no files by an ``In`` of more than 200 values."""
    expressions: Any = pyiceberg.expressions  # pyiceberg's annotations require argument names that its code does not
    parts = []
    for key in keys:
        if rows[key].null_count:
            continue
        bounds, values = pc.min_max(rows[key]), rows[key].unique()
        parts.append(expressions.GreaterThanOrEqual(key, bounds["min"].as_py()))
        parts.append(expressions.LessThanOrEqual(key, bounds["max"].as_py()))
        parts.append(expressions.In(key, values.to_pylist()))
    predicate: pyiceberg.expressions.BooleanExpression = expressions.And(*parts)
    return predicate
