"""A Spark standalone cluster and a Spark Connect server: the same promises, and the transform gets to the executors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from airflow_provider_streamsem import open_log, verify
from tests.integration.parts.s3 import S3Server, downloaded
from tests.integration.parts.server import running
from tests.integration.parts.spark import Cluster, ConnectServer, session_conf

pytestmark = pytest.mark.integration

PROGRAM = """
import json, os, sys
place, connection, out, drain = sys.argv[1], sys.argv[2], sys.argv[3], len(sys.argv) > 4
from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, run_batch
from airflow_provider_streamsem.connections import connection as look_up
from airflow_provider_streamsem.engines.spark import engine_of
from jobs import transform

pipeline = Pipeline(
    name="p", log=f"{place}/log", source=FilesSource(path=f"{place}/in", format="json", schema="id long, day string"),
    sinks={"out": FilesSink(path=out, partition_by=["day"])}, transform=transform, limits=Limits(max_files=4),
)
engine = engine_of(look_up(connection), json.loads(os.environ["CONF"]))
print(json.dumps(run_batch(pipeline, run_key="run", drain=drain, engine=engine).to_json()), flush=True)
"""

JOBS = """
import os, random, time
from pyspark.sql import functions as F
from helper_of_jobs import doubled

def transform(frame):
    slow, running, fails = float(os.environ.get("SLOW", "0")), os.environ["RUNNING"], os.environ.get("FAILS", "")
    @F.udf("long")
    def twice(value):
        time.sleep(slow)
        if fails and value == 7 and not os.path.exists(fails):
            open(fails, "a").close()
            raise RuntimeError("once")
        if value % 10 == 5:
            open(running, "a").close()
        return doubled(value)
    if os.environ.get("SHUFFLE"):
        anywhere = F.udf(lambda _: random.SystemRandom().randrange(1000), "int").asNondeterministic()
        frame = frame.repartition(4, anywhere("id"))
    return frame.withColumn("twice", twice("id"))
"""


class Place:
    """Input files, and a program whose transform lies in modules that only the driver can import. ``out`` is where the dataset lies."""

    def __init__(self, root: Path, connection: str, conf: dict[str, str]) -> None:
        self.root = root
        self.out = str(root / "out")
        (root / "in").mkdir()
        (root / "driver").mkdir()
        (root / "driver" / "jobs.py").write_text(JOBS)
        (root / "driver" / "helper_of_jobs.py").write_text("def doubled(value):\n    return value * 2\n")
        self.environment = {
            **os.environ, "AIRFLOW_CONN_SPARK_UNDER_TEST": connection, "CONF": json.dumps(conf), "RUNNING": str(root / "running"),
            "PYTHONPATH": f"{root / 'driver'}:{Path(__file__).parents[2]}",
        }  # fmt: skip

    def put(self, files: int, rows: int) -> None:
        for n in range(files):
            lines = [json.dumps({"id": n * rows + i, "day": f"d{i % 2}"}) for i in range(rows)]
            (self.root / "in" / f"{n}.json").write_text("\n".join(lines) + "\n")

    def start(self, *, drain: bool = False, **environment: str) -> subprocess.Popen[str]:
        argv = [
            sys.executable,
            "-c",
            textwrap.dedent(PROGRAM),
            str(self.root),
            "spark_under_test",
            self.out,
            *(["drain"] if drain else []),
        ]
        return subprocess.Popen(
            argv,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *, drain: bool = False, **environment: str) -> Any:
        process = self.start(drain=drain, **environment)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-3000:]
        return json.loads(out.splitlines()[-1])

    def check(self, rows: int) -> None:
        """Every id once with its double, read by another engine, and a clean log."""
        paths = [file.path for file in open_log(str(self.root / "log")).files()]
        files = [downloaded(path, self.root / "copies") if path.startswith("s3://") else path for path in paths]
        (found,) = duckdb.sql(
            f"select count(*), count(distinct id), sum(id), sum(twice) from read_parquet({files})"
        ).fetchall()
        assert found == (rows, rows, rows * (rows - 1) // 2, rows * (rows - 1))
        assert verify(str(self.root / "log")).findings == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    with running(*made.servers):
        yield made


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path_factory.mktemp("connect"), s3_server.s3a_conf())
    with running(server):
        yield server


@pytest.fixture
def dataset(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """On S3, as executors of a cluster have it, or on a disk that all share."""
    on_disk = getattr(request, "param", "s3") == "disk"
    return str(tmp_path / "out") if on_disk else f"{request.getfixturevalue('lake')}/out"


@pytest.fixture
def on_cluster(cluster: Cluster, tmp_path: Path, dataset: str) -> Place:
    host, _, port = cluster.url.removeprefix("spark://").partition(":")
    conf = {**session_conf(), "spark.executor.memory": "512m", "spark.cores.max": "2"}
    place = Place(tmp_path, json.dumps({"conn_type": "spark", "host": f"spark://{host}", "port": int(port)}), conf)
    place.out = dataset
    return place


@pytest.fixture
def on_connect(connect: ConnectServer, tmp_path: Path, dataset: str) -> Place:
    host, _, port = connect.url.removeprefix("sc://").partition(":")
    place = Place(tmp_path, json.dumps({"conn_type": "spark_connect", "host": host, "port": int(port)}), {})
    place.out = dataset
    return place


def executors(cluster: Cluster) -> list[psutil.Process]:
    """The executors that run now, by the workers' children."""
    found = []
    for worker in cluster.workers:
        for child in psutil.Process(worker.pid).children(recursive=True):
            with suppress(psutil.Error):
                if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                    found.append(child)
    return found


