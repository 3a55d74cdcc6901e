"""A publisher dies, waits or runs beside another one at any step. Each delivery choice keeps its guarantee."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import guarantee
from airflow_provider_streamsem.connectors.http.operations import OPERATIONS
from airflow_provider_streamsem.errors import (
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.testing.steps import StepReportingStore
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.connectors.http.endpoints import Call, Recorder, Reply
from tests.connectors.http.pushing_fixture import (
    CHOICES,
    check_guarantee,
    new_fixture,
    pushing,
    rate_limited,
)
from tests.pipeline_fixture import PipelineFixture, die
from tests.step_by_step import AtStep


class WatchedCalls:
    """Exposes every ledger request and every endpoint call as steps of the watched process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import requests

        self.watched: Callable[[str], object] | None = None
        original = requests.Session.request

        def request(session: Any, method: str, url: str, **named: Any) -> Any:
            self.step("before call")
            response = original(session, method, url, **named)
            self.step("after call")
            return response

        monkeypatch.setattr(requests.Session, "request", request)

    def step(self, name: str) -> None:
        if self.watched is not None and any(part in name for part in ("claims/", "effects/", ".d.json", "call")):
            self.watched(name)

    def run(self, fixture: PipelineFixture, pipeline: Pipeline, watched: Callable[[str], object]) -> None:
        """Run ``a`` and watch its steps. Other runs that start in the meantime are not watched."""
        self.watched = watched
        try:
            fixture.run("a", pipeline=pipeline, store=StepReportingStore(fixture.store, self.step))
        finally:
            self.watched = None


def always_ok(recorder: Recorder) -> Callable[[Call], Reply]:
    return lambda call: 200


# Idempotency keys do not change the order of steps, so a rate-limited endpoint with keys adds no coverage.
ENDPOINTS = [
    *((choice, always_ok) for choice in CHOICES),
    ("at_least_once", rate_limited),
    ("at_most_once", rate_limited),
]


@pytest.mark.slow
@pytest.mark.parametrize("other_run", ["same run", "other run"])
@pytest.mark.parametrize(("choice", "replies"), ENDPOINTS)
def test_crash_at_every_step_then_a_retry_keeps_the_promise_of_the_label(
    choice: str, other_run: str, replies: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    watched_calls, lost, repeated = WatchedCalls(monkeypatch), 0, 0
    recorder.reply_to = replies(recorder)
    at, steps = 0, 1
    while at < steps:
        recorder.calls.clear()
        recorder.received.clear()
        fixture = new_fixture(tmp_path / str(at))
        pipeline = pushing(fixture, recorder, **CHOICES[choice])
        assert guarantee(pipeline).label == choice
        crash = AtStep(at, die)
        with suppress(Crash):
            watched_calls.run(fixture, pipeline, crash)
        steps = max(steps, len(crash.taken) + 1)
        if other_run == "other run":
            with suppress(UnavailableError):  # another run may not close a foreign claim as unknown
                fixture.run("b", pipeline=pipeline)
        fixture.run("a", pipeline=pipeline)
        check_guarantee(choice, fixture, recorder, f"killed at {at}, {crash.taken[-1]}")
        lost += (fixture.expected - recorder.ids()).total()
        repeated += (recorder.ids() - fixture.expected).total()
        at += 1
    assert steps > (30 if choice == "at_most_once" else 24), "each chunk has a read, a record and two calls"
    assert (lost > 0) == (choice == "at_most_once"), "only at-most-once delivery loses records"
    assert (repeated > 0) == (choice != "at_most_once"), "only the other choices repeat calls"


@pytest.mark.slow
@pytest.mark.parametrize("other_run", ["a", "b"])
@pytest.mark.parametrize(("choice", "replies"), ENDPOINTS)
def test_concurrent_runs_with_a_pause_at_every_step_keep_the_promise_of_the_label(
    choice: str, other_run: str, replies: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    watched_calls = WatchedCalls(monkeypatch)
    recorder.reply_to = replies(recorder)
    at, steps = 0, 1
    while at < steps:
        recorder.calls.clear()
        recorder.received.clear()
        fixture = new_fixture(tmp_path / str(at))
        pipeline = pushing(fixture, recorder, **CHOICES[choice])

        def run_concurrently() -> None:
            watched, watched_calls.watched = watched_calls.watched, None
            with suppress(UnavailableError):
                fixture.run(other_run, pipeline=pipeline)  # noqa: B023
            watched_calls.watched = watched

        paused = AtStep(at, run_concurrently)
        with suppress(UnavailableError):
            watched_calls.run(fixture, pipeline, paused)
        steps = max(steps, len(paused.taken) + 1)
        fixture.run("a", pipeline=pipeline)
        check_guarantee(choice, fixture, recorder, f"paused at {at}, {paused.taken[-1]}")
        at += 1
    assert steps > 20


class LedgerFaults(FaultyStore):
    """Numbers only the requests to the ledger and the receipts."""

    def _next(self, kind: str, key: str) -> Fault | None:
        return super()._next(kind, key) if any(part in key for part in ("claims/", "effects/", ".d.json")) else None


@pytest.mark.parametrize("other_run", ["a", "b"])
@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.CONFLICT, Fault.APPLIED_LATE], ids=lambda fault: fault.name)
@pytest.mark.parametrize("choice", CHOICES)
def test_every_faulty_ledger_reply_while_another_run_publishes_keeps_the_promise_of_the_label(
    choice: str, fault: Fault, other_run: str, tmp_path: Path, recorder: Recorder
) -> None:
    at, store = 0, None
    while store is None or store.reached:
        recorder.calls.clear()
        fixture = new_fixture(tmp_path / str(at))
        pipeline = pushing(fixture, recorder, **CHOICES[choice])

        def run_concurrently() -> None:
            with suppress(UnavailableError):  # another run may not close a foreign claim as unknown
                fixture.run(other_run, pipeline=pipeline)  # noqa: B023

        store = LedgerFaults(fixture.store, at, fault, other_processes=run_concurrently)
        with suppress(UnavailableError):
            fixture.run("a", pipeline=pipeline, store=store)
        fixture.run("a", pipeline=pipeline)
        check_guarantee(choice, fixture, recorder, f"{fault.name} at {at}")
        at += 1
    assert at > (9 if choice == "at_most_once" else 6), "each chunk has a read and a record"


