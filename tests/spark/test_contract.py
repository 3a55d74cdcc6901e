"""Pipelines whose sink has a contract: rows that do not fit its columns change the sink, fail the batch, or are dropped in part or as a whole."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    Changes,
    Contract,
    DeltaSink,
    FilesSink,
    FilesSource,
    IcebergSink,
    JdbcSink,
    Pipeline,
    open_log,
    read_committed,
    run_batch,
    verify,
)
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json
from airflow_provider_streamsem.testing.rows import RowsEngine

pytestmark = pytest.mark.spark


class Orders:
    """A pipeline from JSON files to a sink. The first batch has the columns ``id long`` and ``v integer``."""

    def __init__(self, root: Path, spark: SparkSession, contract: Any, kind: str = "files") -> None:
        self.root, self.spark, self.kind = root, spark, kind
        (root / "in").mkdir()
        sink = FilesSink(path=str(root / "out"), contract=contract) if kind == "files" else DeltaSink(str(root / "table"), contract=contract)  # fmt: skip
        source = FilesSource(path=str(root / "in"), format="json", schema="id long, v string, w string")
        self.pipeline = Pipeline(name="orders", log=str(root / "log"), source=source, sinks={"out": sink})
        self.batch("first", [(1, "10", None)], v="cast(v AS int)")

    def batch(self, run_key: str, rows: list[tuple[int, str | None, str | None]], **columns: str) -> None:
        """Write rows with the column ``id``, and those of ``columns``: name → SQL expression."""
        lines = [json.dumps({"id": id, "v": v, "w": w}) for id, v, w in rows]
        (self.root / "in" / f"{run_key}.json").write_text("\n".join(lines))
        self.run(run_key, **columns)

    def run(self, run_key: str, **columns: str) -> None:
        chosen = [f"{expression} AS {name}" for name, expression in columns.items()]
        run_batch(self.pipeline.replace(transform=lambda frame: frame.selectExpr("id", *chosen)), run_key=run_key)

    def rows(self) -> list[tuple[Any, ...]]:
        if self.kind == "files":
            return sorted(tuple(row) for row in read_committed(self.spark, self.pipeline.log).collect())
        return sorted(
            tuple(row.values()) for row in DeltaTable(str(self.root / "table")).to_pyarrow_table().to_pylist()
        )

    def counts(self) -> dict[str, int]:
        assert verify(self.pipeline.log).violations == []
        return {
            name: n for name, n in open_log(self.pipeline.log).view().counts.items() if name.startswith("discarded")
        }


@pytest.fixture(params=["files", "delta"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


WITH_NEW = {"v": "cast(v AS int)", "w": "w"}
NEW: list[tuple[int, str | None, str | None]] = [(2, "20", "x"), (3, "30", None)]


@pytest.mark.parametrize(
    ("mode", "rows", "counts"),
    [
        ("discard_value", [(1, 10), (2, 20), (3, 30)], {"discarded_values.out": 1}),
        ("discard_row", [(1, 10), (3, 30)], {"discarded_rows.out": 1}),
        ("evolve", [(1, 10, None), (2, 20, "x"), (3, 30, None)], {}),
    ],
)
def test_new_column(tmp_path: Path, spark: SparkSession, kind: str, mode: str, rows: Any, counts: Any) -> None:
    orders = Orders(tmp_path, spark, Contract(columns=mode), kind)
    orders.batch("second", NEW, **WITH_NEW)
    assert orders.rows() == rows
    assert orders.counts() == counts


OTHER: list[tuple[int, str | None, str | None]] = [
    (2, "20", None), (3, "3.5", None), (4, "4.0", None), (5, "9999999999", None), (6, None, None)
]  # fmt: skip


@pytest.mark.parametrize(("kind", "other"), [("files", "cast(v AS double)"), ("delta", "cast(v AS decimal(20,2))")])
@pytest.mark.parametrize(
    ("mode", "rows", "counts"),
    [
        ("discard_value", [(1, 10), (2, 20), (3, None), (4, 4), (5, None), (6, None)], {"discarded_values.out": 2}),
        ("discard_row", [(1, 10), (2, 20), (4, 4), (6, None)], {"discarded_rows.out": 2}),
    ],
)
def test_number_that_the_type_does_not_hold_exactly_is_discarded(
    tmp_path: Path, spark: SparkSession, kind: str, mode: str, rows: Any, counts: Any, other: str
) -> None:
    orders = Orders(tmp_path, spark, Contract(data_type=mode), kind)
    orders.batch("second", OTHER, v=other)
    assert sorted(orders.rows(), key=str) == sorted(rows, key=str)
    assert orders.counts() == counts


def test_discarded_rows_are_part_of_the_balance_of_a_filter(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    orders = Orders(tmp_path, spark, "discard_row")
    orders.pipeline = orders.pipeline.replace(rows="filter")
    with caplog.at_level(logging.INFO, logger="airflow_provider_streamsem"):
        orders.batch("second", NEW, **WITH_NEW)
    assert orders.rows() == [(1, 10), (3, 30)]
    assert any("1 written to out, 1 rows discarded from out" in text for text in caplog.messages)


def test_text_fits_if_spark_can_cast_it(tmp_path: Path, spark: SparkSession) -> None:
    orders = Orders(tmp_path, spark, "discard_value")
    orders.batch("second", [(2, "20", None), (3, "twelve", None), (4, "2026-01-01", None)], v="v")
    assert sorted(orders.rows(), key=str) == [(1, 10), (2, 20), (3, None), (4, None)]
    assert orders.counts() == {"discarded_values.out": 2}


@pytest.mark.parametrize(
    ("kind", "texts", "kept"),
    [
        ("decimal(12,2)", ["1.50", "0.129", "1e2", "x"], ["1.50", "100.00"]),
        ("date", ["2026-03-08", "2026-03-08 10:00:00", "2026-03-08 00:00:00"], ["2026-03-08", "2026-03-08"]),
        ("long", [" 7", "7.0", "9223372036854775808"], ["7"]),
    ],
)
def test_text_that_spark_would_round_is_discarded(
    tmp_path: Path, spark: SparkSession, kind: str, texts: list[str], kept: list[str]
) -> None:
    orders = Orders(tmp_path, spark, "discard_row")
    typed = orders.pipeline.replace(log=str(tmp_path / "log2"), sinks={"out": FilesSink(path=str(tmp_path / "typed"), contract="discard_row")})  # fmt: skip
    orders.pipeline = typed
    orders.run("typed", v=f"CAST(NULL AS {kind})")
    orders.batch("texts", [(n, text, None) for n, text in enumerate(texts, 10)], v="v")
    assert [str(row[1]) for row in orders.rows() if row[1] is not None] == kept


def test_value_of_a_type_that_spark_cannot_cast_is_discarded(tmp_path: Path, spark: SparkSession) -> None:
    orders = Orders(tmp_path, spark, "discard_value")
    orders.batch("second", [(2, "20", None), (3, None, None)], v="to_date(concat('2026-01-', v))")
    assert sorted(orders.rows(), key=str) == [(1, 10), (2, None), (3, None)]
    assert orders.counts() == {"discarded_values.out": 1}


@pytest.mark.parametrize("columns", [WITH_NEW, {"v": "v"}, {"v": "cast(v AS long)"}], ids=["column", "type", "wider"])
def test_frozen_columns_fail_the_batch_before_its_commit(
    tmp_path: Path, spark: SparkSession, kind: str, columns: dict[str, str]
) -> None:
    orders = Orders(tmp_path, spark, "freeze", kind)
    with pytest.raises(DataError, match="its contract forbids changing them") as raised:
        orders.batch("second", NEW, **columns)
    (found,) = raised.value.fields["found"]
    assert found in ("new column w string", "v: string does not fit integer", "v: long does not fit integer")
    assert orders.rows() == [(1, 10)]
    orders.run("second", v="cast(v AS int)")
    assert orders.rows() == [(1, 10), (2, 20), (3, 30)]


def test_narrower_values_fit_a_frozen_column(tmp_path: Path, spark: SparkSession, kind: str) -> None:
    orders = Orders(tmp_path, spark, "freeze", kind)
    orders.batch("second", [(2, "20", None)], v="cast(v AS short)")
    assert orders.rows() == [(1, 10), (2, 20)]


def test_columns_of_an_existing_table_are_those_of_the_contract(tmp_path: Path, spark: SparkSession) -> None:
    orders = Orders(tmp_path, spark, None, "delta")
    (tmp_path / "two").mkdir()
    table = DeltaTable(str(tmp_path / "table"))
    copy = tmp_path / "copy"
    import deltalake

    deltalake.write_deltalake(str(copy), table.to_pyarrow_table())
    sink = DeltaSink(str(copy), contract="discard_value")
    second = orders.pipeline.replace(log=str(tmp_path / "log2"), sinks={"out": sink})
    run_batch(second.replace(transform=lambda frame: frame.withColumn("w", F.lit("new"))), run_key="first")
    rows = DeltaTable(str(copy)).to_pyarrow_table().to_pylist()
    assert rows == [{"id": 1, "v": 10}] * 2


def test_difference_is_logged_before_the_rows_are_written(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    orders = Orders(tmp_path, spark, Contract())
    with caplog.at_level(logging.INFO, logger="airflow_provider_streamsem"):
        orders.batch("second", NEW, v="cast(v AS long)", w="w")
    assert any("new column w string; v: long does not fit integer" in text for text in caplog.messages)


def test_nested_column_that_differs_is_not_discarded_in_part(tmp_path: Path, spark: SparkSession) -> None:
    orders = Orders(tmp_path, spark, "discard_value")
    with pytest.raises(DataError, match=r"cannot discard values of nested columns.*columns=\['v'\]"):
        orders.batch("second", NEW, v="named_struct('a', v)")


def test_contract_of_changes_applies_to_the_columns_of_the_table(tmp_path: Path, spark: SparkSession) -> None:
    orders = Orders(tmp_path, spark, None, "delta")
    changes = Changes(keys=["id"], sequence_by="at", apply_as_deletes="w = 'd'", except_column_list=["w"])
    sink = DeltaSink(str(tmp_path / "changed"), changes=changes, contract="discard_row")
    pipeline = orders.pipeline.replace(log=str(tmp_path / "changes"), sinks={"out": sink})
    first = pipeline.replace(transform=lambda frame: frame.selectExpr("id", "1L AS at", "v", "w"))
    run_batch(first, run_key="first")
    (tmp_path / "in" / "more.json").write_text('{"id": 2, "v": "x", "w": "u"}\n{"id": 1, "w": "d"}')
    second = pipeline.replace(transform=lambda frame: frame.selectExpr("id", "2L AS at", "v", "w", "v AS extra"))
    run_batch(second, run_key="second")
    assert DeltaTable(str(tmp_path / "changed")).to_pyarrow_table().to_pylist() == []


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_table_that_does_not_exist_is_refused_before_the_plan_if_tables_are_frozen(tmp_path: Path, kind: str) -> None:
    contract = Contract(tables="freeze")
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)}
    sink: Any = DeltaSink(str(tmp_path / "t"), contract=contract)
    if kind == "iceberg":
        sink = IcebergSink(str(tmp_path / "t"), "a.b", properties=catalog, contract=contract)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}')
    source = FilesSource(path=str(tmp_path / "in"), format="json", schema="id long")
    pipeline = Pipeline(name="p", log=str(tmp_path / "log"), source=source, sinks={"out": sink})
    with pytest.raises(DataError, match="table does not exist, and the contract"):
        run_batch(pipeline, run_key="a")
    assert not [*(tmp_path / "log").rglob("*.p.json")]


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        ("drop", "contract is not one of the accepted values"),
        ({"column": "freeze"}, "unknown names"),
        ({"tables": "discard_row"}, "contract.tables"),
        (3, "must be a mode or Contract"),
        (Contract(tables="freeze"), "contract.tables needs a sink with a table"),
    ],
)
def test_contract_that_is_not_valid_is_refused(contract: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        FilesSink(path="/out", contract=contract)


def test_spec_has_the_contract_and_it_may_change(tmp_path: Path, spark: SparkSession) -> None:
    orders = Orders(tmp_path, spark, {"columns": "freeze"})
    assert from_json(orders.pipeline.to_json()) == orders.pipeline
    assert JdbcSink("db", "t", "/s", contract="freeze").contract == Contract(columns="freeze", data_type="freeze")
    orders.pipeline = orders.pipeline.replace(sinks={"out": FilesSink(path=str(tmp_path / "out"))})
    orders.batch("second", NEW, **WITH_NEW)
    assert len(orders.rows()) == 3


def test_engine_without_spark_refuses_a_contract(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}')
    source = FilesSource(path=str(tmp_path / "in"), format="json", schema="id long")
    sink = FilesSink(path=str(tmp_path / "out"), format="json", contract="freeze")
    pipeline = Pipeline(name="p", log=str(tmp_path / "log"), source=source, sinks={"out": sink})
    with pytest.raises(InvalidError, match="cannot run this pipeline"):
        run_batch(pipeline, run_key="a", engine=RowsEngine())
