"""Effects by HTTP: what each choice keeps of every record when a process dies, waits or meets another at any step."""

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
from airflow_provider_streamsem.batch.maintenance import vacuum
from airflow_provider_streamsem.batch.opening import open_pipeline
from airflow_provider_streamsem.batch.pipeline import Pipeline, from_json
from airflow_provider_streamsem.batch.publish import LoggedEffects, batch_of, skip
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    LogDamagedError,
    PublishError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol.entries import Receipt
from airflow_provider_streamsem.sinks.endpoint import TURNED_AWAY, Address, Endpoint, retry_after_s
from airflow_provider_streamsem.sinks.http import HttpSink
from airflow_provider_streamsem.sinks.json_rows import check_types, json_rows
from airflow_provider_streamsem.sinks.operations import OPERATIONS
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import SteppedStore
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.sinks.endpoints import Answer, Call, Recorder, serving
from tests.worlds import World

CHOICES: dict[str, dict[str, Any]] = {
    "at_least_once": {},
    "at_most_once": {"delivery": "at_most_once"},
    "effectively_once": {"idempotent": True},
}


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with serving(Recorder()) as made:
        yield made


def world(root: Path, files: int = 2) -> World:
    """Six rows in one batch; of parts of two rows it has three."""
    made = World(root)
    made.arrive(files)
    return made


def pushing(w: World, recorder: Recorder, **choice: Any) -> Pipeline:
    given = {"url": recorder.url, "part_rows": 2, **choice}
    return w.pipeline(sinks={"push": HttpSink(str(w.root / "staged"), **given)})


def receipt(w: World, version: int = 0) -> Receipt:
    found = w.opened().log.receipts(version)
    assert found is not None
    return found.sinks["push"]


def claims(w: World) -> list[str]:
    return [stat.key for stat in w.store.list("claims/")]


# --- a death, a pause or another process at every step


