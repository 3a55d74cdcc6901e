"""Columns of an Iceberg table that its owner renames or drops: the pipeline goes on, and each row is read under the new names."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import (
    FilesSource,
    IcebergSink,
    Pipeline,
    reprocess,
    rollback,
    run_batch,
    verify,
)
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.errors import DataError

pytestmark = pytest.mark.spark
BEFORE = ["v AS old", "w AS gone", "named_struct('a', v, 'b', w) AS s"]
AFTER = ["v AS new", "named_struct('a', v) AS s"]


class Orders:
    """JSON files with ``id``, ``v`` and ``w`` into an Iceberg table. Version 0 has the rows 0 and 1 with the columns :data:`BEFORE`."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        (root / "in").mkdir()
        self.properties = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": str(root)}
        sink = IcebergSink(str(root / "files"), table="shop.orders", properties=self.properties, **options)
        source = FilesSource(path=str(root / "in"), format="json", schema="id long, v long, w string")
        self.pipeline = Pipeline(name="orders", log=str(root / "log"), source=source, sinks={"out": sink})
        self.batch([0, 1], BEFORE)

    def transform(self, columns: list[str]) -> Pipeline:
        def transform(frame: DataFrame) -> DataFrame:
            return frame.selectExpr("id", *columns)

        return self.pipeline.replace(transform=transform)

    def batch(self, ids: list[int], columns: list[str]) -> None:
        lines = [json.dumps({"id": at, "v": 10 * at, "w": f"w{at}"}) for at in ids]
        (self.root / "in" / f"{ids}.json").write_text("\n".join(lines))
        run_batch(self.transform(columns), run_key=f"run {ids} {columns}")

    @property
    def table(self) -> Any:
        return load_catalog("default", **self.properties).load_table("shop.orders")

    def rename_and_drop(self) -> None:
        with self.table.update_schema() as update:
            update.rename_column("old", "new")
            update.delete_column("gone")
            update.delete_column(("s", "b"))

    def rows(self) -> Counter[str]:
        return Counter(json.dumps(row, sort_keys=True) for row in self.table.scan().to_arrow().to_pylist())

    def check(self, ids: list[int]) -> None:
        expected = ({"id": at, "new": 10 * at, "s": {"a": 10 * at}} for at in ids)
        assert self.rows() == Counter(json.dumps(row, sort_keys=True) for row in expected)
        assert verify(self.transform(AFTER)).violations == []

    def recorded(self) -> list[str]:
        outcome = commit_log_at(self.pipeline.log).newest_head().outcome
        assert outcome is not None
        return [field["name"] for field in json.loads(outcome.schemas["out"])["fields"]]


@pytest.mark.parametrize("contract", [None, "freeze"])
def test_batch_has_the_new_names_of_renamed_columns_and_lacks_dropped_ones(
    tmp_path: Path, spark: SparkSession, contract: str | None
) -> None:
    orders = Orders(tmp_path, contract=contract)
    orders.rename_and_drop()
    orders.batch([2, 3], AFTER)
    orders.batch([4], AFTER)
    orders.check([0, 1, 2, 3, 4])
    assert orders.recorded() == ["id", "s", "new"]


def test_versions_before_a_rename_are_reprocessed_and_rolled_back(tmp_path: Path, spark: SparkSession) -> None:
    orders = Orders(tmp_path)
    orders.batch([2], BEFORE)
    orders.rename_and_drop()
    rollback(orders.transform(AFTER), 0)
    orders.check([0, 1])
    orders.batch([3], AFTER)
    orders.check([0, 1, 2, 3])
    reprocess(orders.transform(AFTER), 0, run_key="again")
    orders.check([0, 1, 2, 3])


def test_column_that_the_table_still_has_is_required(tmp_path: Path, spark: SparkSession) -> None:
    orders = Orders(tmp_path)
    with orders.table.update_schema() as update:
        update.rename_column("old", "new")
    with pytest.raises(DataError, match="columns of earlier batches are missing") as raised:
        orders.batch([2], ["v AS new"])
    assert raised.value.fields["columns"] == ["gone", "s"]
    assert "renamed or dropped in a Delta or Iceberg table" in raised.value.do


def test_former_name_is_refused_until_the_transform_has_the_new_one(tmp_path: Path, spark: SparkSession) -> None:
    orders = Orders(tmp_path)
    orders.rename_and_drop()
    with pytest.raises(DataError, match="renamed or dropped"):
        orders.batch([2], BEFORE)
    run_batch(orders.transform(AFTER), run_key="corrected")
    orders.check([0, 1, 2])
