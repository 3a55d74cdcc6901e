"""HTTP effects: the guarantee of each delivery choice if a process dies, waits or runs beside another at any step."""

from __future__ import annotations

import base64
import datetime
import json
import logging
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_streamsem import Limits, guarantee, run_batch
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.http.effects import EffectLedger
from airflow_provider_streamsem.connectors.http.endpoint import CALLER_REJECTED, Address, Endpoint, retry_after_s
from airflow_provider_streamsem.connectors.http.operations import OPERATIONS
from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.connectors.json_rows.rows import check_types, json_rows
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    LogDamagedError,
    PublishError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.spec.opening import open_pipeline
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, from_json
from airflow_provider_streamsem.pipeline.versions.publish import batch_of, skip
from airflow_provider_streamsem.protocol.entries import Receipt
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import StepReportingStore
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.connectors.http.endpoints import Call, Recorder, Reply, serving
from tests.pipeline_fixture import PipelineFixture

CHOICES: dict[str, dict[str, Any]] = {
    "at_least_once": {},
    "at_most_once": {"delivery": "at_most_once"},
    "effectively_once": {"idempotent": True},
}


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with serving(Recorder()) as recorder:
        yield recorder


def new_fixture(root: Path, files: int = 2) -> PipelineFixture:
    """Create a fixture with six rows in one batch. With chunks of two rows it has three chunks."""
    fixture = PipelineFixture(root)
    fixture.arrive(files)
    return fixture


def pushing(fixture: PipelineFixture, recorder: Recorder, **choice: Any) -> Pipeline:
    arguments = {"url": recorder.url, "chunk_rows": 2, **choice}
    return fixture.pipeline(sinks={"push": HttpSink(str(fixture.root / "staged"), **arguments)})


def receipt(fixture: PipelineFixture, version: int = 0) -> Receipt:
    receipts = fixture.opened().log.receipts(version)
    assert receipts is not None
    return receipts.sinks["push"]


def claims(fixture: PipelineFixture) -> list[str]:
    return [stat.key for stat in fixture.store.list("claims/")]


# --- a crash, a pause or another process at every step


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


class AtStep:
    """Calls an action once, at one step."""

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self.at, self.action, self.taken = at, action, list[str]()

    def __call__(self, name: str) -> None:
        self.taken.append(name)
        if len(self.taken) - 1 == self.at:
            self.action()


def die() -> None:
    raise Crash


def always_ok(recorder: Recorder) -> Callable[[Call], Reply]:
    return lambda call: 200


def rate_limited(recorder: Recorder) -> Callable[[Call], Reply]:
    """Rate-limit the first call of two records. One wait is long enough that the publisher records its progress first."""

    def answer(call: Call) -> Reply:
        wait_s = {3: 10, 4: 1}.get(call.ids[0])
        is_first = sum(received.ids == call.ids for received in recorder.received) == 1
        return (429, {"Retry-After": str(wait_s)}) if wait_s and is_first else 200

    return answer


def check_guarantee(choice: str, fixture: PipelineFixture, recorder: Recorder, where: str) -> None:
    seen, actual = recorder.ids(), receipt(fixture)
    lost, repeated = fixture.expected - seen, {n for n, times in seen.items() if times > 1}
    assert not seen - Counter({n: 99 for n in fixture.expected}), where
    assert fixture.verdict().violations == [], where
    if choice == "at_most_once":
        assert not repeated, f"{where}: repeated {repeated}"
        assert lost.total() <= actual.detail["unknown"] + actual.detail["refused"], (
            f"{where}: the receipt does not count the loss"
        )
        assert actual.rows + actual.detail["unknown"] == fixture.expected.total(), where
        assert (actual.result == "unknown") == (actual.detail["unknown"] > 0), where
    else:
        assert not lost, f"{where}: lost {lost}"
        assert actual == Receipt(
            result="applied", rows=6, detail={"chunks": 3, "refused": 0, "unknown": 0, "skipped": 0}
        )
    if choice == "effectively_once":
        assert Counter(body["id"] for body in recorder.table().values()) == fixture.expected, where


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


