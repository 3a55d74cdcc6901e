"""Fixtures of the tests of what a run tells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.telemetry import SparkFound, tell
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def disk_world(tmp_path: Path) -> World:
    """Three files, and a log that an operator can open by its URL."""
    made = World(tmp_path, store=LocalStore(str(tmp_path / "log")))
    made.arrive(3)
    return made


class Ti(SimpleNamespace):
    """A task instance that keeps what is pushed."""

    dag_id, task_id, run_id, map_index, max_tries = "d", "t", "r", -1, 0

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed.append((key, value))


@pytest.fixture
def execute(disk_world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Executes an operator whose engine finds a Spark that serves pages; returns the operator and its task instance."""
    from airflow_provider_streamsem.engines import spark

    def step(name: str) -> None:
        tell(SparkFound, application_id="local-1", ui="http://worker:4040")

    monkeypatch.setattr(spark, "SparkEngine", lambda **arguments: RowsEngine(step))

    def run(*, fails: bool = False, **arguments: Any) -> tuple[Any, Ti]:
        from airflow_provider_streamsem import MicroBatchOperator

        made = MicroBatchOperator(task_id="t", pipeline=disk_world.pipeline(**arguments), drain=True)
        ti = Ti(pushed=[])
        with suppress(Exception) if fails else nullcontext():
            made.execute({"ti": ti})
        return made, ti

    return run
