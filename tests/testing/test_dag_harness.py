"""The test harness for a user's DAG: the DAG gets the rows of a test and is killed at every step of Airflow's task execution."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing import dag_runs
from airflow_provider_streamsem.testing.dag_harness import DagHarness

pytestmark = pytest.mark.airflow

DAG_FILE = """
from airflow.sdk import dag, task
from airflow_provider_streamsem import FilesSink, FilesSource, MicroBatchOperator, Pipeline, open_log

SENT = []
IN = FilesSource(path="s3://lake/in", format="json", schema="id long")
ORDERS = Pipeline(name="orders", log="s3://lake/log", source=IN, sinks={"lake": FilesSink("s3://lake/orders", format="json")})


@dag(schedule=None)
def orders():
    @task.micro_batch(pipeline=ORDERS, drain=True, spark_conn_id="spark_default", retries=0)
    def clean(rows):
        return [row for row in rows if row["id"] > 0]

    @task
    def send_mail(result):
        SENT.extend(file.rows for file in open_log("s3://lake/log").files())

    send_mail(clean())


@dag(schedule=None)
def opens_another_log():
    @task.micro_batch(pipeline=ORDERS)
    def clean(rows):
        open_log("s3://lake/another")
        return rows

    clean()


@dag(schedule=None)
def no_pipeline():
    @task
    def nothing():
        pass

    nothing()


@dag(schedule=None)
def mapped():
    MicroBatchOperator.partial(task_id="t").expand(pipeline=["a.toml", "b.toml"])


@dag(schedule=None)
def two_of_one_name():
    MicroBatchOperator(task_id="a", pipeline=ORDERS)
    MicroBatchOperator(task_id="b", pipeline=ORDERS.replace(where="id > 1"))


@dag(schedule=None)
def from_a_file(path="{{ run_id }}.toml"):
    MicroBatchOperator(task_id="t", pipeline=PATH, drain=True)


PATH = "{{ run_id }}.toml"
MADE = [orders(), opens_another_log(), no_pipeline(), mapped(), two_of_one_name(), from_a_file()]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamsem_airflow: None) -> Iterator[Any]:
    """Return a dags folder with one file, as a module."""
    from airflow import settings

    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "harnessed.py").write_text(DAG_FILE)
    monkeypatch.setattr(settings, "DAGS_FOLDER", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    yield import_module("harnessed")
    del sys.modules["harnessed"]


@pytest.fixture
def harness(module: Any, tmp_path: Path) -> Callable[[str], DagHarness]:
    return lambda name: DagHarness(getattr(module, name)(), tmp_path)


BATCHES = {"orders": [[{"id": 1}, "{broken", {"id": 0}], [{"id": 2}]]}


def test_dag_runs_over_given_rows_and_its_tasks_find_the_log_by_its_production_name(
    harness: Callable[[str], DagHarness], module: Any
) -> None:
    committed = harness("orders").run(BATCHES)["orders"]
    assert committed.rows() == [{"id": 1}, {"id": 2}]
    assert (committed.counts["written.lake"], [r["raw"] for r in committed.quarantined]) == (2, ["{broken"])
    assert module.SENT == [1, 1]


@pytest.mark.prove
def test_killed_task_gets_another_try_and_a_duplicated_side_effect_is_reported(
    harness: Callable[[str], DagHarness], module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[str, dict[str, tuple[str, int]]]] = []
    run_dag = dag_runs.run_dag

    def watched(dag: Any, run_id: str) -> Any:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        try:
            return run_dag(dag, run_id)
        finally:
            with create_session() as session:
                task_instances = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run_id))
                runs.append((run_id, {ti.task_id: (str(ti.state), ti.try_number) for ti in task_instances}))

    monkeypatch.setattr("airflow_provider_streamsem.testing.dag_harness.run_dag", watched)
    with pytest.raises(AssertionError) as caught:
        harness("orders").crash_matrix(
            {"orders": [[{"id": 1}]]}, prepare=module.SENT.clear, observe=lambda: Counter(module.SENT)
        )
    # Only one step duplicates the mail: the task sends it and dies before Airflow records its success.
    doubled = r"1 of (\d+) steps\nkilled at step (\d+) of \1, before Airflow gets SucceedTask:\n    observed: duplicated 1: 1$"
    fault = re.search(doubled, str(caught.value))
    assert fault is not None, str(caught.value)
    steps = int(fault[1])
    assert int(fault[2]) == steps - 1
    assert steps > 40
    assert len(runs) == 2 + 2 * steps
    unfinished = 0
    for (killed_id, killed), (retried_id, retried) in zip(runs[2::2], runs[3::2], strict=True):
        assert killed_id == retried_id
        died = [task for task, (state, _) in killed.items() if state == "running"]
        assert all(retried[task] == ("success", 2) for task in died)
        assert {state for state, _ in retried.values()} == {"success"}
        unfinished += len(died)
    # The two links of the batch's task are pushed after it has succeeded, with two steps each.
    assert unfinished == steps - 2 - 4, (
        "only a kill after Airflow took the success of one of the two tasks leaves none running"
    )


