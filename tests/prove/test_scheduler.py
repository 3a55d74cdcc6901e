"""The operator under a real scheduler: API server, DAG processor, scheduler and LocalExecutor, in a scratch home on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import open_log, verify
from demo import arrivals

ROOT = Path(__file__).parents[2]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def environment(home: Path) -> tuple[dict[str, str], str]:
    """A scratch Airflow where everyone is admin, on free ports of the loopback."""
    api, workers, triggers = free_ports(3)
    base = f"http://127.0.0.1:{api}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    secret = "a-secret-of-one-test-" + "x" * 48
    return {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{base}/execution/",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(api),
        "AIRFLOW__API__BASE_URL": base,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secret,
        "AIRFLOW__API_AUTH__JWT_SECRET": secret,
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(workers),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(triggers),
        "STREAMSEM_QUICKSTART_HOME": str(home),
        "STREAMSEM_QUICKSTART_LOG": str(home / "log"),
        "NO_PROXY": "127.0.0.1",
    }, base


@contextmanager
def daemon(name: str, surroundings: dict[str, str], home: Path) -> Iterator[None]:
    """One part of Airflow in a session of its own, ended with all its children."""
    with open(home / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", name],
            env=surroundings,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield
    finally:
        for sign, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 10)):
            try:
                os.killpg(process.pid, sign)
                process.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def end_children(home: Path) -> None:
    """LocalExecutor's tasks have sessions of their own; they are known by their AIRFLOW_HOME, which is this test's alone."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                f"AIRFLOW_HOME={home}".encode() in (entry / "environ").read_bytes().split(b"\0")
                and int(entry.name) != os.getpid()
            ):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


def call(method: str, url: str, token: str = "", body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
        return json.load(answer)


def until(what: str, ask: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            if found := ask():
                return found
        except (urllib.error.URLError, OSError, ValueError) as error:
            last = error
        time.sleep(0.5)
    raise TimeoutError(f"{what}: {last!r}")


@pytest.mark.prove
@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_quickstart_runs_under_a_real_scheduler_and_a_cleared_task_writes_nothing(tmp_path: Path) -> None:
    surroundings, base = environment(tmp_path)
    arrivals.arrive(arrivals.write_days(tmp_path / "waiting")[:40], tmp_path / "arrivals")
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"], env=surroundings, check=True, capture_output=True
    )
    try:
        with ExitStack() as stack:
            for name in ("api-server", "dag-processor", "scheduler"):
                stack.enter_context(daemon(name, surroundings, tmp_path))
            until("API server", lambda: call("GET", f"{base}/api/v2/version"), 120)
            token = call("GET", f"{base}/auth/token")["access_token"]
            dag = f"{base}/api/v2/dags/streamsem_quickstart"
            until("DAG", lambda: call("GET", dag, token), 120)
            call("POST", f"{dag}/dagRuns", token, {"dag_run_id": "real", "logical_date": None})

            def state() -> str | None:
                found = call("GET", f"{dag}/dagRuns/real", token)["state"]
                return found if found in ("success", "failed") else None

            assert until("DAG run", state, 300) == "success", (tmp_path / "scheduler.log").read_text()[-3000:]
            answer = call(
                "GET", f"{dag}/dagRuns/real/taskInstances/clean/xcomEntries/return_value?deserialize=false", token
            )["value"]
            assert (answer["status"], answer["version"], answer["ranges"]) == ("committed", 1, {"files": [0, 40]})
            stored = sorted(path.name for path in (tmp_path / "log").rglob("*.json"))
            call(
                "POST",
                f"{dag}/clearTaskInstances",
                token,
                {
                    "dry_run": False,
                    "dag_run_id": "real",
                    "task_ids": ["clean"],
                    "only_failed": False,
                    "reset_dag_runs": True,
                },
            )
            task = f"{dag}/dagRuns/real/taskInstances/clean"
            until("second try", lambda: call("GET", task, token)["try_number"] >= 2 and state(), 300)
            assert call("GET", task, token)["state"] == "success"
            assert sorted(path.name for path in (tmp_path / "log").rglob("*.json")) == stored
    finally:
        end_children(tmp_path)
    opened = open_log(str(tmp_path / "log"))
    assert sum(file.rows for file in opened.files()) == opened.view().counts["written.flights"]
    assert verify(str(tmp_path / "log")).findings == []
