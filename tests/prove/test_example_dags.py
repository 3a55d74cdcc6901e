"""
Runs the example DAGs, after the commands in their docstrings, and the DAGs of documentation pages several times with a real scheduler.

``streamsem_event_driven`` is tested in test_event_driven.py, the README's DAG in test_scheduled_dags.py.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from airflow_provider_streamsem import open_log, verify
from tests.integration.conftest import broker as broker
from tests.integration.parts.airflow import Airflow
from tests.integration.parts.kafka import Broker
from tests.integration.parts.server import free_port
from tests.integration.parts.spark import session_conf
from tests.integration.topics import Topics

ROOT = Path(__file__).parents[2]
EXAMPLES = ("counts", "quickstart", "payments", "metrics", "orders", "readings", "shop")
pytestmark = [pytest.mark.prove, pytest.mark.airflow, pytest.mark.timeout(1_800)]


def preparation(name: str) -> str:
    """Return the indented commands in the docstring of an example."""
    text = ast.get_docstring(ast.parse((ROOT / "dags" / f"streamsem_{name}.py").read_text()))
    commands = re.search(r":\n\n((?:    .*\n)+)", text or "")
    assert commands is not None, "the docstring of the DAG's file has no command"
    return textwrap.dedent(commands[1])


class Examples:
    """An Airflow with the example DAGs. Environment variables move their locations to a temporary folder."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home = home
        folder = home / "dags"
        folder.mkdir()
        for name in EXAMPLES:
            shutil.copy(ROOT / "dags" / f"streamsem_{name}.py", folder)
        locations = {f"STREAMSEM_{name.upper()}_HOME": str(home / name) for name in EXAMPLES}
        self.airflow = Airflow(home / "airflow", folder, environment={**locations, **environment})

    def prepare(self, name: str, **changes: str) -> subprocess.Popen[bytes]:
        """Run the commands in the docstring of an example, with other locations."""
        command = preparation(name).replace(f"/tmp/streamsem-{name}", str(self.home / name))
        for before, after in changes.values():
            assert before in command
            command = command.replace(before, after)
        environment = {**os.environ, **self.airflow.environment}
        return subprocess.Popen(["bash", "-ec", command], env=environment, stdout=(self.home / f"{name}.out").open("w"))

    def run(self, dag: str, number: int, **options: Any) -> None:
        run = f"run-{number}"
        self.airflow.until(f"{dag} is there", lambda: self.airflow.request("GET", f"/dags/{dag}"), 180)
        self.airflow.trigger(dag, run, **options)
        self.airflow.until(f"{dag} {run}", lambda: self.airflow.state(dag, run) in ("success", "failed"), 300)
        assert self.airflow.state(dag, run) == "success"


@pytest.fixture
def examples(tmp_path: Path, broker: Broker) -> Examples:
    topics = Topics(broker, tmp_path)
    topic = topics.create("orders", 2)
    order = {"id": 1, "user": "Ann Lee", "cents": 250, "at": "2026-01-01T00:00:00Z"}
    topics.put("orders", [json.dumps({**order, "id": n}) for n in range(10)])
    conf = tmp_path / "spark-conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in session_conf().items()))
    environment = {
        "SPARK_CONF_DIR": str(conf),
        "STREAMSEM_LAKE": str(tmp_path / "lake"),
        "STREAMSEM_ORDERS_TOPIC": topic,
        "STREAMSEM_METRICS_URL": f"http://127.0.0.1:{free_port()}/increments",
    }
    return Examples(tmp_path, environment)


def test_examples_run_several_times_after_the_commands_in_their_docstrings(examples: Examples, broker: Broker) -> None:
    url = examples.airflow.environment["STREAMSEM_METRICS_URL"]
    endpoint = examples.prepare("metrics", port=("9091", url.split(":")[2].split("/")[0]))
    try:
        with examples.airflow.running():
            for name in ("counts", "quickstart", "payments", "readings", "shop"):
                assert examples.prepare(name).wait(60) == 0
            assert examples.prepare("orders", servers=("127.0.0.1:9092", broker.bootstrap)).wait(120) == 0
            for name in EXAMPLES:
                for number in range(3):
                    if number == 1 and name in ("quickstart", "payments", "metrics"):
                        (first,) = (examples.home / name / "arrivals").iterdir()
                        shutil.copy(first, first.with_name(f"again{first.suffix}"))
                    examples.run(f"streamsem_{name}", number)
            examples.run("streamsem_payments_replay", 0, conf={"first": 0, "last": 1})
            examples.run("streamsem_payments_maintenance", 0)
    finally:
        endpoint.kill()
    assert rows(examples.home / "quickstart" / "log", "flights") == 2
    assert rows(examples.home / "counts" / "log", "counts") == 1
    assert rows(examples.home / "readings" / "log", "averages") == 1
    assert rows(examples.home / "shop" / "log", "orders") == 3
    assert rows(examples.home / "payments" / "log", "ledger") == 2
    assert rows(examples.home / "lake" / "_streamsem" / "orders", "orders") == 10
    pushed = (examples.home / "metrics.out").read_text()
    assert pushed.count('"page"') == 2, pushed