def table_after(calls: list[Call], operation: str) -> dict[int, Any]:
    """Return the state of an endpoint that performs an operation of ``connectors/http/operations.py`` on the value of each key, call by call."""
    table: dict[int, Any] = {}
    newest: dict[int, tuple[int, int]] = {}
    for call in calls:
        key, value, version = call.body["key"], call.body["value"], int(call.headers["streamsem-version"])
        at = version, int(call.headers["streamsem-position"])
        before = table.get(key)
        match operation:
            case "append" | "send":
                table[key] = [*(before or []), value]
            case "increment":
                table[key] = (before or 0) + value
            case "upsert":
                table[key] = value
            case "upsert_newer":
                if at >= newest.get(key, (-1, -1)):
                    table[key], newest[key] = value, at
            case "max" | "min":
                table[key] = (
                    value if before is None else max(before, value) if operation == "max" else min(before, value)
                )
            case "union":
                table[key] = {*(before or ()), value}
            case "delete":  # version 0 deletes what later versions recreate
                table[key] = version != 0
    return table


@pytest.mark.parametrize("files", [6, 2])
def test_idempotent_operation_leaves_the_same_table_after_repeated_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder, files: int
) -> None:
    """
    A publisher pauses at every step while others publish its version and the later ones. Then it continues and repeats its calls.

    With two files there is one version, which has each key twice, so no later version hides the effect of a late call.
    """
    watched_calls, tables = WatchedCalls(monkeypatch), []

    def keyed(rows: list[dict[str, int]]) -> list[dict[str, int]]:
        return [{"key": row["id"] % 3, "value": row["id"] + 1} for row in rows]

    at, steps = -1, 1
    while at < steps:
        recorder.calls.clear()
        fixture = new_fixture(tmp_path / str(at), files)
        pipeline = pushing(fixture, recorder, operation="upsert_newer").replace(transform=keyed)

        def run_concurrently() -> None:
            watched, watched_calls.watched = watched_calls.watched, None
            fixture.run("others", pipeline=pipeline, drain=True)  # noqa: B023
            watched_calls.watched = watched

        paused = AtStep(at, run_concurrently)
        watched_calls.run(fixture, pipeline, paused)
        steps = max(steps, len(paused.taken))
        fixture.run("others", pipeline=pipeline, drain=True)
        tables.append({operation: table_after(recorder.calls, operation) for operation in OPERATIONS})
        at += 1
    without_pause, *with_pause = tables
    assert len(with_pause) > 20
    for operation, row in OPERATIONS.items():
        stays = all(found[operation] == without_pause[operation] for found in with_pause)
        # With one version, a late delete finds no later version whose rows it could delete.
        assert stays == (row.idempotent or (files == 2 and operation == "delete")), operation
