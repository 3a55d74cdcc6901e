"""Runs a real Airflow on loopback: API server, DAG processor, triggerer and schedulers with LocalExecutor. Includes a client of its REST API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from tests.integration.parts.server import Server, free_port, search_path

USER, PASSWORD = "admin", "password-of-a-scratch-airflow"
SUPERVISOR, TASK = (
    "airflow worker -- LocalExecutor: ",
    "airflow worker -- ",
)  # each is followed by the id of the task instance


class Airflow:
    """
    An Airflow in a temporary home. Each component can be killed and restarted alone.

    :param home: an empty directory
    :param dags: the folder of the DAG files; or team → the folder of its DAG files, which only users of the team and administrators may read
    :param database: SQLAlchemy URL of an empty database; default: SQLite in the home
    :param schedulers: number of schedulers; more than one needs a database server
    :param users: name → role of further users, with the password of the administrator. With teams: ``role:team``
    :param environment: environment of all components and their tasks
    """

    def __init__(
        self,
        home: Path,
        dags: Path | Mapping[str, Path],
        *,
        database: str = "",
        schedulers: int = 1,
        users: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        roles = {USER: "admin", **(users or {})}
        self._teams = {} if isinstance(dags, Path) else dags
        folder = dags if isinstance(dags, Path) else home / "dags"
        settings = {**_settings(home, folder, database, self.url, roles), **_settings_of_teams(self._teams)}
        self.environment = {**settings, **(environment or {})}
        passwords = json.dumps(dict.fromkeys(roles, PASSWORD))
        (home / "simple_auth_manager_passwords.json.generated").write_text(passwords)
        names = ["dag-processor", "triggerer", *(f"scheduler-{n}" for n in range(schedulers))]
        # The API server is started last. The other components start up in parallel with it.
        self.components = {
            **{n: self._component(n, home) for n in names},
            "api-server": self._component("api-server", home, port),
        }
        self._sessions: set[int] = set()
        self._token = ""

    def _component(self, name: str, home: Path, port: int = 0) -> Server:
        command = name.rstrip("-0123456789")
        options = ["--skip-serve-logs"] if command in ("scheduler", "triggerer") else []
        argv = [sys.executable, "-m", "airflow", command, *options]
        return Server(name, home, argv, port=port, environment=self.environment)

    @property
    def schedulers(self) -> list[Server]:
        return [component for name, component in self.components.items() if name.startswith("scheduler")]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all components on a new database. At the end, kill every process."""
        self._command("db", "migrate")
        for team in self._teams:
            self._command("teams", "create", team)
        try:
            for component in self.components.values():
                self.start(component)
            yield
        finally:
            self.end()

    def _command(self, *arguments: str) -> None:
        argv, environment = [sys.executable, "-m", "airflow", *arguments], {**os.environ, **self.environment}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"airflow {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")

    def start(self, component: Server) -> None:
        try:
            component.start()
        finally:
            self._sessions.add(component.pid)  # also if an interrupt ends the wait for its port

    def end(self) -> None:
        """Send SIGKILL to every process until none is left. A dying scheduler may just have started another process."""
        while processes := self.processes():
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(processes, 10)

    def processes(self) -> list[psutil.Process]:
        """
        Return every live process of the components, of their tasks, and of their children, including orphans.

        Each component runs in a new session, which identifies its processes. No child leaves the session, because LocalExecutor starts only new process groups.
        The environment in /proc cannot identify them, because setproctitle overwrites it.
        """
        processes = []
        for pid in psutil.pids():
            with suppress(OSError, psutil.Error):
                if os.getsid(pid) in self._sessions:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        processes.append(process)
        return processes

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """
        Send one request to the public API, with ``path`` below ``/api/v2``.

        :raises OSError: the server did not respond, or refused the request (``urllib.error.HTTPError``)
        """
        if not self._token:
            login = {"username": USER, "password": PASSWORD}
            self._token = _call("POST", f"{self.url}/auth/token", body=login)["access_token"]
        return _call(method, f"{self.url}/api/v2{path}", self._token, body)

    def run_path(self, dag: str, run: str) -> str:
        return f"/dags/{dag}/dagRuns/{quote(run, safe='')}"

    def state(self, dag: str, run: str, task: str = "") -> str | None:
        """Return the state of a run or of a task in it, or ``None`` if it has no state yet."""
        path = self.run_path(dag, run) + (f"/taskInstances/{task}" if task else "")
        state: str | None = self.request("GET", path)["state"]
        return state

    def tries(self, dag: str, run: str, task: str) -> int:
        """Return how often a task was started."""
        tries: int = self.request("GET", f"{self.run_path(dag, run)}/taskInstances/{task}")["try_number"]
        return tries

    def result(self, dag: str, run: str, task: str) -> Any:
        """Return the result of a task."""
        path = f"{self.run_path(dag, run)}/taskInstances/{task}/xcomEntries/return_value?deserialize=false"
        return self.request("GET", path)["value"]

    def trigger(self, dag: str, run: str, **options: Any) -> None:
        self.request("POST", f"/dags/{dag}/dagRuns", {"dag_run_id": run, "logical_date": None, **options})

    def clear(self, dag: str, run: str, tasks: list[str]) -> None:
        body = {"dry_run": False, "dag_run_id": run, "task_ids": tasks, "only_failed": False, "reset_dag_runs": True}
        self.request("POST", f"/dags/{dag}/clearTaskInstances", body)

    def clear_run(self, dag: str, run: str) -> None:
        self.request("POST", f"{self.run_path(dag, run)}/clear", {"dry_run": False, "only_failed": False})

    def mark(self, dag: str, run: str, state: str, task: str = "") -> None:
        """Mark a task or a whole run as ``success`` or ``failed``."""
        if task:
            self.request("PATCH", f"{self.run_path(dag, run)}/taskInstances/{task}", {"new_state": state})
        else:
            self.request("PATCH", self.run_path(dag, run), {"state": state})

    def until(self, description: str, poll: Callable[[], Any], seconds: float) -> Any:
        """
        Call ``poll`` until its result is true, and return the result.

        :raises TimeoutError: the result did not become true in time. The message contains the ends of the logs
        """
        deadline = time.monotonic() + seconds
        last: object = None
        while time.monotonic() < deadline:
            try:
                if result := poll():
                    return result
            except OSError as error:
                last = error
            time.sleep(0.5)
        logs = "".join(f"\n--- {n}\n{p.log.read_text(errors='replace')[-1500:]}" for n, p in self.components.items())
        raise TimeoutError(f"not within {seconds} s: {description}; last error: {last!r}{logs}")


def _settings(home: Path, dags: Path, database: str, url: str, roles: Mapping[str, str]) -> dict[str, str]:
    """Return settings with short timeouts, few processes, loopback only, and an API that authenticates its callers."""
    secret = "a-secret-of-one-test-" + "x" * 48
    return {
        "PYTHONPATH": search_path(),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in roles.items()),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database or f"sqlite:///{home}/airflow.db?timeout=60",
        **({"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": database.replace("+psycopg:", "+psycopg_async:")} if database else {}),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": url.rpartition(":")[2],
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secret,
        "AIRFLOW__API_AUTH__JWT_SECRET": secret,
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
        "NO_PROXY": "127.0.0.1",
        "TZ": "UTC",
    }  # fmt: skip


def _settings_of_teams(teams: Mapping[str, Path]) -> dict[str, str]:
    """Return the settings with which the DAGs of a folder belong to a team."""
    if not teams:
        return {}
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [
        {"name": team, "classpath": local, "kwargs": {"path": str(folder)}, "team_name": team}
        for team, folder in teams.items()
    ]
    return {
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
    }


def _call(method: str, url: str, token: str = "", body: Mapping[str, Any] | None = None) -> Any:
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
        text = response.read()
    return json.loads(text) if text else None