def rows(log: Path, sink: str) -> int:
    assert verify(str(log)).violations == []
    return sum(file.rows for file in open_log(str(log)).files(sink=sink))


def test_dag_of_the_queue_page_reads_each_message_once_in_several_runs(tmp_path: Path) -> None:
    server = ThreadedMotoServer(port=free_port())
    server.start()
    try:
        endpoint_and_region = {"endpoint_url": f"http://127.0.0.1:{server._port}", "region_name": "eu-central-1"}
        sqs = boto3.client("sqs", aws_access_key_id="k", aws_secret_access_key="s", **endpoint_and_region)
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        page = (ROOT / "docs" / "connectors" / "queues.md").read_text()
        code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
        assert code is not None
        relocated = code[1].replace("https://sqs.eu-central-1.amazonaws.com/123456789012/orders", url)
        relocated = relocated.replace("s3://lake/", f"{tmp_path}/lake/").replace("*/10 * * * *", "* * * * *")
        (tmp_path / "dags").mkdir()
        (tmp_path / "lake" / "landing" / "orders").mkdir(parents=True)
        (tmp_path / "dags" / "orders.py").write_text(relocated)
        connection = {"conn_type": "aws", "login": "k", "password": "s", "extra": endpoint_and_region}
        environment = {"AIRFLOW_CONN_AWS_DEFAULT": json.dumps(connection)}
        airflow = Airflow(tmp_path / "airflow", tmp_path / "dags", environment=environment)
        log = tmp_path / "lake" / "_streamsem" / "orders"

        with airflow.running():
            for number in range(3):
                message = {"id": number, "user": "ann", "amount": "1.50"}
                sqs.send_message(QueueUrl=url, MessageBody=json.dumps(message))
                airflow.until("the message is read", lambda n=number: records_read(log) == n + 1, 400)
        assert rows(log, "lake") == 3
    finally:
        server.stop()


def blocks(page: str) -> list[str]:
    """Return the Python code of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_dag_of_the_testing_page_reads_each_record_once_in_several_runs(tmp_path: Path, broker: Broker) -> None:
    topics = Topics(broker, tmp_path)
    topic = topics.create("orders", 2)
    for code in blocks("docs/how-to/test-pipelines.md"):
        name = code.partition("\n")[0].removeprefix("# ").removeprefix("dags/")
        if name in ("orders.py", "orders_dag.py"):
            (tmp_path / "dags").mkdir(exist_ok=True)
            relocated = code.replace("s3://lake/", f"{tmp_path}/lake/").replace('["orders"]', f'["{topic}"]')
            (tmp_path / "dags" / name).write_text(relocated)
    conf = tmp_path / "spark-conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in session_conf().items()))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker.bootstrap}}
    environment = {
        "SPARK_CONF_DIR": str(conf),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
    }
    airflow = Airflow(tmp_path / "airflow", tmp_path / "dags", environment=environment)
    log = tmp_path / "lake" / "_streamsem" / "orders"
    with airflow.running():
        for number in range(3):
            order = {"id": number, "user": "ann", "amount": "9.50", "ts": "2026-01-02T03:04:05Z"}
            topics.put("orders", [json.dumps(order)])
            airflow.until("the record is read", lambda n=number: records_read(log) == n + 1, 400)
    assert rows(log, "lake") == 3


def test_dag_of_the_sensors_page_is_started_by_its_watcher_for_each_range(tmp_path: Path) -> None:
    arrivals = tmp_path / "data" / "arrivals"
    arrivals.mkdir(parents=True)
    (readme, *_), (dag,) = (
        blocks("README.md"),
        [code for code in blocks("docs/reference/sensors.md") if "AssetWatcher" in code],
    )
    pipeline = readme.partition("\n\n\n@dag")[0]
    (tmp_path / "dags").mkdir()
    relocated = pipeline.replace("s3://lake/", f"{tmp_path}/lake/").replace("/data/", f"{tmp_path}/data/")
    (tmp_path / "dags" / "my_pipelines.py").write_text(relocated)
    (tmp_path / "dags" / "event_driven.py").write_text(dag)
    airflow = Airflow(tmp_path / "airflow", tmp_path / "dags")
    log = tmp_path / "lake" / "_streamsem" / "orders"
    with airflow.running():
        airflow.until("the DAG is there", lambda: airflow.request("GET", "/dags/orders"), 180)
        for number in range(3):
            order = {"user": "ann", "amount": "9.50", "ts": "2026-01-02T03:04:05Z", "note": "x" * 100}
            lines = [json.dumps({"id": number * 10_000 + n, **order}) for n in range(10_000)]
            (arrivals / f".{number}").write_text("\n".join(lines))
            (arrivals / f".{number}").rename(arrivals / f"{number}.json")
            airflow.until("the file is read", lambda n=number: records_read(log) == (n + 1) * 10_000, 400)
    assert rows(log, "lake") == 30_000


def records_read(log: Path) -> int:
    return open_log(str(log)).view().counts.get("read", 0) if (log / "pipeline.json").exists() else 0
