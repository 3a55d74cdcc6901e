"""Staged rows for mode ``upsert``: validates keys, and selects the last row of each key in a batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

from airflow_provider_streamsem.connectors.contract import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.sink import parquet_files, record_batches
from airflow_provider_streamsem.errors import DataError, PublishError
from airflow_provider_streamsem.protocol.entries import Committable

LAST_STAYS = "of rows with equal keys, the table keeps the last: that of the latest version, and within a version the last in the staged files"
_LONGEST_NAME = 255  # limit in bytes of a directory name in most file systems
_KEY_TYPES = frozenset(
    ["string", "long", "integer", "short", "byte", "boolean", "binary", "date", "timestamp", "timestamp_ntz"]
)


def check_keys(fields: Sequence[Any], keys: Sequence[str]) -> None:
    """
    Refuse keys that are not columns, and keys of types whose values cannot be compared reliably.

    :param fields: columns in Spark's form; may be empty for a batch without rows
    :raises DataError: names the columns. Nothing became visible
    """
    types = {field["name"]: field["type"] for field in fields}
    missing = [name for name in keys if types and name not in types]
    if missing:
        raise DataError("the rows lack key columns; nothing became visible", missing=missing, columns=list(types))
    unsupported = [name for name in keys if name in types and not _is_key(types[name])]
    if unsupported:
        raise DataError(
            "key columns must be strings, integers, decimals, dates, timestamps, booleans or binary; nothing became visible",
            columns=unsupported,
        )


def _is_key(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in _KEY_TYPES or kind.startswith("decimal("))


def _staged_columns(location: str, staged: Committable, columns: Sequence[str]) -> Any:
    """Read some columns of the staged files into a pyarrow table; ``None`` if there are no files."""
    import pyarrow

    tables = [parquet.read(columns=list(columns)) for parquet in parquet_files(location, staged)]
    return pyarrow.concat_tables(tables) if tables else None


def check_values(
    location: str,
    staged: Committable,
    keys: Sequence[str],
    partition_by: Sequence[str],
    *,
    null_texts: Sequence[str] = (),
) -> None:
    """
    Refuse staged rows that cannot be merged because of values in their key or partition columns.

    A null key equals no key, so a row with a null key would always be inserted. Text in a partition column becomes the name of a directory.

    :param location: location of the staged files
    :param null_texts: texts that would become null as a partition value
    :raises DataError: names the columns. Nothing became visible
    """
    rows = _staged_columns(location, staged, [*keys, *partition_by])
    if rows is None:
        return
    with_nulls = [name for name in keys if rows[name].null_count]
    if with_nulls:
        raise DataError("rows have nulls in key columns; nothing became visible", columns=with_nulls)
    values = {name: rows[name].unique().drop_null().to_pylist() for name in partition_by if rows[name].type == "string"}
    too_long = [
        name
        for name, texts in values.items()
        if any(len(quote(f"{name}={v}", safe="=")) > _LONGEST_NAME for v in texts)
    ]
    if too_long:
        summary = "a string in a partition column is too long for a directory name; nothing became visible"
        raise DataError(summary, columns=too_long, longest=_LONGEST_NAME)
    null_like = {name: sorted(set(null_texts).intersection(texts)) for name, texts in values.items()}
    if any(null_like.values()):
        summary = "a string in a partition column would become null in the table; nothing became visible"
        raise DataError(summary, columns={name: texts for name, texts in null_like.items() if texts})


def check_times(parquet: Any, columns: Collection[str] | None = None) -> None:
    """
    Refuse dates and times outside the years 1 to 9999. Python cannot represent them, so Python clients fail on such values or bounds.

    :param parquet: pyarrow's metadata of a staged file
    :param columns: the columns to check; ``None``: all columns
    :raises DataError: names the columns. Nothing became visible
    """
    out_of_range = set()
    for group in range(parquet.num_row_groups):
        for index in range(parquet.num_columns):
            chunk = parquet.row_group(group).column(index)
            if columns is not None and chunk.path_in_schema not in columns:
                continue
            if not is_in_python(chunk.statistics):
                out_of_range.add(chunk.path_in_schema)
    if out_of_range:
        summary = "this sink cannot publish dates or times outside the years 1 to 9999; nothing became visible"
        raise DataError(summary, columns=sorted(out_of_range))


def is_in_python(statistics: Any) -> bool:
    """Return whether Python can represent the bounds of a column chunk. Returns ``True`` for a chunk without bounds."""
    try:
        if statistics is not None and statistics.has_min_max:
            _ = (statistics.min, statistics.max)
    except (OverflowError, ValueError):
        return False
    return True


def last_of_each(location: str, batch: SinkCommit, keys: Sequence[str]) -> Any:
    """
    Return the last row of each key of a batch, in the order of the staged files, as a pyarrow table.

    The result is the same for every publisher.

    :raises PublishError: the number of rows differs from the count at staging; or the batch must replace rows, which the sink cannot identify after a merge
    """
    import pyarrow

    if batch.replaced_files:
        summary = "the sink cannot replace rows that were merged by key; nothing of the batch is in the table"
        raise PublishError(summary, version=batch.version)
    rows = pyarrow.Table.from_batches(list(record_batches(location, batch)))
    if rows.num_rows != batch.committable.rows:
        raise PublishError(
            "the number of rows in the staged files differs from the count at staging; nothing of the batch is in the table",
            version=batch.version,
            counted=batch.committable.rows,
            found=rows.num_rows,
        )
    names = [f"k{number}" for number in range(len(keys))]
    numbered = pyarrow.table(
        [*(rows[name] for name in keys), pyarrow.array(range(rows.num_rows))], names=[*names, "at"]
    )
    return rows.take(numbered.group_by(names).aggregate([("at", "max")])["at_max"].sort())
