"""Fixtures of the tests on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.locations import Location


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Location:
    return Location(tmp_path)
