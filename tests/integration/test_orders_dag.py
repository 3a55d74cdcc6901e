"""The example DAG of Kafka to S3, on Airflow's own machinery, a real broker, S3 server and Spark cluster: run, run again, clear."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from airflow_provider_streamsem import open_log, verify
from tests.integration.parts.kafka import PASSWORD, USER, Broker
from tests.integration.parts.s3 import S3Server, downloaded
from tests.integration.parts.server import running
from tests.integration.parts.spark import Cluster, session_conf
from tests.integration.topics import Topics

pytestmark = pytest.mark.integration

PROGRAM = """
import os, sys
from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag
if not os.path.exists(os.environ["AIRFLOW_HOME"] + "/airflow.db"):
    initialise_airflow()
from streamsem_orders import streamsem_orders
run = run_dag(streamsem_orders(), sys.argv[1], clear=["clean"] if "--clear" in sys.argv else [])
print("STATE", run.state)
"""


def rows(lake: str, tmp_path: Path) -> list[tuple[int, str, int]]:
    copies = [downloaded(file.path, tmp_path / "copies") for file in open_log(f"{lake}/_streamsem/orders").files()]
    return sorted(duckdb.sql(f"select id, initials, cents from read_parquet({copies})").fetchall())


def test_orders_dag_drains_a_secured_topic_onto_s3_and_a_clear_makes_its_rows_anew(
    broker: Broker, s3_server: S3Server, lake: str, tmp_path: Path
) -> None:
    topics = Topics(broker, tmp_path)
    topic = topics.create("orders", 2)
    order = lambda n: json.dumps({"id": n, "user": f"Ann {n} Lee", "cents": n - 1, "at": "2026-01-01T00:00:00Z"})  # noqa: E731
    topics.put("orders", [order(n) for n in range(50)], partition=0)
    topics.put("orders", [*[order(n) for n in range(50, 80)], "{broken"], partition=1)
    cluster = Cluster(tmp_path / "cluster", workers=1)
    host, _, port = cluster.url.removeprefix("spark://").partition(":")
    kafka = {
        "bootstrap.servers": broker.bootstrap_sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    # What a deployment puts into spark-defaults.conf: where the jars are.
    (tmp_path / "spark-conf").mkdir()
    defaults = {**session_conf(), "spark.executor.memory": "512m"}
    (tmp_path / "spark-conf" / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in defaults.items()))
    environment = {
        **os.environ, **s3_server.environment(), "AIRFLOW_HOME": str(tmp_path / "airflow"), "STREAMSEM_LAKE": lake, "STREAMSEM_ORDERS_TOPIC": topic,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow/airflow.db", "SPARK_CONF_DIR": str(tmp_path / "spark-conf"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": kafka}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": f"spark://{host}", "port": int(port)}),
        "PYTHONPATH": f"{os.environ['AIRFLOW__CORE__DAGS_FOLDER']}:{Path(__file__).parents[2]}",
    }  # fmt: skip
    (tmp_path / "airflow").mkdir()

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert "STATE success" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    with running(*cluster.servers):
        told = run("first")
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
        topics.put("orders", [order(n) for n in range(80, 90)])
        told += run("second")
        told += run("first", "--clear")
    assert rows(lake, tmp_path) == [(n, f"A{str(n)[0]}L", n - 1) for n in range(2, 90)]
    assert [(v.outcome.replaces.version if v.outcome and v.outcome.replaces else None) for v in opened.versions()] == [
        0,
        None,
        None,
    ]
    assert verify(f"{lake}/_streamsem/orders").findings == []
    assert PASSWORD not in told
