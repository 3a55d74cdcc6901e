"""Spark's readers of Delta and Iceberg return every row of a filtered read, although they skip files by the bounds that this package has written."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from itertools import groupby
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.connectors.odd_values import COLUMNS
from tests.connectors.table_files import filter_matrix as matrix

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.prove,
]  # some minutes, for a claim of tests without Spark


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("tables"))


def condition(name: str, operator: str, value: Any) -> Column:
    column = F.col(name)
    if operator.endswith("null"):
        return column.isNull() if operator == "is null" else column.isNotNull()
    kind = str(COLUMNS[name][0])
    text = value.isoformat(sep=" ") if isinstance(value, datetime) else str(value)
    is_text = isinstance(value, (date, Decimal, float))
    literal = F.lit(text if is_text else bytearray(value) if isinstance(value, bytes) else value).cast(kind)
    return {"=": column == literal, ">": column > literal, "<=": column <= literal}[operator]


def found(table: DataFrame, predicates: list[tuple[str, str, Any]]) -> set[tuple[int, int]]:
    """Return the number of each predicate with each id that it selects. Each predicate is a scan of its own, so each can skip files."""
    scans = [table.where(condition(*each)).select(F.lit(number), "id") for number, each in enumerate(predicates)]
    return {tuple(row) for row in reduce(DataFrame.unionAll, scans).collect()}


def check(spark: SparkSession, table: DataFrame) -> None:
    """Compare filtered reads with filters of the same rows in memory. Zeros are left out: Spark's Parquet reader finds -0.0 in no dictionary with 0.0."""
    whole = spark.createDataFrame(matrix.EXPECTED)
    assert table.count() == matrix.EXPECTED.num_rows
    for name, group in groupby(matrix.predicates(), key=lambda predicate: predicate[0]):
        predicates = [each for each in group if not (isinstance(each[2], float) and each[2] == 0)]
        differing = found(table, predicates) ^ found(whole, predicates)
        assert not differing, [(name, *map(repr, predicates[number][1:])) for number, _ in differing]


@pytest.mark.parametrize("how", matrix.HOW)
def test_spark_reads_filtered_rows_of_delta(spark: SparkSession, root: str, how: str) -> None:
    check(spark, spark.read.format("delta").load(matrix.delta(root, how)))


@pytest.mark.parametrize("how", [how for how in matrix.HOW if how != "others"])
def test_spark_reads_filtered_rows_of_iceberg(spark: SparkSession, root: str, how: str) -> None:
    metadata = matrix.lake(root, how).table().metadata_location.removeprefix("file://")
    check(spark, spark.read.format("iceberg").load(metadata))
