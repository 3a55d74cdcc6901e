"""
The real servers. Each server starts once per session, and only if a test uses it.

A server that cannot be started is an error, never a skip.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.kafka_steps import watched_client  # noqa: F401  (a fixture)
from tests.integration.parts.kafka import Broker
from tests.integration.parts.kinesis import Kinesalite
from tests.integration.parts.nats import NatsServer
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.pubsub_server import PubSubServer
from tests.integration.parts.pulsar import PulsarServer
from tests.integration.parts.rabbitmq import RabbitMQ
from tests.integration.parts.s3 import S3Server
from tests.integration.parts.server import home_for_others, running
from tests.integration.parts.spark import peers_conf, session_conf


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start a real S3 server with the bucket ``lake``."""
    import boto3

    server = S3Server(tmp_path_factory.mktemp("s3"))
    with running(server):
        os.environ.update(server.environment())
        boto3.client("s3").create_bucket(Bucket="lake")
        yield server


@pytest.fixture
def lake(s3_server: S3Server) -> str:
    """Return a location on the S3 server that only this test uses."""
    return f"s3://lake/{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start a Kafka broker."""
    server = Broker(tmp_path_factory.mktemp("kafka"))
    with running(server):
        yield server


@pytest.fixture(scope="session")
def kinesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinesalite]:
    """Start a Kinesis server, and set credentials that it accepts."""
    server = Kinesalite(tmp_path_factory.mktemp("kinesis"))
    names = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    with running(server):
        for name, value in names.items():
            os.environ.setdefault(name, value)
        yield server


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """Start a RabbitMQ broker."""
    server = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    with running(server):
        yield server


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Start a NATS server with JetStream."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    with running(server):
        yield server


@pytest.fixture(scope="session")
def pulsar_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarServer]:
    """Start a Pulsar broker."""
    server = PulsarServer(tmp_path_factory.mktemp("pulsar"))
    with running(server):
        yield server


@pytest.fixture(scope="session")
def pubsub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubSubServer]:
    """Start a Pub/Sub server."""
    server = PubSubServer(tmp_path_factory.mktemp("pubsub"))
    with running(server):
        yield server


@pytest.fixture
def emulator(pubsub: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub.address_of_clients)
    return


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with home_for_others() as home:
        server = Postgres(home / "server")
        with running(server):
            yield server


@pytest.fixture(scope="session")
def spark(s3_server: S3Server) -> Iterator[SparkSession]:
    """Start a local session with the jars of the integration tests. Engines find it as the active session."""
    from airflow_provider_streamsem.spark.spark_engine import SparkEngine

    session = SparkEngine(master="local[2]", conf={**session_conf(), **peers_conf()}).session()
    session.sparkContext.setLogLevel("OFF")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def streamsem_spark(spark: SparkSession) -> SparkSession:
    """Return the session of the integration tests. A session that the conformance suite started first would lack their jars."""
    return spark


@pytest.fixture
def arrivals(tmp_path: Path) -> Path:
    """Create an empty directory for input files."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in"
