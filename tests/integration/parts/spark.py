"""A Spark standalone cluster (a master and two workers) and a Spark Connect server, from pip's pyspark."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.integration.parts import install
from tests.integration.parts.server import Server, free_port

HOME = os.path.dirname(pyspark.__file__)
_SMALL = {"SPARK_DAEMON_MEMORY": "256m"}


def _environment(home: Path) -> dict[str, str]:
    return {
        "SPARK_HOME": HOME,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(home / "work"),
        "SPARK_LOG_DIR": str(home),
    }


def session_conf() -> dict[str, str]:
    """Return the settings of a session with the jars. Driver and executors read the jars from Maven's repository."""
    jars = install.classpath("spark")
    java_options = f"-XX:SharedArchiveFile={install.archive()}"
    return {
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.driver.extraJavaOptions": java_options,
        "spark.executor.extraJavaOptions": java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }


def peers_conf() -> dict[str, str]:
    """Return the settings of a local session with the readers and writers of other table formats."""
    return {
        "spark.driver.extraClassPath": f"{install.classpath('spark')}:{install.classpath('peers')}",
        "spark.driver.extraJavaOptions": "",  # the class archive is of another class path
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }


class Cluster:
    """A master, and workers with one core each."""

    def __init__(self, home: Path, workers: int = 2) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home = home
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        argv = [
            f"{HOME}/bin/spark-class",
            "org.apache.spark.deploy.master.Master",
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "--webui-port",
            "0",
        ]
        self.master = Server("spark-master", home, argv, port=port, environment=_environment(home) | _SMALL)
        self.workers = [self._worker(n) for n in range(workers)]

    def _worker(self, n: int) -> Server:
        # Each worker has its own address, since Spark starts no speculative copy of a task on the host that runs it.
        port, host = free_port(), f"127.0.0.{n + 1}"
        argv = [
            f"{HOME}/bin/spark-class", "org.apache.spark.deploy.worker.Worker", "-h", host, "-p", str(port), "--webui-port", "0",
            "-c", "1", "-m", "1g", self.url,
        ]  # fmt: skip
        environment = _environment(self._home) | _SMALL | {"SPARK_LOCAL_IP": host}
        return Server(f"spark-worker-{n}", self._home, argv, port=port, address=host, environment=environment)

    def executors(self) -> list[psutil.Process]:
        """Return the running executors, which are children of the workers."""
        pids = []
        for worker in self.workers:
            with suppress(psutil.Error):
                for child in psutil.Process(worker.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                            pids.append(child)
        return pids

    @property
    def connection(self) -> dict[str, Any]:
        """Airflow connection to the cluster."""
        return {"conn_type": "spark", "host": "spark://127.0.0.1", "port": self.master.port}

    @property
    def servers(self) -> list[Server]:
        """The servers in start order."""
        return [self.master, *self.workers]


class ConnectServer(Server):
    """
    A Spark Connect server with a local master. Clients connect to ``url``.

    :param python: the program of Python workers
    """

    def __init__(self, home: Path, conf: dict[str, str] | None = None, python: str = sys.executable) -> None:
        home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"sc://127.0.0.1:{port}"
        settings = {
            **session_conf(),
            "spark.connect.grpc.binding.port": str(port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            **(conf or {}),
        }
        pairs = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        argv = [
            f"{HOME}/bin/spark-submit", "--master", "local[2]", "--driver-memory", "1g", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
            *pairs, "spark-internal",
        ]  # fmt: skip
        super().__init__(
            "spark-connect", home, argv, port=port, environment=_environment(home) | {"PYSPARK_PYTHON": python}
        )

    @property
    def connection(self) -> dict[str, Any]:
        """Airflow connection to the server."""
        return {"conn_type": "spark_connect", "host": "127.0.0.1", "port": self.port}
