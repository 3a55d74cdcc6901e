"""Effects of reruns on a pipeline, with Airflow's task runner in this process. These are the rows of docs/reference/reruns.md that need no scheduler."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import MicroBatchOperator
from airflow_provider_streamsem.stores.local import LocalStore
from tests.pipeline_fixture import PipelineFixture
from tests.releases import store_dag

pytestmark = pytest.mark.airflow


class Runs:
    """A DAG with one draining task over JSON files, with two files per batch."""

    def __init__(self, fixture: PipelineFixture, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow_provider_streamsem.spark import spark_engine as spark
        from airflow_provider_streamsem.testing.rows import RowsEngine

        self.fixture = fixture
        self.name = name
        self.staged = 0
        self.in_batch: Callable[[int], object] = lambda batch: None

        def step(name: str) -> None:
            if name == "staged":
                self.staged += 1
                self.in_batch(self.staged)

        monkeypatch.setattr(spark, "SparkEngine", lambda **_: RowsEngine(step))

    def dag(self, **arguments: Any) -> Any:
        from airflow.sdk import DAG

        with DAG(self.name, schedule=None) as created:
            task_arguments = {"drain": True, "retries": 1, "retry_delay": timedelta(0), **arguments}
            MicroBatchOperator(task_id="t", pipeline=self.fixture.pipeline(), **task_arguments)
        store_dag(created, __file__)
        return created

    def run(self, run_id: str, *, clear: bool = False, **arguments: Any) -> str:
        from airflow_provider_streamsem.testing.dag_runs import run_dag

        return str(run_dag(self.dag(**arguments), run_id, clear=["t"] if clear else []).state)

    def result(self, run_id: str) -> Any:
        """Return the result of the task of a run."""
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        of_run = (XComModel.dag_id == self.name) & (XComModel.run_id == run_id) & (XComModel.key == "return_value")
        with create_session() as session:
            value = session.scalars(select(XComModel.value).where(of_run)).one()
        return json.loads(value) if isinstance(value, str) else value

    def delete(self, run_id: str) -> None:
        """Delete a run as `DELETE /dagRuns/{run_id}` does."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import delete

        with create_session() as session:
            session.execute(delete(DagRun).where(DagRun.dag_id == self.name, DagRun.run_id == run_id))


@pytest.fixture
def runs(tmp_path: Path, airflow_db: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Runs:
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(5)
    return Runs(fixture, request.node.name, monkeypatch)


def fail_in(batch: int, runs: Runs, then: Callable[[], object] = lambda: None) -> Callable[[int], object]:
    """Return an engine step that fails once, when this batch has been staged."""

    def step(number: int) -> None:
        if number == batch:
            then()
            raise OSError("the engine died")

    return step


def test_retry_continues_to_the_target_of_its_run_and_leaves_later_files_to_the_next_run(runs: Runs) -> None:
    runs.in_batch = fail_in(2, runs, then=lambda: runs.fixture.arrive(4))
    assert runs.run("one") == "success"
    assert runs.result("one")["ranges"] == {"files": [0, 5]}
    assert runs.fixture.visible() == Counter(range(15))
    assert runs.run("two") == "success"
    assert runs.result("two")["ranges"] == {"files": [5, 9]}
    runs.fixture.check()


def test_run_whose_tries_all_failed_leaves_its_records_to_the_next_run(runs: Runs) -> None:
    runs.in_batch = fail_in(2, runs)
    assert runs.run("one", retries=0) == "failed"
    assert runs.fixture.visible() == Counter(range(6))
    assert runs.run("two") == "success"
    runs.fixture.check()
    stored = runs.fixture.opened().head
    assert runs.run("one", clear=True) == "success"
    assert runs.fixture.opened().head == stored


def test_cleared_task_returns_its_committed_result_although_more_files_arrived(runs: Runs) -> None:
    runs.run("one")
    first, staged = runs.result("one"), runs.staged
    runs.fixture.arrive(2)
    assert runs.run("one", clear=True) == "success"
    assert (runs.result("one"), runs.staged) == (first, staged)
    runs.run("two")
    assert runs.result("two")["ranges"] == {"files": [5, 7]}
    runs.fixture.check()


def test_cleared_run_that_was_empty_reads_files_that_arrived_since(runs: Runs) -> None:
    runs.run("one")
    runs.run("two")
    assert runs.result("two")["status"] == "empty"
    runs.fixture.arrive(2)
    runs.run("two", clear=True)
    assert runs.result("two")["ranges"] == {"files": [5, 7]}
    runs.fixture.check()


def test_cleared_task_with_rerun_reprocess_reprocesses_each_version_and_duplicates_no_row(runs: Runs) -> None:
    runs.run("one", rerun="reprocess")
    versions = runs.fixture.opened().head
    runs.run("one", clear=True, rerun="reprocess")
    assert runs.fixture.opened().head == 2 * versions + 1
    runs.fixture.check()


def test_timeout_during_a_drain_keeps_its_commits_and_the_retry_reads_the_rest(runs: Runs) -> None:
    runs.in_batch = lambda batch: time.sleep(30 if batch == 2 else 0)
    began = time.monotonic()
    assert runs.run("one", execution_timeout=timedelta(seconds=5)) == "success"
    assert time.monotonic() - began < 25
    assert runs.staged == 4
    assert runs.result("one")["ranges"] == {"files": [0, 5]}
    runs.fixture.check()


def test_recreated_run_id_returns_the_first_result_and_the_next_run_reads_new_files(
    runs: Runs,
) -> None:
    runs.run("one")
    first, staged = runs.result("one"), runs.staged
    runs.delete("one")
    runs.fixture.arrive(2)
    assert runs.run("one") == "success"
    assert (runs.result("one"), runs.staged) == (first, staged)
    runs.run("two")
    assert runs.result("two")["ranges"] == {"files": [5, 7]}
    runs.fixture.check()


def test_run_deleted_during_a_drain_and_recreated_continues_to_its_first_target(runs: Runs) -> None:
    runs.in_batch = fail_in(2, runs)
    assert runs.run("one", retries=0) == "failed"
    runs.delete("one")
    runs.fixture.arrive(2)
    assert runs.run("one") == "success"
    assert runs.result("one")["ranges"] == {"files": [0, 5]}
    runs.run("two")
    runs.fixture.check()
