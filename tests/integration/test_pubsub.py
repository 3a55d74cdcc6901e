"""A Pub/Sub subscription as a source. Each message becomes one record, also if deliveries repeat or the process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import PubSubQueue
from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.connectors.landing.messages import LandingDirectory
from airflow_provider_streamsem.connectors.pubsub.client import PubSubReceiver
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, UnavailableError
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.queue.memory_broker import CalledBroker, CalledStore, Calls
from tests.integration.parts.server import search_path
from tests.integration.pubsub_subscription import Subscription

pytestmark = pytest.mark.integration


@pytest.fixture
def orders(emulator: None, tmp_path: Path) -> Subscription:
    return Subscription(tmp_path)


def test_messages_are_committed_once_and_acknowledged(orders: Subscription) -> None:
    orders.send(250)
    assert orders.run("a", max_messages=200).counts["read"] == 200
    assert orders.left() == 50
    assert orders.run("b").counts["read"] == 50
    orders.check()


def test_attributes_ids_and_bodies_are_landed_unchanged(orders: Subscription) -> None:
    ids = orders.put("a\r\n\u2028b ☃".encode(), kind="ä") + orders.put(b"\xff", key="k")
    orders.pipeline().source.open(orders.fixture.log(), None).poll(None)
    assert orders.left() == 0
    landed = {message["id"]: message for message in orders.landed()}
    assert sorted(landed) == sorted(ids)
    first, second = landed[ids[0]], landed[ids[1]]
    assert (first["body"], first["headers"]["kind"]) == ("a\r\n\u2028b ☃", "ä")
    assert (second["body"], second["encoding"], second["headers"]["goog-ordering-key"]) == ("/w==", "base64", "k")
    assert first["headers"]["goog-publish-time"].endswith("Z")


def test_landed_message_that_was_not_acknowledged_is_redelivered_and_dropped(
    orders: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.send(3)
    handles: list[Any] = []

    def unanswered(self: PubSubReceiver, given: Any) -> None:
        handles.extend(given)
        raise UnavailableError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(PubSubReceiver, "acknowledge", unanswered)
        assert orders.run("a").counts["read"] == 3
    assert orders.left() == 0
    orders.redeliver(*handles)
    orders.send(1)
    assert orders.left() == 4
    assert orders.run("b").counts["read"] == 1
    orders.check()


def test_expired_ack_id_is_ignored_and_its_message_is_dropped_at_the_next_delivery(orders: Subscription) -> None:
    orders.send(2)
    with orders.queue.connect() as slow:
        source: Any = orders.pipeline().source
        log = CommitLog(open_store(str(orders.fixture.root / "in")))
        landing = LandingDirectory(log, source.window, source.queue.lineage)
        receive = slow.receive

        def expires(most: int) -> Any:
            deliveries = receive(most)
            if deliveries:
                orders.redeliver(*(message.handle for message in deliveries))
                time.sleep(0.1)
                assert orders.left() == 2  # another consumer gets them, under new ack ids
            return deliveries

        slow.receive = expires  # type: ignore[method-assign]
        assert landing.land(slow, most=2, seconds=60) == 2
    assert orders.left() == 2
    assert orders.run("a").counts["read"] == 2
    orders.check()


@pytest.mark.prove
def test_ack_deadline_is_extended_beyond_that_of_the_subscription(orders: Subscription) -> None:
    orders.send(2)
    with orders.queue.connect() as receiver:
        deliveries = receiver.receive(10)
        time.sleep(11)
        assert receiver.receive(10) == []
        receiver.acknowledge([message.handle for message in deliveries])
    assert orders.left() == 0


def test_messages_with_an_ordering_key_are_landed_in_order(emulator: None, tmp_path: Path) -> None:
    orders = Subscription(tmp_path, enable_message_ordering=True)
    for _ in range(3):
        orders.send(1, key="k")
    for n in range(4):
        orders.run(f"run-{n}")
    assert [json.loads(message["body"])["id"] for message in orders.landed()] == [0, 1, 2]
    orders.check()


def test_poison_message_is_quarantined_and_not_sent_to_the_dead_letter_topic(emulator: None, tmp_path: Path) -> None:
    dead = Subscription(tmp_path / "dead")
    policy = {"dead_letter_topic": dead.topic, "max_delivery_attempts": 5}
    orders = Subscription(tmp_path / "orders", dead_letter_policy=policy)
    orders.put(b"no json")
    assert orders.run("a").counts["quarantined"] == 1
    assert orders.landed()[0]["headers"]["goog-delivery-attempt"] == "1"
    assert (orders.left(), dead.left()) == (0, 0)


def test_message_that_was_never_landed_goes_to_the_dead_letter_topic_which_is_a_queue_too(
    emulator: None, tmp_path: Path
) -> None:
    dead = Subscription(tmp_path / "dead")
    policy = {"dead_letter_topic": dead.topic, "max_delivery_attempts": 5}
    orders = Subscription(tmp_path / "orders", dead_letter_policy=policy)
    orders.send(1)
    with orders.queue.connect() as receiver:
        for _ in range(5):
            orders.redeliver(*(message.handle for message in receiver.receive(10)))
        assert receiver.receive(10) == []
    orders.subscriber.delete_subscription(subscription=orders.path)  # this server sends the dead letter again and again
    assert dead.run("a", max_messages=1).counts["read"] == 1
    assert dead.fixture.visible() == Counter([0])


@pytest.mark.prove
def test_crash_at_every_call_of_a_landing_gives_each_message_one_record(emulator: None, tmp_path: Path) -> None:
    def land(orders: Subscription, calls: Calls) -> None:
        source = orders.pipeline().source
        location = CalledStore(open_store(str(orders.fixture.root / "in")), calls)
        log = CommitLog(location, ManualClock(), RetryPolicy(tries=2))
        with orders.queue.connect() as receiver:
            LandingDirectory(log, source.window, orders.queue.lineage).land(  # type: ignore[attr-defined]
                CalledBroker(receiver, calls),  # type: ignore[arg-type]
                most=4,
                seconds=60,
            )

    calls = Calls()
    whole = Subscription(tmp_path / "whole")
    whole.send(4)
    land(whole, calls)
    assert {"receive", "acknowledge", "create"} <= set(calls.names)
    for at in range(len(calls.names)):
        for after in (False, True):
            orders = Subscription(tmp_path / f"{at}-{after}")
            orders.queue = PubSubQueue(subscription=orders.path, ack_deadline_s=10, wait_s=2)
            delivered: list[Any] = []
            receive = PubSubReceiver.receive

            def recorded(self: PubSubReceiver, most: int, to: list[Any] = delivered, receive: Any = receive) -> Any:
                deliveries = receive(self, most)
                to += [message.handle for message in deliveries]
                return deliveries

            orders.send(4)
            PubSubReceiver.receive = recorded  # type: ignore[method-assign]
            try:
                with suppress(Crash):
                    land(orders, Calls(at, after=after))
                    raise AssertionError("the process did not die")
            finally:
                PubSubReceiver.receive = receive  # type: ignore[method-assign]
            if delivered:
                orders.redeliver(*delivered)
            for n in range(2):
                orders.run(f"run-{n}")
            orders.check()


LANDER = """
import os, signal, sys
from airflow_provider_streamsem import PubSubQueue, QueueSource
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.landing.messages import LandingDirectory
from airflow_provider_streamsem.connectors.pubsub.client import PubSubReceiver
from airflow_provider_streamsem.stores.contract import open_store
name, location, when = sys.argv[1:]
source = QueueSource(queue=PubSubQueue(subscription=name, ack_deadline_s=10, wait_s=1), landing=location, schema="id long")
acknowledge = PubSubReceiver.acknowledge
def killed(receiver, handles):
    if when == "after":
        acknowledge(receiver, handles)
    os.kill(os.getpid(), signal.SIGKILL)
