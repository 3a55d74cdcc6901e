"""Batches on a Spark standalone cluster and on a Spark Connect server, with executors, drivers and the server killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
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
from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, State, run_batch
from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.spark.spark_engine import engine_of
from jobs import count_by_id, routed, transform

engine = engine_of(connection("spark_under_test"), json.loads(os.environ["CONF"]))
for line in sys.stdin:
    request = json.loads(line)
    os.environ.update(request["environment"])
    location = request["location"]
    pipeline = Pipeline(
        name="p", log=f"{location}/log", source=FilesSource(path=f"{location}/in", format="json", schema="id long, day string"),
        sinks={"out": FilesSink(path=request["out"], partition_by=["day"])}, transform=transform, limits=Limits(max_files=4),
    )
    if os.environ["STATE"]:
        pipeline = pipeline.replace(transform=count_by_id, state=State(output_mode="update", partitions=4))
    if os.environ["ROUTE"]:
        pipeline = pipeline.replace(transform=routed, sinks={name: FilesSink(path=f"{request['out']}-{name}") for name in ("low", "high")})
    try:
        result = run_batch(pipeline, run_key=os.environ["RUN"], drain=request["drain"], engine=engine).to_json()
    except Exception as error:
        result = {"error": str(error)}
    print(json.dumps(result), flush=True)
"""

JOBS = """
import os, random, time
from pyspark import TaskContext
from pyspark.sql import functions as F
from helper_of_jobs import doubled

def transform(frame):
    slow, running, fails, tasks = float(os.environ["SLOW"]), os.environ["RUNNING"], os.environ["FAILS"], os.environ["TASKS"]
    @F.udf("long")
    def twice(value):
        time.sleep(slow)
        if tasks:
            task = TaskContext.get()
            open(f"{tasks}/{task.partitionId()}-{task.attemptNumber()}", "a").close()
            time.sleep(0.5 if task.partitionId() == task.attemptNumber() == 0 else 0)
        if fails and value == 7 and not os.path.exists(fails):
            open(fails, "a").close()
            raise RuntimeError("once")
        if value % 10 == 5:
            with open(f"/proc/{os.getppid()}/stat") as daemon, open(running, "a") as written:
                written.write(daemon.read().rpartition(")")[2].split()[1] + "\\n")
        return doubled(value)
    if os.environ["SHUFFLE"]:
        anywhere = F.udf(lambda _: random.SystemRandom().randrange(1000), "int").asNondeterministic()
        frame = frame.repartition(4, anywhere("id"))
    return frame.withColumn("twice", twice("id"))

def routed(frame):
    common = frame.withColumn("r", F.udf(lambda: random.SystemRandom().random(), "double")())
    return {"low": transform(common.where("r < 0.5")), "high": transform(common.where("r >= 0.5"))}

def count_by_id(frame):
    # The slow part is above the state, so that an executor is lost while its tasks write the state.
    return transform(frame.groupBy("id", "day").count())
"""


