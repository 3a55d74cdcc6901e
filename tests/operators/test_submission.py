"""Runs whose driver is a separate process: spark-submit starts it, and the task waits for its commit in the log."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    KafkaSource,
    MicroBatchOperator,
    Pipeline,
    open_log,
    verify,
)
from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.errors import InvalidError, StageError
from airflow_provider_streamsem.hooks.failures import airflow_exception
from airflow_provider_streamsem.operators.submission import DRIVER_IDS, PROCESS, ConnectionRecorder
from airflow_provider_streamsem.pipeline.run import submit_app
from airflow_provider_streamsem.pipeline.run.run import plan_run
from airflow_provider_streamsem.readers.conditions import DriverWait, of_text, to_text
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.operators.task_calls import context
from tests.pipeline_fixture import PipelineFixture

pytestmark = pytest.mark.airflow


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    PipelineFixture(tmp_path).arrive(3)
    return Pipeline(
        name="submitted",
        log=str(tmp_path / "log"),
        source=FilesSource(path=str(tmp_path / "in"), format="json", schema="id long"),
        sinks={"out": FilesSink(path=str(tmp_path / "out"))},
        transform="tests.operators.test_submission:doubled",
    )


def doubled(frame: Any) -> Any:
    """The transform, which the driver imports by this name."""
    return frame.selectExpr("id", "2 * id as twice")


@pytest.fixture
def conn_id(monkeypatch: pytest.MonkeyPatch) -> str:
    connection = {"conn_type": "spark", "host": "local[1]", "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", json.dumps(connection))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # where the driver finds the transform
    monkeypatch.setenv("AIRFLOW__STREAMSEM__POLL_INTERVAL", "0.5")
    return "my_spark"


def operator(pipeline: Pipeline, conn_id: str, **arguments: Any) -> MicroBatchOperator:
    return MicroBatchOperator(
        task_id="t", pipeline=pipeline, run_in="submit", spark_conn_id=conn_id, spark_conf={"spark.ui.enabled": "false"},
        **arguments,
    )  # fmt: skip


@pytest.mark.spark
def test_deferred_task_submitted_twice_commits_once(pipeline: Pipeline, conn_id: str) -> None:
    TaskDeferred = airflow_exception("TaskDeferred")

    task = operator(pipeline, conn_id, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context())
    with pytest.raises(TaskDeferred):
        task.execute(context(try_number=2))  # the worker died, and the retry submits another driver
    stopped: Any = deferred.value
    condition = of_text(stopped.trigger.serialize()[1]["condition"])
    deadline = time.monotonic() + 150
    while not (finding := condition.check()).met:
        assert time.monotonic() < deadline, "no driver committed"
        time.sleep(0.5)
    result = task.execute_complete(context(), {"observed": finding.observed})
    assert (result["status"], result["version"], result["counts"]["written.out"]) == ("committed", 0, 9)
    assert verify(pipeline).violations == []
    assert open_log(pipeline.log).head == 0


@pytest.mark.prove
@pytest.mark.spark
def test_task_that_may_not_defer_waits_for_its_driver(pipeline: Pipeline, conn_id: str) -> None:
    result = operator(pipeline, conn_id, deferrable=False, drain=True).execute(context())
    assert (result["status"], result["counts"]["read"]) == ("committed", 9)
    # The run is committed, so nothing is submitted.
    assert operator(pipeline, conn_id, deferrable=True).execute(context()) == result
    assert operator(pipeline, conn_id).execute(context("second"))["status"] == "empty"


@pytest.mark.spark
def test_failed_driver_leaves_the_version_open_and_the_task_reports_it(pipeline: Pipeline, conn_id: str) -> None:
    broken = pipeline.replace(transform="tests.operators.test_submission:nowhere")
    with pytest.raises(StageError, match="stays open"):
        operator(broken, conn_id, deferrable=False).execute(context())
    assert open_log(pipeline.log).log.plan(0) is not None
    assert open_log(pipeline.log).log.outcome(0) is None


def test_hook_of_airflow_has_the_non_public_attributes_that_a_submission_reads(conn_id: str) -> None:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    hook = SparkSubmitHook(conn_id=conn_id)
    missing = [name for name in (PROCESS, *DRIVER_IDS) if not hasattr(hook, name)]
    assert missing == [], "use the new names of this version of the Spark provider in operators/submission.py"


def test_driver_without_progress_is_declared_lost_and_the_retry_may_submit_another(
    pipeline: Pipeline, conn_id: str
) -> None:
    assert plan_run(pipeline, run_key="r") is None
    condition = of_text(to_text(DriverWait(pipeline=pipeline, run_key="r", patience_s=60)))
    planned_ms = open_log(pipeline.log).log.plan(0).planned_at_ms  # type: ignore[union-attr]
    assert not condition.check(clock=ManualClock(now_ms=planned_ms + 59_000)).met
    finding = condition.check(clock=ManualClock(now_ms=planned_ms + 61_000))
    assert (finding.met, finding.observed["stalled"]) == (True, True)
    task = operator(pipeline, conn_id, patience=60)
    with pytest.raises(StageError, match="treats the driver as lost"):
        task.execute_complete(context(), {"observed": finding.observed})
    again = DriverWait(pipeline=pipeline, run_key="r", patience_s=60, since_ms=planned_ms + 100_000)
    assert not again.check(clock=ManualClock(now_ms=planned_ms + 159_000)).met
    assert again.check(clock=ManualClock(now_ms=planned_ms + 161_000)).met


def test_task_waits_for_its_driver_until_the_log_is_quiet_although_the_run_has_no_version(tmp_path: Path) -> None:
    """Another driver would do the same work. The first one may still start, or close a version of another run before it plans its own."""
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(2)
    fixture.run("another")
    decided_ms = fixture.opened().log.closed_outcome(0).decided_at_ms
    waits = {
        since_ms: DriverWait(pipeline=fixture.pipeline(), run_key="r", patience_s=3_600, since_ms=since_ms)
        for since_ms in (decided_ms - 1, decided_ms + 1)
    }

    def met(since_ms: int, after_s: int) -> tuple[bool, bool]:
        found = waits[since_ms].check(clock=ManualClock(now_ms=decided_ms + after_s * 1000))
        return found.met, found.observed["stalled"]

    changed, unchanged = waits
    assert [met(changed, after_s) for after_s in (0, 59, 61)] == [(False, False), (False, False), (True, False)]
    assert [met(unchanged, after_s) for after_s in (61, 3_590, 3_700)] == [(False, False), (False, False), (True, True)]


def test_driver_gets_every_connection_of_the_spec_even_with_nothing_to_plan(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "h:1"}}')
    recorder = ConnectionRecorder()
    recorder.need(pipeline.replace(source=KafkaSource(topics=["t"], conn_id="my_kafka")))
    assert json.loads(recorder.environment()["AIRFLOW_CONN_MY_KAFKA"])["extra"] == {"bootstrap.servers": "h:1"}


@pytest.mark.parametrize("interval", ["0", "soon", "nan"])
def test_invalid_poll_interval_is_refused_before_a_driver_is_submitted(
    pipeline: Pipeline, conn_id: str, monkeypatch: pytest.MonkeyPatch, interval: str
) -> None:
    monkeypatch.setenv("AIRFLOW__STREAMSEM__POLL_INTERVAL", interval)
    with pytest.raises(airflow_exception("AirflowFailException"), match=r"poll_interval.*greater than 0"):
        operator(pipeline, conn_id, deferrable=False).execute(context())
    assert not Path(pipeline.log).exists()


@pytest.mark.parametrize("connection", ['{"conn_type": "spark_connect", "host": "h"}', '{"conn_type": "spark"}', ""])
def test_connection_that_cannot_submit_a_driver_fails_the_task_without_a_retry(
    pipeline: Pipeline, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")

    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", connection)
    with pytest.raises(AirflowFailException, match=r"type spark with a host|no connection with this id"):
        operator(pipeline, "my_spark").execute(context())


def test_connection_that_airflow_finds_at_the_second_lookup_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.bases.hook import BaseHook

    AirflowNotFoundException = airflow_exception("AirflowNotFoundException")

    from airflow_provider_streamsem.hooks.connections import airflow_connection

    monkeypatch.setenv("AIRFLOW_CONN_LATE", '{"conn_type": "kafka", "host": "h"}')
    real, lookups = BaseHook.get_connection, []

    def late(conn_id: str) -> Any:
        lookups.append(conn_id)
        if len(lookups) == 1:
            raise AirflowNotFoundException("the API server did not reply")
        return real(conn_id)

    monkeypatch.setattr(BaseHook, "get_connection", late)
    assert (airflow_connection("late").host, len(lookups)) == ("h", 2)


def test_spark_submit_that_cannot_start_fails_the_task_before_it_defers(
    pipeline: Pipeline, conn_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(StageError, match="spark-submit failed"):
        operator(pipeline, conn_id, deferrable=True).execute(context())


def test_connection_secrets_are_in_the_drivers_environment_and_not_in_its_arguments(pipeline: Pipeline) -> None:
    recorder = ConnectionRecorder()
    recorder.recorded["my_kafka"] = Connection(conn_id="my_kafka", conn_type="kafka", password="hush", extra={"a": 1})
    environment = recorder.environment()
    assert json.loads(environment["AIRFLOW_CONN_MY_KAFKA"])["password"] == "hush"
    assert "hush" not in " ".join(submit_app.arguments(pipeline, run_key="r", drain=True))


def test_secret_in_the_spark_conf_of_spark_submit_is_refused_by_name(pipeline: Pipeline, conn_id: str) -> None:
    task = operator(pipeline, conn_id)
    task.spark_conf = {"spark.hadoop.fs.s3a.secret.key": "hush", "spark.ui.enabled": "false"}
    message = r"fs\.s3a\.secret\.key.*spark-defaults\.conf"
    with pytest.raises(airflow_exception("AirflowFailException"), match=message) as refused:
        task.execute(context())
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"spark_conn_id": None},
        {"rerun": "reprocess"},
        {"spark_master": "local[2]"},
        {"run_in": "somewhere"},
        {"patience": -1},
    ],
)
def test_arguments_that_cannot_be_submitted_are_refused_when_the_dag_is_parsed(
    pipeline: Pipeline, arguments: dict[str, Any]
) -> None:
    task_arguments: dict[str, Any] = {"run_in": "submit", "spark_conn_id": "c", **arguments}
    with pytest.raises(InvalidError):
        MicroBatchOperator(task_id="t", pipeline=pipeline, **task_arguments)


def test_function_of_a_dag_file_cannot_be_submitted(pipeline: Pipeline) -> None:
    from airflow.sdk import DAG, task

    def clean(df: Any) -> Any:
        return df

    with pytest.raises(InvalidError, match="import by its name"):
        operator(pipeline.replace(transform=clean), "c")
    with DAG("d", schedule=None), pytest.raises(InvalidError, match="function of a DAG file"):
        task.micro_batch(pipeline=pipeline.replace(transform=None), run_in="submit", spark_conn_id="c")(clean)()
