"""Sensors as Airflow runs them: poking, rescheduled and deferred, with the answers and the failures that they share."""

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
    RetentionSensor,
)
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.hooks.failures import airflow_exception
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.sensors import condition as module
from airflow_provider_streamsem.stores.memory import open_memory_store
from tests.operators.test_airflow import context
from tests.triggers.listener import listening
from tests.worlds import World

pytestmark = pytest.mark.airflow
_NAMES = count()


@pytest.fixture(scope="module")
def airflow_db() -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow

    initialise_airflow()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, store=open_memory_store(f"sensors-{next(_NAMES)}"))


MADE: dict[str, Callable[..., Any]] = {
    "offsets": lambda world, **given: OffsetsAvailableSensor(pipeline=world.pipeline(), **given),
    "version": lambda world, **given: BatchCommittedSensor(log=world.store.url, version=1, **given),
    "run": lambda world, **given: BatchCommittedSensor(
        pipeline=world.pipeline(),
        run={"dag_id": "d", "task_id": "t", "run_id": "{{ run_id }}"},
        **given,
    ),
    "upto": lambda world, **given: BatchCommittedSensor(log=world.store.url, offsets={"files": 3}, **given),
    "fresh": lambda world, **given: FreshnessSensor(pipeline=world.pipeline(), max_lag=0, **given),
}


def not_yet(world: World, kind: str) -> None:
    """A state in which the sensor waits."""
    world.arrive(2)
    world.run("first")
    if kind == "fresh":
        world.arrive(1)


def meet(world: World, kind: str) -> None:
    """What it waits for."""
    if kind != "fresh":
        world.arrive(1)
    if kind != "offsets":
        world.run('airflow:["d","t","the_run",-1]')


def answer(sensor: Any, given: dict[str, Any]) -> Any:
    """What a task's process, and where it defers the triggerer and then a second process, make of a sensor."""
    TaskDeferred = airflow_exception("TaskDeferred")

    sensor.render_template_fields(given)
    try:
        return sensor.execute(given)
    except TaskDeferred as stopped:
        deferred = stopped
    assert deferred.timeout == timedelta(seconds=sensor.timeout)
    with listening(deferred.trigger) as listener:
        event = listener.next(10)
    return sensor.resume_execution(deferred.method_name, {"event": event}, given)


def run_context() -> dict[str, Any]:
    return context(run_id="the_run")


HOWS = [{"mode": "poke"}, {"deferrable": True}]


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("kind", MADE)
def test_sensors_wait_and_answer_in_small_json(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str, how: dict[str, Any]
) -> None:
    not_yet(world, kind)
    real, looks = module.asked, []

    def looked(question: Any) -> Any:
        looks.append(real(question))
        if len(looks) == 1:
            meet(world, kind)
        return looks[-1]

    monkeypatch.setattr(module, "asked", looked)
    seen = answer(MADE[kind](world, task_id="wait", poke_interval=0.1, timeout=60, **how), run_context())
    assert [look.met for look in looks] == [False, True][: 1 if "deferrable" in how else 2]
    assert (seen["pipeline"], seen["log"]) == ("world", world.store.url)
    assert json.loads(json.dumps(seen)) == seen
    assert len(json.dumps(seen)) < 500
    expected = {
        "offsets": {"version": 0, "ranges": {"files": [2, 3]}, "lag": 1},
        "version": {"version": 1, "outcome": keys.outcome(1)},
        "run": {"version": 1, "run_key": 'airflow:["d","t","the_run",-1]'},
        "upto": {"version": 1, "next": {"files": 3}},
        "fresh": {"version": 1, "lag": 0},
    }
    assert {name: seen[name] for name in expected[kind]} == expected[kind]


@pytest.mark.parametrize("kind", MADE)
def test_rescheduled_sensors_leave_their_slot_and_answer_when_they_come_back(world: World, kind: str) -> None:
    AirflowRescheduleException = airflow_exception("AirflowRescheduleException")

    not_yet(world, kind)
    given = run_context()
    given["ti"].get_first_reschedule_date = lambda context: None
    made = MADE[kind](world, task_id="wait", mode="reschedule", timeout=60)
    made.render_template_fields(given)
    with pytest.raises(AirflowRescheduleException):
        made.execute(given)
    meet(world, kind)
    assert made.execute(given)["version"] == (0 if kind == "offsets" else 1)


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_what_is_met_at_the_first_look_needs_no_triggerer(world: World, how: dict[str, Any]) -> None:
    world.arrive(1)
    world.run()
    made = BatchCommittedSensor(task_id="wait", log=world.store.url, version="{{ 0 }}", **how)
    given = run_context()
    made.render_template_fields(given)
    assert made.execute(given)["version"] == 0


