"""
Filtered reads of a table return what an unfiltered read and a filter return.

The matrix: every type, with odd values and nulls, in Delta and Iceberg tables that were appended to, merged into and compacted, read by every client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyiceberg.expressions as iceberg
import pytest
from deltalake import DeltaTable, write_deltalake
from duckdb_extensions import import_extension

from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from tests.connectors.batches import schema_of, staged
from tests.connectors.iceberg.lake import Lake
from tests.connectors.odd_values import COLUMNS

pytestmark = pytest.mark.slow
HOW = ("append", "others", "upsert", "compaction")
"""How rows came into the table. ``others``: appended to a table that another writer created."""
SCALARS = {name: values for name, (kind, _, values) in COLUMNS.items() if isinstance(kind, str) and name != "id"}
SCHEMA = schema_of(**{name: kind for name, (kind, _, _) in COLUMNS.items()})
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    ">": pc.greater,
    "<=": pc.less_equal,
}


def rows(file: int) -> pa.Table:
    """Return the rows of one file: files of one odd value, files with a null beside it, and a file that has only nulls."""
    arrays = [pa.array([2 * file, 2 * file + 1], pa.int64())]
    for name, (_, kind, values) in COLUMNS.items():
        if name != "id":
            value = values[(file - 1) % len(values)] if file else None
            arrays.append(pa.array([value, None if file % 2 else value], kind))
    return pa.table(arrays, names=list(COLUMNS))


FILES = 1 + max(len(values) for values in SCALARS.values())
EXPECTED = pa.concat_tables([rows(file) for file in range(FILES)])


def publish_all(publish: Callable[[int, pa.Table], None], how: str) -> None:
    """Publish all rows, one file in each version. For ``upsert``, first publish other rows with half of the ids."""
    version = 0
    if how == "upsert":
        publish(0, EXPECTED.slice(2, EXPECTED.num_rows // 2).set_column(0, "id", pc.add(rows(0)["id"][0:1].take([0] * (EXPECTED.num_rows // 2)), pa.array(range(EXPECTED.num_rows // 2)))))  # fmt: skip
        version = 1
    step = 2 if how == "compaction" else 1
    for at in range(0, FILES, step):
        publish(version, pa.concat_tables([rows(file) for file in range(at, min(at + step, FILES))]))
        version += 1


@lru_cache
def delta(root: str, how: str) -> str:
    path = f"{root}/delta-{how}"
    upsert: dict[str, Any] = {"mode": "upsert", "keys": ["id"]} if how == "upsert" else {}
    sink = DeltaSink(path, **upsert)
    if how == "others":
        write_deltalake(path, EXPECTED.slice(0, 0))
    publish_all(lambda version, table: _publish_delta(sink, version, table), how)
    if how == "compaction":
        size = max(Path(path, file["path"]).stat().st_size for file in pa.table(DeltaTable(path).get_add_actions()).to_pylist())  # fmt: skip
        (done,) = sink.compact_table(target_file_bytes=4 * size, max_bytes=0, dry_run=False, before_commit=lambda: None)
        assert done.new_files is not None
        assert done.new_files > 1
    return path


def _publish_delta(sink: DeltaSink, version: int, table: pa.Table) -> None:
    assert sink.publish(staged(sink, table, version, schema=SCHEMA)) is not None


@lru_cache
def lake(root: str, how: str) -> Lake:
    directory = Path(root) / f"iceberg-{how}"
    directory.mkdir()
    made = Lake(directory, {"mode": "upsert", "keys": ["id"]} if how == "upsert" else {})
    columns = [(name, kind) for name, (kind, _, _) in COLUMNS.items()]
    publish_all(lambda version, table: _publish_iceberg(made, version, table, columns), how)
    if how == "compaction":
        size = max(task.file.file_size_in_bytes for task in made.table().scan().plan_files())
        done = made.sink.compact_table(
            target_file_bytes=4 * size, max_bytes=2**30, dry_run=False, before_commit=lambda: None
        )
        assert sum(each.new_files or 0 for each in done) > 1
    return made


def _publish_iceberg(made: Lake, version: int, table: pa.Table, columns: Any) -> None:
    assert made.publish(made.batch(version, [("", table)], columns=columns)) is not None


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("tables"))


def predicates() -> Iterator[tuple[str, str, Any]]:
    """Yield column, operator and value: each odd value with each operator, and tests for null."""
    for name, values in SCALARS.items():
        yield name, "is null", None
        yield name, "is not null", None
        for value in values:
            operators = ("=",) if COLUMNS[name][0] in ("boolean", "binary") else _OPERATORS
            for operator in operators:
                yield name, operator, value


def expression(name: str, operator: str, value: Any) -> Any:
    """Return a predicate as a pyarrow expression."""
    column = pc.field(name)
    if operator.endswith("null"):
        return column.is_null() if operator == "is null" else column.is_valid()
    scalar = pa.scalar(value, COLUMNS[name][1])
    return {
        "=": column == scalar,
        ">": column > scalar,
        "<=": column <= scalar,
    }[operator]


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
