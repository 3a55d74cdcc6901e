"""Runs and clears the example DAG from Kafka to S3, with Airflow's task execution and a real broker, S3 server and Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_provider_streamsem import open_log, verify
from tests.integration.parts.kafka import PASSWORD, USER, Broker
from tests.integration.parts.s3 import S3Server, downloaded
from tests.integration.parts.server import Server, running
from tests.integration.parts.spark import Cluster, ConnectServer, session_conf
from tests.integration.topics import Topics

pytestmark = pytest.mark.integration

PROGRAM = """
import os, sys
from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag
if not os.path.exists(os.environ["AIRFLOW_HOME"] + "/airflow.db"):
    initialise_airflow()
from streamsem_orders import streamsem_orders
dag = streamsem_orders()
for clear in [[], ["clean"]][:int(sys.argv[1])]:
    print("STATE", run_dag(dag, "first", clear=clear).state)
"""


VERBOSE_LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = info
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n%ex
"""


def spark_at(kind: str, home: Path, s3_server: S3Server) -> tuple[list[Server], dict[str, Any]]:
    """Return the servers of Spark, and the Airflow connection to them."""
    if kind == "cluster":
        cluster = Cluster(home, workers=1)
        return cluster.servers, cluster.connection
    server = ConnectServer(home, s3_server.s3a_conf())
    return [server], server.connection


def rows(lake: str, tmp_path: Path) -> list[tuple[int, str, int]]:
    copies = [downloaded(file.path, tmp_path / "copies") for file in open_log(f"{lake}/_streamsem/orders").files()]
    return sorted(duckdb.sql(f"select id, initials, cents from read_parquet({copies})").fetchall())


@pytest.mark.parametrize("kind", ["cluster", pytest.param("connect", marks=pytest.mark.prove)])
def test_orders_dag_drains_a_secured_topic_onto_s3(
    broker: Broker, s3_server: S3Server, lake: str, tmp_path: Path, kind: str
) -> None:
    """
    On a cluster, a clear reprocesses the rows of a run.

    No file of Airflow (including its database), Spark or the pipeline contains the password, even with verbose logging of Spark.
    """
    topics = Topics(broker, tmp_path)
    topic = topics.create("orders", 2)
    order = lambda n: json.dumps({"id": n, "user": f"Ann {n} Lee", "cents": n - 1, "at": "2026-01-01T00:00:00Z"})  # noqa: E731
    topics.put("orders", [order(n) for n in range(50)], partition=0)
    topics.put("orders", [*[order(n) for n in range(50, 80)], "{broken"], partition=1)
    servers, connection = spark_at(kind, tmp_path / "spark", s3_server)
    kafka = {
        "bootstrap.servers": broker.bootstrap_sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    # The settings of a deployment's spark-defaults.conf, with the location of the jars.
    for name in ("spark-conf", "events", "airflow"):
        (tmp_path / name).mkdir()
    (tmp_path / "spark-conf" / "log4j2.properties").write_text(VERBOSE_LOGGING)
    defaults = {
        **session_conf(),
        "spark.executor.memory": "512m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{tmp_path}/events",
    }
    (tmp_path / "spark-conf" / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in defaults.items()))
    environment = {
        **os.environ, **s3_server.environment(), "AIRFLOW_HOME": str(tmp_path / "airflow"), "STREAMSEM_LAKE": lake, "STREAMSEM_ORDERS_TOPIC": topic,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow/airflow.db", "SPARK_CONF_DIR": str(tmp_path / "spark-conf"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": kafka}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
        "PYTHONPATH": f"{os.environ['AIRFLOW__CORE__DAGS_FOLDER']}:{Path(__file__).parents[2]}",
    }  # fmt: skip

    runs = 2 if kind == "cluster" else 1
    with running(*servers):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(runs)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        logs = done.stdout + done.stderr
        assert done.stdout.count("STATE success") == runs, done.stdout[-3000:] + done.stderr[-3000:]
        expected = [(n, f"A{str(n)[0]}L", n - 1) for n in range(2, 80)]
        assert rows(lake, tmp_path) == expected
        opened = open_log(f"{lake}/_streamsem/orders")
        counts = opened.view().counts
        assert {n: counts[n] for n in ("read", "quarantined", "filtered", "written.orders")} == {
            "read": 81,
            "quarantined": 1,
            "filtered": 2,
            "written.orders": 78,
        }
        if kind == "cluster":
            replaced = [v.outcome and v.outcome.replaces for v in opened.versions()]
            assert replaced == [0, None]
    assert verify(f"{lake}/_streamsem/orders").violations == []
    assert PASSWORD not in logs
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "copies" not in path.parts]
    assert {"airflow.db"} <= {path.name for path in written}
    if kind == "cluster":
        assert "Submitted application" in logs or "Running Spark version" in logs, "the log has no lines of the JVM"
        assert any("events" in path.parts for path in written)
    assert [str(path) for path in written if PASSWORD.encode() in path.read_bytes()] == []
