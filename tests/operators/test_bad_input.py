"""Common mistakes of users: each gives one clear error, is not retried if a retry cannot help, and writes nothing unexpected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSink, FilesSource, KafkaSource, MicroBatchOperator, Pipeline, open_log
from airflow_provider_streamsem.hooks.failures import airflow_exception
from airflow_provider_streamsem.testing.s3 import environment, s3_server
from tests.operators.task_calls import context
from tests.pipeline_fixture import PipelineFixture

pytestmark = pytest.mark.airflow


def base(location: Path) -> Pipeline:
    PipelineFixture(location).arrive(2)
    return Pipeline(
        name="p",
        log=str(location / "log"),
        source=FilesSource(path=str(location / "in"), format="json", schema="id long"),
        sinks={"out": FilesSink(path=str(location / "out"), format="json")},
    )


def missing_kafka_connection(location: Path) -> Pipeline:
    return base(location).replace(source=KafkaSource(topics=["t"], conn_id="nowhere"))


def missing_log_connection(location: Path) -> Pipeline:
    return base(location).replace(log="", log_conn_id="nowhere")


def missing_bucket(location: Path) -> Pipeline:
    return base(location).replace(log="s3://no-such-bucket/log")


def transform_that_cannot_be_imported(location: Path) -> Pipeline:
    return base(location).replace(transform="no.such.module:clean")


def another_source_on_the_same_log(location: Path) -> Pipeline:
    first = base(location)
    MicroBatchOperator(task_id="t", pipeline=first).execute(context("first"))
    (location / "elsewhere").mkdir()
    return first.replace(source=FilesSource(path=str(location / "elsewhere"), format="json", schema="id long"))


@pytest.mark.parametrize(
    ("create", "message", "is_written"),
    [
        (missing_kafka_connection, "no connection with this id", False),
        (missing_log_connection, "no connection with this id", False),
        (missing_bucket, "NoSuchBucket", False),
        (transform_that_cannot_be_imported, "cannot be imported", False),
        (another_source_on_the_same_log, "immutable fields differ", True),
    ],
)
def test_task_fails_without_a_retry_with_one_error_and_its_fix(
    create: Callable[[Path], Pipeline],
    message: str,
    is_written: bool,
    tmp_path: Path,
    rows_engine: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")

    with s3_server(bucket="lake") as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        pipeline = create(tmp_path)
        with pytest.raises(AirflowFailException, match=message) as failed:
            MicroBatchOperator(task_id="t", pipeline=pipeline).execute(context("second"))
    assert "Do:" in str(failed.value)
    plans = [p for p in (tmp_path / "log").rglob("*.p.json")]
    assert len(plans) == (1 if is_written else 0)


@pytest.mark.spark
def test_transform_that_returns_no_dataframe_fails_the_task_and_nothing_is_visible(tmp_path: Path, spark: Any) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")

    pipeline = base(tmp_path).replace(transform=lambda frame: [1, 2])
    with pytest.raises(AirflowFailException, match="neither a DataFrame"):
        MicroBatchOperator(task_id="t", pipeline=pipeline).execute(context())
    assert open_log(pipeline.log).head == -1


def test_independent_pipelines_can_be_mapped(
    tmp_path: Path,
    rows_engine: list[str],
) -> None:
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        spec = base(tmp_path / name).to_json()
        text = f'name = "{spec["name"]}"\nlog = "{spec["log"]}"\n'
        for table, part in (("source", spec["source"]), ("sinks.out", spec["sinks"]["out"])):
            settings = {
                k: v for k, v in part.items() if isinstance(v, (str, int)) and v != "" and not isinstance(v, bool)
            }
            text += f"[{table}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items())
        files.append(str(tmp_path / f"{name}.toml"))
        Path(files[-1]).write_text(text)
    mapped = MicroBatchOperator.partial(task_id="load", drain=True).expand(pipeline=files)
    for index, path in enumerate(files):
        assert mapped.unmap({"pipeline": path}).execute(context(map_index=index))["counts"]["read"] == 6
    assert [open_log(str(tmp_path / name / "log")).head for name in ("a", "b")] == [0, 0]


def test_outlet_without_events_does_not_fail_a_committed_task(
    tmp_path: Path,
    rows_engine: list[str],
) -> None:
    from airflow.providers.common.compat.lineage.entities import File
    from airflow.sdk import Asset

    task_context = context()
    asset = Asset("orders")
    operator = MicroBatchOperator(task_id="t", pipeline=base(tmp_path), outlets=[File(url="/x"), asset])
    assert operator.execute(task_context)["status"] == "committed"
    assert task_context["outlet_events"][asset].extra["rows"] == 6


def test_soft_fail_sensor_fails_on_errors_and_is_skipped_if_its_condition_is_not_met(tmp_path: Path) -> None:
    AirflowSkipException = airflow_exception("AirflowSkipException")

    from airflow_provider_streamsem import FreshnessSensor
    from airflow_provider_streamsem.errors import InvalidError

    def alarm(pipeline: Pipeline) -> FreshnessSensor:
        return FreshnessSensor(task_id="t", pipeline=pipeline, max_lag=0, timeout=0, soft_fail=True, deferrable=False)

    with pytest.raises(AirflowSkipException):
        alarm(base(tmp_path)).execute(context())
    with pytest.raises(InvalidError, match="no connection with this id"):
        alarm(missing_log_connection(tmp_path)).execute(context())
