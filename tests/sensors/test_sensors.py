"""Sensors as Airflow runs them: poking, rescheduled and deferred, with the same results and failures."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import (
    BatchCommittedSensor,
    FilesSource,
    FreshnessSensor,
    KafkaSource,
    Limits,
    OffsetsAvailableSensor,
    PartitionCompleteSensor,
    Partitions,
    Pipeline,
    RetentionSensor,
)
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.hooks.failures import airflow_exception
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.sensors import condition as module
from airflow_provider_streamsem.stores.memory import open_memory_store
from tests.operators.task_calls import context
from tests.pipeline_fixture import PipelineFixture
from tests.triggers.listener import listening

pytestmark = pytest.mark.airflow
_NAMES = count()


@pytest.fixture(scope="module")
def airflow_db() -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow

    initialise_airflow()


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    return PipelineFixture(tmp_path, store=open_memory_store(f"sensors-{next(_NAMES)}"))


SENSORS: dict[str, Callable[..., Any]] = {
    "offsets": lambda fixture, **arguments: OffsetsAvailableSensor(pipeline=fixture.pipeline(), **arguments),
    "version": lambda fixture, **arguments: BatchCommittedSensor(log=fixture.store.url, version=1, **arguments),
    "run": lambda fixture, **arguments: BatchCommittedSensor(
        pipeline=fixture.pipeline(),
        run={"dag_id": "d", "task_id": "t", "run_id": "{{ run_id }}"},
        **arguments,
    ),
    "upto": lambda fixture, **arguments: BatchCommittedSensor(log=fixture.store.url, offsets={"files": 3}, **arguments),
    "fresh": lambda fixture, **arguments: FreshnessSensor(
        pipeline=fixture.pipeline(), max_lag=0, until="{{ '2023-01-01T00:00:00Z' }}", **arguments
    ),
    "partition": lambda fixture, **arguments: PartitionCompleteSensor(
        pipeline=fixture.pipeline(partitions=PARTITIONS), partition="{{ '1970-01-06' }}", **arguments
    ),
}


PARTITIONS = Partitions(by="at", grain="day", after=0)


def partitioned(fixture: PipelineFixture) -> Pipeline:
    """The event time of a record is its id in days since the epoch."""
    day = 86_400_000
    return fixture.pipeline(
        partitions=PARTITIONS, transform=lambda rows: [{**row, "at": row["id"] * day} for row in rows]
    )


def prepare_unmet(fixture: PipelineFixture, kind: str) -> None:
    """Create a state in which the sensor waits."""
    fixture.arrive(2)
    fixture.run("first", pipeline=partitioned(fixture))  # the newest event time is the start of 1970-01-06
    if kind == "fresh":
        fixture.arrive(1)


def meet_condition(fixture: PipelineFixture, kind: str) -> None:
    """Create the state that the sensor waits for."""
    if kind != "fresh":
        fixture.arrive(1)
    if kind != "offsets":
        fixture.run('airflow:["d","t","the_run",-1]', pipeline=partitioned(fixture))


def run_sensor(sensor: Any, task_context: dict[str, Any]) -> Any:
    """Run a sensor in a task's process. If it defers, run its trigger and then resume it."""
    TaskDeferred = airflow_exception("TaskDeferred")

    sensor.render_template_fields(task_context)
    try:
        return sensor.execute(task_context)
    except TaskDeferred as stopped:
        deferred: Any = stopped
    assert deferred.timeout == timedelta(seconds=sensor.timeout)
    with listening(deferred.trigger) as listener:
        event = listener.next(10)
    return sensor.resume_execution(deferred.method_name, {"event": event}, task_context)


def run_context() -> dict[str, Any]:
    return context(run_id="the_run")


MODES = [{"mode": "poke"}, {"deferrable": True}]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("kind", SENSORS)
def test_sensors_wait_and_return_small_json(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch, kind: str, mode: dict[str, Any]
) -> None:
    prepare_unmet(fixture, kind)
    real, violations = module.checked, []

    def check(condition_check: Any) -> Any:
        violations.append(real(condition_check))
        if len(violations) == 1:
            meet_condition(fixture, kind)
        return violations[-1]

    monkeypatch.setattr(module, "checked", check)
    observed = run_sensor(SENSORS[kind](fixture, task_id="wait", poke_interval=0.1, timeout=60, **mode), run_context())
    assert [finding.met for finding in violations] == [False, True][: 1 if "deferrable" in mode else 2]
    assert (observed["pipeline"], observed["log"]) == ("world", fixture.store.url)
    assert json.loads(json.dumps(observed)) == observed
    assert len(json.dumps(observed)) < 500
    expected: dict[str, Any] = {
        "offsets": {"version": 0, "ranges": {"files": [2, 3]}, "lag": 1},
        "version": {"version": 1, "outcome": keys.outcome(1)},
        "run": {"version": 1, "run_key": 'airflow:["d","t","the_run",-1]'},
        "upto": {"version": 1, "next": {"files": 3}},
        "fresh": {"version": 1, "lag": 0},
        "partition": {"version": 1, "partition": "1970-01-06"},
    }
    assert {name: observed[name] for name in expected[kind]} == expected[kind]


