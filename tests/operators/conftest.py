"""Fixtures of the operator tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline_fixture import PipelineFixture


@pytest.fixture(scope="session")
def airflow_db() -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow

    initialise_airflow()


@pytest.fixture
def rows_engine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give operators an engine without Spark. Return a list of the calls to it."""
    from airflow_provider_streamsem.spark import spark_engine as spark
    from airflow_provider_streamsem.testing.rows import RowsEngine

    calls: list[str] = []

    def create_engine(**arguments: Any) -> RowsEngine:
        calls.append("created")
        return RowsEngine(lambda step: calls.append(step))

    monkeypatch.setattr(spark, "SparkEngine", create_engine)
    return calls


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    from airflow_provider_streamsem.stores.local import LocalStore

    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(3)
    return fixture