@pytest.mark.prove  # The crash matrix finds a second fault here. The test above covers a fault in each run.
def test_task_that_returns_another_result_after_a_kill_is_reported(
    harness: Callable[[str], DagHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run key with the try number finds its own batch committed by another run, and returns an empty result to its downstream tasks."""
    from airflow_provider_streamsem.operators import micro_batch

    run_key = micro_batch.run_key
    monkeypatch.setattr(micro_batch, "run_key", lambda ti: f"{run_key(ti)}-{ti.try_number}")
    with pytest.raises(AssertionError) as caught:
        harness("orders").crash_matrix({"orders": [[{"id": 1}]]})
    assert "after create log/99999999/999999999999-0.c.json:\n    returned by clean: {" in str(caught.value)
    assert "before create log/99999999/999999999999-0.p.json" not in str(caught.value)


def test_production_settings_are_restored_and_no_other_log_can_be_opened(
    harness: Callable[[str], DagHarness], module: Any
) -> None:
    streamsem_harness = harness("opens_another_log")
    with pytest.raises(AssertionError, match="ended in state failed"):
        streamsem_harness.run(BATCHES)
    (task,) = streamsem_harness._dag.tasks
    assert (task.pipeline.log, task.spark_conn_id) == ("s3://lake/log", None)
    assert streamsem_harness._dag.tasks[0].pipeline is module.ORDERS


@pytest.mark.parametrize(
    ("name", "message"),
    [("no_pipeline", "no task"), ("mapped", "mapped"), ("two_of_one_name", "different pipelines"), ("from_a_file", "without templates")],
)  # fmt: skip
def test_dag_that_cannot_be_relocated_is_refused(harness: Callable[[str], DagHarness], name: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        harness(name)


def test_batches_of_pipelines_that_the_dag_lacks_are_refused(harness: Callable[[str], DagHarness]) -> None:
    with pytest.raises(InvalidError, match=r"accepted=\['orders'\]"):
        harness("orders").run({"order": []})
    with pytest.raises(InvalidError, match="cannot fail"):
        harness("orders").crash_matrix({"orders": []})


def test_pipeline_file_is_run_at_other_locations(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATH", str(tmp_path / "p.toml"))
    (tmp_path / "p.toml").write_text(
        '[source]\ntype = "files"\npath = "/data/in"\nformat = "json"\nschema = "id long"\n'
        '[sinks.out]\ntype = "files"\npath = "/data/out"\nformat = "json"\n'
    )
    text = (tmp_path / "p.toml").read_text()
    (tmp_path / "p.toml").write_text(f'name = "p"\nlog = "/data/log"\n{text}')
    assert DagHarness(module.from_a_file(), tmp_path).run({"p": [[{"id": 1}]]})["p"].rows() == [{"id": 1}]
    assert not os.path.exists("/data")


def test_metadata_database_that_may_belong_to_a_deployment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.configuration import conf

    monkeypatch.setattr(conf, "get", lambda *args, **named: "postgresql://user:hunter2@db/airflow")
    with pytest.raises(InvalidError, match="postgresql") as caught:
        dag_runs.require_sqlite()
    assert "hunter2" not in str(caught.value)


ORDER = {"id": 1, "user": "Ann Lee", "cents": 5, "at": "2026-01-02T03:04:05Z"}


@pytest.fixture
def orders_dag(streamsem_dag_harness: Callable[[Any], DagHarness], monkeypatch: pytest.MonkeyPatch) -> DagHarness:
    """The DAG of the dags folder, from Kafka to S3 on the cluster of a connection. The test has none of them."""
    monkeypatch.syspath_prepend(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    import streamsem_orders

    return streamsem_dag_harness(streamsem_orders.streamsem_orders())


@pytest.mark.spark
def test_orders_dag_runs_unchanged_on_the_tests_spark(orders_dag: DagHarness) -> None:
    committed = orders_dag.run({"orders": [[ORDER, {**ORDER, "id": 2, "cents": 0}, "{broken"]]})["orders"]
    (row,) = committed.rows()
    assert (row["id"], row["initials"], str(row["day"])) == (1, "AL", "2026-01-02")
    assert (committed.counts["filtered"], committed.quarantined[0]["raw"]) == (1, "{broken")


@pytest.mark.prove
@pytest.mark.spark
def test_orders_dag_survives_a_kill_at_every_step(orders_dag: DagHarness) -> None:
    steps = orders_dag.crash_matrix({"orders": [[ORDER, {**ORDER, "id": 2, "cents": 0}, "{broken"]]})
    assert {"write orders", "before Airflow gets SucceedTask"} <= {*steps}