class Outside:
    """Every request to the ledger and every call of the endpoint, as steps of the process that is watched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import requests

        self.watched: Callable[[str], object] | None = None
        original = requests.Session.request

        def request(session: Any, method: str, url: str, **named: Any) -> Any:
            self.step("before call")
            answer = original(session, method, url, **named)
            self.step("after call")
            return answer

        monkeypatch.setattr(requests.Session, "request", request)

    def step(self, name: str) -> None:
        if self.watched is not None and any(part in name for part in ("claims/", "effects/", ".d.json", "call")):
            self.watched(name)

    def run(self, w: World, pipeline: Pipeline, watched: Callable[[str], object]) -> None:
        """The run ``a``, watched. Whom it meets on its way is not."""
        self.watched = watched
        try:
            w.run("a", pipeline=pipeline, store=SteppedStore(w.store, self.step))
        finally:
            self.watched = None


class At:
    """Does something once, at one step."""

    def __init__(self, at: int, what: Callable[[], object]) -> None:
        self.at, self.what, self.taken = at, what, list[str]()

    def __call__(self, name: str) -> None:
        self.taken.append(name)
        if len(self.taken) - 1 == self.at:
            self.what()


def die() -> None:
    raise Crash


def untroubled(recorder: Recorder) -> Callable[[Call], Answer]:
    return lambda call: 200


def limited(recorder: Recorder) -> Callable[[Call], Answer]:
    """Defers the first call of two records: one for so long that the publisher records its progress before it waits."""

    def answer(call: Call) -> Answer:
        wait_s = {3: 10, 4: 1}.get(call.ids[0])
        is_first = sum(heard.ids == call.ids for heard in recorder.heard) == 1
        return (429, {"Retry-After": str(wait_s)}) if wait_s and is_first else 200

    return answer


def judge(choice: str, w: World, recorder: Recorder, where: str) -> None:
    seen, told = recorder.ids(), receipt(w)
    lost, twice = w.expected - seen, {n for n, times in seen.items() if times > 1}
    assert not seen - Counter({n: 99 for n in w.expected}), where
    assert w.verdict().findings == [], where
    if choice == "at_most_once":
        assert not twice, f"{where}: repeated {twice}"
        assert lost.total() <= told.detail["unknown"] + told.detail["refused"], f"{where}: a loss that nobody tells of"
        assert told.rows + told.detail["unknown"] == w.expected.total(), where
        assert (told.result == "unknown") == (told.detail["unknown"] > 0), where
    else:
        assert not lost, f"{where}: lost {lost}"
        assert told == Receipt(result="applied", rows=6, detail={"parts": 3, "refused": 0, "unknown": 0, "skipped": 0})
    if choice == "effectively_once":
        assert Counter(body["id"] for body in recorder.table().values()) == w.expected, where


# Keys change nothing in the order of steps, so a limited endpoint that keeps keys shows nothing more.
ENDPOINTS = [*((choice, untroubled) for choice in CHOICES), ("at_least_once", limited), ("at_most_once", limited)]


@pytest.mark.parametrize("who", ["same run", "other run"])
@pytest.mark.parametrize(("choice", "answers"), ENDPOINTS)
def test_killed_at_every_step_and_followed(
    choice: str, who: str, answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    outside, lost, repeated = Outside(monkeypatch), 0, 0
    recorder.answers = answers(recorder)
    at, steps = 0, 1
    while at < steps:
        recorder.calls.clear()
        recorder.heard.clear()
        w = world(tmp_path / str(at))
        pipeline = pushing(w, recorder, **CHOICES[choice])
        assert guarantee(pipeline).label == choice
        killed = At(at, die)
        with suppress(Crash):
            outside.run(w, pipeline, killed)
        steps = max(steps, len(killed.taken) + 1)
        if who == "other run":
            with suppress(UnavailableError):  # it may not call a claim of others unknown
                w.run("b", pipeline=pipeline)
        w.run("a", pipeline=pipeline)
        judge(choice, w, recorder, f"killed at {at}, {killed.taken[-1]}")
        lost += (w.expected - recorder.ids()).total()
        repeated += (recorder.ids() - w.expected).total()
        at += 1
    assert steps > (30 if choice == "at_most_once" else 24), "each part has a look, a note and two calls"
    assert (lost > 0) == (choice == "at_most_once"), "that it may lose is no empty warning"
    assert (repeated > 0) == (choice != "at_most_once"), "that it may repeat is none either"


@pytest.mark.parametrize("who", ["a", "b"])
@pytest.mark.parametrize(("choice", "answers"), ENDPOINTS)
def test_two_at_once_and_one_of_them_pauses_at_every_step(
    choice: str, who: str, answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    outside = Outside(monkeypatch)
    recorder.answers = answers(recorder)
    at, steps = 0, 1
    while at < steps:
        recorder.calls.clear()
        recorder.heard.clear()
        w = world(tmp_path / str(at))
        pipeline = pushing(w, recorder, **CHOICES[choice])

        def meanwhile() -> None:
            watched, outside.watched = outside.watched, None
            with suppress(UnavailableError):
                w.run(who, pipeline=pipeline)  # noqa: B023
            outside.watched = watched

        paused = At(at, meanwhile)
        with suppress(UnavailableError):
            outside.run(w, pipeline, paused)
        steps = max(steps, len(paused.taken) + 1)
        w.run("a", pipeline=pipeline)
        judge(choice, w, recorder, f"paused at {at}, {paused.taken[-1]}")
        at += 1
    assert steps > 20


class LedgerFaults(FaultyStore):
    """Only requests for the ledger and the receipts are numbered."""

    def _next(self, key: str) -> Fault | None:
        return super()._next(key) if any(part in key for part in ("claims/", "effects/", ".d.json")) else None


@pytest.mark.parametrize("who", ["a", "b"])
@pytest.mark.parametrize(
    "fault", [Fault.LOST_REPLY, Fault.CONFLICT, Fault.ERROR_AFTER, Fault.APPLIED_LATE], ids=lambda fault: fault.name
)
@pytest.mark.parametrize("choice", CHOICES)
def test_any_request_of_the_ledger_that_gets_a_bad_answer_while_others_go_on(
    choice: str, fault: Fault, who: str, tmp_path: Path, recorder: Recorder
) -> None:
    at, store = 0, None
    while store is None or store.reached:
        recorder.calls.clear()
        w = world(tmp_path / str(at))
        pipeline = pushing(w, recorder, **CHOICES[choice])

        def meanwhile() -> None:
            with suppress(UnavailableError):  # it may not call a claim of others unknown
                w.run(who, pipeline=pipeline)  # noqa: B023

        store = LedgerFaults(w.store, at, fault, meanwhile=meanwhile)
        with suppress(UnavailableError):
            w.run("a", pipeline=pipeline, store=store)
        w.run("a", pipeline=pipeline)
        judge(choice, w, recorder, f"{fault.name} at {at}")
        at += 1
    assert at > (9 if choice == "at_most_once" else 6), "each part has a look and a note"


def held(calls: list[Call], operation: str) -> dict[int, Any]:
    """What an endpoint holds that performs an operation of ``sinks/operations.py`` on the value of each key, call by call."""
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
            case "delete":  # version 0 deletes what the later ones make anew
                table[key] = version != 0
    return table


@pytest.mark.parametrize("files", [6, 2])
def test_operation_that_may_be_repeated_ends_in_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder, files: int
) -> None:
    """
    A publisher sleeps at every step, while others publish its version and those after it; then it goes on and repeats what it has begun. With two files there
    is one version, which holds each key twice: no later one hides what a late call did.
    """
    outside, tables = Outside(monkeypatch), []

    def keyed(rows: list[dict[str, int]]) -> list[dict[str, int]]:
        return [{"key": row["id"] % 3, "value": row["id"] + 1} for row in rows]

    at, steps = -1, 1
    while at < steps:
        recorder.calls.clear()
        w = world(tmp_path / str(at), files)
        pipeline = pushing(w, recorder, operation="upsert_newer").replace(transform=keyed)

        def meanwhile() -> None:
            watched, outside.watched = outside.watched, None
            w.run("others", pipeline=pipeline, drain=True)  # noqa: B023
            outside.watched = watched

        paused = At(at, meanwhile)
        outside.run(w, pipeline, paused)
        steps = max(steps, len(paused.taken))
        w.run("others", pipeline=pipeline, drain=True)
        tables.append({operation: held(recorder.calls, operation) for operation in OPERATIONS})
        at += 1
    undisturbed, *disturbed = tables
    assert len(disturbed) > 20
    for operation, row in OPERATIONS.items():
        stays = all(found[operation] == undisturbed[operation] for found in disturbed)
        # In one version nothing is made anew that a late delete could take.
        assert stays == (row.idempotent or (files == 2 and operation == "delete")), operation


def test_label_of_named_records_says_that_a_later_one_is_left_out(tmp_path: Path, recorder: Recorder) -> None:
    said = guarantee(pushing(world(tmp_path), recorder, record_id=["{a}", "b"], idempotent=True)).reasons
    assert any("records with equal {a}, b are one to the endpoint" in reason for reason in said)
    assert not any(
        "are one to the endpoint" in reason for reason in guarantee(pushing(world(tmp_path), recorder)).reasons
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_label_of_an_operation_is_that_of_the_table(operation: str, tmp_path: Path, recorder: Recorder) -> None:
    pipeline = pushing(world(tmp_path), recorder, operation=operation)
    if OPERATIONS[operation].idempotent:
        assert pipeline.replace(require="effectively_once")
        return
    with pytest.raises(InvalidError, match="idempotent=True") as refused:
        pipeline.replace(require="effectively_once")
    assert OPERATIONS[operation].instead in str(refused.value).replace('\\"', '"')


def test_late_publisher_calls_nobody(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path, 4)
    pipeline = pushing(w, recorder)
    w.run("a", pipeline=pipeline, drain=True)
    opened, seen = open_pipeline(pipeline, w.log()), recorder.ids()
    vacuum(pipeline, log=opened.log)
    assert not [*(w.root / "staged").rglob("*.parquet")], "its staged rows are gone"
    found = opened.log.outcome(0)
    assert found is not None
    sink = pipeline.sinks["push"]
    for _ in range(3):
        effects = LoggedEffects(opened.log, 0, "push", may_close=False)
        assert sink.publish(batch_of(opened, *found, "push"), effects) == receipt(w)  # type: ignore[attr-defined]
    assert recorder.ids() == seen == w.expected


def test_rows_of_a_version_that_is_published_days_later_are_deleted_then(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder)
    recorder.answers = lambda call: 403
    with pytest.raises(PublishError):
        w.run("a", pipeline=pipeline)
    days_later = ManualClock(1_700_000_000_000 + 3 * 86_400_000)
    assert vacuum(pipeline, log=CommitLog(w.store, days_later)).attempts == ()
    recorder.answers = lambda call: 200
    w.run("a", pipeline=pipeline)
    assert len(vacuum(pipeline, log=CommitLog(w.store, days_later)).attempts) == 1
    assert not [*(w.root / "staged").rglob("*.parquet")]


def test_pipelines_of_the_page_are_accepted_and_the_mails_label_says_what_is_true() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sinks" / "http.md").read_text()
    made: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "http.md", "exec"), made)
    assert guarantee(made["MAILS"]).label == "at_most_once"
    for more in ("exactly_once", "effectively_once", "at_least_once"):
        with pytest.raises(InvalidError, match="keeps less than it requires"):
            made["MAILS"].replace(require=more)


# --- what answers prove


@pytest.mark.parametrize(
    "answer", [500, 503, (500, {"Retry-After": "1"}), (503, {"Retry-After": "soon"}), 408, "lost", "dropped", "silent"]
)
def test_unclear_answer_is_called_again_or_counted_unknown_by_choice(
    answer: Answer, tmp_path: Path, recorder: Recorder
) -> None:
    for choice, given in CHOICES.items():
        w = world(tmp_path / choice)
        recorder.calls.clear()
        recorder.heard.clear()
        unclear = [3]
        recorder.answers = lambda call: answer if call.ids == unclear and not unclear.append(-1) else 200  # noqa: B023
        w.run("a", pipeline=pushing(w, recorder, timeout_s=1, **given))
        heard = Counter(found for call in recorder.heard for found in call.ids)
        assert heard == w.expected + (Counter() if choice == "at_most_once" else Counter([3]))
        judge(choice, w, recorder, choice)
        assert receipt(w).detail["unknown"] == (1 if choice == "at_most_once" else 0)


@pytest.mark.parametrize(
    "answer", [425, 429, (429, {"Retry-After": "1"}), (429, {"Retry-After": "soon"}), (503, {"Retry-After": "0"})]
)
@pytest.mark.parametrize("choice", CHOICES)
def test_call_that_the_endpoint_says_it_did_not_perform_is_sent_again_under_the_same_claim(
    choice: str, answer: Answer, tmp_path: Path, recorder: Recorder
) -> None:
    w = world(tmp_path)
    recorder.answers = lambda call: answer if call.ids == [3] and recorder.heard.count(call) < 4 else 200
    w.run("a", pipeline=pushing(w, recorder, **CHOICES[choice]))
    assert Counter(found for call in recorder.heard for found in call.ids) == w.expected + Counter({3: 3})
    assert recorder.ids() == w.expected
    assert receipt(w).rows == 6
    assert len(claims(w)) == (3 if choice == "at_most_once" else 0)


class Window:
    """An endpoint that performs ``calls`` calls in each window of 60 seconds, and says when the next one begins."""

    def __init__(self, clock: ManualClock, calls: int) -> None:
        self.clock, self.calls = clock, calls
        self.performed: Counter[int] = Counter()

    def __call__(self, call: Call) -> Answer:
        window, into_ms = divmod(self.clock.now_ms(), 60_000)
        if self.performed[window] == self.calls:
            return 429, {"Retry-After": str(-(-(60_000 - into_ms) // 1000))}
        self.performed[window] += 1
        return 200


def run_at(w: World, clock: ManualClock, pipeline: Pipeline, run_key: str = "a") -> CountingStore:
    """Run with a clock that other runs share; returns the store, which has counted the requests."""
    store = CountingStore(w.store)
    run_batch(pipeline, run_key=run_key, log=CommitLog(store, clock), engine=RowsEngine())
    return store


@pytest.mark.parametrize("choice", CHOICES)
def test_batch_of_ten_times_the_rate_limit_passes_in_one_run(choice: str, tmp_path: Path, recorder: Recorder) -> None:
    w, clock = world(tmp_path, 100), ManualClock()
    recorder.answers = Window(clock, 30)
    began_ms = clock.now_ms()
    store = run_at(
        w, clock, pushing(w, recorder, part_rows=100, **CHOICES[choice]).replace(limits=Limits(max_files=100))
    )
    assert recorder.ids() == w.expected
    assert receipt(w) == Receipt(
        result="applied", rows=300, detail={"parts": 3, "refused": 0, "unknown": 0, "skipped": 0}
    )
    assert len(recorder.heard) - 300 < 30, "the rate adapts: few calls are refused"
    assert clock.now_ms() - began_ms < 3 * 10 * 60_000, "and it is not given up"
    kept = [key for method, key in store.keys if method == "create" and key.startswith(("effects/", "claims/"))]
    assert len(kept) < (clock.now_ms() - began_ms) / 5_000 * 2 + 6, (
        "at most one note and one claim in five seconds of waiting"
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_tries_under_a_rate_limit_repeat_no_call_and_lose_no_record(
    choice: str, tmp_path: Path, recorder: Recorder
) -> None:
    w, clock = world(tmp_path, 100), ManualClock()
    recorder.answers = Window(clock, 30)
    pipeline = pushing(w, recorder, part_rows=100, max_wait_s=0, **CHOICES[choice]).replace(
        limits=Limits(max_files=100)
    )
    for again in range(1, 10):
        with pytest.raises(UnavailableError, match="no record is lost") as ended:
            run_at(w, clock, pipeline, "a" if again % 2 else "b")
        assert ended.value.retryable
        assert (ended.value.fields["done"], ended.value.fields["rows"]) == (30 * again, 300)
        until = datetime.datetime.fromisoformat(str(ended.value.fields["run_again_at"]))
        clock.sleep(until.timestamp() - clock.now_ms() / 1000)
    run_at(w, clock, pipeline)
    assert recorder.ids() == w.expected
    assert len(recorder.heard) == 300 + 9
    assert receipt(w) == Receipt(
        result="applied", rows=300, detail={"parts": 3, "refused": 0, "unknown": 0, "skipped": 0}
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_publisher_that_dies_in_a_long_wait_has_repeated_and_lost_nothing(
    choice: str, tmp_path: Path, recorder: Recorder
) -> None:
    class Dying(ManualClock):
        def sleep(self, seconds: float) -> None:
            if seconds > 5:
                raise Crash

    w = world(tmp_path)
    recorder.answers = limited(recorder)
    pipeline = pushing(w, recorder, **CHOICES[choice])
    with pytest.raises(Crash):
        run_at(w, Dying(), pipeline)
    w.run("b", pipeline=pipeline)
    assert recorder.ids() == w.expected
    assert receipt(w) == Receipt(
        result="applied", rows=6, detail={"parts": 3, "refused": 0, "unknown": 0, "skipped": 0}
    )


def test_retry_after_is_heeded_as_seconds_and_as_a_date_by_the_endpoints_own_clock(
    tmp_path: Path, recorder: Recorder
) -> None:
    assert retry_after_s({"Retry-After": "7"}, 0) == 7
    for date in ({}, {"Date": "Thu, 01 Jan 2026 00:00:00 GMT"}):
        now_ms = 1_767_225_600_000 if not date else 5
        assert retry_after_s({"Retry-After": "Thu, 01 Jan 2026 00:02:00 GMT", **date}, now_ms) == 120
    assert retry_after_s({"Retry-After": "Thu, 01 Jan 2015 00:02:00 GMT"}, 1_767_225_600_000) == 0
    for bad in ("", "-1", "1.5", "soon", "9" * 10, "Thu, 99 Jan 2026 00:00:00 GMT"):
        assert retry_after_s({"Retry-After": bad}, 0) is None
    w, clock = world(tmp_path), ManualClock()
    began_ms = clock.now_ms()
    recorder.answers = lambda call: (503, {"Retry-After": "40"}) if len(recorder.heard) == 2 else 200
    run_at(w, clock, pushing(w, recorder, delivery="at_most_once"))
    assert clock.now_ms() - began_ms >= 40_000
    assert recorder.ids() == w.expected


def test_calls_stay_below_the_rate_that_is_set(tmp_path: Path, recorder: Recorder) -> None:
    w, clock = world(tmp_path, 20), ManualClock()
    times = []
    recorder.answers = lambda call: times.append(clock.now_ms()) or 200  # type: ignore[func-returns-value]
    run_at(w, clock, pushing(w, recorder, part_rows=7, max_per_s=4).replace(limits=Limits(max_files=20)))
    assert len(times) == 60
    assert times[-1] - times[0] == 59 * 250


def test_round_that_was_released_and_is_claimed_by_a_live_publisher_is_not_closed_as_unknown(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that committed waits; another run goes on with the rest, and has not recorded it when the first one wakes."""
    w = world(tmp_path)
    recorder.answers = limited(recorder)
    pipeline = pushing(w, recorder, delivery="at_most_once", part_rows=6)

    class Waking(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if seconds > 5:
                with monkeypatch.context() as stuck:
                    stuck.setattr(LoggedEffects, "record", lambda *args, **named: die())
                    with pytest.raises(Crash):
                        w.run("b", pipeline=pipeline)

    with pytest.raises(UnavailableError, match="another entry has claimed"):
        run_at(w, Waking(), pipeline)
    w.run("a", pipeline=pipeline)
    assert recorder.ids() == w.expected
    told = receipt(w)
    assert (told.result, told.rows, told.detail["unknown"]) == ("unknown", 3, 3)


@pytest.mark.parametrize("changed", [{"left": 9}, {"left": 0}, {"done": -3, "left": 5}])
def test_effects_that_are_not_about_their_rounds_records_are_damage(
    changed: dict[str, int], tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder)
    recorder.answers = lambda call: (429, {"Retry-After": "999"}) if call.ids == [1] else 200
    with monkeypatch.context() as forged:
        real = LoggedEffects.record
        forged.setattr(LoggedEffects, "record", lambda self, *at, **named: real(self, *at, **{**named, **changed}))
        with pytest.raises((LogDamagedError, UnavailableError)):
            w.run("a", pipeline=pipeline)
    with pytest.raises(LogDamagedError, match="not those of its records"):
        w.run("a", pipeline=pipeline)


def test_endpoint_that_stays_unclear_is_called_again_by_the_next_try(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder)
    recorder.answers = lambda call: 503 if call.ids == [3] else 200
    with pytest.raises(UnavailableError, match=r"made again.*part=1 record=1 status=503"):
        w.run("a", pipeline=pipeline)
    recorder.answers = lambda call: 200
    w.run("b", pipeline=pipeline)
    judge("at_least_once", w, recorder, "after 503")


def test_endpoint_that_is_down_costs_no_claim_and_no_record(tmp_path: Path) -> None:
    w, recorder = world(tmp_path), Recorder()
    with serving(recorder):
        pass
    pipeline = pushing(w, recorder, delivery="at_most_once")
    with pytest.raises(UnavailableError, match="no call was made"):
        w.run("a", pipeline=pipeline)
    assert claims(w) == []
    with serving(recorder):
        w.run("a", pipeline=pipeline)
    assert recorder.ids() == w.expected
    assert receipt(w).result == "applied"


@pytest.mark.parametrize(("answer", "error"), [(500, UnavailableError), (302, PublishError)])
def test_endpoint_that_answers_nothing_well_costs_one_part_a_try_at_most(
    answer: int, error: type[Exception], tmp_path: Path, recorder: Recorder
) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder, delivery="at_most_once")
    recorder.answers = lambda call: answer
    with pytest.raises(error, match="wait unclaimed"):
        w.run("a", pipeline=pipeline)
    assert len(claims(w)) == 1
    assert len(recorder.heard) == 2
    recorder.answers = lambda call: 200
    w.run("a", pipeline=pipeline)
    told = receipt(w)
    assert (told.rows, told.detail["unknown"], told.detail["refused"]) == (4, 2, 0)
    assert max(recorder.ids().values()) == 1


