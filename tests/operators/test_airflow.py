"""The provider in Airflow: discovery, DAG parsing, runs, retries and clears."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, open_log
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.get_provider_info import get_provider_info
from airflow_provider_streamsem.hooks.failures import airflow_exception
from tests.operators.task_calls import context, operator
from tests.pipeline_fixture import PipelineFixture
from tests.releases import since
from tests.timed_fixture import DAYS, TimedFixture

pytestmark = pytest.mark.airflow
ROOT = Path(__file__).parents[2]


def test_airflow_lists_the_provider() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "get", "airflow-provider-streamsem", "--full", "-o", "json"],
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    for component in ("task-decorators", "micro_batch", "asset-uris", "sensors.freshness", "triggers.offsets"):
        assert component in process.stdout


def test_classes_named_in_the_provider_info_exist() -> None:
    from importlib import import_module

    info = get_provider_info()
    assert info["package-name"] == "airflow-provider-streamsem"
    for entry in info["task-decorators"]:
        module, _, name = entry["class-name"].rpartition(".")
        assert callable(getattr(import_module(module), name))
    for kind in ("operators", "sensors", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                import_module(module)


def test_operator_returns_small_json_and_emits_asset_events(fixture: PipelineFixture, rows_engine: list[str]) -> None:
    from airflow.sdk import Asset

    asset = Asset("orders")
    task_context = context()
    result = operator(fixture, outlets=[asset]).execute(task_context)
    assert json.loads(json.dumps(result)) == result
    assert (result["status"], result["version"], result["ranges"]) == ("committed", 0, {"files": [0, 2]})
    assert result["counts"]["read"] == 6
    assert len(json.dumps(result)) < 1_000
    assert task_context["outlet_events"][asset].extra == {**result, "rows": 6, "manifest": result["outcome"]}


@pytest.mark.parametrize("announce_empty", [False, True])
def test_run_that_found_nothing_to_read_emits_an_asset_event_only_on_request(
    fixture: PipelineFixture, rows_engine: list[str], announce_empty: bool
) -> None:
    from airflow.sdk import Asset

    asset = Asset("orders")
    for run_id, outlets in (("first", [asset]), ("second", [asset] if announce_empty else [])):
        task = operator(fixture, outlets=[asset], drain=True, announce_empty=announce_empty)
        task_context = context(run_id)
        assert task.execute(task_context)["status"] == ("committed" if run_id == "first" else "empty")
        assert task.outlets == outlets, "Airflow emits an event for each of them"
    assert (task_context["outlet_events"][asset].extra != {}) == announce_empty


@since("3.3", "partition keys of events")
def test_partition_key_is_rendered_from_the_result_and_only_after_a_commit(
    fixture: PipelineFixture, rows_engine: list[str]
) -> None:
    from airflow.sdk import Asset

    asset = Asset("orders")
    task = operator(fixture, outlets=[asset], partition_key="{{ pipeline }}-{{ version }}", drain=True)
    for run_id, keys in (("first", {"world-1"}), ("second", set())):
        task_context = context(run_id)
        task.execute(task_context)
        assert task_context["outlet_events"][asset].partition_keys == keys


def test_asset_event_of_a_task_that_completes_another_runs_version_includes_its_rows(
    fixture: PipelineFixture, rows_engine: list[str]
) -> None:
    from airflow.sdk import Asset

    asset = Asset("orders")
    fixture.dies("a task that failed")
    task_context = context()
    result = operator(fixture, outlets=[asset], drain=True).execute(task_context)
    extra = task_context["outlet_events"][asset].extra
    assert (extra["status"], extra["rows"], extra["versions"]) == ("committed", 9, [0, 2])
    assert [(version["version"], version["run_key"]) for version in extra["completed"]] == [(0, "a task that failed")]
    assert (extra["version"], extra["counts"]["read"]) == (1, 3)
    task_context = context()
    assert operator(fixture, outlets=[asset], drain=True).execute(task_context) == result
    assert task_context["outlet_events"][asset].extra == extra


@since("3.3", "partition keys of events")
def test_partition_key_is_text_and_one_that_cannot_be_rendered_is_reported(
    fixture: PipelineFixture, rows_engine: list[str]
) -> None:
    from airflow.exceptions import AirflowFailException
    from airflow.sdk import DAG, Asset

    asset = Asset("orders")
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        task = operator(fixture, outlets=[asset], partition_key="2026_{{ version }}")
    task_context = context()
    task.execute(task_context)
    assert task_context["outlet_events"][asset].partition_keys == {"2026_0"}
    with pytest.raises(AirflowFailException, match="cannot be rendered"):
        operator(fixture, outlets=[asset], partition_key="{{ ds }}").execute(context())


@since("3.3", "partition keys of events")
def test_each_completed_version_has_a_partition_key(fixture: PipelineFixture, rows_engine: list[str]) -> None:
    from airflow.sdk import Asset

    asset = Asset("orders")
    fixture.dies("a task that failed")
    task_context = context()
    operator(fixture, outlets=[asset], partition_key="{{ version }}-{{ counts['read'] }}").execute(task_context)
    assert task_context["outlet_events"][asset].partition_keys == {"0-6", "1-3"}


@since("3.3", "partition keys of events")
def test_each_partition_that_became_complete_is_a_partition_key(tmp_path: Path, rows_engine: list[str]) -> None:
    from airflow.sdk import Asset

    fixture, asset = TimedFixture(tmp_path), Asset("orders")
    for run_id, hours, keys in (
        ("a", [1], set()),
        ("b", [50], {f"{day}T00:00:00" for day in DAYS[:2]}),
        ("c", [51], set()),
    ):
        fixture.arrives(*hours)
        task_context = context(run_id)
        task = operator(fixture, outlets=[asset], partition_key="complete_partitions", drain=True)
        result = task.execute(task_context)
        assert task_context["outlet_events"][asset].partition_keys == keys == {*result["complete_partitions"]}


def test_partition_key_is_refused_by_airflow_releases_without_it(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import airflow.sdk

    monkeypatch.setattr(airflow.sdk, "__all__", [name for name in airflow.sdk.__all__ if "Partition" not in name])
    with pytest.raises(InvalidError, match=r"Airflow 3\.3"):
        operator(fixture, partition_key="{{ version }}")


def test_retry_and_clear_return_the_committed_result_without_calling_the_engine(
    fixture: PipelineFixture, rows_engine: list[str]
) -> None:
    first = operator(fixture).execute(context())
    rows_engine.clear()
    assert operator(fixture).execute(context(try_number=2)) == first
    assert rows_engine == ["created"]


def test_cleared_task_with_rerun_reprocess_reprocesses_once_however_often_it_is_retried(
    fixture: PipelineFixture, rows_engine: list[str]
) -> None:
    task = operator(fixture, rerun="reprocess", drain=True, retries=2)
    first = task.execute(context(max_tries=2))
    assert task.execute(context(try_number=2, max_tries=2)) == first
    reprocessed = task.execute(context(try_number=2, max_tries=3))
    assert (reprocessed["version"], reprocessed["ranges"], reprocessed["counts"]) == (
        3,
        first["ranges"],
        first["counts"],
    )
    assert task.execute(context(try_number=3, max_tries=3)) == reprocessed
    assert task.execute(context(try_number=4, max_tries=5))["version"] == 5
    fixture.check()


def test_spark_and_kafka_are_found_through_airflow_connections(
    fixture: PipelineFixture, rows_engine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.connections import connection
    from airflow_provider_streamsem.errors import InvalidError
    from airflow_provider_streamsem.spark import spark_engine as spark
    from airflow_provider_streamsem.testing.rows import RowsEngine

    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", '{"conn_type": "spark", "host": "spark://h", "port": 7077}')
    monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "h:1"}}')
    looked_up: list[object] = []
    task = operator(fixture, spark_conn_id="my_spark")
    monkeypatch.setattr(
        spark,
        "SparkEngine",
        lambda **settings: (
            looked_up.append(settings),
            RowsEngine(lambda step: looked_up.append(connection("my_kafka").extra)),
        )[1],
    )
    task.execute(context())
    assert looked_up[0] == {"master": "spark://h:7077", "conf": {}, "packages": None, "logs_to_stdout": True}
    assert looked_up[1] == {"bootstrap.servers": "h:1"}
    with pytest.raises(Exception, match="no connection with this id"):
        operator(fixture, spark_conn_id="nowhere").execute(context())
    with pytest.raises(InvalidError, match="exclude"):
        operator(fixture, spark_conn_id="my_spark", spark_master="yarn")


def test_runs_and_mapped_tasks_have_different_run_keys(fixture: PipelineFixture, rows_engine: list[str]) -> None:
    versions = [
        operator(fixture).execute(context(run_id=run, map_index=index))["version"]
        for run, index in (("a", 0), ("a", 1), ("a", 0))
    ]
    assert versions == [0, 1, 0]
    fixture.check()


def test_pipeline_file_and_templates_inside_a_pipeline_are_rendered(
    fixture: PipelineFixture, rows_engine: list[str]
) -> None:
    pipeline = fixture.pipeline(
        source=FilesSource(path=str(fixture.root / "{{ run_id }}"), format="json", schema="id long")
    )
    (fixture.root / "in").rename(fixture.root / "r")
    assert operator(fixture, pipeline=pipeline).execute(context())["counts"]["read"] == 6
    path = fixture.root / "p.toml"
    path.write_text(
        textwrap.dedent(f"""
        name = "world"
        log = "{fixture.root}/log"
        [source]
        type = "files"
        path = "{fixture.root}/r"
        format = "json"
        schema = "id long"
        [sinks.out]
        type = "files"
        path = "{fixture.root}/out"
        format = "json"
        """)
    )
    assert operator(fixture, pipeline=str(path)).execute(context("second"))["counts"]["read"] == 3


def test_template_renders_to_text_in_a_dag_with_native_objects(fixture: PipelineFixture) -> None:
    from airflow.sdk import DAG

    from airflow_provider_streamsem.operators.micro_batch import MicroBatchOperator

    sinks = {"out": FilesSink("/out/{{ ds }}/{{ '0x10' }}")}
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        task = MicroBatchOperator(task_id="t", pipeline=fixture.pipeline(sinks=sinks))
    (sink,) = task.rendered_pipeline({"ds": "20240101_05"}).sinks.values()
    assert isinstance(sink, FilesSink)
    assert sink.path == "/out/20240101_05/0x10"


def test_pipeline_file_below_its_required_guarantee_is_refused_when_the_dag_is_parsed(
    fixture: PipelineFixture,
) -> None:
    path = fixture.root / "p.toml"
    path.write_text(
        textwrap.dedent(f"""
        name = "world"
        log = "{fixture.root}/log"
        require = "exactly_once"
        [source]
        type = "files"
        path = "{fixture.root}/in"
        format = "json"
        schema = "id long"
        [sinks.out]
        type = "http"
        staging = "{fixture.root}/staged"
        url = "http://127.0.0.1/effects"
        """)
    )
    with pytest.raises(InvalidError, match="weaker than it requires"):
        operator(fixture, pipeline=str(path))


@pytest.mark.parametrize("rerun", ["resume", "reprocess"])
def test_every_run_logs_the_guarantee(
    fixture: PipelineFixture, rows_engine: list[str], caplog: pytest.LogCaptureFixture, rerun: str
) -> None:
    operator(fixture).execute(context())
    caplog.clear()
    caplog.set_level(logging.INFO)
    operator(fixture, rerun=rerun).execute(context(try_number=2, max_tries=1))
    guarantees = [message for message in caplog.messages if message.startswith("guarantee: ")]
    assert (
        guarantees
        == ["guarantee: exactly-once (unchanged files) (`streamsem explain` says why)"]
        * {"resume": 1, "reprocess": 2}[rerun]
    )


def test_task_with_a_changed_spec_fails_without_a_retry_until_it_alters_the_log(
    fixture: PipelineFixture, rows_engine: list[str]
) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")

    operator(fixture).execute(context())
    changed = fixture.pipeline(
        sinks={**fixture.pipeline().sinks, "more": FilesSink(path=str(fixture.root / "more"), format="json")}
    )
    fixture.arrive(1)
    with pytest.raises(AirflowFailException, match="set alter_from of the operator") as raised:
        operator(fixture, pipeline=changed).execute(context("b"))
    found = re.search("config='([0-9a-f]{12})'", str(raised.value))
    assert found is not None
    for run_id in ("b", "c"):
        operator(fixture, pipeline=changed, alter_from=found[1]).execute(context(run_id))
        fixture.arrive(1)
    kinds = [version.plan.work.kind for version in fixture.opened().versions(newest_first=False)]
    assert kinds == ["batch", "alter", "batch", "batch"]
    with pytest.raises(AirflowFailException):
        operator(fixture).execute(context("d"))


def test_permanent_error_fails_the_task_without_a_retry(fixture: PipelineFixture, rows_engine: list[str]) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")

    (fixture.root / "out").mkdir()
    (fixture.root / "out" / "_streamsem.json").write_text("{}")
    with pytest.raises(AirflowFailException, match="Do:"):
        operator(fixture).execute(context())


def test_retryable_error_is_raised_unchanged(
    fixture: PipelineFixture, rows_engine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.errors import UnavailableError
    from airflow_provider_streamsem.operators import micro_batch

    def fails(*args: object, **kwargs: object) -> None:
        raise UnavailableError("no reply")

    monkeypatch.setattr(micro_batch, "run_batch", fails)
    with pytest.raises(UnavailableError):
        operator(fixture).execute(context())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pipeline": 5}, "pipeline"),
        ({"drain": "yes"}, "drain"),
        ({"rerun": "sometimes"}, "resume"),
        ({"pipeline": ""}, "pipeline"),
    ],
)
def test_invalid_arguments_are_reported_when_the_dag_is_parsed(
    fixture: PipelineFixture, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        operator(fixture, **arguments)


def decorated(function: Any, pipeline: Pipeline, *args: Any, **kwargs: Any) -> Any:
    from airflow.sdk import DAG, task

    with DAG("d", schedule=None):
        return task.micro_batch(pipeline=pipeline)(function)(*args, **kwargs).operator


def test_decorated_function_is_the_transform_and_gets_its_keyword_arguments(
    fixture: PipelineFixture, rows_engine: list[str]
) -> None:
    received = []

    def clean(rows: list[dict[str, int]], *, least: int) -> list[dict[str, int]]:
        received.append(least)
        return [row for row in rows if row["id"] >= least]

    task = decorated(clean, fixture.pipeline(), least=4)
    assert task.execute(context())["counts"]["written.out"] == 2
    assert received == [4]
    outcome = open_log(str(fixture.root / "log")).log.outcome(0) or pytest.fail("no outcome")
    assert outcome.transform.endswith("clean")


def test_invalid_transform_functions_are_refused_when_the_dag_is_parsed(fixture: PipelineFixture) -> None:
    def no_frame() -> None: ...

    def clean(df: Any) -> Any:
        return df

    with pytest.raises(InvalidError, match="must take a DataFrame"):
        decorated(no_frame, fixture.pipeline())
    with pytest.raises(InvalidError, match="receives its DataFrame"):
        decorated(clean, fixture.pipeline(), 1)
    with pytest.raises(InvalidError, match="receives its DataFrame"):
        decorated(clean, fixture.pipeline(), df=1)


def test_pipeline_with_a_transform_is_refused_by_the_decorator(fixture: PipelineFixture) -> None:
    def clean(df: Any) -> Any:
        return df

    with pytest.raises(InvalidError, match="must not have a transform"):
        decorated(clean, fixture.pipeline(transform="m:f"))


def test_serialized_dag_is_the_same_in_every_process() -> None:
    code = textwrap.dedent("""
        import json, sys
        from streamsem_event_driven import streamsem_event_driven
        from streamsem_quickstart import streamsem_quickstart
        from tests.releases import serialization
        dags = [serialization().to_dict(dag()) for dag in (streamsem_event_driven, streamsem_quickstart)]
        print("DAGS:" + json.dumps(dags, sort_keys=True, default=str))
    """)
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['AIRFLOW__CORE__DAGS_FOLDER']}:{ROOT}"}

    def serialized() -> str:
        process = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
        )
        return next(line for line in process.stdout.splitlines() if line.startswith("DAGS:"))

    texts = {serialized() for _ in range(2)}
    assert len(texts) == 1
    assert " at 0x" not in texts.pop()


@pytest.mark.prove  # `make demo` runs the same DAG with kills, retries and a clear
@pytest.mark.spark
def test_quickstart_dag_runs_retries_continues_and_clears(
    tmp_path: Path, airflow_db: None, spark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the example DAG with Airflow's task execution and real Spark: a failed try, a retry, a second run, a clear."""
    from demo import arrivals

    monkeypatch.setenv("STREAMSEM_QUICKSTART_HOME", str(tmp_path))
    monkeypatch.setenv("STREAMSEM_QUICKSTART_LOG", str(tmp_path / "log"))
    monkeypatch.syspath_prepend(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    sys.modules.pop("streamsem_quickstart", None)
    import streamsem_quickstart

    from airflow_provider_streamsem.spark import staging
    from airflow_provider_streamsem.testing.dag_runs import run_dag

    days = arrivals.write_days(tmp_path / "waiting")
    arrivals.arrive(days[:61], tmp_path / "arrivals")
    real, tries = staging.Staging.run, []

    def fails_once(self: Any) -> Any:
        tries.append(self.job.attempt_id)
        if len(tries) == 2:
            raise OSError("the JVM died")
        return real(self)

    monkeypatch.setattr(staging.Staging, "run", fails_once)
    dag = streamsem_quickstart.streamsem_quickstart()
    assert run_dag(dag, "first").state == "success"
    assert len(tries) == len(set(tries)) == 3
    opened = open_log(str(tmp_path / "log"))
    assert (opened.head, sum(f.rows for f in opened.files())) == (1, opened.view().counts["written.flights"])
    assert run_dag(dag, "first", clear=["clean"]).state == "success"
    assert (opened.head, len(tries)) == (1, 3)
    arrivals.arrive(days[61:63], tmp_path / "arrivals")
    assert run_dag(dag, "second").state == "success"
    assert opened.head == 2
    from airflow_provider_streamsem import verify

    assert verify(str(tmp_path / "log")).violations == []


def test_errors_declare_whether_they_are_retryable() -> None:
    from airflow_provider_streamsem import errors

    kinds = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, StreamsemError) and cls is not StreamsemError
    ]
    assert {cls.__name__ for cls in kinds if cls.retryable} == {
        "UnavailableError",
        "StageError",
        "HeldVersionError",
        "OpenVersionError",
        "LogMovingError",
    }


def test_spark_conf_of_a_pipeline_file_reaches_the_session_and_the_task_overrides_it(
    fixture: PipelineFixture, tmp_path: Path
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(
        f'name = "p"\nlog = "{tmp_path}/log"\n[source]\ntype = "files"\npath = "{tmp_path}/in"\nformat = "text"\n'
        f'[sinks.out]\ntype = "files"\npath = "{tmp_path}/out"\n[spark_conf]\n"a.b" = "file"\n"a.c" = "file"\n'
    )
    engine = operator(fixture, pipeline=str(path), spark_conf={"a.c": "task"}).engine()
    assert engine._conf == {"a.b": "file", "a.c": "task"}  # type: ignore[attr-defined]
