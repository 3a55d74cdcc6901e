"""A column of a database table, read as executors read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow
import sqlalchemy as sa

from airflow_provider_streamsem.connectors.sql import database, records
from airflow_provider_streamsem.connectors.sql.column_types import read_columns
from airflow_provider_streamsem.connectors.sql.executor_read import Access, reader
from airflow_provider_streamsem.connectors.sql.table import open_table


def read(table: str, as_text: Sequence[str] = ()) -> tuple[str, list[Any]]:
    """Return the type and the values of the column ``c``, as an executor reads them."""
    with open_table("db", table) as (connection, target):
        (column,) = read_columns(target, ["c"], as_text)
        query = records._select(target.table([]), [column]).order_by(sa.column("id"))
        url, options = database.address("db")
        access = Access(url, options, records._SETTINGS[target.dialect])
        _, arrow = records._types(column.type)
        function = reader(access, [records._compiled(query, connection)], ["c"], [arrow], rows_per_batch=2)
    batches = function(iter([pyarrow.record_batch([pyarrow.array([0])], names=["id"])]))
    return column.type, [value for batch in batches for value in batch.column(0).to_pylist()]