PubSubReceiver.acknowledge = killed
with source.queue.connect() as receiver:
    LandingDirectory(CommitLog(open_store(location)), source.window, source.queue.lineage).land(receiver, most=100, seconds=60)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_process_killed_around_the_acknowledgement_loses_and_repeats_no_message(
    orders: Subscription, when: str
) -> None:
    orders.send(6)
    argv = [sys.executable, "-c", LANDER, orders.path, str(orders.fixture.root / "in"), when]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": search_path()}, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    orders.send(1)
    if when == "before":
        assert orders.left() == 1
        time.sleep(10.1)
        assert orders.left() == 7
    for n in range(2):
        orders.run(f"run-{n}")
    orders.check()


def test_missing_subscription_is_a_refusal_and_an_unreachable_server_is_retryable(
    orders: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.queue = PubSubQueue(subscription="projects/test/subscriptions/not-there", wait_s=1)
    with pytest.raises(StoreRefusedError, match="Pub/Sub refused a request"):
        orders.run("a")
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:9")
    orders.queue = PubSubQueue(subscription=orders.path, wait_s=1)
    with pytest.raises(UnavailableError, match="did not report the result"):
        orders.run("a")


def test_emulator_reports_no_number_of_waiting_messages(orders: Subscription) -> None:
    with pytest.raises(InvalidError, match="emulator"), orders.queue.connect() as receiver:
        receiver.waiting()