def test_guarantee_with_record_id_states_that_records_with_equal_ids_are_merged(
    tmp_path: Path, recorder: Recorder
) -> None:
    reasons_given = guarantee(pushing(new_fixture(tmp_path), recorder, record_id=["{a}", "b"], idempotent=True)).reasons
    assert any("records with equal {a}, b have the same key" in reason for reason in reasons_given)
    assert not any(
        "have the same key" in reason for reason in guarantee(pushing(new_fixture(tmp_path), recorder)).reasons
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_guarantee_of_an_operation_matches_the_operations_table(
    operation: str, tmp_path: Path, recorder: Recorder
) -> None:
    pipeline = pushing(new_fixture(tmp_path), recorder, operation=operation)
    if OPERATIONS[operation].idempotent:
        assert pipeline.replace(require="effectively_once")
        return
    with pytest.raises(InvalidError, match="idempotent=True") as refused:
        pipeline.replace(require="effectively_once")
    assert OPERATIONS[operation].instead in str(refused.value).replace('\\"', '"')


def test_late_publisher_makes_no_calls(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path, 4)
    pipeline = pushing(fixture, recorder)
    fixture.run("a", pipeline=pipeline, drain=True)
    opened, seen = open_pipeline(pipeline, fixture.log()), recorder.ids()
    vacuum(pipeline, log=opened.log)
    assert not [*(fixture.root / "staged").rglob("*.parquet")], "vacuum deleted the staged rows"
    stored = opened.log.outcome_and_sha256(0)
    assert stored is not None
    sink = pipeline.sinks["push"]
    for _ in range(3):
        assert sink.publish(batch_of(opened, *stored, "push")) == receipt(fixture)  # type: ignore[attr-defined]
    assert recorder.ids() == seen == fixture.expected


def test_staged_rows_of_a_version_published_days_later_are_vacuumed_after_publishing(
    tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    recorder.reply_to = lambda call: 403
    with pytest.raises(PublishError):
        fixture.run("a", pipeline=pipeline)
    days_later = ManualClock(1_700_000_000_000 + 3 * 86_400_000)
    assert vacuum(pipeline, log=CommitLog(fixture.store, days_later)).attempts == ()
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    assert len(vacuum(pipeline, log=CommitLog(fixture.store, days_later)).attempts) == 1
    assert not [*(fixture.root / "staged").rglob("*.parquet")]


def test_pipelines_of_the_docs_page_are_accepted_and_the_mail_example_is_at_most_once() -> None:
    page = (Path(__file__).parents[3] / "docs" / "connectors" / "http-sink.md").read_text()
    namespace: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "http-sink.md", "exec"), namespace)
    assert guarantee(namespace["MAILS"]).label == "at_most_once"
    for more in ("exactly_once", "effectively_once", "at_least_once"):
        with pytest.raises(InvalidError, match="weaker than it requires"):
            namespace["MAILS"].replace(require=more)


# --- the outcome of a call by its reply


@pytest.mark.parametrize(
    "reply", [500, 503, (500, {"Retry-After": "1"}), (503, {"Retry-After": "soon"}), 408, "lost", "dropped", "silent"]
)
def test_unclear_reply_is_retried_or_counted_unknown_by_delivery_choice(
    reply: Reply, tmp_path: Path, recorder: Recorder
) -> None:
    for choice, arguments in CHOICES.items():
        fixture = new_fixture(tmp_path / choice)
        recorder.calls.clear()
        recorder.received.clear()
        unclear = [3]
        recorder.reply_to = lambda call: reply if call.ids == unclear and not unclear.append(-1) else 200  # noqa: B023
        fixture.run("a", pipeline=pushing(fixture, recorder, timeout_s=1, **arguments))
        received = Counter(record for call in recorder.received for record in call.ids)
        assert received == fixture.expected + (Counter() if choice == "at_most_once" else Counter([3]))
        check_guarantee(choice, fixture, recorder, choice)
        assert receipt(fixture).detail["unknown"] == (1 if choice == "at_most_once" else 0)