def tell_airflow(dag: Any) -> None:
    """Put a DAG that lies in no file of the bundle into the metadata database."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.serialized_objects import LazyDeserializedDAG, SerializedDAG

    DagBundlesManager().sync_bundles_to_db()
    serialized = LazyDeserializedDAG.from_dag(dag)
    SerializedDAG.bulk_write_to_db("dags-folder", None, [serialized])
    SerializedDagModel.write_dag(serialized, bundle_name="dags-folder")


def test_sensors_on_airflows_own_machinery(world: World, airflow_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One DAG run with a poking, a rescheduled and a deferred sensor; each waits for what is committed after its first look."""
    from airflow.models.xcom import XComModel
    from airflow.sdk import DAG
    from airflow.utils.session import create_session

    from airflow_provider_streamsem.testing.dag_runs import run_dag

    hows = [{"mode": "poke"}, {"mode": "reschedule"}, {"deferrable": True}]
    with DAG("sensing", schedule=None) as dag:
        tasks = [
            BatchCommittedSensor(
                task_id=f"wait_{n}", log=world.store.url, version=n, poke_interval=0.1, timeout=60, **hows[n]
            )
            for n in range(3)
        ]
        tasks[0] >> tasks[1] >> tasks[2]
    real, seen = module.asked, []

    def looked(question: Any) -> Any:
        finding = real(question)
        if finding.met or question.__self__.version not in seen:
            seen.append(question.__self__.version)
            if not finding.met:
                world.arrive(1)
                world.run(f"run {question.__self__.version}")
        return finding

    monkeypatch.setattr(module, "asked", looked)
    tell_airflow(dag)
    assert run_dag(dag, "the_run").state == "success"
    with create_session() as session:
        rows = session.scalars(XComModel.get_many(run_id="the_run", dag_ids="sensing", key="return_value")).all()
        answers = {row.task_id: XComModel.deserialize_value(row) for row in rows}
    assert {task: seen["version"] for task, seen in answers.items()} == {"wait_0": 0, "wait_1": 1, "wait_2": 2}


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_version_that_was_aborted_fails_the_task_at_once(world: World, how: dict[str, Any]) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")
    AirflowSkipException = airflow_exception("AirflowSkipException")

    from airflow_provider_streamsem.batch import maintenance

    world.arrive(1)
    world.dies("dead")
    made = BatchCommittedSensor(task_id="wait", log=world.store.url, version=0, poke_interval=0.1, **how)
    opened = world.opened()
    maintenance.abort(opened.log, opened.record, 0, reason="a bad file")
    with pytest.raises(AirflowFailException, match=r"a bad file.*Do:"):
        answer(made, run_context())
    # Airflow skips a soft_fail sensor that must not be tried again; an alarm that cannot look must not seem to be all well.
    for lenient, raised in (("soft_fail", InvalidError), ("never_fail", AirflowSkipException)):
        made = BatchCommittedSensor(task_id="wait", log=world.store.url, version=0, **{lenient: True}, **how)
        with pytest.raises(raised):
            answer(made, run_context())


@pytest.mark.parametrize("at", ["the first look", "the second look"])
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_errors_end_a_deferred_task_as_they_end_a_poking_one(
    world: World, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], at: str
) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")
    AirflowSkipException = airflow_exception("AirflowSkipException")

    world.run("makes the log")
    errors: list[Any] = []

    def fails(*given: Any) -> Any:
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error
        return []

    monkeypatch.setattr(FilesSource, "listing", fails)

    def ends(error: Exception, **given: Any) -> None:
        errors[:] = [None, error] if at == "the second look" else [error]
        made = OffsetsAvailableSensor(
            task_id="wait", pipeline=world.pipeline(), poke_interval=0.1, timeout=1, **given, **how
        )
        answer(made, run_context())

    transient = UnavailableError("no answer", place="p")
    final = InvalidError("a wrong value", given="x")
    with pytest.raises(UnavailableError, match=r"no answer place='p'\. Do:"):
        ends(transient)
    with pytest.raises(UnavailableError):
        ends(transient, soft_fail=True)
    with pytest.raises(AirflowFailException, match=r"InvalidError: a wrong value given='x'\. Do:"):
        ends(final)
    with pytest.raises(InvalidError):
        ends(final, soft_fail=True)
    with pytest.raises(AirflowSkipException):
        ends(transient, never_fail=True)


@pytest.mark.parametrize("first", ["fails", "finds nothing"])
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_silent_fail_asks_again(world: World, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], first: str) -> None:
    world.run("makes the log")
    world.arrive(1)
    listing, looks = FilesSource.listing, count()

    def fails(*given: Any) -> Any:
        look = next(looks)
        if look == 0 and first == "finds nothing":
            return []
        if look < 3:
            raise UnavailableError("no answer")
        return listing(*given)

    monkeypatch.setattr(FilesSource, "listing", fails)
    made = OffsetsAvailableSensor(
        task_id="wait", pipeline=world.pipeline(), silent_fail=True, poke_interval=0.05, timeout=30, **how
    )
    assert answer(made, run_context())["ranges"] == {"files": [0, 1]}


