"""A RabbitMQ queue as a source. Each message becomes one record, also if the process or the broker is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import AmqpQueue, QueueSource
from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.connectors.amqp.client import AmqpReceiver
from airflow_provider_streamsem.connectors.landing.messages import LandingDirectory
from airflow_provider_streamsem.connectors.queue import source as module
from airflow_provider_streamsem.errors import StoreRefusedError, UnavailableError
from airflow_provider_streamsem.readers.waiting import waiting
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.queue.memory_broker import CalledBroker, CalledStore, Calls
from tests.integration.amqp_queue import Queue
from tests.integration.parts.rabbitmq import RabbitMQ
from tests.integration.parts.server import search_path

pytestmark = pytest.mark.integration


@pytest.fixture
def queue(rabbitmq: RabbitMQ, tmp_path: Path) -> Queue:
    return Queue(rabbitmq, tmp_path)


def test_messages_are_committed_once_and_deleted_from_the_broker(queue: Queue) -> None:
    queue.send(250)
    assert queue.run("a", max_messages=200).counts["read"] == 200
    assert queue.run("b", max_messages=200).counts["read"] == 50
    queue.check()


def test_inspection_receives_no_message(queue: Queue) -> None:
    queue.run("creates the log")
    queue.send(7)
    for _ in range(2):
        waiting_messages = waiting(queue.pipeline(), clock=ManualClock())
        assert (waiting_messages.is_due, waiting_messages.rows, waiting_messages.lag) == (True, 7, 1)
    assert queue.left() == 7
    assert not [*(queue.fixture.root / "in").iterdir()]
    queue.run("a")
    queue.check()


def test_crash_before_or_after_any_call_of_landing_loses_and_repeats_no_message(
    rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    """The crash closes the connection, so the broker redelivers unacknowledged messages."""

    def land(queue: Queue, calls: Calls) -> None:
        log = CommitLog(
            CalledStore(open_store(str(queue.fixture.root / "in")), calls), ManualClock(), RetryPolicy(tries=4)
        )
        source: Any = queue.pipeline().source
        with queue.queue.connect() as receiver:
            landing = LandingDirectory(log, source.window, queue.queue.lineage)
            landing.land(CalledBroker(receiver, calls), most=100, seconds=60)

    whole = Queue(rabbitmq, tmp_path / "whole")
    whole.send(5)
    calls = Calls()
    land(whole, calls)
    assert {"receive", "create", "acknowledge"} <= set(calls.names)
    for at in range(len(calls.names)):
        for after in (False, True):
            queue = Queue(rabbitmq, tmp_path / f"{at}-{after}")
            queue.send(5)
            with suppress(Crash):
                land(queue, Calls(at, after=after))
                raise AssertionError("the process did not die")
            for n in range(2):
                queue.run(f"run-{n}")
            queue.check()


LANDER = """
import os, signal, sys
from airflow_provider_streamsem import AmqpQueue, QueueSource
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.amqp.client import AmqpReceiver
from airflow_provider_streamsem.connectors.landing.messages import LandingDirectory
from airflow_provider_streamsem.stores.contract import open_store
host, name, location, when = sys.argv[1:]
source = QueueSource(queue=AmqpQueue(name=name, host=host), landing=location, schema="id long")
acknowledge = AmqpReceiver.acknowledge
def killed(receiver, handles):
    if when == "after":
        acknowledge(receiver, handles)
    os.kill(os.getpid(), signal.SIGKILL)
AmqpReceiver.acknowledge = killed
with source.queue.connect() as receiver:
    LandingDirectory(CommitLog(open_store(location)), source.window, source.queue.lineage).land(receiver, most=100, seconds=60)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_process_killed_around_the_acknowledgement_loses_and_repeats_no_message(queue: Queue, when: str) -> None:
    queue.send(6)
    argv = [sys.executable, "-c", LANDER, queue.broker.host, queue.name, str(queue.fixture.root / "in"), when]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": search_path()}, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    queue.send(1)
    for n in range(2):
        queue.run(f"run-{n}")
    queue.check()


