"""
Rows merged into an Iceberg table by key (extra ``iceberg``): pyiceberg rewrites the files that hold the keys, in one commit of the table.

Unlike an appended batch, a merged one is read and written once more, by the publisher: whoever publishes it holds its rows in memory, and one after the
other the files that it changes.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.sinks.contract import Batch
from airflow_provider_streamsem.sinks.keyed_rows import last_of_each

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table, Transaction


def check_writable(table: Table) -> None:
    """
    Refuse a table that asks for files which pyiceberg does not write; after the decision it would be too late.

    :raises DataError: with what pyiceberg says
    """
    import pyarrow
    import pyarrow.parquet
    from pyiceberg.io import pyarrow as written

    given = table.properties.get("write.format.default", "parquet")
    problem: Exception | None = None
    try:
        written.compute_statistics_plan(table.schema(), table.properties)
        rows = pyarrow.table({"a": [0]})
        pyarrow.parquet.write_table(
            rows, pyarrow.BufferOutputStream(), **written._get_parquet_writer_kwargs(table.properties)
        )
    except Exception as error:
        problem = error
    if given != "parquet" or problem is not None:
        what = "the Iceberg table asks for files that pyiceberg does not write; nothing became visible"
        raise DataError(what, table=".".join(table.name()), format=given, says=str(problem or "")) from problem


def merge(commit: Transaction, place: str, batch: Batch, key: str, mark: dict[str, str]) -> None:
    """
    Stage snapshots in which each row of a batch stands in the place of that with its key.

    :param mark: properties of each of them
    """
    rows = last_of_each(place, batch, [key])
    is_first = commit.table_metadata.current_snapshot() is None
    if is_first:  # it may be large, and looking for its keys takes long
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