def test_time_out_of_a_deferred_sensor_is_a_sensors_time_out(world: World) -> None:
    AirflowSensorTimeout = airflow_exception("AirflowSensorTimeout")
    TaskDeferred = airflow_exception("TaskDeferred")

    made = BatchCommittedSensor(task_id="wait", log=world.store.url, version=0, deferrable=True, timeout=7)
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(run_context())
    assert deferred.value.timeout == timedelta(seconds=7)
    with pytest.raises(AirflowSensorTimeout):
        made.resume_execution("__fail__", {"error": "Trigger timeout"}, run_context())


def test_deferring_is_airflows_default_where_nothing_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not MADE["version"](world, task_id="a").deferrable
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert MADE["version"](world, task_id="b").deferrable
    assert not MADE["version"](world, task_id="c", deferrable=False).deferrable


def test_pipelines_of_files_and_templates_are_rendered(world: World) -> None:
    world.arrive(1)
    (world.root / "in").rename(world.root / "the_run")
    moved = FilesSource(path=str(world.root / "the_run"), format="json", schema="id long")
    world.run("makes the log", pipeline=world.pipeline(source=moved))
    world.root.joinpath("p.toml").write_text(
        textwrap.dedent(f"""
        name = "world"
        log = "{world.store.url}"
        [source]
        type = "files"
        path = "{world.root}/{{{{ run_id }}}}"
        format = "json"
        schema = "id long"
        [sinks.out]
        type = "files"
        path = "{world.root}/out"
        format = "json"
        """)
    )
    templated = world.pipeline(
        source=FilesSource(path=f"{world.root}/{{{{ run_id }}}}", format="json", schema="id long")
    )
    for pipeline in (f"{world.root}/{{{{ 'p' }}}}.toml", templated):
        made = FreshnessSensor(task_id="wait", pipeline=pipeline, max_lag=0)
        assert answer(made, run_context())["version"] == 0


def kafka(world: World) -> Any:
    return world.pipeline(source=KafkaSource(topics=["a"], bootstrap_servers="127.0.0.1:1"), limits=Limits())


BAD: list[tuple[Callable[[World], Any], str]] = [
    (lambda world: OffsetsAvailableSensor(task_id="s", pipeline=5), "pipeline must be"),
    (lambda world: OffsetsAvailableSensor(task_id="s", pipeline=""), "pipeline"),
    (lambda world: OffsetsAvailableSensor(task_id="s", pipeline=world.pipeline(), min_rows=5), "together"),
    (lambda world: OffsetsAvailableSensor(task_id="s", pipeline="p.toml", min_rows=5, max_delay=0.5), "whole seconds"),
    (lambda world: OffsetsAvailableSensor(task_id="s", pipeline="p.toml", deferrable="yes"), "deferrable"),
    (
        lambda world: OffsetsAvailableSensor(
            task_id="s", pipeline=world.pipeline(limits=Limits(max_rows=5)), min_rows=6, max_delay=60
        ),
        "must not be above",
    ),
    (lambda world: BatchCommittedSensor(task_id="s", log="/l"), "exactly one"),
    (lambda world: BatchCommittedSensor(task_id="s", log="/l", version=1, run="r"), "exactly one"),
    (lambda world: BatchCommittedSensor(task_id="s", version=1), "either log or pipeline"),
    (lambda world: BatchCommittedSensor(task_id="s", pipeline=5, version=1), "pipeline must be"),
    (lambda world: FreshnessSensor(task_id="s", pipeline=world.pipeline()), "max_lag or max_age"),
    (lambda world: FreshnessSensor(task_id="s", pipeline=world.pipeline(), max_lag=-1), "max_lag"),
    (lambda world: FreshnessSensor(task_id="s", pipeline=world.pipeline(), max_age=True), "max_age"),
    (lambda world: RetentionSensor(task_id="s", pipeline=kafka(world)), "within or records"),
    (lambda world: RetentionSensor(task_id="s", pipeline=kafka(world), records=0), "records"),
    (lambda world: RetentionSensor(task_id="s", pipeline=world.pipeline(), within=60), "no retention"),
]


@pytest.mark.parametrize(("made", "message"), BAD, ids=range(len(BAD)))
def test_bad_arguments_are_named_when_the_dag_is_parsed(
    world: World, made: Callable[[World], Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        made(world)


@pytest.mark.parametrize(
    "given",
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
def test_bad_arguments_that_only_rendering_shows_fail_the_task_at_once(world: World, given: dict[str, Any]) -> None:
    AirflowFailException = airflow_exception("AirflowFailException")

    with pytest.raises(AirflowFailException, match="Do:"):
        answer(BatchCommittedSensor(task_id="wait", log=world.store.url, **given), run_context())


def test_mapped_runs_are_known_by_their_index(world: World) -> None:
    world.arrive(1)
    world.run('airflow:["d","t","r",3]')
    run = {"dag_id": "d", "task_id": "t", "run_id": "r"}
    for index, met in ((3, True), ("3", True), ("-1", False), (None, False)):
        made = BatchCommittedSensor(task_id="wait", log=world.store.url, run={**run, "map_index": index})
        assert bool(made.poke(run_context())) == met
