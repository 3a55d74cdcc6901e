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
from tests.integration.parts.server import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial" / "first-dag.md").read_text()
DONE = "-- the block ended with"


class Shell:
    """
    A bash process that runs the blocks of the page in order, as a reader does in a terminal.

    :param port: the port of Airflow's API server, in place of 8080
    """

    def __init__(self, location: Path, environment: dict[str, str], port: str) -> None:
        self.port = port
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
        commands = commands.replace("localhost:8080", f"localhost:{self.port}").replace("/path/to/clone", str(ROOT))
        stdin.write(f"set -e; trap 'echo {DONE} $?' EXIT\n{commands}\nset +e; trap - EXIT; echo {DONE} 0\n")
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
    port = str(free_port())
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "PYSPARK"))},
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port}/execution/",
    }
    shell = Shell(tmp_path, environment, port)
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


@pytest.mark.prove
@pytest.mark.airflow
@pytest.mark.timeout(1_200)
def test_commands_of_the_tutorial_have_the_described_results(shell: Shell, tmp_path: Path) -> None:
    blocks = [
        (language, textwrap.dedent(code))
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    ]
    assert [language for language, _ in blocks] == ["bash", "python", *["bash"] * 6]
    install, dag, start, log, create, kill, check, stop = [code for _, code in blocks]
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