def until(true: Callable[[], Any], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_writing(place: Place) -> bool:
    """Whether a task has come to its sixth row."""
    return (place.root / "running").exists()


@pytest.mark.parametrize("dataset", ["disk", "s3"], indirect=True)
def test_drain_on_a_cluster_with_a_transform_that_only_the_driver_can_import(on_cluster: Place) -> None:
    on_cluster.put(6, 50)
    result = on_cluster.run(drain=True)
    assert (result["counts"]["read"], result["batches"]) == (300, 2)
    on_cluster.check(300)


@pytest.mark.parametrize("dataset", ["disk", "s3"], indirect=True)
def test_executor_that_is_killed_while_it_writes_costs_a_task_and_no_row(on_cluster: Place, cluster: Cluster) -> None:
    on_cluster.put(4, 60)
    driver = on_cluster.start(SLOW="0.05")
    until(lambda: is_writing(on_cluster))
    victims = executors(cluster)
    victims[0].send_signal(signal.SIGKILL)
    out, err = driver.communicate(timeout=240)
    assert driver.returncode == 0, err[-3000:]
    assert json.loads(out.splitlines()[-1])["counts"]["read"] == 240
    on_cluster.check(240)


def test_driver_that_is_killed_on_a_cluster_is_started_again_and_commits_once(on_cluster: Place) -> None:
    on_cluster.put(4, 60)
    driver = on_cluster.start(SLOW="0.05")
    until(lambda: is_writing(on_cluster))
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    assert on_cluster.run()["counts"]["read"] == 240
    on_cluster.check(240)


def test_task_that_fails_once_is_repeated_by_spark_and_doubles_nothing(on_cluster: Place) -> None:
    on_cluster.put(4, 40)
    failed = on_cluster.root / "failed"
    assert on_cluster.run(FAILS=str(failed))["counts"]["read"] == 160
    assert failed.exists()
    on_cluster.check(160)
    assert len(open_log(str(on_cluster.root / "log")).log.list_keys("attempts/")) == 1


def test_shuffle_that_comes_out_differently_when_it_is_repeated_doubles_and_loses_nothing(
    on_cluster: Place, cluster: Cluster
) -> None:
    """
    An executor is lost with its part of a random shuffle, when some tasks have written what they got of it. Spark notices by checksums, and repeats all of it,
    or gives the attempt up; without them rows are lost and doubled (ADR 0015).
    """
    on_cluster.put(4, 60)
    driver = on_cluster.start(SHUFFLE="yes", SLOW="0.05")
    until(lambda: is_writing(on_cluster))
    time.sleep(4)  # two of four tasks take three seconds
    executors(cluster)[0].send_signal(signal.SIGKILL)
    out, err = driver.communicate(timeout=240)
    if driver.returncode == 0:
        assert json.loads(out.splitlines()[-1])["counts"]["read"] == 240
    else:
        assert "nothing became visible" in err
        assert on_cluster.run(SHUFFLE="yes")["counts"]["read"] == 240
    on_cluster.check(240)


def test_speculative_copies_of_slow_tasks_double_nothing(on_cluster: Place) -> None:
    on_cluster.put(4, 40)
    conf = json.loads(on_cluster.environment["CONF"]) | {
        "spark.speculation": "true", "spark.speculation.interval": "50ms", "spark.speculation.multiplier": "1.01", "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "50ms",
    }  # fmt: skip
    on_cluster.environment["CONF"] = json.dumps(conf)
    on_cluster.run(SLOW="0.02")
    on_cluster.check(160)


@pytest.mark.parametrize("dataset", ["disk", "s3"], indirect=True)
def test_drain_on_spark_connect(on_connect: Place) -> None:
    on_connect.put(6, 50)
    result = on_connect.run(drain=True)
    assert (result["counts"]["read"], result["counts"]["written.out"], result["batches"]) == (300, 300, 2)
    on_connect.check(300)
    assert on_connect.run(drain=True) == result


def test_bad_records_on_spark_connect_are_quarantined(on_connect: Place) -> None:
    on_connect.put(1, 10)
    (on_connect.root / "in" / "0.json").open("a").write("{broken\n")
    result = on_connect.run()
    assert {name: result["counts"][name] for name in ("read", "parsed", "quarantined")} == {
        "read": 11,
        "parsed": 10,
        "quarantined": 1,
    }
    on_connect.check(10)


def test_connect_server_that_is_killed_fails_the_attempt_and_a_retry_commits_once(tmp_path: Path) -> None:
    server = ConnectServer(tmp_path / "connect")
    with running(server):
        (tmp_path / "place").mkdir()
        host, _, port = server.url.removeprefix("sc://").partition(":")
        place = Place(
            tmp_path / "place", json.dumps({"conn_type": "spark_connect", "host": host, "port": int(port)}), {}
        )
        place.put(2, 60)
        client = place.start(SLOW="0.05")
        until(lambda: is_writing(place))
        server.kill()
        server.start()  # the client asks again and again for ten minutes; a server that is back does not know its session
        _, err = client.communicate(timeout=240)
        assert client.returncode != 0
        assert "nothing became visible" in err or "nothing was staged" in err
        assert place.run()["counts"]["read"] == 120
        place.check(120)
