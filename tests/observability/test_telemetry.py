"""What a run tells of itself, and that telling changes nothing."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.batch import maintenance
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.telemetry import (
    Adopted,
    Began,
    Decided,
    Ended,
    Event,
    Looked,
    Output,
    Planned,
    Requested,
    Staged,
    heard_by,
)
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.worlds import BeforeOutcome, World, die


def told_by(world: World, *arguments: Any, **named: Any) -> list[Any]:
    told: list[Event] = []
    with heard_by(told.append):
        world.run(*arguments, **named)
    return told


def of(kind: type[Any], told: list[Any]) -> list[Any]:
    return [event for event in told if isinstance(event, kind)]


def shape(told: list[Any]) -> list[str]:
    """The run's phases with what happened in them, requests left out."""
    words = {Began: "(", Ended: ")"}
    return [
        words.get(type(event), type(event).__name__) + getattr(event, "phase", "")
        for event in told
        if not isinstance(event, Requested)
    ]


def test_run_tells_its_phases_in_order_and_each_that_begins_ends(world: World) -> None:
    world.arrive(1)
    assert " ".join(shape(told_by(world, "a"))) == (
        "(run (plan Looked )plan Planned (stage (collect )collect Staged )stage (decide Decided )decide )run"
    )


def test_phases_know_pipeline_run_version_and_attempt(world: World) -> None:
    world.arrive(3)
    told = told_by(world, "a", drain=True)
    (decided, _) = of(Decided, told)
    facts = {event.phase: dict(event.facts) for event in reversed(of(Began, told))}
    run = {"pipeline": "world", "run_key": "a"}
    batch = {**run, "version": 0, "attempt_id": decided.attempt_id}
    assert facts == {"run": run, "plan": {**run, "version": 0}, "stage": batch, "collect": batch, "decide": batch}


def test_decision_tells_what_is_stored(world: World) -> None:
    world.arrive(2, bad_lines=1)
    told = told_by(world, "a")
    (decided,) = of(Decided, told)
    stored, _ = world.log().outcome(0) or pytest.fail("no outcome")
    assert (decided.mine, decided.lost, decided.result) == (True, False, "commit")
    assert decided.attempt_id == stored.attempt_id
    assert decided.counts == stored.counts == of(Staged, told)[0].counts
    assert decided.ranges == of(Planned, told)[0].ranges == {"files": (0, 2)}
    files = stored.sinks["out"].files
    assert decided.outputs == {"out": Output(rows=6, bytes=sum(f.bytes for f in files), files=len(files))}


def test_lag_is_what_the_planner_saw(world: World) -> None:
    world.arrive(5)
    told = told_by(world, "a")
    (looked,), (decided,) = of(Looked, told), of(Decided, told)
    assert (looked.behind(looked.committed), looked.behind(decided.next)) == (5, 3)


def test_listening_costs_no_request(world: World, tmp_path: Path) -> None:
    def requests(world: World, listeners: list[telemetry.Listener]) -> list[tuple[str, str]]:
        world.arrive(5)
        counting = CountingStore(world.store)
        with heard_by(*listeners):
            world.run("a", drain=True, store=counting)
        # The worlds differ in their paths, and so do the digests in these keys.
        digests = re.compile("^(specs|genesis|sources)/[0-9a-f]+")
        return [(method, digests.sub(r"\1/ID", key)) for method, key in counting.keys]

    other = World(tmp_path / "other")
    assert requests(world, [lambda event: None]) == requests(other, [])


def test_run_that_finds_nothing_new_tells_that_it_looked(world: World) -> None:
    world.arrive(1)
    world.run("a")
    told = told_by(world, "b")
    assert shape(told) == ["(run", "(plan", "Looked", ")plan", ")run"]
    assert of(Looked, told)[0].behind(of(Looked, told)[0].committed) == 0


def test_every_request_to_the_log_is_told(world: World) -> None:
    world.arrive(3)
    world.run("a")  # creates the pipeline, for which the doctor asks the store itself
    world.arrive(3)
    counting = CountingStore(world.store)
    told = told_by(world, "b", drain=True, store=counting)
    names = {"put": "create", "get": "read", "list": "list"}
    assert Counter(names[event.request] for event in of(Requested, told)) == counting.requests
    assert not any(event.unknown for event in of(Requested, told))


def test_unknown_answers_are_told(world: World) -> None:
    world.arrive(1)
    world.run("a")
    world.arrive(1)
    faulty = FaultyStore(world.store, 3, Fault.LOST_REPLY)
    told = told_by(world, "b", store=faulty)
    assert faulty.reached
    assert [event.unknown for event in of(Requested, told)].count(True) == 1
    world.check()


def test_adopted_attempt_is_told_and_nothing_is_staged(world: World) -> None:
    world.arrive(1)
    with pytest.raises(Crash):
        world.run("a", store=BeforeOutcome(world.store, die))
    told = told_by(world, "b")
    (adopted,), decided = of(Adopted, told), of(Decided, told)
    assert of(Staged, told) == []
    assert [(d.version, d.attempt_id, d.mine) for d in decided] == [(adopted.version, adopted.attempt_id, True)]
    world.check()