@pytest.mark.parametrize("kind", SENSORS)
def test_rescheduled_sensors_release_their_slot_and_succeed_when_they_are_resumed(
    fixture: PipelineFixture, kind: str
) -> None:
    AirflowRescheduleException = airflow_exception("AirflowRescheduleException")

    prepare_unmet(fixture, kind)
    task_context = run_context()
    task_context["ti"].get_first_reschedule_date = lambda context: None
    sensor = SENSORS[kind](fixture, task_id="wait", mode="reschedule", timeout=60)
    sensor.render_template_fields(task_context)
    with pytest.raises(AirflowRescheduleException):
        sensor.execute(task_context)
    meet_condition(fixture, kind)
    assert sensor.execute(task_context)["version"] == (0 if kind == "offsets" else 1)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_condition_met_at_the_first_check_needs_no_triggerer(fixture: PipelineFixture, mode: dict[str, Any]) -> None:
    fixture.arrive(1)
    fixture.run()
    sensor = BatchCommittedSensor(task_id="wait", log=fixture.store.url, version="{{ 0 }}", **mode)
    task_context = run_context()
    sensor.render_template_fields(task_context)
    assert sensor.execute(task_context)["version"] == 0


def register_in_airflow(dag: Any) -> None:
    """Put a DAG without a file into the metadata database."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.serialized_objects import LazyDeserializedDAG, SerializedDAG

    DagBundlesManager().sync_bundles_to_db()
    serialized = LazyDeserializedDAG.from_dag(dag)
    SerializedDAG.bulk_write_to_db("dags-folder", None, [serialized])
    SerializedDagModel.write_dag(serialized, bundle_name="dags-folder")


def test_sensors_run_with_airflows_task_execution(
    fixture: PipelineFixture, airflow_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run one DAG with a poking, a rescheduled and a deferred sensor. Each waits for a commit after its first check."""
    from airflow.models.xcom import XComModel
    from airflow.sdk import DAG
    from airflow.utils.session import create_session

    from airflow_provider_streamsem.testing.dag_runs import run_dag

    modes = [{"mode": "poke"}, {"mode": "reschedule"}, {"deferrable": True}]
    with DAG("sensing", schedule=None) as dag:
        tasks = [
            BatchCommittedSensor(
                task_id=f"wait_{n}", log=fixture.store.url, version=n, poke_interval=0.1, timeout=60, **modes[n]
            )
            for n in range(3)
        ]
        tasks[0] >> tasks[1] >> tasks[2]
    real, versions = module.checked, []

    def check(condition_check: Any) -> Any:
        finding = real(condition_check)
        if finding.met or condition_check.__self__.version not in versions:
            versions.append(condition_check.__self__.version)
            if not finding.met:
                fixture.arrive(1)
                fixture.run(f"run {condition_check.__self__.version}")
        return finding

    monkeypatch.setattr(module, "checked", check)
    register_in_airflow(dag)
    assert run_dag(dag, "the_run").state == "success"
    with create_session() as session:
        rows = session.scalars(XComModel.get_many(run_id="the_run", dag_ids="sensing", key="return_value")).all()
        return_values = {row.task_id: XComModel.deserialize_value(row) for row in rows}
    assert {task: value["version"] for task, value in return_values.items()} == {"wait_0": 0, "wait_1": 1, "wait_2": 2}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_aborted_version_fails_the_task_without_a_retry(fixture: PipelineFixture, mode: dict[str, Any]) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")
    AirflowSkipException = airflow_exception("AirflowSkipException")

    from airflow_provider_streamsem.pipeline.maintenance.abort import abort

    fixture.arrive(1)
    fixture.dies("dead")
    sensor = BatchCommittedSensor(task_id="wait", log=fixture.store.url, version=0, poke_interval=0.1, **mode)
    opened = fixture.opened()
    abort(opened.log, opened.record, 0, reason="a bad file")
    with pytest.raises(AirflowFailException, match=r"a bad file.*Do:"):
        run_sensor(sensor, run_context())
    # Airflow skips a soft_fail sensor on AirflowFailException. A failing alarm must not be skipped.
    for setting, raised in (("soft_fail", InvalidError), ("never_fail", AirflowSkipException)):
        sensor = BatchCommittedSensor(task_id="wait", log=fixture.store.url, version=0, **{setting: True}, **mode)
        with pytest.raises(raised):
            run_sensor(sensor, run_context())


