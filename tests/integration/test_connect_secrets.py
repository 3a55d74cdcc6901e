"""The event log of a Spark Connect server does not contain the broker's password."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.parts.kafka import PASSWORD, USER, Broker
from tests.integration.parts.server import running
from tests.integration.parts.spark import ConnectServer
from tests.integration.topics import Topics

pytestmark = pytest.mark.integration

PROGRAM = """
import json, sys
from airflow_provider_streamsem import FilesSink, KafkaSource, Pipeline, run_batch
from airflow_provider_streamsem.spark.engine import SparkEngine
location, topic, server = sys.argv[1:]
pipeline = Pipeline(
    name="p", log=f"{location}/log", source=KafkaSource(topics=[topic], conn_id="secured_kafka"), sinks={"out": FilesSink(f"{location}/out")},
)
print(json.dumps(run_batch(pipeline, run_key="r", engine=SparkEngine(remote=server)).to_json()))
"""


def test_kafka_client_secrets_are_not_in_the_event_log_of_a_connect_server(broker: Broker, tmp_path: Path) -> None:
    topics = Topics(broker, tmp_path)
    topic = topics.create("a", 1)
    topics.put("a", ["1", "2"])
    events = tmp_path / "events"
    events.mkdir()
    kafka = {
        "bootstrap.servers": broker.bootstrap_sasl, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
        "sasl.password": PASSWORD,
    }  # fmt: skip
    server = ConnectServer(
        tmp_path / "connect",
        {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{events}",
            "spark.eventLog.compress": "false",
        },
    )
    environment = {
        **os.environ, "AIRFLOW_CONN_SECURED_KAFKA": json.dumps({"conn_type": "kafka", "extra": kafka}), "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    with running(server):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), topic, server.url],
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
    assert [path.name for path in written if PASSWORD.encode() in path.read_bytes()] == []
    assert PASSWORD not in server.log.read_text(errors="replace")
