"""
Merges rows into an Iceberg table by key (extra ``iceberg``). pyiceberg rewrites the files that contain the keys, in one commit of the table.

For a merge, the publisher reads the batch into memory and writes its rows a second time. It also reads the files that it changes into memory, one after
the other. Appending a batch needs none of this.
"""

from __future__ import annotations

import warnings
from datetime import date
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.contract import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import last_of_each
from airflow_provider_streamsem.connectors.staged_parquet.old_times import FIRST_DAY, misread_columns, refuse_misread
from airflow_provider_streamsem.errors import DataError

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table, Transaction

_DAYS = (FIRST_DAY - date(1970, 1, 1)).days
_FIRST = {"date": _DAYS, "timestamp": _DAYS * 86_400_000_000, "timestamptz": _DAYS * 86_400_000_000}
"""Type → the smallest value that Arrow reads correctly from files of every writer."""


def check_writable(table: Table) -> None:
    """
    Refuse a table that requires files that pyiceberg cannot write. Called before the commit, because after it the batch could only be skipped.

    :raises DataError: contains pyiceberg's message. Nothing became visible
    """
    import pyarrow
    import pyarrow.parquet
    from pyiceberg.io import pyarrow as written

    format = table.properties.get("write.format.default", "parquet")
    problem: Exception | None = None
    try:
        written.compute_statistics_plan(table.schema(), table.properties)
        rows = pyarrow.table({"a": [0]})
        pyarrow.parquet.write_table(
            rows, pyarrow.BufferOutputStream(), **written._get_parquet_writer_kwargs(table.properties)
        )
    except Exception as error:
        problem = error
    if format != "parquet" or problem is not None:
        summary = "the Iceberg table requires files that pyiceberg cannot write; nothing became visible"
        raise DataError(summary, table=".".join(table.name()), format=format, problem=str(problem or "")) from problem


def merge(commit: Transaction, location: str, batch: SinkCommit, key: str, mark: dict[str, str]) -> None:
    """
    Stage snapshots that merge a batch into the table: each row replaces the row with the same key, or is inserted.

    :param commit: the transaction
    :param location: location of the staged files
    :param key: the column that identifies a row
    :param mark: properties of each snapshot
    :raises PublishError: the staged rows differ from the count at staging, or the merge would change dates or times of the table
    """
    rows = last_of_each(location, batch, [key])
    is_first = commit.table_metadata.current_snapshot() is None
    if is_first:  # a merge into an empty table would take long, because the first batch may have many keys
        commit.append(rows, snapshot_properties=mark)
        return
    with_keys = _with_keys(key, rows[key])
    _refuse_old_times(commit._table, with_keys, batch)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Delete operation did not match any records")
        commit.overwrite(rows, with_keys, snapshot_properties=mark)


def _refuse_old_times(table: Table, with_keys: BooleanExpression, batch: SinkCommit) -> None:
    """
    Refuse a merge that may rewrite a file with dates or times that Arrow reads as different values.

    Such a file was written by another engine and added to the table unchanged. Files whose bounds show that all values are recent are not read.

    :raises PublishError: names such a file and its columns. Nothing of the batch is in the table
    """
    from pyiceberg.schema import index_by_id

    fields = index_by_id(table.schema()).items()
    firsts = {at: _FIRST[str(field.field_type)] for at, field in fields if str(field.field_type) in _FIRST}
    for task in table.scan(row_filter=with_keys).plan_files() if firsts else ():
        bounds, nulls = task.file.lower_bounds or {}, task.file.null_value_counts or {}
        if all(
            nulls.get(at) == task.file.record_count
            or (at in bounds and int.from_bytes(bounds[at], "little", signed=True) >= first)
            for at, first in firsts.items()
        ):
            continue
        with table.io.new_input(task.file.file_path).open() as opened:
            columns = misread_columns(opened)  # type: ignore[arg-type]
        refuse_misread(".".join(table.name()), batch, task.file.file_path, columns)


def _with_keys(key: str, values: Any) -> BooleanExpression:
    """
    Return the predicate that selects the rows with these keys. It includes the minimum and maximum, because pyiceberg skips no files by an ``In`` of
    more than 200 values.
    """
    import pyarrow.compute as pc
    import pyiceberg.expressions

    expressions: Any = pyiceberg.expressions  # pyiceberg's annotations require argument names that its code does not
    bounds = pc.min_max(values)
    least = expressions.GreaterThanOrEqual(key, bounds["min"].as_py())
    most = expressions.LessThanOrEqual(key, bounds["max"].as_py())
    predicate: BooleanExpression = expressions.And(least, most, expressions.In(key, values.to_pylist()))
    return predicate
