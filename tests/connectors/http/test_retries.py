"""Unclear replies, rate limits and calls that were not sent."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Limits
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.http.endpoint import Address, Endpoint, retry_after_s
from airflow_provider_streamsem.errors import (
    UnavailableError,
)
from airflow_provider_streamsem.protocol.entries import Receipt
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.http.endpoints import Call, Recorder, Reply
from tests.connectors.http.pushing_fixture import (
    CHOICES,
    check_guarantee,
    claims,
    new_fixture,
    pushing,
    rate_limited,
    receipt,
    run_at,
)


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


def test_endpoint_that_stays_unclear_is_called_again_by_the_next_retry(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    recorder.reply_to = lambda call: 503 if call.ids == [3] else 200
    with pytest.raises(UnavailableError, match=r"repeats it.*chunk=1, record=1, status=503"):
        fixture.run("a", pipeline=pipeline)
    recorder.reply_to = lambda call: 200
    fixture.run("b", pipeline=pipeline)
    check_guarantee("at_least_once", fixture, recorder, "after 503")


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