class Driver:
    """
    A process that runs batches or drains. Only this process can import the modules of its transform.

    It starts with the first batch, and restarts after a kill.
    """

    def __init__(self, home: Path, connection: dict[str, Any], conf: dict[str, str]) -> None:
        self.conf = conf
        self._home, self._connection = home, connection
        self._process: subprocess.Popen[str] | None = None
        (home / "jobs.py").write_text(JOBS)
        (home / "helper_of_jobs.py").write_text("def doubled(value):\n    return value * 2\n")

    def begin(self, location: Location, *, drain: bool = False, **environment: str) -> None:
        """Start a batch."""
        variables = {
            "SLOW": "0",
            "FAILS": "",
            "SHUFFLE": "",
            "STATE": "",
            "ROUTE": "",
            "RUN": "run",
            "TASKS": "",
            "RUNNING": str(location.running),
            **environment,
        }
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        line = json.dumps(
            {"location": str(location.root), "out": location.out, "drain": drain, "environment": variables}
        )
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def result(self) -> Any:
        """Return the result of the batch, or its ``error``."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver died: {(self._home / 'stderr').read_text()[-3000:]}"
        return json.loads(line)

    def run(self, location: Location, *, drain: bool = False, **environment: str) -> Any:
        """Run a batch that must not fail."""
        self.begin(location, drain=drain, **environment)
        result = self.result()
        assert "error" not in result, result["error"]
        return result

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the process and its JVM."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ, "AIRFLOW_CONN_SPARK_UNDER_TEST": json.dumps(self._connection), "CONF": json.dumps(self.conf),
            "PYTHONPATH": f"{self._home}:{Path(__file__).parents[2]}",
        }  # fmt: skip
        with open(self._home / "stderr", "a") as stderr:
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )


class Location:
    """Input files, a log, and the path of the dataset."""

    def __init__(self, root: Path, out: str) -> None:
        self.root, self.out = root, out
        self.running = root / "running"
        (root / "in").mkdir(parents=True)

    def put(self, files: int, rows: int) -> None:
        for n in range(files):
            lines = [json.dumps({"id": n * rows + i, "day": f"d{i % 2}"}) for i in range(rows)]
            (self.root / "in" / f"{n}.json").write_text("\n".join(lines) + "\n")

    def wait_for_task(self) -> psutil.Process:
        """Wait until a task reaches its sixth row, and return the executor that runs it."""
        deadline = time.monotonic() + 90
        while not self.running.exists() or not self.running.read_text().endswith("\n"):
            assert time.monotonic() < deadline, "no task reached its sixth row"
            time.sleep(0.05)
        return psutil.Process(int(self.running.read_text().split()[0]))

    def check(self, rows: int) -> None:
        """Check with DuckDB that every id exists once with its double, and that the log is clean."""
        paths = [file.path for file in open_log(str(self.root / "log")).files()]
        files = [downloaded(path, self.root / "copies") if path.startswith("s3://") else path for path in paths]
        (found,) = duckdb.sql(
            f"select count(*), count(distinct id), sum(id), sum(twice) from read_parquet({files})"
        ).fetchall()
        assert found == (rows, rows, rows * (rows - 1) // 2, rows * (rows - 1))
        assert verify(str(self.root / "log")).violations == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    with running(*cluster.servers):
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster: Cluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Start a driver on the cluster. The tests share it, because executors take longer to start than a test takes."""
    conf = {**session_conf(), "spark.executor.memory": "512m", "spark.cores.max": "2"}
    driver = Driver(tmp_path_factory.mktemp("driver"), cluster.connection, conf)
    yield driver
    driver.kill()


