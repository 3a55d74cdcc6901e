"""Fixtures of the observability tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.telemetry import SparkStarted, emit
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    return PipelineFixture(tmp_path)


@pytest.fixture
def disk_fixture(tmp_path: Path) -> PipelineFixture:
    """Create three files, and a log that an operator can open by its URL."""
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(3)
    return fixture


class Ti(SimpleNamespace):
    """A task instance that stores the values pushed to XCom."""

    dag_id, task_id, run_id, map_index, max_tries = "d", "t", "r", -1, 0

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed.append((key, value))


@pytest.fixture
def execute(disk_fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that executes an operator whose engine reports a Spark UI. It returns the operator and its task instance."""
    from airflow_provider_streamsem.spark import spark_engine as spark

    def step(name: str) -> None:
        emit(SparkStarted, application_id="local-1", ui="http://worker:4040")

    monkeypatch.setattr(spark, "SparkEngine", lambda **arguments: RowsEngine(step))

    def run(*, fails: bool = False, **arguments: Any) -> tuple[Any, Ti]:
        from airflow_provider_streamsem import MicroBatchOperator

        operator = MicroBatchOperator(task_id="t", pipeline=disk_fixture.pipeline(**arguments), drain=True)
        ti = Ti(pushed=[])
        with suppress(Exception) if fails else nullcontext():
            operator.execute({"ti": ti})
        return operator, ti

    return run
