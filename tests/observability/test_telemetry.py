"""The events of a run. They never affect the run."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.telemetry import (
    Adopted,
    Event,
    LogRequest,
    Output,
    PhaseEnded,
    PhaseStarted,
    Planned,
    SourcePolled,
    Staged,
    VersionClosed,
    listening,
)
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture, die


def events_of_run(fixture: PipelineFixture, *arguments: Any, **named: Any) -> list[Any]:
    emitted: list[Event] = []
    with listening(emitted.append):
        fixture.run(*arguments, **named)
    return emitted


def of(kind: type[Any], emitted: list[Any]) -> list[Any]:
    return [event for event in emitted if isinstance(event, kind)]


def shape(emitted: list[Any]) -> list[str]:
    """Return the run's phases with their events, without requests."""
    words = {PhaseStarted: "(", PhaseEnded: ")"}
    return [
        words.get(type(event), type(event).__name__) + getattr(event, "phase", "")
        for event in emitted
        if not isinstance(event, LogRequest)
    ]


def test_run_emits_its_phases_in_order_and_each_that_starts_ends(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    assert " ".join(shape(events_of_run(fixture, "a"))) == (
        "(run (plan SourcePolled )plan Planned (stage (collect )collect Staged )stage (commit VersionClosed )commit )run"
    )


def test_phases_have_pipeline_run_version_and_attempt(fixture: PipelineFixture) -> None:
    fixture.arrive(3)
    emitted = events_of_run(fixture, "a", drain=True)
    (decided, _) = of(VersionClosed, emitted)
    facts = {event.phase: dict(event.facts) for event in reversed(of(PhaseStarted, emitted))}
    run = {"pipeline": "world", "run_key": "a"}
    batch = {**run, "version": 0, "attempt_id": decided.attempt_id}
    assert facts == {"run": run, "plan": {**run, "version": 0}, "stage": batch, "collect": batch, "commit": batch}


def test_version_closed_event_matches_the_stored_outcome(fixture: PipelineFixture) -> None:
    fixture.arrive(2, bad_lines=1)
    emitted = events_of_run(fixture, "a")
    (decided,) = of(VersionClosed, emitted)
    stored = fixture.log().outcome(0) or pytest.fail("no outcome")
    assert (decided.mine, decided.lost, decided.result) == (True, False, "commit")
    assert decided.attempt_id == stored.attempt_id
    assert decided.counts == stored.counts == of(Staged, emitted)[0].counts
    assert decided.ranges == of(Planned, emitted)[0].ranges == {"files": (0, 2)}
    files = stored.sinks["out"].files
    assert decided.outputs == {"out": Output(rows=6, bytes=sum(f.bytes for f in files), files=len(files))}


def test_lag_equals_the_lag_of_the_planner(fixture: PipelineFixture) -> None:
    fixture.arrive(5)
    emitted = events_of_run(fixture, "a")
    (polled,), (decided,) = of(SourcePolled, emitted), of(VersionClosed, emitted)
    assert (polled.behind(polled.committed), polled.behind(decided.next)) == (5, 3)


def test_listening_costs_no_request(fixture: PipelineFixture, tmp_path: Path) -> None:
    def requests(fixture: PipelineFixture, listeners: list[telemetry.Listener]) -> list[tuple[str, str]]:
        fixture.arrive(5)
        counting = CountingStore(fixture.store)
        with listening(*listeners):
            fixture.run("a", drain=True, store=counting)
        # The fixtures differ in their paths, and so do the digests in these keys.
        digests = re.compile("^(specs|initial_offsets|sources)/[0-9a-f]+")
        return [(method, digests.sub(r"\1/ID", key)) for method, key in counting.keys]

    other = PipelineFixture(tmp_path / "other")
    assert requests(fixture, [lambda event: None]) == requests(other, [])


def test_run_that_finds_nothing_new_emits_source_polled(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    emitted = events_of_run(fixture, "b")
    assert shape(emitted) == ["(run", "(plan", "SourcePolled", ")plan", ")run"]
    assert of(SourcePolled, emitted)[0].behind(of(SourcePolled, emitted)[0].committed) == 0


def test_every_request_to_the_log_is_emitted(fixture: PipelineFixture) -> None:
    fixture.arrive(3)
    fixture.run("a")  # creates the pipeline, during which the doctor sends requests directly to the store
    fixture.arrive(3)
    counting = CountingStore(fixture.store)
    emitted = events_of_run(fixture, "b", drain=True, store=counting)
    names = {"put": "create", "get": "read", "list": "list"}
    assert Counter(names[event.request] for event in of(LogRequest, emitted)) == counting.requests
    assert not any(event.unknown for event in of(LogRequest, emitted))


def test_unknown_replies_are_emitted(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    fixture.arrive(1)
    faulty = FaultyStore(fixture.store, 3, Fault.LOST_REPLY)
    emitted = events_of_run(fixture, "b", store=faulty)
    assert faulty.reached
    assert [event.unknown for event in of(LogRequest, emitted)].count(True) == 1
    fixture.check()


def test_adopted_attempt_is_emitted_and_nothing_is_staged(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    with pytest.raises(Crash):
        fixture.run("a", store=BeforeOutcome(fixture.store, die))
    emitted = events_of_run(fixture, "b")
    (adopted,), decided = of(Adopted, emitted), of(VersionClosed, emitted)
    assert of(Staged, emitted) == []
    assert [(d.version, d.attempt_id, d.mine) for d in decided] == [(adopted.version, adopted.attempt_id, True)]
    fixture.check()


def test_outcome_of_another_process_is_emitted_as_lost(fixture: PipelineFixture) -> None:
    fixture.arrive(1)

    def abort_version() -> None:
        opened = fixture.opened()
        abort(opened.log, opened.record, 0, reason="an operator aborted first")

    emitted: list[Any] = []
    with listening(emitted.append):
        fixture.run("a", store=BeforeOutcome(fixture.store, abort_version))
    aborted, lost, won = of(VersionClosed, emitted)
    assert (aborted.version, aborted.result, aborted.mine) == (0, "abort", True)
    assert (lost.version, lost.result, lost.mine, lost.lost, dict(lost.outputs)) == (0, "abort", False, True, {})
    assert (won.version, won.result, won.mine, won.lost) == (1, "commit", True, False)
    fixture.check()


def test_version_committed_by_two_processes_is_counted_once(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    emitted: list[Any] = []

    def other() -> None:
        fixture.run("a")

    with listening(emitted.append):
        fixture.run("a", store=BeforeOutcome(fixture.store, other))
    assert sorted((d.version, d.mine, d.lost) for d in of(VersionClosed, emitted)) == [
        (0, False, False),
        (0, True, False),
    ]
    fixture.check()


def test_failed_phases_emit_the_error_without_its_values(fixture: PipelineFixture) -> None:
    fixture.arrive(1)

    def secret(rows: list[Any]) -> list[Any]:
        raise DataError("the rows do not fit; nothing became visible", value="hunter2")

    emitted: list[Any] = []
    with listening(emitted.append), pytest.raises(DataError):
        fixture.run("a", pipeline=fixture.pipeline(transform=secret))
    ended = {event.phase: (event.error, event.summary) for event in of(PhaseEnded, emitted)}
    expected_error = ("DataError", "the rows do not fit; nothing became visible")
    assert ended == {"plan": ("", ""), "stage": expected_error, "run": expected_error}
    assert "hunter2" not in repr(emitted)


def test_text_of_foreign_errors_is_not_emitted(fixture: PipelineFixture) -> None:
    fixture.arrive(1)

    def secret(rows: list[Any]) -> list[Any]:
        raise RuntimeError("password=hunter2")

    emitted: list[Any] = []
    with listening(emitted.append), pytest.raises(RuntimeError):
        fixture.run("a", pipeline=fixture.pipeline(transform=secret))
    assert of(PhaseEnded, emitted)[-1] == PhaseEnded(phase="run", error="RuntimeError", summary="")


def test_listener_that_raises_is_logged_once_and_changes_nothing(
    fixture: PipelineFixture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.arrive(3)
    called: list[Event] = []
    emitted: list[Event] = []

    def failing_listener(event: Event) -> None:
        called.append(event)
        raise ValueError("hunter2")

    with listening(failing_listener, emitted.append):
        result = fixture.run("a", drain=True)
    assert (result.status, result.batches, len(called)) == ("committed", 2, 1)
    assert shape(emitted)[-1] == ")run"
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(logged) == 1
    assert "failing_listener" in logged[0]
    assert "hunter2" not in logged[0]
    fixture.check()


def test_listeners_cannot_change_what_is_committed(fixture: PipelineFixture) -> None:
    fixture.arrive(2)

    def modify_event(event: Event) -> None:
        for field in dataclasses.fields(event):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(event, field.name, None)
            value = getattr(event, field.name)
            if hasattr(value, "items"):
                with pytest.raises(TypeError):
                    value["read"] = 7

    emitted: list[Event] = []
    with listening(modify_event, emitted.append):
        fixture.run("a")
    assert len(emitted) > 10
    fixture.check()


def test_no_event_is_created_without_listeners() -> None:
    created: list[Event] = []

    def create_event() -> Event:
        created.append(LogRequest(request="get", unknown=False))
        return created[0]

    telemetry.emit(create_event)
    assert created == []


def test_event_that_cannot_be_created_does_not_stop_the_run() -> None:
    def create_event() -> Event:
        raise RuntimeError("the JVM has died")

    emitted: list[Event] = []
    with listening(emitted.append):
        telemetry.emit(create_event)
        telemetry.emit(LogRequest, request="get", unknown=False)
    assert emitted == [LogRequest(request="get", unknown=False)]


def test_listeners_get_only_events_inside_their_block(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    emitted = events_of_run(fixture, "a")
    count_before = len(emitted)
    fixture.arrive(1)
    fixture.run("b")
    assert len(emitted) == count_before


def test_log_records_have_the_run_fields_as_attributes(
    fixture: PipelineFixture, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.arrive(1)
    with caplog.at_level(logging.INFO, logger="airflow_provider_streamsem"):
        fixture.run("a")
    planned, _, committed = (record for record in caplog.records if record.getMessage().startswith("version 0"))
    assert (planned.pipeline, planned.version) == ("world", 0)  # type: ignore[attr-defined]
    assert committed.attempt_id == fixture.log().outcome(0).attempt_id  # type: ignore[attr-defined, union-attr]
    assert not hasattr(planned, "attempt_id")


@pytest.mark.spark
def test_spark_started_event_has_the_application_id_and_no_ui_if_none_is_served(
    fixture: PipelineFixture, tmp_path: Path, spark: Any
) -> None:
    from airflow_provider_streamsem import FilesSink
    from airflow_provider_streamsem.spark.spark_engine import SparkEngine
    from airflow_provider_streamsem.telemetry import SparkStarted

    fixture.arrive(1)
    emitted: list[Any] = []
    pipeline = fixture.pipeline(sinks={"out": FilesSink(path=str(tmp_path / "out"), format="parquet")})
    with listening(emitted.append):
        fixture.run("a", pipeline=pipeline, engine=SparkEngine())  # type: ignore[arg-type]
    assert of(SparkStarted, emitted) == [SparkStarted(application_id=spark.sparkContext.applicationId, ui="")]
    assert " ".join(shape(emitted)).startswith(
        "(run (plan SourcePolled )plan Planned (stage SparkStarted (collect )collect Staged"
    )