@pytest.mark.parametrize(
    "reply", [425, 429, (429, {"Retry-After": "1"}), (429, {"Retry-After": "soon"}), (503, {"Retry-After": "0"})]
)
@pytest.mark.parametrize("choice", CHOICES)
def test_call_that_the_endpoint_did_not_perform_is_retried_under_the_same_claim(
    choice: str, reply: Reply, tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    recorder.reply_to = lambda call: reply if call.ids == [3] and recorder.received.count(call) < 4 else 200
    fixture.run("a", pipeline=pushing(fixture, recorder, **CHOICES[choice]))
    assert Counter(record for call in recorder.received for record in call.ids) == fixture.expected + Counter({3: 3})
    assert recorder.ids() == fixture.expected
    assert receipt(fixture).rows == 6
    assert len(claims(fixture)) == (3 if choice == "at_most_once" else 0)


class RateLimitedEndpoint:
    """An endpoint that performs ``calls`` calls in each window of 60 seconds, and returns the start of the next window in Retry-After."""

    def __init__(self, clock: ManualClock, calls: int) -> None:
        self.clock, self.calls = clock, calls
        self.performed: Counter[int] = Counter()

    def __call__(self, call: Call) -> Reply:
        window, into_ms = divmod(self.clock.now_ms(), 60_000)
        if self.performed[window] == self.calls:
            return 429, {"Retry-After": str(-(-(60_000 - into_ms) // 1000))}
        self.performed[window] += 1
        return 200


def run_at(fixture: PipelineFixture, clock: ManualClock, pipeline: Pipeline, run_key: str = "a") -> CountingStore:
    """Run with a clock that other runs share. Return the store, which counted the requests."""
    store = CountingStore(fixture.store)
    run_batch(pipeline, run_key=run_key, log=CommitLog(store, clock), engine=RowsEngine())
    return store


@pytest.mark.parametrize("choice", CHOICES)
def test_batch_of_ten_times_the_rate_limit_completes_in_one_run(
    choice: str, tmp_path: Path, recorder: Recorder
) -> None:
    fixture, clock = new_fixture(tmp_path, 100), ManualClock()
    recorder.reply_to = RateLimitedEndpoint(clock, 30)
    began_ms = clock.now_ms()
    store = run_at(
        fixture,
        clock,
        pushing(fixture, recorder, chunk_rows=100, **CHOICES[choice]).replace(limits=Limits(max_files=100)),
    )
    assert recorder.ids() == fixture.expected
    assert receipt(fixture) == Receipt(
        result="applied", rows=300, detail={"chunks": 3, "refused": 0, "unknown": 0, "skipped": 0}
    )
    assert len(recorder.received) - 300 < 30, "the publisher adapts its rate, so few calls are refused"
    assert clock.now_ms() - began_ms < 3 * 10 * 60_000, "the publisher does not reduce its rate too far"
    kept = [key for method, key in store.keys if method == "create" and key.startswith(("effects/", "claims/"))]
    assert len(kept) < (clock.now_ms() - began_ms) / 5_000 * 2 + 6, (
        "at most one record and one claim in five seconds of waiting"
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_retries_under_a_rate_limit_repeat_no_call_and_lose_no_record(
    choice: str, tmp_path: Path, recorder: Recorder
) -> None:
    fixture, clock = new_fixture(tmp_path, 100), ManualClock()
    recorder.reply_to = RateLimitedEndpoint(clock, 30)
    pipeline = pushing(fixture, recorder, chunk_rows=100, max_wait_s=0, **CHOICES[choice]).replace(
        limits=Limits(max_files=100)
    )
    for again in range(1, 10):
        with pytest.raises(UnavailableError, match="no record is lost") as ended:
            run_at(fixture, clock, pipeline, "a" if again % 2 else "b")
        assert ended.value.retryable
        assert (ended.value.fields["done"], ended.value.fields["rows"]) == (30 * again, 300)
        until = datetime.datetime.fromisoformat(str(ended.value.fields["run_again_at"]))
        clock.sleep(until.timestamp() - clock.now_ms() / 1000)
    run_at(fixture, clock, pipeline)
    assert recorder.ids() == fixture.expected
    assert len(recorder.received) == 300 + 9
    assert receipt(fixture) == Receipt(
        result="applied", rows=300, detail={"chunks": 3, "refused": 0, "unknown": 0, "skipped": 0}
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_publisher_that_dies_in_a_long_wait_repeats_and_loses_nothing(
    choice: str, tmp_path: Path, recorder: Recorder
) -> None:
    class DyingClock(ManualClock):
        def sleep(self, seconds: float) -> None:
            if seconds > 5:
                raise Crash

    fixture = new_fixture(tmp_path)
    recorder.reply_to = rate_limited(recorder)
    pipeline = pushing(fixture, recorder, **CHOICES[choice])
    with pytest.raises(Crash):
        run_at(fixture, DyingClock(), pipeline)
    fixture.run("b", pipeline=pipeline)
    assert recorder.ids() == fixture.expected
    assert receipt(fixture) == Receipt(
        result="applied", rows=6, detail={"chunks": 3, "refused": 0, "unknown": 0, "skipped": 0}
    )


def test_retry_after_is_read_as_seconds_or_as_a_date_by_the_endpoints_clock(tmp_path: Path, recorder: Recorder) -> None:
    assert retry_after_s({"Retry-After": "7"}, 0) == 7
    for date in ({}, {"Date": "Thu, 01 Jan 2026 00:00:00 GMT"}):
        now_ms = 1_767_225_600_000 if not date else 5
        assert retry_after_s({"Retry-After": "Thu, 01 Jan 2026 00:02:00 GMT", **date}, now_ms) == 120
    assert retry_after_s({"Retry-After": "Thu, 01 Jan 2015 00:02:00 GMT"}, 1_767_225_600_000) == 0
    for bad in ("", "-1", "1.5", "soon", "9" * 10, "Thu, 99 Jan 2026 00:00:00 GMT"):
        assert retry_after_s({"Retry-After": bad}, 0) is None
    fixture, clock = new_fixture(tmp_path), ManualClock()
    began_ms = clock.now_ms()
    recorder.reply_to = lambda call: (503, {"Retry-After": "40"}) if len(recorder.received) == 2 else 200
    run_at(fixture, clock, pushing(fixture, recorder, delivery="at_most_once"))
    assert clock.now_ms() - began_ms >= 40_000
    assert recorder.ids() == fixture.expected


def test_calls_stay_below_max_per_s(tmp_path: Path, recorder: Recorder) -> None:
    fixture, clock = new_fixture(tmp_path, 20), ManualClock()
    times = []
    recorder.reply_to = lambda call: times.append(clock.now_ms()) or 200  # type: ignore[func-returns-value]
    run_at(fixture, clock, pushing(fixture, recorder, chunk_rows=7, max_per_s=4).replace(limits=Limits(max_files=20)))
    assert len(times) == 60
    assert times[-1] - times[0] == 59 * 250


def test_released_round_that_a_live_publisher_claimed_is_not_closed_as_unknown(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The run that committed waits. Another run continues with the rest.

    It has not recorded its result when the first run continues.
    """
    fixture = new_fixture(tmp_path)
    recorder.reply_to = rate_limited(recorder)
    pipeline = pushing(fixture, recorder, delivery="at_most_once", chunk_rows=6)

    class WakingClock(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if seconds > 5:
                with monkeypatch.context() as stuck:
                    stuck.setattr(EffectLedger, "record", lambda *args, **named: die())
                    with pytest.raises(Crash):
                        fixture.run("b", pipeline=pipeline)

    with pytest.raises(UnavailableError, match="another publisher has claimed"):
        run_at(fixture, WakingClock(), pipeline)
    fixture.run("a", pipeline=pipeline)
    assert recorder.ids() == fixture.expected
    actual = receipt(fixture)
    assert (actual.result, actual.rows, actual.detail["unknown"]) == ("unknown", 3, 3)


@pytest.mark.parametrize("changed", [{"left": 9}, {"left": 0}, {"done": -3, "left": 5}])
def test_effects_that_contradict_the_records_of_their_round_are_reported_as_log_damage(
    changed: dict[str, int], tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    recorder.reply_to = lambda call: (429, {"Retry-After": "999"}) if call.ids == [1] else 200
    with monkeypatch.context() as forged:
        real = EffectLedger.record
        forged.setattr(EffectLedger, "record", lambda self, *at, **named: real(self, *at, **{**named, **changed}))
        with pytest.raises((LogDamagedError, UnavailableError)):
            fixture.run("a", pipeline=pipeline)
    with pytest.raises(LogDamagedError, match="do not add up to its number of records"):
        fixture.run("a", pipeline=pipeline)


def test_endpoint_that_stays_unclear_is_called_again_by_the_next_retry(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    recorder.reply_to = lambda call: 503 if call.ids == [3] else 200
    with pytest.raises(UnavailableError, match=r"repeats it.*chunk=1 record=1 status=503"):
        fixture.run("a", pipeline=pipeline)
    recorder.reply_to = lambda call: 200
    fixture.run("b", pipeline=pipeline)
    check_guarantee("at_least_once", fixture, recorder, "after 503")


def test_unreachable_endpoint_costs_no_claim_and_no_record(tmp_path: Path) -> None:
    fixture, recorder = new_fixture(tmp_path), Recorder()
    with serving(recorder):
        pass
    pipeline = pushing(fixture, recorder, delivery="at_most_once")
    with pytest.raises(UnavailableError, match="no call was made"):
        fixture.run("a", pipeline=pipeline)
    assert claims(fixture) == []
    with serving(recorder):
        fixture.run("a", pipeline=pipeline)
    assert recorder.ids() == fixture.expected
    assert receipt(fixture).result == "applied"


@pytest.mark.parametrize(("reply", "error"), [(500, UnavailableError), (302, PublishError)])
def test_endpoint_that_always_fails_costs_at_most_one_chunk_per_retry(
    reply: int, error: type[Exception], tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once")
    recorder.reply_to = lambda call: reply
    with pytest.raises(error, match="are not claimed"):
        fixture.run("a", pipeline=pipeline)
    assert len(claims(fixture)) == 1
    assert len(recorder.received) == 2
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    actual = receipt(fixture)
    assert (actual.rows, actual.detail["unknown"], actual.detail["refused"]) == (4, 2, 0)
    assert max(recorder.ids().values()) == 1


@pytest.mark.parametrize(("reply", "error"), [(500, UnavailableError), (302, PublishError)])
def test_run_fails_if_the_only_chunk_of_a_batch_had_no_clear_reply(
    reply: int, error: type[Exception], tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once", chunk_rows=100)
    recorder.reply_to = lambda call: reply
    with pytest.raises(error):
        fixture.run("a", pipeline=pipeline)
    fixture.run("a", pipeline=pipeline)
    assert (receipt(fixture).result, receipt(fixture).detail["unknown"]) == ("unknown", 6)


@pytest.mark.parametrize("chunk_rows", [2, 100])
@pytest.mark.parametrize("reply", CALLER_REJECTED)
def test_rejected_caller_loses_no_record(reply: int, chunk_rows: int, tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once", chunk_rows=chunk_rows)
    recorder.reply_to = lambda call: reply if call.ids == [3] else 200
    for run in ("a", "a", "b"):
        with pytest.raises(PublishError, match="rejects the caller"):
            fixture.run(run, pipeline=pipeline)
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    assert recorder.ids() == fixture.expected
    actual = receipt(fixture)
    assert (actual.result, actual.rows, actual.detail["refused"]) == ("applied", 6, 0)


def test_call_that_could_not_be_sent_loses_no_record(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="the call was not sent"):
            fixture.run("a", pipeline=pipeline)
    monkeypatch.delenv("HTTP_PROXY")
    fixture.run("a", pipeline=pipeline)
    assert recorder.ids() == fixture.expected
    assert receipt(fixture).result == "applied"


@pytest.mark.parametrize(
    ("url", "settings", "kind"),
    [
        ("http://127.0.0.1:9", {}, "unsent"),
        ("http://no-such-host.invalid", {}, "unsent"),
        ("https://HERE", {"verify": "/no/such/file.pem"}, "unsent"),
        ("http://HERE", {"proxies": {"http": "http://127.0.0.1:9"}}, "unsent"),
        ("https://HERE", {"verify": False}, "unclear"),
    ],
)
def test_failure_before_the_first_byte_is_distinguished_from_a_lost_reply(
    url: str, settings: dict[str, Any], kind: str, recorder: Recorder
) -> None:
    here = recorder.url.removeprefix("http://")
    with Endpoint(Address(url.replace("HERE", here), **settings), "POST", 2, SYSTEM_CLOCK) as endpoint:
        assert endpoint.call(b"{}", {}).kind == kind


@pytest.mark.parametrize("reply", ["lost", "dropped"])
def test_call_that_a_proxy_accepted_is_never_reported_as_unsent(
    reply: str, tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder is both the proxy and the endpoint behind it."""
    fixture = new_fixture(tmp_path)
    monkeypatch.setenv("HTTP_PROXY", recorder.url.removesuffix("/effects"))
    monkeypatch.setenv("NO_PROXY", "")
    pipeline = pushing(fixture, recorder, url="http://behind.invalid/effects", delivery="at_most_once")
    recorder.reply_to = lambda call: reply if call.ids == [3] else 200
    for _ in range(2):
        fixture.run("a", pipeline=pipeline)
    assert max(recorder.ids().values()) == 1
    assert len([call for call in recorder.received if call.ids == [3]]) == 1
    assert receipt(fixture).detail["unknown"] == 1


def test_retry_after_beyond_the_date_range_is_an_error_that_loses_no_record(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once")
    far = {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}
    recorder.reply_to = lambda call: (429, far) if call.ids == [3] else 200
    with pytest.raises(UnavailableError, match="limits the rate of calls"):
        fixture.run("a", pipeline=pipeline)
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    assert recorder.ids() == fixture.expected
    assert receipt(fixture).result == "applied"


def test_redirect_is_not_followed(tmp_path: Path, recorder: Recorder) -> None:
    recorder.reply_to = lambda call: 307 if call.path == "/effects" else 200
    for name, choice in CHOICES.items():
        fixture = new_fixture(tmp_path / name)
        with pytest.raises(PublishError):
            fixture.run("a", pipeline=pushing(fixture, recorder, **choice))
    assert {call.path for call in recorder.received} == {"/effects"}
    assert recorder.calls == []


def test_refused_record_blocks_the_pipeline_until_the_endpoint_accepts_it(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    recorder.reply_to = lambda call: 422 if call.ids == [3] else 200
    for run in ("a", "b"):
        with pytest.raises(PublishError, match=r"chunk=1 record=1 status=422.*streamsem skip"):
            fixture.run(run, pipeline=pipeline)
    assert fixture.opened().log.receipts(0) is None
    recorder.reply_to = lambda call: 200
    fixture.run("b", pipeline=pipeline)
    check_guarantee("at_least_once", fixture, recorder, "fixed")


@pytest.mark.parametrize("choice", ["at_least_once", "at_most_once"])
def test_refused_record_is_counted_and_skipped_with_on_refusal_record(
    choice: str, tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    recorder.reply_to = lambda call: 400 if call.ids[0] in (2, 3, 4) else 200
    fixture.run("a", pipeline=pushing(fixture, recorder, delivery=choice, on_refusal="record"))
    assert recorder.ids() == Counter([0, 1, 5])
    assert receipt(fixture) == Receipt(
        result="applied", rows=3, detail={"chunks": 3, "refused": 3, "unknown": 0, "skipped": 0}
    )


def test_refused_credentials_are_never_counted_as_refused_records(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, on_refusal="record")
    recorder.reply_to = lambda call: 401
    with pytest.raises(PublishError, match="status=401"):
        fixture.run("a", pipeline=pipeline)
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    check_guarantee("at_least_once", fixture, recorder, "after 401")


def test_skipped_batch_records_the_known_results_of_each_chunk(tmp_path: Path, recorder: Recorder) -> None:
    for choice, expected in (
        ("at_most_once", {"chunks": 3, "refused": 0, "unknown": 0, "skipped": 6}),
        ("at_least_once", {"chunks": 3, "refused": 0, "unknown": 6, "skipped": 0}),
    ):
        fixture = new_fixture(tmp_path / choice)
        pipeline = pushing(fixture, recorder, delivery=choice)
        recorder.reply_to = lambda call: 403
        with pytest.raises(PublishError):
            fixture.run("a", pipeline=pipeline)
        skip(pipeline, 0, sink="push", reason="the endpoint was removed", log=fixture.log())
        recorder.reply_to = lambda call: 200
        fixture.run("b", pipeline=pipeline)
        assert recorder.calls == []
        actual = receipt(fixture)
        assert (actual.rows, actual.detail) == (0, expected)
        assert actual.result == ("skipped" if choice == "at_most_once" else "unknown")


def test_claim_of_a_deleted_run_is_closed_as_unknown_by_streamsem_skip(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once")

    with monkeypatch.context() as dying:
        dying.setattr(EffectLedger, "record", lambda *args, **named: die())
        with pytest.raises(Crash):
            fixture.run("a", pipeline=pipeline)
    with pytest.raises(UnavailableError, match="another publisher has claimed"):
        fixture.run("b", pipeline=pipeline)
    skip(pipeline, 0, sink="push", reason="its task was deleted", log=fixture.log())
    actual = receipt(fixture)
    assert (actual.result, actual.rows, actual.detail["unknown"], actual.detail["skipped"]) == ("unknown", 0, 2, 4)


# --- keys and bodies


def test_idempotency_key_of_a_call_is_stable_across_retries_and_never_shared(
    tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path, 4)
    pipeline = pushing(fixture, recorder, records_per_call=2, chunk_rows=5)
    recorder.reply_to = lambda call: 503 if 9 in call.ids else 200
    with pytest.raises(UnavailableError):
        fixture.run("a", pipeline=pipeline, drain=True)
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline, drain=True)
    by_key: dict[str, list[list[int]]] = {}
    for call in recorder.received:
        by_key.setdefault(call.key, []).append(call.ids)
    assert all(all(ids == tries[0] for ids in tries) for tries in by_key.values())
    assert [tries[0] for tries in by_key.values()] == [[0, 1], [2, 3], [4], [5], [6, 7], [8, 9], [10], [11]]
    uuid, outcomes = (
        fixture.opened().record.pipeline_uuid,
        [fixture.log().outcome_and_sha256(version) for version in range(2)],
    )
    first_prefix, second_prefix = (
        f"{uuid}-push-{version}-{stored[1][:16]}" for version, stored in enumerate(outcomes) if stored
    )
    assert list(by_key)[:5] == [
        f"{first_prefix}-0-0",
        f"{first_prefix}-0-2",
        f"{first_prefix}-0-4",
        f"{first_prefix}-1-0",
        f"{second_prefix}-0-0",
    ]


def test_version_replanned_by_a_restored_log_has_new_idempotency_keys(tmp_path: Path, recorder: Recorder) -> None:
    """With the keys of the lost version, an endpoint would treat the calls as repeats and lose the new records."""
    fixture = new_fixture(tmp_path, 2)
    pipeline = pushing(fixture, recorder)
    fixture.run("a", pipeline=pipeline)
    older = {stat.key: fixture.store.read(stat.key) or b"" for stat in fixture.store.list("")}
    fixture.arrive(1)
    fixture.run("b", pipeline=pipeline)
    for stat in list(fixture.store.list("")):
        if stat.key not in older:
            fixture.store.delete(stat.key)
    lost = {call.key for call in recorder.received}
    fixture.arrive(1)
    fixture.run("c", pipeline=pipeline)
    assert lost.isdisjoint(call.key for call in recorder.received[len(lost) :])
    assert fixture.expected.keys() == {call.body["id"] for call in recorder.received}


def test_record_with_a_record_id_has_the_same_key_in_every_version(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path, 4)
    pipeline = pushing(fixture, recorder, record_id=["half"], idempotent=True).replace(transform=halved)
    fixture.run("a", pipeline=pipeline, drain=True)
    assert Counter(call.body["half"] for call in recorder.calls) == Counter([*range(6), *range(6)])
    assert sorted(body["half"] for body in recorder.table().values()) == [*range(6)]


def halved(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"half": row["id"] // 2} for row in rows]


def test_body_is_json_as_spark_writes_it() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)
    table = pa.table(
        {
            "b": pa.array([b"\x00\xff", None]),
            "n": pa.array([Decimal("1.50"), None]),
            "f": pa.array([float("nan"), float("-inf")]),
            "t": pa.array([at, None]),
            "local": pa.array([at.replace(tzinfo=None), None]),
            "d": pa.array([at.date(), None]),
            "m": pa.array([[("k", b"x")], None], pa.map_(pa.string(), pa.binary())),
            "l": pa.array([[at.date(), None], None]),
            "s": pa.array([{"t": at}, None]),
        }
    )
    first, second = [row for batch in table.to_batches() for row in json_rows(batch)]
    assert first == {
        "b": "AP8=", "n": "1.50", "f": "NaN", "t": "2026-01-02T03:04:05.000006Z", "local": "2026-01-02T03:04:05.000006", "d": "2026-01-02",
        "m": {"k": "eA=="}, "l": ["2026-01-02", None], "s": {"t": "2026-01-02T03:04:05.000006Z"},
    }  # fmt: skip
    assert second.pop("f") == "-Infinity"
    assert set(second.values()) == {None}
    json.dumps([first, second], allow_nan=False)


def _schema(**types: Any) -> str:
    return json.dumps(
        {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True} for n, t in types.items()]}
    )


def test_columns_that_cannot_be_sent_are_refused_before_the_commit(tmp_path: Path, recorder: Recorder) -> None:
    inner = {"type": "struct", "fields": [{"name": "x", "type": "decimal(3,1)"}]}
    good = {"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": inner}}
    assert check_types(_schema(a="varchar(3)", b=good)) == ["a", "b"]
    for bad in (
        "interval day to second",
        "variant",
        {**good, "keyType": "long"},
        {"type": "array", "elementType": "variant"},
    ):
        with pytest.raises(DataError, match="nothing became visible column='a'"):
            check_types(_schema(a=bad))
    fixture = new_fixture(tmp_path)
    with pytest.raises(DataError, match=r"record_id are missing.*\['order'\]"):
        fixture.run("a", pipeline=pushing(fixture, recorder, record_id=["order"]))
    assert recorder.received == []
    assert fixture.opened().log.outcome(0) is None


def test_batch_without_rows_makes_no_calls(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    fixture.run("a", pipeline=pushing(fixture, recorder).replace(transform=none))
    assert recorder.received == []
    assert receipt(fixture).result == "applied"


def none(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return []


# --- connections, secrets, arguments, labels


def test_secrets_come_from_the_connection_and_are_never_logged_or_stored(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = ("pass-wörd", "t0ken-of-the-header")
    text = {
        "conn_type": "http", "host": "127.0.0.1", "port": recorder.port, "login": "u", "password": secrets[0],
        "extra": {"X-Token": secrets[1], "verify": False},
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps(text))
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, url=None, conn_id="hook", endpoint="/v1/metrics?source=x", method="PUT")
    recorder.reply_to = lambda call: 422
    with pytest.raises(PublishError) as refused:
        fixture.run("a", pipeline=pipeline)
    recorder.reply_to = lambda call: "lost"
    with pytest.raises(UnavailableError) as lost:
        fixture.run("a", pipeline=pipeline)
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    call = recorder.calls[-1]
    basic = base64.b64encode(f"u:{secrets[0]}".encode()).decode()
    assert (call.method, call.path) == ("PUT", "/v1/metrics?source=x")
    assert (call.headers["authorization"], call.headers["x-token"]) == (f"Basic {basic}", secrets[1])
    assert call.headers["content-type"] == "application/json"
    assert "verify" not in call.headers
    actual = "".join("".join(traceback.format_exception(raised.value)) for raised in (refused, lost))
    stored = "".join((fixture.store.read(stat.key) or b"").decode() for stat in fixture.store.list(""))
    for secret in (*secrets, basic):
        assert secret not in actual + stored + caplog.text + repr(pipeline)


@pytest.mark.parametrize(
    ("connection_fields", "is_warned"),
    [
        ({"host": "api.example.com", "password": "s3cret"}, True),
        ({"host": "http://api.example.com", "extra": {"Authorization": "Bearer s3cret"}}, True),
        ({"host": "10.0.0.5", "login": "u", "password": "s3cret"}, True),
        ({"host": "api.example.com"}, False),
        ({"host": "api.example.com", "extra": {"Accept": "text/plain", "verify": False}}, False),
        ({"host": "api.example.com", "schema": "https", "password": "s3cret"}, False),
        ({"host": "https://api.example.com", "password": "s3cret"}, False),
        ({"host": "localhost", "password": "s3cret"}, False),
        ({"host": "127.9.9.9", "password": "s3cret"}, False),
        ({"host": "http://[::1]:8080", "password": "s3cret"}, False),
        ({"host": "127.0.0.1.example.com", "password": "s3cret"}, True),
    ],
)
def test_credentials_sent_unencrypted_to_another_machine_cause_a_warning(
    connection_fields: dict[str, Any],
    is_warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "http", **connection_fields}))
    sink = HttpSink("/staged", conn_id="hook")
    sink.resolve_schema(_schema(a="string"))
    assert [record.getMessage() for record in caplog.records] == sink.warnings()
    assert bool(sink.warnings()) == is_warned
    assert all("without encryption" in warning and "s3cret" not in warning for warning in sink.warnings())


def test_credentials_from_netrc_are_not_sent(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    fixture = new_fixture(tmp_path / "w")
    fixture.run("a", pipeline=pushing(fixture, recorder))
    assert all("authorization" not in call.headers for call in recorder.calls)


@pytest.mark.parametrize(
    "extra", [{"X-Token": "se\r\ncret"}, {"X Token": "secret"}, {"X-Token": 5}, {"X-Token": "sécret"}, {"idempotency-key": "secret"}]
)  # fmt: skip
def test_invalid_header_is_refused_before_the_commit_and_not_quoted(
    extra: dict[str, Any], tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "http", "host": "h", "extra": extra}))
    fixture = new_fixture(tmp_path)
    with pytest.raises(InvalidError, match="conn_id='hook'") as refused:
        fixture.run("a", pipeline=pushing(fixture, recorder, url=None, conn_id="hook"))
    assert "cret" not in str(refused.value)
    assert fixture.opened().log.outcome(0) is None


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of url and conn_id"), ({"url": "http://h", "conn_id": "c"}, "exactly one"), ({"url": "http://u:pw-x@h/"}, "must not contain credentials"),
    ({"url": "http://h:port/x?token=pw-x"}, "invalid host or port"), ({"url": "http://h", "endpoint": "x?token=pw-x"}, "endpoint needs conn_id"),
    ({"url": "ftp://h"}, "url"), ({"url": "http://h", "endpoint": "x"}, "endpoint needs conn_id"), ({"url": "http://h", "method": "GET"}, "method"),
    ({"url": "http://h", "delivery": "exactly_once"}, "delivery"), ({"url": "http://h", "delivery": "effectively_once"}, "delivery"),
    ({"url": "http://h", "delivery": "at_most_once", "idempotent": True}, "repeats no call"), ({"url": "http://h", "idempotent": 1}, "idempotent"),
    ({"url": "http://h", "delivery": "at_most_once", "on_refusal": "fail"}, "on_refusal"), ({"url": "http://h", "key_header": "a b"}, "key_header"),
    ({"url": "http://h", "record_id": "id"}, "record_id"), ({"url": "http://h", "record_id": ["id"], "records_per_call": 2}, "one record"),
    ({"url": "http://h", "max_per_s": 0}, "max_per_s"), ({"url": "http://h", "max_wait_s": -1}, "max_wait_s"),
    ({"url": "http://h", "chunk_rows": 0}, "chunk_rows"), ({"url": "http://h", "records_per_call": True}, "records_per_call"), ({"url": "http://h", "timeout_s": 0}, "timeout_s"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_invalid_argument_is_reported_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message) as refused:
        HttpSink("/staged", **arguments)
    assert "pw-x" not in str(refused.value)


@pytest.mark.parametrize("choice", CHOICES)
def test_label_and_spec_match_the_delivery_choice(choice: str, tmp_path: Path) -> None:
    fixture, recorder = PipelineFixture(tmp_path), Recorder(port=1)
    pipeline = pushing(fixture, recorder, **CHOICES[choice])
    label = guarantee(pipeline)
    assert label.label == choice
    promise = {
        "at_least_once": "may repeat.*idempotent=True", "at_most_once": "no call is performed twice.*unknown", "effectively_once": "promises.*cannot check",
    }  # fmt: skip
    assert re.search(promise[choice], " ".join(label.reasons))
    spec = pipeline.to_json()
    again = from_json({key: value for key, value in spec.items() if key != "transform"})
    assert again.sinks == pipeline.sinks
    with pytest.raises(InvalidError, match="weaker than it requires"):
        pipeline.replace(require="exactly_once")


def test_options_that_define_chunks_and_keys_cannot_change_on_an_existing_log(
    tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    fixture.run("a", pipeline=pushing(fixture, recorder))
    fixture.run("a", pipeline=pushing(fixture, recorder, idempotent=True, on_refusal="record", timeout_s=5))
    for change in ({"chunk_rows": 3}, {"delivery": "at_most_once"}, {"record_id": ["id"]}, {"records_per_call": 2}):
        with pytest.raises(ConflictError):
            fixture.run("b", pipeline=pushing(fixture, recorder, **change))


def test_reprocessing_is_refused_before_anything_is_written(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    fixture.run("a", pipeline=pipeline)
    with pytest.raises(InvalidError):
        fixture.run("r", pipeline=pipeline, reprocessed=0)
    assert recorder.ids() == fixture.expected


def test_record_key_is_unchanged_after_its_decimal_column_was_widened(tmp_path: Path) -> None:
    sink = HttpSink(str(tmp_path), url="http://h", record_id=["id", "name"], idempotent=True)

    def key(type: str, value: Any) -> str:
        fields = [{"name": "id", "type": type}, {"name": "name", "type": "string"}]
        batch = SimpleNamespace(schema=json.dumps({"fields": fields}), pipeline_uuid="u", sink="s")
        return sink.key(batch, 0, 0, {"id": value, "name": "5.00"})  # type: ignore[arg-type]

    assert key("decimal(9,2)", "5.00") == key("decimal(12,4)", "5.0000") == key("decimal(9,0)", "5") == key("long", 5)
    assert key("decimal(9,2)", "-1.50") == key("decimal(12,4)", "-1.5000")
    assert len({key("decimal(9,2)", text) for text in ("0.00", "0.50", "5.00", "50.00", "0.05", "-5.00")}) == 6
    assert key("string", "5.0") != key("string", "5")
