"""Each message of a queue becomes one record, whatever process dies and however many processes land concurrently."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import random
from threading import Lock, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.connectors.landing import messages as module
from airflow_provider_streamsem.connectors.landing.messages import LandingDirectory, Message, Window
from airflow_provider_streamsem.errors import LogDamagedError, StoreRefusedError, UnavailableError
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.connectors.queue.memory_broker import Broker, CalledBroker, CalledStore, Calls

HOUR_MS = 3_600_000
DAY = Window(hours=24, messages=None)
QUEUE = lambda: ("memory", "q")  # noqa: E731
START_MS = 1_700_000_000_000


def message(number: int | str) -> Message:
    return Message(id=f"m{number}", body=json.dumps({"id": number}).encode())


def broker(messages: int = 5, **given: int) -> Broker:
    broker = Broker(**given)
    broker.send(*map(message, range(messages)))
    return broker


def land(
    queue: Broker, store: object, calls: Calls | None = None, *, at_ms: int = START_MS, window: Window = DAY, most: int = 100
) -> int:  # fmt: skip
    """Land messages as a separate process would."""
    calls = calls or Calls()
    log = CommitLog(CalledStore(store, calls), ManualClock(at_ms), RetryPolicy(tries=4))  # type: ignore[arg-type]
    return LandingDirectory(log, window, QUEUE).land(CalledBroker(queue, calls), most=most, seconds=1000)


def landed(store: object) -> Counter[str]:
    """Count the ids on every line of every landed file, read without the package."""
    ids: Counter[str] = Counter()
    for stat in store.list(""):  # type: ignore[attr-defined]
        if stat.key.endswith(".jsonl"):
            ids.update(json.loads(line)["id"] for line in store.read(stat.key).splitlines())  # type: ignore[attr-defined]
    return ids


def once(messages: int = 5) -> Counter[str]:
    return Counter(f"m{n}" for n in range(messages))


def finish(queue: Broker, store: object) -> None:
    """Make hidden messages visible and land without faults until the queue is empty."""
    for _ in range(10):
        queue.later()
        land(queue, store)
        if not queue.queue:
            return
    raise AssertionError("the queue is never empty")


def steps(make: Callable[[Calls], object]) -> list[tuple[int, bool]]:
    """Return every call of a landing without faults, before and after it."""
    calls = Calls()
    make(calls)
    assert {"list", "receive", "create", "acknowledge"} <= set(calls.names)
    return [(at, after) for at in range(len(calls.names)) for after in (False, True)]


def test_crash_before_or_after_any_call_lands_each_message_once() -> None:
    for at, after in steps(lambda calls: land(broker(), MemoryStore(), calls)):
        queue, store = broker(), MemoryStore()
        with suppress(Crash):
            land(queue, store, Calls(at, after=after))
            raise AssertionError("the process did not die")
        assert len(queue.queue) + sum(landed(store).values()) >= 5
        finish(queue, store)
        assert landed(store) == once(), (at, after)


def test_second_crash_at_every_call_of_the_retry_lands_each_message_once() -> None:
    every = steps(lambda calls: land(broker(), MemoryStore(), calls))
    for first in every:
        for second in every:
            queue, store = broker(), MemoryStore()
            for at, after in (first, second):
                with suppress(Crash):
                    land(queue, store, Calls(at, after=after))
                queue.later()
            finish(queue, store)
            assert landed(store) == once(), (first, second)


@pytest.mark.parametrize("fault", [f for f in Fault if f.name not in ("PAUSE_BEFORE", "PAUSE_AFTER")])
def test_lost_reply_of_the_store_is_never_treated_as_success(fault: Fault) -> None:
    for at in count():
        queue, store = broker(), MemoryStore()
        faulty = FaultyStore(store, at, fault)
        with suppress(Crash, UnavailableError):
            land(queue, faulty)
        assert len(queue.queue) + sum(landed(store).values()) >= 5
        finish(queue, store)
        assert landed(store) == once(), at
        if not faulty.reached:
            assert at > 2
            return


def test_store_that_never_replies_leaves_every_message_in_the_queue() -> None:
    class Silent(MemoryStore):
        def create(self, key: str, data: bytes) -> bool:
            from airflow_provider_streamsem.stores.contract import UnknownResultError

            raise UnknownResultError(key)

    queue = broker()
    with pytest.raises(UnavailableError):
        land(queue, Silent())
    assert len(queue.queue) == 5


@pytest.mark.parametrize("kinds", ["the same messages", "the same and others"])
def test_two_landers_interleaved_at_every_call_land_each_message_once(kinds: str) -> None:
    """The first lander pauses and its messages become visible again. The second lands them, then the first wakes."""
    for at, after in steps(lambda calls: land(broker(), MemoryStore(), calls)):
        queue, store = broker(), MemoryStore()

        def other(queue: Broker = queue, store: MemoryStore = store) -> None:
            queue.later()
            if kinds == "the same and others":
                queue.queue.insert(0, type(queue.queue[0])(message(5))) if queue.queue else queue.send(message(5))
            land(queue, store)

        land(queue, store, Calls(at, after=after, do=other))
        expected = once(6 if kinds == "the same and others" else 5)
        finish(queue, store)
        assert landed(store) == expected, (at, after)


def test_two_landers_interleaved_at_every_call_while_the_second_dies_at_every_call() -> None:
    every = steps(lambda calls: land(broker(), MemoryStore(), calls))
    for at, after in every:
        for at_other, after_other in every:
            queue, store, rival = broker(), MemoryStore(), Calls(at_other, after=after_other)

            def other(queue: Broker = queue, store: MemoryStore = store, calls: Calls = rival) -> None:
                queue.later()
                with suppress(Crash):
                    land(queue, store, calls)

            land(queue, store, Calls(at, after=after, do=other))
            finish(queue, store)
            assert landed(store) == once(), (at, after, at_other, after_other)


def test_lander_that_repeatedly_loses_the_race_lands_the_remaining_messages() -> None:
    queue, store = broker(3), MemoryStore()
    others = iter(range(3, 8))

    class LosesRaces(MemoryStore):
        url = "memory://"

        def create(self, key: str, data: bytes) -> bool:
            number = next(others, None) if key.endswith(".jsonl") else None
            if number is not None:
                rival = broker(0)
                rival.send(message(number), message(0))
                land(rival, store)
            return store.create(key, data)

        read, list = store.read, store.list  # type: ignore[assignment]

    log = CommitLog(LosesRaces(), ManualClock(START_MS), RetryPolicy(tries=4))
    assert LandingDirectory(log, DAY, QUEUE).land(queue, most=100, seconds=1000) == 2
    assert landed(store) == once(8)
    assert queue.queue == []


def test_message_with_an_expired_acknowledgement_is_redelivered_and_dropped() -> None:
    queue, store = broker(2), MemoryStore()

    def expires() -> None:
        queue.later()
        queue.receive(3)  # another consumer has the messages now, so the first handles are no longer valid

    calls = Calls()
    land(broker(2), MemoryStore(), calls)
    land(queue, store, Calls(calls.names.index("acknowledge"), do=expires))
    assert len(queue.queue) == 2
    queue.later()
    assert land(queue, store) == 0
    assert queue.queue == []
    assert landed(store) == once(2)


def test_unanswered_acknowledgement_does_not_fail_the_landing() -> None:
    class AcknowledgeUnanswered(Broker):
        def acknowledge(self, handles: object) -> None:
            raise UnavailableError("no reply")

    class AcknowledgeForbidden(Broker):
        def acknowledge(self, handles: object) -> None:
            raise StoreRefusedError("not allowed")

    unanswered, store = AcknowledgeUnanswered(), MemoryStore()
    unanswered.send(message(0))
    assert land(unanswered, store) == 1
    forbidden = AcknowledgeForbidden()
    forbidden.send(message(0))
    # A refusal fails the landing. Otherwise the same messages would be redelivered forever, and become records again after the window.
    with pytest.raises(StoreRefusedError):
        land(forbidden, MemoryStore())


def test_message_delivered_twice_in_one_landing_is_one_record() -> None:
    queue, store = broker(0), MemoryStore()
    queue.send(message(0), message(0), message(1))
    assert land(queue, store) == 2
    assert landed(store) == once(2)
    assert queue.queue == []


def test_messages_without_an_id_are_landed_each_time() -> None:
    queue, store = broker(0), MemoryStore()
    queue.send(Message(id=None, body=b"a"), Message(id=None, body=b"a"))
    assert land(queue, store) == 2
    assert landed(store) == Counter({None: 2})


def test_landing_is_limited_by_messages() -> None:
    queue, store = broker(7), MemoryStore()
    assert [land(queue, store, most=4) for _ in range(3)] == [4, 3, 0]
    assert landed(store) == once(7)


def test_landing_is_limited_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 40)  # a message has nine bytes, and three come at once
    queue, store = broker(12), MemoryStore()
    assert [land(queue, store) for _ in range(3)] == [6, 6, 0]


# --- the deduplication window


def land_at(store: MemoryStore, hours: float, *numbers: int | str, window: Window = DAY) -> int:
    queue = Broker()
    queue.send(*map(message, numbers))
    return land(queue, store, at_ms=START_MS + int(hours * HOUR_MS), window=window)


def test_redelivered_message_is_dropped_within_the_window_and_a_new_record_after_it() -> None:
    """Defines `dedup 24 h`."""
    store = MemoryStore()
    land_at(store, 0, 0)
    land_at(store, 24, 1)
    assert land_at(store, 24, 0) == 0
    land_at(store, 24.1, 2)
    assert land_at(store, 24.1, 0) == 1
    assert landed(store)["m0"] == 2


def test_pause_between_runs_does_not_use_up_the_window() -> None:
    store = MemoryStore()
    land_at(store, 0, 0)
    assert land_at(store, 1000, 0) == 0


def test_id_leaves_a_window_of_n_messages_after_n_later_messages() -> None:
    few = Window(hours=None, messages=2)
    store = MemoryStore()
    land_at(store, 0, 0, window=few)
    land_at(store, 10_000, 1, window=few)
    assert land_at(store, 10_000, 0, window=few) == 0
    land_at(store, 10_000, 2, window=few)
    assert land_at(store, 10_000, 0, window=few) == 1


def test_clock_that_went_backwards_does_not_shorten_the_window() -> None:
    store = MemoryStore()
    land_at(store, 100, 0)
    land_at(store, 0, 1)  # another machine's clock
    land_at(store, 110, 2)
    assert land_at(store, 110, 0, 1, 2) == 0
    times = {json.loads(store.read(s.key) or b"")["received_ms"] for s in store.list("") if s.key.endswith("jsonl")}
    assert times == {START_MS + 100 * HOUR_MS, START_MS + 110 * HOUR_MS}


# --- the cost of landings and of their ids


def test_landing_needs_the_same_few_requests_after_many_landings() -> None:
    store = MemoryStore()
    requests = []
    for n in range(300):
        counting = CountingStore(store)
        queue = Broker()
        queue.send(*(message(f"{n}-{k}") for k in range(3)))
        land(queue, counting)
        requests.append(counting.requests)
    assert requests[0]["create"] == 3  # includes the marker of the landing
    assert max(r["create"] for r in requests[1:]) == 2  # the landing file and its ids
    assert max(r["list"] for r in requests) == 2
    assert max(r["read"] for r in requests) <= 10  # about the logarithm of the number of landings in the window
    counting = CountingStore(store)
    land(Broker(), counting)
    assert dict(counting.requests) == {"read": 1, "list": 1}  # an empty queue


def test_old_landings_are_not_read() -> None:
    store = MemoryStore()
    for n in range(100):
        land_at(store, n, n)
    counting = CountingStore(store)
    queue = Broker()
    queue.send(message("new"))
    land(queue, counting, at_ms=START_MS + 100 * HOUR_MS)
    assert counting.requests["read"] <= 7


def test_missing_ids_are_read_from_the_landings() -> None:
    """Each process died after its acknowledgement and before it wrote the ids, or the ids were deleted."""
    store = MemoryStore()
    for n in range(20):
        land_at(store, 0, n)
    for stat in [*store.list("_ids/")]:
        store.delete(stat.key)
    assert land_at(store, 0, *range(20)) == 0
    land_at(store, 0, 20)
    assert land_at(store, 0, *range(21)) == 0


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b"{}", b'{"landings": 1}', b'{"landings": [[0, 1, "#"]]}', b'{"landings": [["x", 1, ""]]}']
)
def test_damaged_ids_are_read_from_the_landings(damaged: bytes) -> None:
    store = MemoryStore()
    for n in range(4):
        land_at(store, 0, n)
    for stat in [*store.list("_ids/")]:
        store.delete(stat.key)
        store.create(stat.key, damaged)
    assert land_at(store, 0, *range(5)) == 1


@pytest.mark.parametrize(
    "damaged", [b"", b"[]\n", b"{}\n", b'{"id": 1, "received_ms": 0}\n', b'{"id": "a", "received_ms": "x"}\n']
)
def test_landing_file_that_no_run_wrote_is_refused_by_name(damaged: bytes) -> None:
    store = MemoryStore()
    land_at(store, 0, 0)
    for stat in [*store.list("")]:
        store.delete(stat.key)
    store.create("999999999999-0.jsonl", damaged)
    with pytest.raises(LogDamagedError, match="no run has written"):
        land_at(store, 0, 1)


def test_deleted_landings_are_no_longer_deduplicated_and_later_landings_succeed() -> None:
    store = MemoryStore()
    for n in range(4):
        land_at(store, 0, n)
    for stat in [*store.list("")]:
        if stat.key.endswith(("-0.jsonl", "-0.json", "-1.jsonl", "-1.json", "-2.json", "-3.json")):
            store.delete(stat.key)
    assert land_at(store, 0, 2, 3) == 0
    assert land_at(store, 0, 4, 0) == 2
    for stat in [*store.list("")]:
        store.delete(stat.key)
    assert land_at(store, 0, 5) == 1


@pytest.mark.parametrize("left", [0, 1, 2])
def test_ids_of_deleted_landings_are_not_treated_as_those_of_new_ones(left: int) -> None:
    """A lifecycle rule of the bucket deleted the landings, and not yet all of their ids."""
    store = MemoryStore()
    for n in range(3):
        land_at(store, 0, n)
    for stat in [*store.list("")]:
        if stat.key.endswith(".jsonl") or (stat.key.startswith("_ids/") and not stat.key.endswith(f"-{left}.json")):
            store.delete(stat.key)
    assert land_at(store, 0, 3) == 1
    assert land_at(store, 0, 3, 4) == 1
    assert land_at(store, 0, 3, 4, left) == 0
    assert landed(store) == Counter({"m3": 1, "m4": 1})


def test_stale_listing_costs_requests_and_no_record() -> None:
    store = MemoryStore()

    class Lagging(MemoryStore):
        def list(self, prefix: str, limit: int | None = None, start_after: str = ""):  # type: ignore[no-untyped-def]
            return iter(())

        create, read = store.create, store.read  # type: ignore[assignment]

    for n in range(5):
        land_at(store, 0, n)
    queue = Broker()
    queue.send(*map(message, range(6)))
    assert land(queue, Lagging()) == 1
    assert landed(store) == once(6)


def test_files_of_other_writers_are_ignored() -> None:
    store = MemoryStore()
    store.create("000-readme.txt", b"")
    store.create("000000000000-7.jsonl", b"not ours")
    land_at(store, 0, 0)
    assert land_at(store, 0, 0, 1) == 1


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(0, 60), max_size=12)), max_size=25), st.booleans())
def test_known_ids_are_exactly_those_in_the_window_for_any_landings(
    landings: list[tuple[int, list[int]]], by_hours: bool
) -> None:
    """Compare with a direct computation from the list of landings."""
    window = Window(hours=24, messages=None) if by_hours else Window(hours=None, messages=15)
    store = MemoryStore()
    account: list[tuple[int, set[int]]] = []
    at = 0
    for pause, numbers in landings:
        at += pause
        known: set[int] = set()
        later = 0
        for hour, ids in reversed(account):
            if (by_hours and account[-1][0] - hour > 24) or (not by_hours and later >= 15):
                break
            known |= ids
            later += len(ids)
        expected = set(numbers) - known
        assert land_at(store, at, *numbers, window=window) == len(expected)
        if expected:
            account.append((at, expected))


def test_four_concurrent_landers_on_disk_with_random_redelivery(tmp_path: Path) -> None:
    """The interleaving is random: threads, a real directory, and visibility timeouts that may end at any receive."""

    class RedeliveringBroker(Broker):
        def receive(self, most: int) -> Sequence[Message]:
            with lock:
                if random() < 0.3:
                    self.later()
                return super().receive(most)

        def acknowledge(self, handles: Sequence[object]) -> None:
            with lock:
                super().acknowledge(handles)

    lock, queue, store = Lock(), RedeliveringBroker(), LocalStore(str(tmp_path))
    queue.send(*map(message, range(200)))

    def lands() -> None:
        while queue.queue:
            land(queue, store, most=15)

    threads = [Thread(target=lands) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert queue.queue == []
    assert landed(store) == once(200)
