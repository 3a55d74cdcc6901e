"""
Rows merged into an Iceberg table by key (extra ``iceberg``): pyiceberg rewrites the files that hold the keys, in one commit of the table.

Unlike an appended batch, a merged one is read and written once more, by the publisher: whoever publishes it holds its rows in memory, and one after the
other the files that it changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.keyed_rows import last_of_each

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Transaction


_CODECS = ("zstd", "snappy", "gzip", "brotli", "lz4", "uncompressed", "none")


def unwritable(properties: Mapping[str, str]) -> dict[str, str]:
    """Of a table's properties those by which pyiceberg could not write its files."""
    accepted = {"write.format.default": ("parquet",), "write.parquet.compression-codec": _CODECS}
    return {
        name: given for name in accepted if (given := properties.get(name, "")) and given.lower() not in accepted[name]
    }


def check_times(parquet: Any) -> None:
    """
    Refuse dates and times that Python does not have, and pyiceberg therefore cannot merge: after the year 9999.

    :param parquet: pyarrow's metadata of a staged file
    :raises DataError: names the columns
    """
    far = set()
    for group in range(parquet.num_row_groups):
        for index in range(parquet.num_columns):
            chunk = parquet.row_group(group).column(index)
            statistics = chunk.statistics
            try:
                if statistics is not None and statistics.has_min_max:
                    _ = (statistics.min, statistics.max)
            except (OverflowError, ValueError):
                far.add(chunk.path_in_schema)
    if far:
        what = "dates or times beyond the year 9999 cannot be merged into an Iceberg table; nothing became visible"
        raise DataError(what, columns=sorted(far))


def merge(commit: Transaction, place: str, batch: Batch, key: str, mark: dict[str, str]) -> None:
    """
    Stage snapshots in which each row of a batch stands in the place of that with its key.

    :param mark: properties of each of them
    """
    rows = last_of_each(place, batch, [key])
    if (
        commit.table_metadata.current_snapshot() is None
    ):  # a first load may be large, and looking for its keys takes long
        commit.append(rows, snapshot_properties=mark)
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Delete operation did not match any records")
        commit.overwrite(rows, _among(key, rows[key]), snapshot_properties=mark)


def _among(key: str, values: Any) -> BooleanExpression:
    """Whether a key is among these. The bounds are for the skipping of files, which pyiceberg does not do by more than 200 values."""
    import pyarrow.compute as pc
    import pyiceberg.expressions

    expressions: Any = pyiceberg.expressions  # types of theirs ask for names that their code does not need
    bounds = pc.min_max(values)
    least = expressions.GreaterThanOrEqual(key, bounds["min"].as_py())
    most = expressions.LessThanOrEqual(key, bounds["max"].as_py())
    found: BooleanExpression = expressions.And(least, most, expressions.In(key, values.to_pylist()))
    return found