def test_decision_that_others_made_is_told_as_lost_and_not_as_mine(world: World) -> None:
    world.arrive(1)

    def abort() -> None:
        opened = world.opened()
        maintenance.abort(opened.log, opened.record, 0, reason="a person was faster")

    told: list[Any] = []
    with heard_by(told.append):
        world.run("a", store=BeforeOutcome(world.store, abort))
    lost, won = of(Decided, told)
    assert (lost.version, lost.result, lost.mine, lost.lost, dict(lost.outputs)) == (0, "abort", False, True, {})
    assert (won.version, won.result, won.mine, won.lost) == (1, "commit", True, False)
    world.check()


def test_version_that_two_decide_is_counted_by_one(world: World) -> None:
    world.arrive(1)
    told: list[Any] = []

    def other() -> None:
        world.run("a")

    with heard_by(told.append):
        world.run("a", store=BeforeOutcome(world.store, other))
    assert sorted((d.version, d.mine, d.lost) for d in of(Decided, told)) == [(0, False, False), (0, True, False)]
    world.check()


def test_failed_phases_tell_the_error_without_its_values(world: World) -> None:
    world.arrive(1)

    def secret(rows: list[Any]) -> list[Any]:
        raise DataError("the rows do not fit; nothing became visible", value="hunter2")

    told: list[Any] = []
    with heard_by(told.append), pytest.raises(DataError):
        world.run("a", pipeline=world.pipeline(transform=secret))
    ended = {event.phase: (event.error, event.truth) for event in of(Ended, told)}
    said = ("DataError", "the rows do not fit; nothing became visible")
    assert ended == {"plan": ("", ""), "stage": said, "run": said}
    assert "hunter2" not in repr(told)


def test_text_of_errors_that_are_not_ours_is_not_told(world: World) -> None:
    world.arrive(1)

    def secret(rows: list[Any]) -> list[Any]:
        raise RuntimeError("password=hunter2")

    told: list[Any] = []
    with heard_by(told.append), pytest.raises(RuntimeError):
        world.run("a", pipeline=world.pipeline(transform=secret))
    assert of(Ended, told)[-1] == Ended(phase="run", error="RuntimeError", truth="")


def test_listener_that_raises_is_logged_once_and_changes_nothing(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.arrive(3)
    called: list[Event] = []
    told: list[Event] = []

    def broken(event: Event) -> None:
        called.append(event)
        raise ValueError("hunter2")

    with heard_by(broken, told.append):
        result = world.run("a", drain=True)
    assert (result.status, result.batches, len(called)) == ("committed", 2, 1)
    assert shape(told)[-1] == ")run"
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(logged) == 1
    assert "broken" in logged[0]
    assert "hunter2" not in logged[0]
    world.check()


def test_listeners_cannot_change_what_is_committed(world: World) -> None:
    world.arrive(2)

    def meddle(event: Event) -> None:
        for field in dataclasses.fields(event):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(event, field.name, None)
            value = getattr(event, field.name)
            if hasattr(value, "items"):
                with pytest.raises(TypeError):
                    value["read"] = 7

    told: list[Event] = []
    with heard_by(meddle, told.append):
        world.run("a")
    assert len(told) > 10
    world.check()


def test_nothing_is_made_where_nobody_listens() -> None:
    made: list[Event] = []

    def make() -> Event:
        made.append(Requested(request="get", unknown=False))
        return made[0]

    telemetry.tell(make)
    assert made == []


def test_event_that_cannot_be_made_does_not_stop_the_run() -> None:
    def make() -> Event:
        raise RuntimeError("the JVM is gone")

    told: list[Event] = []
    with heard_by(told.append):
        telemetry.tell(make)
        telemetry.tell(Requested, request="get", unknown=False)
    assert told == [Requested(request="get", unknown=False)]


def test_listeners_hear_only_what_is_done_inside_their_block(world: World) -> None:
    world.arrive(1)
    told = told_by(world, "a")
    heard = len(told)
    world.arrive(1)
    world.run("b")
    assert len(told) == heard


def test_log_records_have_the_facts_as_attributes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.arrive(1)
    with caplog.at_level(logging.INFO, logger="airflow_provider_streamsem"):
        world.run("a")
    planned, _, committed = (record for record in caplog.records if record.getMessage().startswith("version 0"))
    assert (planned.pipeline, planned.version) == ("world", 0)  # type: ignore[attr-defined]
    assert committed.attempt_id == world.log().outcome(0)[0].attempt_id  # type: ignore[attr-defined, index]
    assert not hasattr(planned, "attempt_id")


@pytest.mark.spark
def test_spark_is_told_with_its_application_and_without_pages_that_it_does_not_serve(
    world: World, tmp_path: Path, spark: Any
) -> None:
    from airflow_provider_streamsem import FilesSink
    from airflow_provider_streamsem.engines.spark import SparkEngine
    from airflow_provider_streamsem.telemetry import SparkFound

    world.arrive(1)
    told: list[Any] = []
    pipeline = world.pipeline(sinks={"out": FilesSink(path=str(tmp_path / "out"), format="parquet")})
    with heard_by(told.append):
        world.run("a", pipeline=pipeline, engine=SparkEngine())  # type: ignore[arg-type]
    assert of(SparkFound, told) == [SparkFound(application_id=spark.sparkContext.applicationId, ui="")]
    assert " ".join(shape(told)).startswith(
        "(run (plan Looked )plan Planned (stage SparkFound (collect )collect Staged"
    )
