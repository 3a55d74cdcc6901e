"""The server of a source is frozen several times during a run. Each record is committed once."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import FilesSink, Pipeline, run_batch
from airflow_provider_streamsem.errors import StageError, UnavailableError
from airflow_provider_streamsem.readers.files import open_log
from tests.integration.amqp_queue import Queue
from tests.integration.kinesis_stream import Orders
from tests.integration.nats_stream import Stream
from tests.integration.parts.kinesis import Kinesalite
from tests.integration.parts.nats import NatsServer
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.pubsub_server import PubSubServer
from tests.integration.parts.pulsar import PulsarServer
from tests.integration.parts.rabbitmq import RabbitMQ
from tests.integration.parts.server import Server
from tests.integration.postgres_table import new_table
from tests.integration.pubsub_subscription import Subscription
from tests.integration.pulsar_topic import Topic

pytestmark = [pytest.mark.integration, pytest.mark.prove, pytest.mark.usefixtures("spark")]

RECORDS = 2_000


@contextmanager
def frozen_repeatedly(server: Server) -> Iterator[None]:
    """Within the block, freeze the server for half of the time, in turns of 1.5 s."""
    ended = Event()

    def freeze() -> None:
        running_s = 0.2
        while not ended.wait(running_s):
            running_s = 1.5
            server.send(signal.SIGSTOP)
            ended.wait(1.5)
            server.send(signal.SIGCONT)

    thread = Thread(target=freeze)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def completed(server: Server, run: Callable[[str], Any]) -> None:
    """Run with one run key until the run succeeds, while the server is frozen repeatedly. Afterwards run once more without faults."""
    began = time.monotonic()
    with frozen_repeatedly(server):
        while True:
            try:
                run("a")
                break
            except (UnavailableError, StageError):
                assert time.monotonic() < began + 200, "no run has succeeded"
    run("b")
    assert time.monotonic() > began + 0.2, "the run ended before the server was frozen"


def test_nats_server(nats: NatsServer, tmp_path: Path) -> None:
    stream = Stream(nats, tmp_path)
    stream.put(range(RECORDS))
    completed(nats, stream.run)
    stream.check(range(RECORDS))


def test_kinesis_server(kinesis: Kinesalite, tmp_path: Path) -> None:
    orders = Orders(kinesis, tmp_path)
    orders.put(*range(RECORDS // 10))
    completed(kinesis, orders.run)
    orders.check()


def test_pulsar_broker(
    pulsar_server: PulsarServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_PULSAR", pulsar_server.connection())
    topic = Topic(pulsar_server, tmp_path)
    topic.put(range(RECORDS))
    completed(pulsar_server, topic.run)
    assert topic.ids(spark) == Counter(range(RECORDS))


def test_postgres_server_of_a_table_that_is_read(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(postgres, monkeypatch)
    table.create("id bigserial PRIMARY KEY, v bigint")
    table.add(range(RECORDS))
    sinks = {"out": FilesSink(str(tmp_path / "out"), format="json")}
    pipeline = Pipeline(name="p", log=str(tmp_path / "log"), source=table.source, sinks=sinks)
    completed(postgres, lambda key: run_batch(pipeline, run_key=key, drain=True))
    assert sum(file.rows for file in open_log(pipeline.log).files()) == RECORDS


def test_rabbitmq_broker(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = Queue(rabbitmq, tmp_path)
    queue.send(RECORDS)
    completed(rabbitmq, queue.run)
    queue.check()


def test_pubsub_server(emulator: None, pubsub: PubSubServer, tmp_path: Path) -> None:
    orders = Subscription(tmp_path)
    orders.send(RECORDS // 10)
    completed(pubsub, orders.run)
    orders.check()
