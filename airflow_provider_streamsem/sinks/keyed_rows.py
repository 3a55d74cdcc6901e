"""Staged rows that stand in the place of those with their keys: what a key may be, and which row of a batch is the last of its keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

from airflow_provider_streamsem.errors import DataError, PublishError
from airflow_provider_streamsem.protocol.entries import Committable
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.staged import record_batches
from airflow_provider_streamsem.stores.dataset import open_dataset

LAST_STAYS = (
    "of rows with equal keys the table keeps the last: the later version, and within one the later in the staged files"
)
_LONGEST_NAME = 255  # bytes, of a directory in most file systems
_KEY_TYPES = frozenset(
    ["string", "long", "integer", "short", "byte", "boolean", "binary", "date", "timestamp", "timestamp_ntz"]
)


def check_keys(fields: Sequence[Any], keys: Sequence[str]) -> None:
    """
    Refuse keys that are no columns, and those of a type whose values are not simply equal or not.

    :param fields: columns in Spark's form; of a batch without rows there may be none
    :raises DataError: names them
    """
    types = {field["name"]: field["type"] for field in fields}
    missing = [name for name in keys if types and name not in types]
    if missing:
        raise DataError(
            "the rows lack keys by which they are merged; nothing became visible", missing=missing, columns=list(types)
        )
    odd = [name for name in keys if name in types and not _is_key(types[name])]
    if odd:
        raise DataError(
            "keys must be text, whole numbers, decimals, dates, times, truth values or bytes; nothing became visible",
            columns=odd,
        )


def _is_key(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in _KEY_TYPES or kind.startswith("decimal("))


def _staged_columns(place: str, staged: Committable, columns: Sequence[str]) -> Any:
    """Some columns of the staged files, as a pyarrow table; without files, ``None``."""
    import pyarrow
    import pyarrow.parquet

    found = []
    dataset = open_dataset(place)
    for file in staged.files:
        stat = dataset.stat(file.key)
        assert stat is not None, "it was counted a moment ago"
        with dataset.open(stat) as opened:
            found.append(pyarrow.parquet.ParquetFile(opened).read(columns=list(columns)))
    return pyarrow.concat_tables(found) if found else None


def check_values(
    place: str, staged: Committable, keys: Sequence[str], partition_by: Sequence[str], *, null_texts: Sequence[str] = ()
) -> None:
    """
    Refuse rows that could not be merged, by what the staged files hold in their keys and partition columns.

    Null in a key is equal to nothing: each time one came it would be one more row. A text in a partition column becomes the name of a directory.

    :param null_texts: those that would be null as the value of a partition
    :raises DataError: names the columns
    """
    read = _staged_columns(place, staged, [*keys, *partition_by])
    if read is None:
        return
    null = [name for name in keys if read[name].null_count]
    if null:
        raise DataError("rows that are merged by key have null there; nothing became visible", columns=null)
    values = {name: read[name].unique().drop_null().to_pylist() for name in partition_by if read[name].type == "string"}
    long = [name for name, of in values.items() if any(len(quote(f"{name}={v}", safe="=")) > _LONGEST_NAME for v in of)]
    if long:
        what = "a text in a partition column is too long for the name of a directory; nothing became visible"
        raise DataError(what, columns=long, longest=_LONGEST_NAME)
    lost = {name: sorted(set(null_texts).intersection(of)) for name, of in values.items()}
    if any(lost.values()):
        what = "a text in a partition column would be null in the table; nothing became visible"
        raise DataError(what, columns={name: texts for name, texts in lost.items() if texts})


def check_times(parquet: Any, columns: Collection[str] | None = None) -> None:
    """
    Refuse dates and times outside of the years 1 to 9999, which Python does not have: its libraries fail on them, or on their bounds.

    :param parquet: pyarrow's metadata of a staged file
    :param columns: those that are looked at; ``None``: all
    :raises DataError: names the columns
    """
    far = set()
    for group in range(parquet.num_row_groups):
        for index in range(parquet.num_columns):
            chunk = parquet.row_group(group).column(index)
            if columns is not None and chunk.path_in_schema not in columns:
                continue
            if not is_in_python(chunk.statistics):
                far.add(chunk.path_in_schema)
    if far:
        what = "dates or times outside of the years 1 to 9999 cannot be published by this sink; nothing became visible"
        raise DataError(what, columns=sorted(far))


def is_in_python(statistics: Any) -> bool:
    """Whether the bounds of a column chunk are values that Python has. A chunk without bounds passes."""
    try:
        if statistics is not None and statistics.has_min_max:
            _ = (statistics.min, statistics.max)
    except (OverflowError, ValueError):
        return False
    return True


def last_of_each(place: str, batch: Batch, keys: Sequence[str]) -> Any:
    """
    The rows of a batch as a pyarrow table, of those with equal keys the last in the order of the staged files: the same for everyone who publishes it.

    :raises PublishError: they are not those that were counted, or are to replace rows, which were merged and cannot be told apart
    """
    import pyarrow

    if batch.replaced is not None and batch.replaced.files:
        raise PublishError("rows that were merged by key cannot be replaced", version=batch.version)
    rows = pyarrow.Table.from_batches(list(record_batches(place, batch)))
    if rows.num_rows != batch.committable.rows:
        raise PublishError(
            "the staged files hold other rows than were counted",
            version=batch.version,
            counted=batch.committable.rows,
            found=rows.num_rows,
        )
    names = [f"k{number}" for number in range(len(keys))]
    numbered = pyarrow.table(
        [*(rows[name] for name in keys), pyarrow.array(range(rows.num_rows))], names=[*names, "at"]
    )
    return rows.take(numbered.group_by(names).aggregate([("at", "max")])["at_max"].sort())