@pytest.mark.parametrize(("answer", "error"), [(500, UnavailableError), (302, PublishError)])
def test_run_fails_where_the_only_part_of_a_batch_had_no_clear_answer(
    answer: int, error: type[Exception], tmp_path: Path, recorder: Recorder
) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder, delivery="at_most_once", part_rows=100)
    recorder.answers = lambda call: answer
    with pytest.raises(error):
        w.run("a", pipeline=pipeline)
    w.run("a", pipeline=pipeline)
    assert (receipt(w).result, receipt(w).detail["unknown"]) == ("unknown", 6)


@pytest.mark.parametrize("part_rows", [2, 100])
@pytest.mark.parametrize("answer", TURNED_AWAY)
def test_caller_who_is_turned_away_loses_no_record(
    answer: int, part_rows: int, tmp_path: Path, recorder: Recorder
) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder, delivery="at_most_once", part_rows=part_rows)
    recorder.answers = lambda call: answer if call.ids == [3] else 200
    for run in ("a", "a", "b"):
        with pytest.raises(PublishError, match="turns the caller away"):
            w.run(run, pipeline=pipeline)
    recorder.answers = lambda call: 200
    w.run("a", pipeline=pipeline)
    assert recorder.ids() == w.expected
    told = receipt(w)
    assert (told.result, told.rows, told.detail["refused"]) == ("applied", 6, 0)


