"""
DeltaSink and IcebergSink write to tables that Spark has created with each feature, sources read them, and compaction rewrites them.

Or the table is refused by name, before anything is planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem.errors import DataError
from tests.integration.existing_tables import (
    DELTA,
    ICEBERG,
    OPERATIONS,
    YES,
    DeltaTable,
    Feature,
    IcebergTable,
    outcome,
    stated,
    write,
)
from tests.integration.parts.iceberg import RestCatalog
from tests.integration.parts.server import running

pytestmark = [pytest.mark.integration, pytest.mark.spark]
EACH = pytest.mark.prove
"""The documentation has a row for each feature. These cells are checked in each build."""
OFTEN = {
    ("deletion vectors", "append by Spark"),
    ("column mapping by name", "append by Spark"),
    ("identity column", "append by Spark"),
    ("CHECK constraint", "append"),
    ("hidden partitions", "append by Spark"),
    ("identifier fields", "append by Spark"),
    ("required column", "merge by Spark"),
    ("equality deletes", "append by Spark"),
    ("equality deletes", "merge"),
    ("variant column", "append"),
    ("generated column", "read"),
}


def cells(features: tuple[Feature, ...]) -> list[object]:
    return [
        pytest.param(
            feature,
            operation,
            id=f"{feature.name}: {operation}",
            marks=() if (feature.name, operation) in OFTEN else EACH,
        )
        for feature in features
        for operation in OPERATIONS
    ]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    server = RestCatalog(tmp_path_factory.mktemp("iceberg"))
    with running(server):
        yield server


@pytest.mark.parametrize(("feature", "operation"), cells(DELTA))
def test_delta_table_is_used_or_refused_as_the_documentation_says(
    spark: SparkSession, tmp_path: Path, feature: Feature, operation: str
) -> None:
    found = outcome(DeltaTable(spark, tmp_path, feature), operation)
    assert (found == YES) == stated("Delta")[feature.name][operation], found


@pytest.mark.parametrize(("feature", "operation"), cells(ICEBERG))
def test_iceberg_table_is_used_or_refused_as_the_documentation_says(
    spark: SparkSession, catalog: RestCatalog, tmp_path: Path, feature: Feature, operation: str
) -> None:
    found = outcome(IcebergTable(spark, tmp_path, feature, catalog), operation)
    assert (found == YES) == stated("Iceberg")[feature.name][operation], found


def test_documentation_has_each_feature_and_operation() -> None:
    for title, features in (("Delta", DELTA), ("Iceberg", ICEBERG)):
        assert list(stated(title)) == [feature.name for feature in features]
        assert all(list(cells) == list(OPERATIONS) for cells in stated(title).values())


ROWS = {k: (k, "a" if k % 2 else None) for k in range(6)}


def test_delta_table_that_the_sink_creates_is_clustered(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaTable(spark, tmp_path, Feature("clustered"))
    for number in range(2):
        write(table, ROWS, run_key=str(number), engine="spark", cluster_by=["v", "at"])
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}/table`").first()
    assert detail is not None
    assert detail["clusteringColumns"] == ["v", "at"]
    spark.sql(f"OPTIMIZE delta.`{tmp_path}/table`")
    write(table, {9: (9, "z")}, run_key="later", engine="spark", cluster_by=["v", "at"])
    found = spark.read.format("delta").load(f"{tmp_path}/table").collect()
    expected = [(k, *row) for k, row in ROWS.items()]
    assert Counter((row["k"], row["v"], row["p"]) for row in found) == Counter([*expected, *expected, (9, 9, "z")])


@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "keys": ["k"]}], ids=["append", "upsert"])
def test_iceberg_table_that_the_sink_creates_has_hidden_partitions(
    spark: SparkSession, catalog: RestCatalog, tmp_path: Path, mode: dict[str, object]
) -> None:
    partition_by = ["day(at)", "bucket(4, k)", "truncate(1, p)", "v"]
    table = IcebergTable(spark, tmp_path, Feature("partitioned", partition_by=partition_by), catalog)
    write(table, ROWS, run_key="first", engine="spark", **mode)
    write(table, {6: (6, "b")}, run_key="second", engine="spark", **mode)
    spec = [f"{field.name}: {field.transform}" for field in table.loaded.spec().fields]
    assert spec == ["at_day: day", "k_bucket: bucket[4]", "p_trunc: truncate[1]", "v: identity"]
    assert table.rows() == Counter((k, *row) for k, row in {**ROWS, 6: (6, "b")}.items())
    assert len(table.sql("SELECT DISTINCT partition FROM {t}.partitions")) == 7


@pytest.mark.parametrize("format", ["Delta", "Iceberg"])
@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "keys": ["k"]}], ids=["append", "upsert"])
def test_pipeline_follows_the_renamed_and_dropped_columns_of_its_table(
    spark: SparkSession, catalog: RestCatalog, tmp_path: Path, format: str, mode: dict[str, object]
) -> None:
    mapped = Feature("mapped", properties={"delta.columnMapping.mode": "name"})
    table = DeltaTable(spark, tmp_path, mapped) if format == "Delta" else IcebergTable(spark, tmp_path, Feature("plain"), catalog)  # fmt: skip
    table.create()
    write(table, {6: (6, "a"), 7: (7, None)}, run_key="first", engine="spark", **mode)
    table.sql("ALTER TABLE {t} RENAME COLUMN p TO q")
    table.sql("ALTER TABLE {t} DROP COLUMN at")
    later = {7: (70, "b"), 8: (8, None)}
    write(table, later, run_key="second", transform=lambda frame: frame.selectExpr("k", "v", "p AS q"), engine="spark", **mode)  # fmt: skip
    earlier = {**table.kept, 6: (6, "a"), 7: (7, None)}
    both = [*earlier.items(), *later.items()] if not mode else {**earlier, **later}.items()
    assert Counter(map(tuple, table.sql("SELECT * FROM {t}"))) == Counter((k, *row) for k, row in both)


def test_null_in_a_required_column_is_refused_before_the_commit(
    spark: SparkSession, catalog: RestCatalog, tmp_path: Path
) -> None:
    table = IcebergTable(spark, tmp_path, Feature("required", replaces={"p": "p STRING NOT NULL"}), catalog)
    table.create()
    with pytest.raises(DataError, match=r"violates a CHECK or NOT NULL constraint.*p IS NOT NULL"):
        write(table, {9: (9, None)}, engine="spark")
    assert table.rows() == Counter((k, *row) for k, row in table.kept.items())
