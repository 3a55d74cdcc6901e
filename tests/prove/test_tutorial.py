"""Runs the commands of the tutorial: an installation into an empty environment, `airflow standalone`, a killed JVM and a cleared task."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil
import pyarrow.parquet
import pytest

from airflow_provider_streamsem import open_log
from tests.integration.parts.debezium import Debezium
from tests.integration.parts.kafka import Broker
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import free_port, home_for_others, running
from tests.integration.parts.spark import session_conf

ROOT = Path(__file__).parents[2]
DONE = "-- the block ended with"


class Shell:
    """
    A bash process that runs the blocks of the page in order, as a reader does in a terminal.

    :param ports: port in the page → port of the server
    """

    def __init__(self, location: Path, environment: dict[str, str], ports: dict[str, int]) -> None:
        self.ports = ports
        self.process = subprocess.Popen(
            ["bash"],
            cwd=location,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, commands: str) -> str:
        """Run commands, and return their output. Fails if one of the commands fails."""
        stdin, stdout = _open(self.process.stdin), _open(self.process.stdout)
        for page, port in self.ports.items():
            commands = commands.replace(f"localhost:{page}", f"localhost:{port}")
            commands = commands.replace(f'"database.port": "{page}"', f'"database.port": "{port}"')
        commands = commands.replace("/path/to/clone", str(ROOT))
        stdin.write(
            f"set -e; trap 'status=$?; echo; echo {DONE} $status' EXIT\n{commands}\nset +e; trap - EXIT; echo; echo {DONE} 0\n"
        )
        stdin.flush()
        printed: list[str] = []
        for line in stdout:
            if line.startswith(DONE):
                assert line.split()[-1] == "0", f"{commands}\n{''.join(printed)}"
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"the shell ended in\n{commands}\n{''.join(printed)}")


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "PYSPARK"))},
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port}/execution/",
    }
    shell = Shell(tmp_path, environment, {"8080": port})
    yield shell
    for process in [*psutil.Process(shell.process.pid).children(recursive=True), shell.process]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    shell.process.wait()


def spark_jvms(shell: Shell) -> list[psutil.Process]:
    """Return the JVMs of the tasks of the shell's Airflow."""
    jvms = []
    for process in psutil.Process(shell.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "org.apache.spark.deploy.SparkSubmit" in process.cmdline():
                jvms.append(process)
    return jvms


def until(description: str, condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {description}"
        time.sleep(0.2)


def ids(log: Path) -> Counter[int]:
    """Return how often each id is in the visible files, read without Spark."""
    counts: Counter[int] = Counter()
    for file in open_log(str(log)).files():
        counts.update(
            pyarrow.parquet.read_table(file.path.removeprefix("file://"), partitioning=None)["id"].to_pylist()
        )
    return counts


def blocks_of(page: str, count: int) -> list[str]:
    """Return the code blocks of a page. One of them is the DAG."""
    text = (ROOT / "docs" / "tutorial" / page).read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks].count("python") == 1
    assert len(blocks) == count
    return [textwrap.dedent(code) for _, code in blocks]


@pytest.mark.prove
@pytest.mark.airflow
@pytest.mark.timeout(1_200)
def test_commands_of_the_tutorial_have_the_described_results(shell: Shell, tmp_path: Path) -> None:
    install, dag, start, log, create, kill, check, stop = blocks_of("first-dag.md", 8)
    shell.run("set -m")  # as in a terminal: a background job has its own process group
    shell.run(install)
    (tmp_path / "airflow" / "dags" / "orders.py").write_text(dag)
    shell.run(start)
    location = tmp_path / "lake" / "log"
    until("the first run commits version 0", lambda: location.exists() and ids(location) == {1: 1}, 180)
    assert "0" in shell.run(log)
    until("the first task ends", lambda: not spark_jvms(shell), 60)

    shell.run(create)
    shell.run(kill)
    until("the retry commits", lambda: len(ids(location)) == 21, 300)
    printed = shell.run(check)
    assert ids(location) == dict.fromkeys(range(1, 22), 1)
    assert "clean: " in printed, printed

    committed = open_log(str(location)).view().commits
    shell.run("airflow tasks clear --yes orders")
    states = "airflow dags list-runs orders --output plain"
    until("the cleared runs end", lambda: not re.search(r"\b(running|queued)\b", shell.run(states)), 300)
    assert "failed" not in shell.run(states)
    assert open_log(str(location)).view().commits == committed
    airflow = [psutil.Process(int((tmp_path / "airflow.pid").read_text()))]
    airflow += airflow[0].children(recursive=True)
    shell.run(stop)
    _, alive = psutil.wait_procs(airflow, timeout=60)
    assert alive == []


@pytest.mark.prove
@pytest.mark.airflow
@pytest.mark.timeout(1_500)
def test_commands_of_the_tutorial_of_change_data_have_the_described_results(shell: Shell, tmp_path: Path) -> None:
    first, *_ = blocks_of("first-dag.md", 8)
    blocks = blocks_of("postgres-to-delta.md", 11)
    install, create, connect, dag, start, show, expected, change, kill, compare, clean_up = blocks
    (tmp_path / "spark-conf").mkdir()  # Spark's packages, which a test does not download
    lines = (f"{name} {value}\n" for name, value in session_conf().items())
    (tmp_path / "spark-conf" / "spark-defaults.conf").write_text("".join(lines))
    with home_for_others() as home:
        postgres, broker = Postgres(home / "postgres"), Broker(tmp_path / "kafka")
        worker = Debezium(tmp_path / "debezium", bootstrap=broker.bootstrap)
        shell.ports |= {"5432": postgres.port, "8083": worker.port, "9092": int(broker.bootstrap.rpartition(":")[2])}
        with running(postgres, broker, worker):
            shell.run(f"set -m; export SPARK_CONF_DIR={tmp_path}/spark-conf")
            shell.run(first)
            shell.run(install)
            shell.run(create)
            shell.run(connect)
            (tmp_path / "airflow" / "dags" / "customers.py").write_text(dag)
            shell.run(start)
            location = tmp_path / "lake" / "customers-log"
            until("the first run commits", lambda: location.exists() and open_log(str(location)).view().commits, 180)
            until("the first task ends", lambda: not spark_jvms(shell), 60)
            assert expected in (printed := shell.run(show)), printed
            shell.run(change)
            shell.run(kill)
            printed = shell.run(compare)
            assert "\nequal\n" in f"\n{printed}", printed
            assert "clean: " in printed, printed
            shell.run(clean_up)
