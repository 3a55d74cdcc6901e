"""Pipelines write to, read and compact tables that Spark has created with each feature, or refuse them by name before anything is planned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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