def test_call_that_could_not_be_sent_loses_no_record(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder, delivery="at_most_once")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="the call was not sent"):
            w.run("a", pipeline=pipeline)
    monkeypatch.delenv("HTTP_PROXY")
    w.run("a", pipeline=pipeline)
    assert recorder.ids() == w.expected
    assert receipt(w).result == "applied"


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
def test_failure_before_the_first_byte_is_told_from_a_lost_answer(
    url: str, settings: dict[str, Any], kind: str, recorder: Recorder
) -> None:
    here = recorder.url.removeprefix("http://")
    with Endpoint(Address(url.replace("HERE", here), **settings), "POST", 2, SYSTEM_CLOCK) as endpoint:
        assert endpoint.call(b"{}", {}).kind == kind


@pytest.mark.parametrize("answer", ["lost", "dropped"])
def test_call_that_a_proxy_has_taken_is_never_called_unsent(
    answer: str, tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder is the proxy, and the endpoint behind it."""
    w = world(tmp_path)
    monkeypatch.setenv("HTTP_PROXY", recorder.url.removesuffix("/effects"))
    monkeypatch.setenv("NO_PROXY", "")
    pipeline = pushing(w, recorder, url="http://behind.invalid/effects", delivery="at_most_once")
    recorder.answers = lambda call: answer if call.ids == [3] else 200
    for _ in range(2):
        w.run("a", pipeline=pipeline)
    assert max(recorder.ids().values()) == 1
    assert len([call for call in recorder.heard if call.ids == [3]]) == 1
    assert receipt(w).detail["unknown"] == 1


def test_wait_beyond_the_years_of_a_date_is_an_error_that_loses_no_record(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder, delivery="at_most_once")
    far = {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}
    recorder.answers = lambda call: (429, far) if call.ids == [3] else 200
    with pytest.raises(UnavailableError, match="limits the rate of calls"):
        w.run("a", pipeline=pipeline)
    recorder.answers = lambda call: 200
    w.run("a", pipeline=pipeline)
    assert recorder.ids() == w.expected
    assert receipt(w).result == "applied"


def test_redirect_is_not_followed(tmp_path: Path, recorder: Recorder) -> None:
    recorder.answers = lambda call: 307 if call.path == "/effects" else 200
    for name, choice in CHOICES.items():
        w = world(tmp_path / name)
        with pytest.raises(PublishError):
            w.run("a", pipeline=pushing(w, recorder, **choice))
    assert {call.path for call in recorder.heard} == {"/effects"}
    assert recorder.calls == []


def test_refused_record_stops_the_pipeline_until_it_is_taken(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder)
    recorder.answers = lambda call: 422 if call.ids == [3] else 200
    for run in ("a", "b"):
        with pytest.raises(PublishError, match=r"part=1 record=1 status=422.*streamsem skip"):
            w.run(run, pipeline=pipeline)
    assert w.opened().log.receipts(0) is None
    recorder.answers = lambda call: 200
    w.run("b", pipeline=pipeline)
    judge("at_least_once", w, recorder, "mended")


@pytest.mark.parametrize("choice", ["at_least_once", "at_most_once"])
def test_refused_record_is_counted_and_left_out_where_one_chooses_so(
    choice: str, tmp_path: Path, recorder: Recorder
) -> None:
    w = world(tmp_path)
    recorder.answers = lambda call: 400 if call.ids[0] in (2, 3, 4) else 200
    w.run("a", pipeline=pushing(w, recorder, delivery=choice, on_refusal="record"))
    assert recorder.ids() == Counter([0, 1, 5])
    assert receipt(w) == Receipt(
        result="applied", rows=3, detail={"parts": 3, "refused": 3, "unknown": 0, "skipped": 0}
    )


def test_credentials_that_are_refused_are_never_taken_for_refused_records(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder, on_refusal="record")
    recorder.answers = lambda call: 401
    with pytest.raises(PublishError, match="status=401"):
        w.run("a", pipeline=pipeline)
    recorder.answers = lambda call: 200
    w.run("a", pipeline=pipeline)
    judge("at_least_once", w, recorder, "after 401")


def test_given_up_batch_says_of_each_part_what_can_be_known(tmp_path: Path, recorder: Recorder) -> None:
    for choice, expected in (
        ("at_most_once", {"parts": 3, "refused": 0, "unknown": 0, "skipped": 6}),
        ("at_least_once", {"parts": 3, "refused": 0, "unknown": 6, "skipped": 0}),
    ):
        w = world(tmp_path / choice)
        pipeline = pushing(w, recorder, delivery=choice)
        recorder.answers = lambda call: 403
        with pytest.raises(PublishError):
            w.run("a", pipeline=pipeline)
        skip(pipeline, 0, sink="push", reason="the endpoint is gone", log=w.log())
        recorder.answers = lambda call: 200
        w.run("b", pipeline=pipeline)
        assert recorder.calls == []
        told = receipt(w)
        assert (told.rows, told.detail) == (0, expected)
        assert told.result == ("skipped" if choice == "at_most_once" else "unknown")


def test_claim_of_an_entry_that_is_gone_is_closed_as_unknown_by_a_person(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder, delivery="at_most_once")

    with monkeypatch.context() as dying:
        dying.setattr(LoggedEffects, "record", lambda *args, **named: die())
        with pytest.raises(Crash):
            w.run("a", pipeline=pipeline)
    with pytest.raises(UnavailableError, match="another entry has claimed"):
        w.run("b", pipeline=pipeline)
    skip(pipeline, 0, sink="push", reason="its task was deleted", log=w.log())
    told = receipt(w)
    assert (told.result, told.rows, told.detail["unknown"], told.detail["skipped"]) == ("unknown", 0, 2, 4)


# --- keys and bodies


def test_key_of_a_call_is_the_same_at_every_try_and_anothers_never(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path, 4)
    pipeline = pushing(w, recorder, records_per_call=2, part_rows=5)
    recorder.answers = lambda call: 503 if 9 in call.ids else 200
    with pytest.raises(UnavailableError):
        w.run("a", pipeline=pipeline, drain=True)
    recorder.answers = lambda call: 200
    w.run("a", pipeline=pipeline, drain=True)
    by_key: dict[str, list[list[int]]] = {}
    for call in recorder.heard:
        by_key.setdefault(call.key, []).append(call.ids)
    assert all(all(ids == tries[0] for ids in tries) for tries in by_key.values())
    assert [tries[0] for tries in by_key.values()] == [[0, 1], [2, 3], [4], [5], [6, 7], [8, 9], [10], [11]]
    uuid, found = w.opened().record.pipeline_uuid, [w.log().outcome(version) for version in range(2)]
    zero, one = (f"{uuid}-push-{version}-{stored[1][:16]}" for version, stored in enumerate(found) if stored)
    assert list(by_key)[:5] == [f"{zero}-0-0", f"{zero}-0-2", f"{zero}-0-4", f"{zero}-1-0", f"{one}-0-0"]


def test_version_that_is_planned_anew_by_a_restored_log_has_other_keys(tmp_path: Path, recorder: Recorder) -> None:
    """With the keys of the lost version, an endpoint would take its calls for repetitions, and other records would be lost."""
    w = world(tmp_path, 2)
    pipeline = pushing(w, recorder)
    w.run("a", pipeline=pipeline)
    older = {stat.key: w.store.read(stat.key) or b"" for stat in w.store.list("")}
    w.arrive(1)
    w.run("b", pipeline=pipeline)
    for stat in list(w.store.list("")):
        if stat.key not in older:
            w.store.delete(stat.key)
    lost = {call.key for call in recorder.heard}
    w.arrive(1)
    w.run("c", pipeline=pipeline)
    assert lost.isdisjoint(call.key for call in recorder.heard[len(lost) :])
    assert w.expected.keys() == {call.body["id"] for call in recorder.heard}


def test_record_with_an_id_of_its_own_has_one_key_in_every_version(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path, 4)
    pipeline = pushing(w, recorder, record_id=["half"], idempotent=True).replace(transform=halved)
    w.run("a", pipeline=pipeline, drain=True)
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


def test_columns_that_cannot_be_sent_are_refused_before_the_decision(tmp_path: Path, recorder: Recorder) -> None:
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
    w = world(tmp_path)
    with pytest.raises(DataError, match=r"record_id are missing.*\['order'\]"):
        w.run("a", pipeline=pushing(w, recorder, record_id=["order"]))
    assert recorder.heard == []
    assert w.opened().log.outcome(0) is None


def test_batch_without_rows_calls_nobody(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path)
    w.run("a", pipeline=pushing(w, recorder).replace(transform=none))
    assert recorder.heard == []
    assert receipt(w).result == "applied"


def none(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return []


# --- connections, secrets, arguments, labels


def test_secrets_come_from_the_connection_and_stay_there(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = ("pass-wörd", "t0ken-of-the-header")
    text = {
        "conn_type": "http", "host": "127.0.0.1", "port": recorder.port, "login": "u", "password": secrets[0],
        "extra": {"X-Token": secrets[1], "verify": False},
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps(text))
    w = world(tmp_path)
    pipeline = pushing(w, recorder, url=None, conn_id="hook", endpoint="/v1/metrics?source=x", method="PUT")
    recorder.answers = lambda call: 422
    with pytest.raises(PublishError) as refused:
        w.run("a", pipeline=pipeline)
    recorder.answers = lambda call: "lost"
    with pytest.raises(UnavailableError) as lost:
        w.run("a", pipeline=pipeline)
    recorder.answers = lambda call: 200
    w.run("a", pipeline=pipeline)
    call = recorder.calls[-1]
    basic = base64.b64encode(f"u:{secrets[0]}".encode()).decode()
    assert (call.method, call.path) == ("PUT", "/v1/metrics?source=x")
    assert (call.headers["authorization"], call.headers["x-token"]) == (f"Basic {basic}", secrets[1])
    assert call.headers["content-type"] == "application/json"
    assert "verify" not in call.headers
    told = "".join("".join(traceback.format_exception(found.value)) for found in (refused, lost))
    stored = "".join((w.store.read(stat.key) or b"").decode() for stat in w.store.list(""))
    for secret in (*secrets, basic):
        assert secret not in told + stored + caplog.text + repr(pipeline)


@pytest.mark.parametrize(
    ("given", "is_warned"),
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
def test_credentials_that_would_leave_the_machine_without_encryption_are_warned_of(
    given: dict[str, Any], is_warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "http", **given}))
    sink = HttpSink("/staged", conn_id="hook")
    sink.accept(_schema(a="string"))
    assert [record.getMessage() for record in caplog.records] == sink.warnings()
    assert bool(sink.warnings()) == is_warned
    assert all("without encryption" in warning and "s3cret" not in warning for warning in sink.warnings())


def test_credentials_of_a_netrc_are_not_sent(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    w = world(tmp_path / "w")
    w.run("a", pipeline=pushing(w, recorder))
    assert all("authorization" not in call.headers for call in recorder.calls)


@pytest.mark.parametrize(
    "extra", [{"X-Token": "se\r\ncret"}, {"X Token": "secret"}, {"X-Token": 5}, {"X-Token": "sécret"}, {"idempotency-key": "secret"}]
)  # fmt: skip
def test_header_that_cannot_be_sent_is_refused_before_the_decision_and_not_quoted(
    extra: dict[str, Any], tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "http", "host": "h", "extra": extra}))
    w = world(tmp_path)
    with pytest.raises(InvalidError, match="conn_id='hook'") as refused:
        w.run("a", pipeline=pushing(w, recorder, url=None, conn_id="hook"))
    assert "cret" not in str(refused.value)
    assert w.opened().log.outcome(0) is None


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of url and conn_id"), ({"url": "http://h", "conn_id": "c"}, "exactly one"), ({"url": "http://u:pw-x@h/"}, "no credentials"),
    ({"url": "ftp://h"}, "url"), ({"url": "http://h", "endpoint": "x"}, "endpoint belongs"), ({"url": "http://h", "method": "GET"}, "method"),
    ({"url": "http://h", "delivery": "exactly_once"}, "delivery"), ({"url": "http://h", "delivery": "effectively_once"}, "delivery"),
    ({"url": "http://h", "delivery": "at_most_once", "idempotent": True}, "no call twice"), ({"url": "http://h", "idempotent": 1}, "idempotent"),
    ({"url": "http://h", "delivery": "at_most_once", "on_refusal": "fail"}, "on_refusal"), ({"url": "http://h", "key_header": "a b"}, "key_header"),
    ({"url": "http://h", "record_id": "id"}, "record_id"), ({"url": "http://h", "record_id": ["id"], "records_per_call": 2}, "one record"),
    ({"url": "http://h", "max_per_s": 0}, "max_per_s"), ({"url": "http://h", "max_wait_s": -1}, "max_wait_s"),
    ({"url": "http://h", "part_rows": 0}, "part_rows"), ({"url": "http://h", "records_per_call": True}, "records_per_call"), ({"url": "http://h", "timeout_s": 0}, "timeout_s"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "says"), BAD)
def test_argument_that_is_not_acceptable_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidError, match=says) as refused:
        HttpSink("/staged", **given)
    assert "pw-x" not in str(refused.value)


@pytest.mark.parametrize("choice", CHOICES)
def test_label_and_spec_are_those_of_the_choice(choice: str, tmp_path: Path) -> None:
    w, recorder = World(tmp_path), Recorder(port=1)
    pipeline = pushing(w, recorder, **CHOICES[choice])
    found = guarantee(pipeline)
    assert found.label == choice
    promise = {
        "at_least_once": "may repeat.*idempotent=True", "at_most_once": "no call is performed twice.*unknown", "effectively_once": "its promise.*not checked",
    }  # fmt: skip
    assert re.search(promise[choice], " ".join(found.reasons))
    spec = pipeline.to_json()
    again = from_json({key: value for key, value in spec.items() if key != "transform"})
    assert again.sinks == pipeline.sinks
    with pytest.raises(InvalidError, match="keeps less"):
        pipeline.replace(require="exactly_once")


def test_what_names_parts_and_keys_cannot_change_under_one_log(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path)
    w.run("a", pipeline=pushing(w, recorder))
    w.run("a", pipeline=pushing(w, recorder, idempotent=True, on_refusal="record", timeout_s=5))
    for change in ({"part_rows": 3}, {"delivery": "at_most_once"}, {"record_id": ["id"]}, {"records_per_call": 2}):
        with pytest.raises(ConflictError):
            w.run("b", pipeline=pushing(w, recorder, **change))


def test_redo_is_refused_before_anything_is_written(tmp_path: Path, recorder: Recorder) -> None:
    w = world(tmp_path)
    pipeline = pushing(w, recorder)
    w.run("a", pipeline=pipeline)
    with pytest.raises(InvalidError):
        w.run("r", pipeline=pipeline, redone=0)
    assert recorder.ids() == w.expected


def test_key_of_a_record_is_the_same_after_its_decimal_column_was_widened(tmp_path: Path) -> None:
    sink = HttpSink(str(tmp_path), url="http://h", record_id=["id", "name"], idempotent=True)

    def key(type: str, value: Any) -> str:
        fields = [{"name": "id", "type": type}, {"name": "name", "type": "string"}]
        batch = SimpleNamespace(schema=json.dumps({"fields": fields}), pipeline_uuid="u", sink="s")
        return sink.key(batch, 0, 0, {"id": value, "name": "5.00"})  # type: ignore[arg-type]

    assert key("decimal(9,2)", "5.00") == key("decimal(12,4)", "5.0000") == key("decimal(9,0)", "5") == key("long", 5)
    assert key("decimal(9,2)", "-1.50") == key("decimal(12,4)", "-1.5000")
    assert len({key("decimal(9,2)", text) for text in ("0.00", "0.50", "5.00", "50.00", "0.05", "-5.00")}) == 6
    assert key("string", "5.0") != key("string", "5")
