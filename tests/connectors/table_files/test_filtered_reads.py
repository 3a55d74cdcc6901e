"""
Filtered reads of a table return what an unfiltered read and a filter return.

The matrix: every type, with odd values and nulls, in Delta and Iceberg tables that were appended to, merged into and compacted, read by every client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyiceberg.expressions as iceberg
import pytest
from deltalake import DeltaTable
from duckdb_extensions import import_extension

from tests.connectors.odd_values import COLUMNS
from tests.connectors.table_files.filter_matrix import EXPECTED, HOW, delta, expression, lake, predicates

pytestmark = pytest.mark.slow


def check(
    read: Callable[[str, str, Any], list[int]],
    unfiltered: Callable[[str, str, Any], list[int]],
    *,
    without: Sequence[str] = (),
) -> None:
    wrong = [
        (name, operator, repr(value)[:40], missing)
        for name, operator, value in predicates()
        if not (isinstance(value, float) and repr(value) in without)
        if (missing := set(unfiltered(name, operator, value)) ^ set(read(name, operator, value)))
    ]
    assert wrong == []


def by_arrow(name: str, operator: str, value: Any) -> list[int]:
    return EXPECTED.filter(expression(name, operator, value))["id"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", HOW)
def test_delta_rs_reads_filtered_rows(root: str, how: str) -> None:
    dataset = DeltaTable(delta(root, how)).to_pyarrow_dataset()
    assert dataset.count_rows() == EXPECTED.num_rows
    check(
        lambda *predicate: dataset.to_table(columns=["id"], filter=expression(*predicate))["id"].to_pylist(), by_arrow
    )


@pytest.mark.parametrize("how", HOW)
def test_delta_rs_reads_filtered_rows_as_pandas(root: str, how: str) -> None:
    table = DeltaTable(delta(root, how))

    def read(name: str, operator: str, value: Any) -> list[int]:
        filters: Any = expression(name, operator, value) if operator.endswith("null") else [(name, {"=": "=="}.get(operator, operator), value)]  # fmt: skip
        return table.to_pandas(columns=["id"], filters=filters)["id"].tolist()  # type: ignore[no-any-return]

    check(read, by_arrow)


@pytest.mark.parametrize("how", HOW)
def test_duckdb_reads_filtered_rows_of_the_dataset_of_delta_rs(root: str, how: str) -> None:
    dataset = DeltaTable(delta(root, how)).to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    connection.register("t", dataset)
    connection.register("whole", EXPECTED)
    check(
        lambda *predicate: _sql(connection, "t", *predicate), lambda *predicate: _sql(connection, "whole", *predicate)
    )


@pytest.mark.parametrize("how", HOW)
def test_duckdb_reads_filtered_rows_of_delta(root: str, how: str) -> None:
    connection = duckdb.connect()
    import_extension("delta", con=connection)
    connection.sql("SET TimeZone = 'UTC'")
    connection.register("expected", EXPECTED)
    connection.sql("CREATE TABLE whole AS FROM expected")  # no filter is left to Arrow, which orders NaN differently
    scan = f"delta_scan('{delta(root, how)}')"
    check(
        lambda *predicate: _sql(connection, scan, *predicate), lambda *predicate: _sql(connection, "whole", *predicate)
    )


def _sql(connection: Any, table: str, name: str, operator: str, value: Any) -> list[int]:
    quoted = f'"{name}"'
    if operator.endswith("null"):
        found = connection.execute(f"SELECT id FROM {table} WHERE {quoted} {operator}")
    else:
        kinds = {"timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP", "string": "VARCHAR", "binary": "BLOB", "long": "BIGINT", "integer": "INTEGER"}  # fmt: skip
        kind = kinds.get(COLUMNS[name][0], str(COLUMNS[name][0]))
        found = connection.execute(f"SELECT id FROM {table} WHERE {quoted} {operator} CAST(? AS {kind})", [value])
    return [row[0] for row in found.fetchall()]


@pytest.mark.parametrize("use_pyarrow", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_polars_reads_filtered_rows_of_delta(root: str, how: str, use_pyarrow: bool) -> None:
    scan = pl.scan_delta(delta(root, how), use_pyarrow=use_pyarrow)
    whole: Any = pl.from_arrow(EXPECTED).lazy()  # type: ignore[union-attr]
    if use_pyarrow:  # polars leaves the filter to Arrow, which orders NaN differently
        whole = pl.scan_pyarrow_dataset(pyarrow.dataset.dataset(EXPECTED))
    check(
        lambda *predicate: _polars(scan, *predicate),
        lambda *predicate: _polars(whole, *predicate),
        without=["nan", "inf", "-inf"] if use_pyarrow else [],
    )


def _polars(frame: Any, name: str, operator: str, value: Any) -> list[int]:
    column = pl.col(name)
    if operator.endswith("null"):
        predicate = column.is_null() if operator == "is null" else column.is_not_null()
    else:
        one = pl.from_arrow(pa.table({"v": pa.array([value], COLUMNS[name][1])}))["v"]  # type: ignore[index]
        literal = pl.lit(one.first(), dtype=one.dtype)
        predicate = {"=": column == literal, ">": column > literal, "<=": column <= literal}[operator]  # fmt: skip
    return frame.filter(predicate).select("id").collect()["id"].to_list()  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", [how for how in HOW if how != "others"])
def test_pyiceberg_reads_filtered_rows(root: str, how: str) -> None:
    table = lake(root, how).table()
    assert table.scan().count() == EXPECTED.num_rows
    kinds: dict[str, Any] = {
        "=": iceberg.EqualTo, ">": iceberg.GreaterThan, "<=": iceberg.LessThanOrEqual,
        "is null": iceberg.IsNull, "is not null": iceberg.NotNull,
    }  # fmt: skip

    def read(name: str, operator: str, value: Any) -> list[int]:
        arguments = [name] if operator.endswith("null") else [name, value.isoformat() if hasattr(value, "isoformat") else value]  # fmt: skip
        scan = table.scan(row_filter=kinds[operator](*arguments), selected_fields=("id",))
        return scan.to_arrow()["id"].to_pylist()  # type: ignore[no-any-return]

    check(read, by_arrow, without=["nan", "inf", "-inf"])  # pyiceberg has no such literals