def test_messages_redelivered_by_a_broker_killed_before_the_acknowledgement_are_not_repeated(
    rabbitmq: RabbitMQ, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send(4)
    acknowledge = AmqpReceiver.acknowledge

    def killed(receiver: AmqpReceiver, handles: Any) -> None:
        rabbitmq.kill()
        acknowledge(receiver, handles)

    with monkeypatch.context() as patched:
        patched.setattr(AmqpReceiver, "acknowledge", killed)
        assert (
            queue.run("a").counts["read"] == 4
        )  # landed messages are read, whether or not the broker got the acknowledgement
    with pytest.raises(UnavailableError):
        queue.run("b")
    rabbitmq.start()
    assert queue.left() == 4
    queue.send(1)
    assert queue.run("b").counts["read"] == 1
    queue.check()


def test_consumer_that_loses_its_connection_and_a_second_consumer_land_each_message_once(queue: Queue) -> None:
    """When the connection of the slow consumer breaks, the broker requeues its deliveries. The slow consumer still lands them, but cannot acknowledge them."""
    queue.send(5)
    location = str(queue.fixture.root / "in")
    with queue.queue.connect() as slow:

        def break_connection() -> None:
            slow._channel.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
            assert queue.run("other").counts["read"] == 5

        source = queue.pipeline().source
        calls = Calls(3, do=break_connection)
        log = CommitLog(CalledStore(open_store(location), calls), ManualClock())
        LandingDirectory(log, source.window, source.queue.lineage).land(CalledBroker(slow, calls), most=5, seconds=60)  # type: ignore[attr-defined, arg-type]
    queue.run("a")
    queue.check()


def test_header_numbers_are_landed_unchanged(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """pika writes no floats and no times beyond the year 9999, so the test encodes the header itself."""
    from pika import data

    table = b"".join(
        bytes([len(name)]) + name.encode() + kind + struct.pack(form, value)
        for name, kind, form, value in (
            ("price", b"d", ">d", 3.7), ("half", b"f", ">f", 0.5), ("at", b"T", ">Q", 1_700_000_000_000), ("n", b"l", ">q", 7)
        )
    )  # fmt: skip
    original = data.encode_table
    queue = Queue(rabbitmq, tmp_path / "a")

    def encode_table(pieces: list[bytes], headers: dict[str, Any]) -> int:
        if headers != {"any": "header"}:
            return original(pieces, headers)
        pieces += [struct.pack(">I", len(table)), table]
        return len(table) + 4

    data.encode_table = encode_table
    try:
        queue.put(("a", b'{"id": 0}'), any="header")
    finally:
        data.encode_table = original
    queue.sent = 1
    assert queue.run("a").counts["read"] == 1
    (file,) = (tmp_path / "a" / "in").glob("*.jsonl")
    assert json.loads(file.read_text())["headers"] == {"price": "3.7", "half": "0.5", "at": "1700000000000", "n": "7"}
    queue.check()


def test_message_without_an_id_is_quarantined_unless_id_from_is_body(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = Queue(rabbitmq, tmp_path / "a")
    queue.put((None, b'{"id": 0}'), ("bad", b"\xff"))
    assert queue.run("a").counts["quarantined"] == 2
    queue.check()
    with_body_ids = Queue(rabbitmq, tmp_path / "b", id_from="body")
    with_body_ids.put((None, b'{"id": 0}'), ("x", b'{"id": 0}'), kind="k")
    with_body_ids.sent = 1
    assert with_body_ids.run("a").counts["read"] == 1
    (file,) = (tmp_path / "b" / "in").glob("*.jsonl")
    assert json.loads(file.read_text())["headers"] == {"kind": "k"}
    with_body_ids.check()


def test_refusals_and_unreachable_brokers_are_distinguished(
    rabbitmq: RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = rabbitmq.host.partition(":")
    for name, password, port_ in (
        ("WRONG", "s3cret-wrong", int(port)),
        ("RIGHT", "guest", int(port)),
        ("NOBODY", "guest", 9),
    ):
        extra = {"conn_type": "amqp", "host": host, "port": port_, "login": "guest", "password": password}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(extra))
    for conn_id, error in (("wrong", StoreRefusedError), ("nobody", UnavailableError)):
        queue = Queue(rabbitmq, tmp_path / conn_id)
        queue.queue = AmqpQueue(name=queue.name, conn_id=conn_id)
        with pytest.raises(error) as caught:
            queue.run("a")
        assert "s3cret" not in str(caught.value)
    queue = Queue(rabbitmq, tmp_path / "right")
    queue.queue = AmqpQueue(name=queue.name, conn_id="right")
    queue.send(1)
    queue.run("a")
    queue.check()
    assert queue.queue.lineage() == (f"amqp://{rabbitmq.host}", queue.name)
    queue.queue = AmqpQueue(name="not-there", conn_id="right")
    with pytest.raises(StoreRefusedError):
        queue.fixture.pipeline(source=QueueSource(queue=queue.queue, landing=str(tmp_path / "nobody" / "in"), schema="id long")).source.open(queue.fixture.log(), None).poll(None)  # fmt: skip
    assert module.open_store is open_store
