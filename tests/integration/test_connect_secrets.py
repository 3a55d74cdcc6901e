"""The event log of a Spark Connect server contains no password of a broker or a database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.parts.kafka import PASSWORD, USER, Broker
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import home_for_others, running
from tests.integration.parts.spark import ConnectServer
from tests.integration.topics import Topics

pytestmark = pytest.mark.integration

PROGRAM = """
import json, sys
from airflow_provider_streamsem import FilesSink, JdbcSource, KafkaSource, Pipeline, run_batch
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
location, name, server = sys.argv[1:]
source = JdbcSource(conn_id="db", table=name, cursor="id") if name == "orders" else KafkaSource(topics=[name], conn_id="secured_kafka")
pipeline = Pipeline(name="p", log=f"{location}/log", source=source, sinks={"out": FilesSink(f"{location}/out")})
print(json.dumps(run_batch(pipeline, run_key="r", engine=SparkEngine(remote=server)).to_json()))
"""


def run_and_check(location: Path, name: str, conn_id: str, connection: dict[str, Any], password: str) -> None:
    """Run a pipeline that reads two records on a Connect server, and search its event log and its own log for the password."""
    events = location / "events"
    events.mkdir()
    settings = {"enabled": "true", "dir": f"file://{events}", "compress": "false"}
    server = ConnectServer(location / "connect", {f"spark.eventLog.{key}": value for key, value in settings.items()})
    environment = {**os.environ, f"AIRFLOW_CONN_{conn_id}": json.dumps(connection), "PYTHONPATH": str(Path(__file__).parents[2])}  # fmt: skip
    with running(server):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(location), name, server.url],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout.splitlines()[-1])["counts"]["read"] == 2
    written = [path for path in events.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in written) > 10_000
    assert [path.name for path in written if password.encode() in path.read_bytes()] == []
    assert password not in server.log.read_text(errors="replace")


def test_kafka_client_secrets_are_not_in_the_event_log_of_a_connect_server(broker: Broker, tmp_path: Path) -> None:
    topics = Topics(broker, tmp_path)
    topic = topics.create("a", 1)
    topics.put("a", ["1", "2"])
    kafka = {
        "bootstrap.servers": broker.bootstrap_sasl, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
        "sasl.password": PASSWORD,
    }  # fmt: skip
    run_and_check(tmp_path, topic, "SECURED_KAFKA", {"conn_type": "kafka", "extra": kafka}, PASSWORD)


@pytest.mark.prove
def test_password_of_a_database_is_not_in_the_event_log_of_a_connect_server(tmp_path: Path) -> None:
    with home_for_others() as home, running(postgres := Postgres(home / "server")):
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, v int)")
            connection.execute("INSERT INTO orders (v) VALUES (1), (2)")
        connection_fields = {"conn_type": "postgres", "host": "127.0.0.1", "port": postgres.port, "login": "postgres", "password": PASSWORD, "schema": "postgres"}  # fmt: skip
        run_and_check(tmp_path, "orders", "DB", connection_fields, PASSWORD)