@pytest.fixture(scope="module")
def client(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Start a client of a Spark Connect server."""
    server = ConnectServer(tmp_path_factory.mktemp("connect"), s3_server.s3a_conf())
    with running(server):
        client = Driver(tmp_path_factory.mktemp("client"), server.connection, {})
        yield client
        client.kill()


@pytest.fixture
def location(tmp_path: Path, request: pytest.FixtureRequest) -> Location:
    """Return a location with its dataset on S3, which executors of a cluster can read, or on a shared disk."""
    on_disk = getattr(request, "param", "s3") == "disk"
    return Location(
        tmp_path / "location", str(tmp_path / "out") if on_disk else f"{request.getfixturevalue('lake')}/out"
    )


@pytest.mark.parametrize("location", ["disk", pytest.param("s3", marks=pytest.mark.prove)], indirect=True)
def test_drain_on_a_cluster_with_a_transform_that_only_the_driver_can_import(
    driver: Driver, location: Location
) -> None:
    location.put(6, 50)
    result = driver.run(location, drain=True)
    assert (result["counts"]["read"], result["batches"]) == (300, 2)
    location.check(300)


@pytest.mark.parametrize("location", ["disk", pytest.param("s3", marks=pytest.mark.prove)], indirect=True)
def test_executor_killed_while_it_writes_loses_and_duplicates_no_rows(
    driver: Driver, location: Location, cluster: Cluster
) -> None:
    location.put(4, 60)
    driver.begin(location, SLOW="0.05")
    executor = location.wait_for_task()
    assert executor in cluster.executors()
    executor.kill()
    assert driver.result()["counts"]["read"] == 240
    location.check(240)


@pytest.mark.parametrize("location", ["disk"], indirect=True)
def test_executor_killed_while_it_writes_state_counts_each_record_once(
    driver: Driver, location: Location, cluster: Cluster
) -> None:
    location.put(4, 60)
    assert driver.run(location, drain=True, STATE="yes")["counts"]["read"] == 240
    for path in [*(location.root / "in").iterdir()]:
        (location.root / "in" / f"again-{path.name}").write_text(path.read_text())
    location.running.unlink()
    driver.begin(location, drain=True, STATE="yes", RUN="again", SLOW="0.05")
    executor = location.wait_for_task()
    assert executor in cluster.executors()
    executor.kill()
    result = driver.result()
    if "error" in result:
        assert "nothing became visible" in result["error"]
        driver.run(location, drain=True, STATE="yes", RUN="again")
    check_counts(location, 240)


def check_counts(location: Location, ids: int) -> None:
    """Check that each id was counted once in the first batches, and once more in the later ones."""
    files = [file.path for file in open_log(str(location.root / "log")).files()]
    found = duckdb.sql(
        f"select count, count(*), count(distinct id) from read_parquet({files}) group by 1 order by 1"
    ).fetchall()
    assert found == [(1, ids, ids), (2, ids, ids)]
    assert verify(str(location.root / "log")).violations == []


SPECULATION = {
    "spark.speculation": "true", "spark.speculation.interval": "50ms", "spark.speculation.multiplier": "1.01", "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
}  # fmt: skip


@pytest.mark.parametrize("location", ["disk"], indirect=True)
def test_speculative_and_failed_tasks_that_write_state_count_each_record_once(
    driver: Driver, location: Location
) -> None:
    """The later batches build on the state of the tasks that Spark has accepted."""
    location.put(4, 40)
    driver.kill()
    driver.conf |= SPECULATION
    tasks, failed = location.root / "tasks", location.root / "failed"
    tasks.mkdir()
    faults = {"STATE": "yes", "TASKS": str(tasks), "FAILS": str(failed)}
    driver.begin(location, drain=True, **faults)
    result = driver.result()
    if "error" in result:  # it is unknown which state belongs to the rows
        assert "nothing became visible" in result["error"]
        result = driver.run(location, drain=True, STATE="yes")
    assert result["counts"]["read"] == 160
    assert {"0-0", "0-1"} <= {path.name for path in tasks.iterdir()}, "no task was slow enough for a copy"
    assert failed.exists()
    for path in [*(location.root / "in").iterdir()]:
        (location.root / "in" / f"again-{path.name}").write_text(path.read_text())
    driver.run(location, drain=True, STATE="yes", RUN="again")
    check_counts(location, 160)


def test_task_that_fails_once_is_retried_by_spark_and_duplicates_no_rows(driver: Driver, location: Location) -> None:
    location.put(4, 40)
    failed = location.root / "failed"
    assert driver.run(location, FAILS=str(failed))["counts"]["read"] == 160
    assert failed.exists()
    location.check(160)
    assert len(open_log(str(location.root / "log")).log.list_keys("attempts/")) == 1


def test_repeated_nondeterministic_shuffle_duplicates_and_loses_no_rows(
    driver: Driver, location: Location, cluster: Cluster
) -> None:
    """
    Kill an executor after some tasks have written their partitions of a random shuffle. Its shuffle output is lost.

    Spark detects the change by checksums, and repeats the whole shuffle or fails the attempt. Without checksums rows are lost and duplicated (ADR 0015).
    """
    location.put(4, 60)
    driver.begin(location, SHUFFLE="yes", SLOW="0.05")
    executor = location.wait_for_task()
    time.sleep(4)  # two of four tasks take three seconds
    assert executor in cluster.executors()
    executor.kill()
    result = driver.result()
    if "error" in result:
        assert "nothing became visible" in result["error"]
        result = driver.run(location, SHUFFLE="yes")
    assert result["counts"]["read"] == 240
    location.check(240)


@pytest.mark.parametrize("location", ["disk"], indirect=True)
def test_executor_lost_between_two_sinks_routes_each_record_to_one_sink(
    driver: Driver, location: Location, cluster: Cluster
) -> None:
    """Kill an executor that has rows of both sinks, while the first sink is written. Its rows are lost, and computed again they would have other values."""
    location.put(4, 60)
    driver.begin(location, ROUTE="yes", SLOW="0.05")
    executor = location.wait_for_task()
    assert executor in cluster.executors()
    executor.kill()
    result = driver.result()
    assert "nothing became visible" in result["error"]
    assert driver.run(location, ROUTE="yes")["counts"]["read"] == 240
    log = open_log(str(location.root / "log"))
    files = [file.path for sink in ("low", "high") for file in log.files(sink=sink)]
    (found,) = duckdb.sql(f"select count(*), count(distinct id), sum(twice) from read_parquet({files})").fetchall()
    assert found == (240, 240, 240 * 239)


def test_driver_killed_on_a_cluster_is_restarted_and_commits_once(driver: Driver, location: Location) -> None:
    location.put(4, 60)
    driver.begin(location, SLOW="0.05")
    location.wait_for_task()
    driver.kill()
    assert driver.run(location)["counts"]["read"] == 240
    location.check(240)


def test_speculative_copies_of_slow_tasks_duplicate_no_rows(driver: Driver, location: Location) -> None:
    location.put(4, 40)
    driver.kill()
    driver.conf |= SPECULATION
    tasks = location.root / "tasks"
    tasks.mkdir()
    driver.run(location, TASKS=str(tasks))
    assert {"0-0", "0-1"} <= {path.name for path in tasks.iterdir()}, "no task was slow enough for a copy"
    location.check(160)


@pytest.mark.parametrize("location", [pytest.param("disk", marks=pytest.mark.prove), "s3"], indirect=True)
def test_drain_on_spark_connect(client: Driver, location: Location) -> None:
    location.put(6, 50)
    result = client.run(location, drain=True)
    assert (result["counts"]["read"], result["counts"]["written.out"], result["batches"]) == (300, 300, 2)
    location.check(300)
    assert client.run(location, drain=True) == result


@pytest.mark.prove
def test_bad_records_on_spark_connect_are_quarantined(client: Driver, location: Location) -> None:
    location.put(1, 10)
    (location.root / "in" / "0.json").open("a").write("{broken\n")
    counts = client.run(location)["counts"]
    assert {name: counts[name] for name in ("read", "parsed", "quarantined")} == {
        "read": 11,
        "parsed": 10,
        "quarantined": 1,
    }
    location.check(10)


@pytest.mark.prove
@pytest.mark.parametrize("location", ["disk"], indirect=True)
def test_killed_connect_server_fails_the_attempt_and_a_retry_commits_once(tmp_path: Path, location: Location) -> None:
    server = ConnectServer(tmp_path / "connect")
    (tmp_path / "client").mkdir()
    client = Driver(tmp_path / "client", server.connection, {})
    with running(server), closing(client):
        location.put(2, 60)
        client.begin(location, SLOW="0.05")
        location.wait_for_task()
        server.kill()
        server.start()  # the client retries for ten minutes, and a restarted server does not know its session
        error = client.result()["error"]
        assert "nothing became visible" in error or "nothing was staged" in error
        client.kill()
        assert client.run(location)["counts"]["read"] == 120
        location.check(120)