@pytest.mark.parametrize("at", ["the first check", "the second check"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_errors_end_a_deferred_sensor_like_a_poking_one(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any], at: str
) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")
    AirflowSkipException = airflow_exception("AirflowSkipException")

    fixture.run("creates the log")
    errors: list[Any] = []

    def fails(*given: Any) -> Any:
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error
        return []

    monkeypatch.setattr(FilesSource, "listing", fails)

    def run_with_error(error: Exception, **arguments: Any) -> None:
        errors[:] = [None, error] if at == "the second check" else [error]
        sensor = OffsetsAvailableSensor(
            task_id="wait", pipeline=fixture.pipeline(), poke_interval=0.1, timeout=1, **arguments, **mode
        )
        run_sensor(sensor, run_context())

    transient = UnavailableError("no reply", location="p")
    final = InvalidError("a wrong value", given="x")
    with pytest.raises(UnavailableError, match=r"no reply \(location='p'\)\. Do:"):
        run_with_error(transient)
    with pytest.raises(UnavailableError):
        run_with_error(transient, soft_fail=True)
    with pytest.raises(AirflowFailException, match=r"InvalidError: a wrong value \(given='x'\)\. Do:"):
        run_with_error(final)
    with pytest.raises(InvalidError):
        run_with_error(final, soft_fail=True)
    for error in (transient, final):
        with pytest.raises(AirflowSkipException):
            run_with_error(error, never_fail=True)


@pytest.mark.parametrize("first", ["fails", "finds nothing"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_silent_fail_sensor_checks_again_after_errors(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any], first: str
) -> None:
    fixture.run("creates the log")
    fixture.arrive(1)
    listing, violations = FilesSource.listing, count()

    def fails(*given: Any) -> Any:
        index = next(violations)
        if index == 0 and first == "finds nothing":
            return []
        if index < 3:
            raise UnavailableError("no reply")
        return listing(*given)

    monkeypatch.setattr(FilesSource, "listing", fails)
    sensor = OffsetsAvailableSensor(
        task_id="wait", pipeline=fixture.pipeline(), silent_fail=True, poke_interval=0.05, timeout=30, **mode
    )
    assert run_sensor(sensor, run_context())["ranges"] == {"files": [0, 1]}


def test_timeout_of_a_deferred_sensor_raises_airflow_sensor_timeout(fixture: PipelineFixture) -> None:
    AirflowSensorTimeout = airflow_exception("AirflowSensorTimeout")
    TaskDeferred = airflow_exception("TaskDeferred")

    sensor = BatchCommittedSensor(task_id="wait", log=fixture.store.url, version=0, deferrable=True, timeout=7)
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute(run_context())
    deferred: Any = caught.value
    assert deferred.timeout == timedelta(seconds=7)
    with pytest.raises(AirflowSensorTimeout):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, run_context())


@pytest.mark.parametrize("setting", ["soft_fail", "never_fail"])
def test_timeout_of_a_deferred_sensor_skips_the_task_if_so_set(fixture: PipelineFixture, setting: str) -> None:
    sensor = BatchCommittedSensor(
        task_id="wait", log=fixture.store.url, version=0, deferrable=True, timeout=7, **{setting: True}
    )
    with pytest.raises(airflow_exception("AirflowSkipException")):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, run_context())


