"""The processes of one trial (servers, producer and runners), and the loop that supervises them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.drivers import Driver, HangDetector
from tests.chaos.producer import PARTITIONS
from tests.chaos.setting import BUCKET, Setting
from tests.chaos.subjects import subject, subject_class
from tests.chaos.subjects.contract import Subject
from tests.integration.parts.kafka import Broker
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.integration.parts.server import Server, search_path
from tests.integration.parts.spark import Cluster


class SupervisedTrial:
    """A subject, the producer that feeds its topic, and the loop that supervises both."""

    def __init__(self, setting: Setting, subject: Subject, seed: int) -> None:
        self.setting = setting
        self.subject = subject
        self.seed = seed
        self.hung = 0
        self._producer: subprocess.Popen[bytes] | None = None

    def supervise(self) -> None:
        """Run one step of the loop."""
        raise NotImplementedError

    def is_busy(self) -> bool:
        """Return whether the subject is processing a batch."""
        raise NotImplementedError

    def until(self, condition: Callable[[], Any], seconds: float, *, every_s: float = 0.1) -> bool:
        """Run the loop until the condition is true. Return whether it became true in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.supervise()
            time.sleep(every_s)
        return True

    def pass_time(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def until_drained(self, condition: Callable[[], Any], timeout_s: float) -> bool:
        """Run the loop until the condition is true. Give up after a timeout without commits. A long backlog may take longer, as long as it shrinks."""
        while True:
            before = self.subject.commits()
            if self.until(condition, timeout_s):
                return True
            if self.subject.commits() == before:
                return False

    def start_production(self) -> None:
        """Create the topic, and the bucket if there is an S3 server. Then start the producer."""
        admin = AdminClient({"bootstrap.servers": self.setting.bootstrap})
        admin.create_topics([NewTopic(self.setting.topic, PARTITIONS)])[self.setting.topic].result(30)
        if self.setting.s3_endpoint:
            boto3.client(
                "s3", endpoint_url=self.setting.s3_endpoint, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name="us-east-1",
            ).create_bucket(Bucket=BUCKET)  # fmt: skip
        self.subject.prepare()
        argv = [sys.executable, "-m", "tests.chaos.producer", str(self.setting.root / "setting.json"), str(self.seed)]
        with open(self.setting.root / "producer.log", "ab") as log:
            self._producer = subprocess.Popen(
                argv,
                cwd=self.setting.root,
                env={**os.environ, "PYTHONPATH": search_path()},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def end_production(self) -> None:
        """Stop the producer after its current transaction. Afterwards the topic is complete."""
        assert self._producer is not None
        self._producer.send_signal(signal.SIGTERM)
        if not self.until(lambda: self._producer is not None and self._producer.poll() is not None, 120):
            raise RuntimeError("the producer did not end its last transaction in two minutes")

    def kill_producer(self) -> None:
        if self._producer and self._producer.poll() is None:
            self._producer.kill()
            self._producer.wait()


class PipelineFixture(SupervisedTrial):
    """
    The processes of one trial.

    :param name: name of the subject
    :param home: an empty directory
    """

    def __init__(self, name: str, home: Path, seed: int) -> None:
        self.name = name
        needs = subject_class(name).needs
        self.broker = Broker(home / "kafka")
        self.s3 = S3Server(home / "s3") if "s3" in needs else None
        self.cluster = Cluster(home / "cluster") if "cluster" in needs else None
        home.chmod(0o755)  # Postgres runs as another user
        self.postgres = Postgres(home / "postgres") if "postgres" in needs else None
        location = home / "trial"
        location.mkdir()
        setting = Setting(
            location=str(location),
            topic=f"chaos-{name.replace('_', '-')}",
            bootstrap=self.broker.bootstrap,
            master=self.cluster.url if self.cluster else "local[2]",
            s3_endpoint=self.s3.endpoint if self.s3 else "",
            postgres=self.postgres.dsn if self.postgres else "",
        )
        setting.write()
        super().__init__(setting, subject(name, setting), seed)
        self.first: Driver | None = None
        self.others: list[Driver] = []
        self._hang_detector = HangDetector()

    @property
    def servers(self) -> list[Server]:
        single = [server for server in (self.broker, self.s3, self.postgres) if server is not None]
        return [*single, *(self.cluster.servers if self.cluster else [])]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the servers, the producer and the first runner. At the end, stop each process by its pid."""
        try:
            for server in self.servers:
                server.start()
            self.start_production()
            self.first = self.driver()
            yield
        finally:
            for driver in [*([self.first] if self.first else []), *self.others]:
                driver.kill()
            self.kill_producer()
            for server in reversed(self.servers):
                server.stop()

    def driver(self, *, once: bool = False) -> Driver:
        """Start a runner on the current run key."""
        environment = self.s3.environment() if self.s3 else {}
        if self.postgres:
            environment["AIRFLOW_CONN_CHAOS"] = f"postgres://postgres@127.0.0.1:{self.postgres.port}/postgres"
        return Driver(self.name, self.setting, environment, once=once)

    def zombie(self) -> Driver:
        """Start a second runner on the current run key, concurrent with the first."""
        driver = self.driver(once=True)
        self.others.append(driver)
        return driver

    def supervise(self) -> None:
        """Restart a runner that ended, and kill one that hangs, as a scheduler does."""
        assert self.first is not None
        progress = (len(self.setting.read_events()), self.subject.commits(), self.first.pid)
        if self._hang_detector.hangs(progress, self.first.is_stopped) and self.first.is_alive:
            self.hung += 1
            self.first.kill()
        if not self.first.is_alive:
            self.first = self.driver()

    def is_busy(self) -> bool:
        """Return whether the first runner has started a run and not ended it."""
        own = [e["event"] for e in self.setting.read_events() if self.first and e["pid"] == self.first.pid]
        return bool(own) and own[-1] == "started"

    def executors(self) -> list[psutil.Process]:
        """Return the running executors."""
        return self.cluster.executors() if self.cluster else []

    def drain_rest(self, timeout_s: float = 120) -> bool:
        """Return whether a run that started after the end of production found nothing new."""
        mark = len(self.setting.read_events())

        def drained() -> bool:
            started: set[tuple[int, int]] = set()
            for event in self.setting.read_events()[mark:]:
                run = (event["pid"], event["run"])
                if event["event"] == "started":
                    started.add(run)
                elif event["event"] == "done" and event["empty"] and run in started:
                    return True
            return False

        return self.until_drained(drained, timeout_s)
