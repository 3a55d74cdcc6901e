"""The processes of one trial: Kafka, S3, the database, Airflow and the producer. Records which processes work on which version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from botocore.exceptions import BotoCoreError, ClientError

from tests.airflow_chaos import pace
from tests.chaos.setting import Setting
from tests.chaos.setup import SupervisedTrial
from tests.chaos.subjects.streamsem import Streamsem
from tests.integration.parts.airflow import SUPERVISOR, TASK, Airflow
from tests.integration.parts.kafka import Broker
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.s3 import S3Server
from tests.integration.parts.server import running

DAG, WAIT, DRAIN = "numbers_to_s3", "wait", "drain"
SCHEDULERS = {"sqlite": 1, "postgres": 2}


@dataclass(frozen=True)
class Overlap:
    """
    Two processes that worked on one open version. Both were alive when the younger one started its batch.

    :param orphaned: whether the older one no longer had a supervisor
    """

    version: int
    older: int
    younger: int
    orphaned: bool


class PipelineFixture(SupervisedTrial):
    """
    The processes of one trial.

    :param database: ``sqlite``, with one scheduler, or ``postgres``, with two
    :param home: an empty directory
    """

    subject: Streamsem

    def __init__(self, database: str, home: Path, seed: int) -> None:
        self.broker = Broker(home / "kafka")
        self.s3 = S3Server(home / "s3")
        self.postgres = Postgres(home / "postgres") if database == "postgres" else None
        location = home / "trial"
        location.mkdir()
        setting = Setting(
            location=str(location),
            topic=f"airflow-{database}",
            bootstrap=self.broker.bootstrap,
            master="local[1]",
            s3_endpoint=self.s3.endpoint,
        )
        file = setting.write()
        super().__init__(setting, Streamsem(setting), seed)
        self.airflow = Airflow(
            home / "airflow",
            Path(__file__).parent / "dags",
            database=self.postgres.dsn.replace("://", "+psycopg://") if self.postgres else "",
            schedulers=SCHEDULERS[database],
            environment={
                **self.s3.environment(),
                "STREAMSEM_CHAOS_SETTING": str(file),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )
        self.overlaps: list[Overlap] = []
        self._in_version: dict[int, int] = {}  # pid → version of its newest batch
        self._events_read = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(running(*filter(None, [self.broker, self.s3, self.postgres])))
            stack.callback(self.kill_producer)
            self.start_production()
            stack.enter_context(self.airflow.running())
            stack.callback(pace.release, self.setting)
            yield

    def supervise(self) -> None:
        """Read new events. A process that starts a batch overlaps with every live process that works on the same version."""
        with suppress(BotoCoreError, ClientError):  # if S3 does not answer, the next step reads the events
            for event in self.setting.read_events()[self._events_read :]:
                for older in self.active_tasks():
                    if older.pid != event["pid"] and self._in_version[older.pid] == event["version"]:
                        self.overlaps.append(Overlap(event["version"], older.pid, event["pid"], is_orphan(older)))
                self._in_version[event["pid"]] = event["version"]
                self._events_read += 1

    def active_tasks(self) -> list[psutil.Process]:
        """Return the live processes whose newest batch belongs to an open version."""
        newest, is_committed = self.subject.newest()
        active: list[psutil.Process] = []
        if is_committed:
            return active
        for pid, version in self._in_version.items():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                alive = process.status() != psutil.STATUS_ZOMBIE and is_task(process)
                if alive and version == newest:
                    active.append(process)
        return active

    def is_busy(self) -> bool:
        with suppress(BotoCoreError, ClientError):
            return bool(self.active_tasks())
        return False

    def tasks(self) -> list[psutil.Process]:
        """Return the live processes of tasks, including orphans."""
        return [process for process in self.airflow.processes() if is_task(process)]

    def attempts_of(self, version: int) -> int:
        """Return how many attempts wrote files for a version."""
        return len({key.split("/data/")[1].split("/")[1] for key in self.subject.files_of(version)})

    def drain_rest(self, timeout_s: float = 240) -> bool:
        """Return whether a run that started after the end of production found nothing new."""
        mark = time.time()

        def drained() -> bool:
            time.sleep(1)  # do not overload the API server
            with suppress(OSError, KeyError):
                return any(self._is_empty_since(run, mark) for run in self.newest_runs())
            return False

        return self.until_drained(drained, timeout_s)

    def newest_runs(self, limit: int = 5) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = self.airflow.request(
            "GET", f"/dags/{DAG}/dagRuns?order_by=-run_after&limit={limit}"
        )["dag_runs"]
        return runs

    def _is_empty_since(self, run: dict[str, Any], mark: float) -> bool:
        if run["state"] != "success" or not run["start_date"]:
            return False
        started = datetime.fromisoformat(run["start_date"].replace("Z", "+00:00")).timestamp()
        return started > mark and bool(self.airflow.result(DAG, run["dag_run_id"], DRAIN)["status"] == "empty")


def title(process: psutil.Process) -> str:
    return " ".join(process.cmdline()).strip("\0 ")


def is_task(process: psutil.Process) -> bool:
    """Return whether a process runs a task's own code, and is not its supervisor."""
    with suppress(psutil.Error):
        return title(process).startswith(TASK) and not title(process).startswith(SUPERVISOR.rstrip())
    return False


def supervisor_of(task: psutil.Process) -> psutil.Process | None:
    with suppress(psutil.Error):
        parent = task.parent()
        if parent is not None and title(parent).startswith(SUPERVISOR.rstrip()):
            return parent
    return None


def is_orphan(task: psutil.Process) -> bool:
    return supervisor_of(task) is None