def test_sensors_use_airflows_default_for_deferrable(fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not SENSORS["version"](fixture, task_id="a").deferrable
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert SENSORS["version"](fixture, task_id="b").deferrable
    assert not SENSORS["version"](fixture, task_id="c", deferrable=False).deferrable


def test_pipeline_files_and_templates_are_rendered(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    (fixture.root / "in").rename(fixture.root / "the_run")
    moved = FilesSource(path=str(fixture.root / "the_run"), format="json", schema="id long")
    fixture.run("creates the log", pipeline=fixture.pipeline(source=moved))
    fixture.root.joinpath("p.toml").write_text(
        textwrap.dedent(f"""
        name = "world"
        log = "{fixture.store.url}"
        [source]
        type = "files"
        path = "{fixture.root}/{{{{ run_id }}}}"
        format = "json"
        schema = "id long"
        [sinks.out]
        type = "files"
        path = "{fixture.root}/out"
        format = "json"
        """)
    )
    templated = fixture.pipeline(
        source=FilesSource(path=f"{fixture.root}/{{{{ run_id }}}}", format="json", schema="id long")
    )
    for pipeline in (f"{fixture.root}/{{{{ 'p' }}}}.toml", templated):
        sensor = FreshnessSensor(task_id="wait", pipeline=pipeline, max_lag=0)
        assert run_sensor(sensor, run_context())["version"] == 0


def kafka(fixture: PipelineFixture) -> Any:
    return fixture.pipeline(source=KafkaSource(topics=["a"], bootstrap_servers="127.0.0.1:1"), limits=Limits())


INVALID_SENSORS: list[tuple[Callable[[PipelineFixture], Any], str]] = [
    (lambda fixture: OffsetsAvailableSensor(task_id="s", pipeline=5), "pipeline must be"),
    (lambda fixture: OffsetsAvailableSensor(task_id="s", pipeline=""), "pipeline"),
    (lambda fixture: OffsetsAvailableSensor(task_id="s", pipeline=fixture.pipeline(), min_rows=5), "together"),
    (
        lambda fixture: OffsetsAvailableSensor(task_id="s", pipeline="p.toml", min_rows=5, max_delay=0.5),
        "whole seconds",
    ),
    (lambda fixture: OffsetsAvailableSensor(task_id="s", pipeline="p.toml", deferrable="yes"), "deferrable"),
    (
        lambda fixture: OffsetsAvailableSensor(
            task_id="s", pipeline=fixture.pipeline(limits=Limits(max_rows=5)), min_rows=6, max_delay=60
        ),
        "must not be above",
    ),
    (lambda fixture: BatchCommittedSensor(task_id="s", log="/l"), "exactly one"),
    (lambda fixture: BatchCommittedSensor(task_id="s", log="/l", version=1, run="r"), "exactly one"),
    (lambda fixture: BatchCommittedSensor(task_id="s", version=1), "exactly one of log and pipeline"),
    (lambda fixture: BatchCommittedSensor(task_id="s", pipeline=5, version=1), "pipeline must be"),
    (lambda fixture: FreshnessSensor(task_id="s", pipeline=fixture.pipeline()), "max_lag, max_age"),
    (lambda fixture: FreshnessSensor(task_id="s", pipeline=fixture.pipeline(), until="2026-01-31"), "with a zone"),
    (lambda fixture: FreshnessSensor(task_id="s", pipeline=fixture.pipeline(), until="soon"), "with a zone"),
    (
        lambda fixture: FreshnessSensor(task_id="s", pipeline=fixture.pipeline(), watermark="{{ ds }}"),
        "no watermark",
    ),
    (lambda fixture: FreshnessSensor(task_id="s", pipeline=fixture.pipeline(), max_lag=-1), "max_lag"),
    (lambda fixture: FreshnessSensor(task_id="s", pipeline=fixture.pipeline(), max_age=True), "max_age"),
    (lambda fixture: RetentionSensor(task_id="s", pipeline=kafka(fixture)), "within or records"),
    (lambda fixture: RetentionSensor(task_id="s", pipeline=kafka(fixture), records=0), "records"),
    (lambda fixture: RetentionSensor(task_id="s", pipeline=fixture.pipeline(), within=60), "no retention"),
]


@pytest.mark.parametrize(("create", "message"), INVALID_SENSORS, ids=range(len(INVALID_SENSORS)))
def test_invalid_arguments_are_reported_when_the_dag_is_parsed(
    fixture: PipelineFixture, create: Callable[[PipelineFixture], Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        create(fixture)


@pytest.mark.parametrize(
    "arguments",
    [
        {"version": "next"},
        {"version": -1},
        {"run": ""},
        {"run": {"dag_id": "d"}},
        {"run": {"dag_id": "d", "task_id": "t", "run_id": "r", "try": 1}},
        {"run": {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": "x"}},
        {"offsets": {}},
        {"offsets": "files"},
        {"offsets": {"files": "many"}},
    ],
    ids=str,
)
def test_invalid_rendered_arguments_fail_the_task_without_a_retry(
    fixture: PipelineFixture, arguments: dict[str, Any]
) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")

    with pytest.raises(AirflowFailException, match="Do:"):
        run_sensor(BatchCommittedSensor(task_id="wait", log=fixture.store.url, **arguments), run_context())


def test_mapped_runs_are_identified_by_their_index(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run('airflow:["d","t","r",3]')
    run = {"dag_id": "d", "task_id": "t", "run_id": "r"}
    for index, met in ((3, True), ("3", True), ("-1", False), (None, False)):
        sensor = BatchCommittedSensor(task_id="wait", log=fixture.store.url, run={**run, "map_index": index})
        assert bool(sensor.poke(run_context())) == met
