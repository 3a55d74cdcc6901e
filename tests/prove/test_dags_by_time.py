"""DAGs that work by dates under a real scheduler: catch-up, backfills, chains of partitioned DAGs, gates, and many pipelines in one task."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import commit_held, load_pipeline, open_log, verify
from airflow_provider_streamsem.readers.intervals import interval_states
from tests.integration.parts.airflow import Airflow
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import running
from tests.releases import since

pytestmark = [pytest.mark.prove, pytest.mark.airflow, pytest.mark.timeout(900)]

DAGS = Path(__file__).parent / "dags_by_time"
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
PIPELINE = """
name = "{name}"
log = "{home}/{name}/log"
intervals = {intervals}

[source]
type = "files"
path = "{home}/{name}/in"
format = "json"
schema = "id long, at timestamp"

[sinks.out]
type = "files"
path = "{home}/{name}/out"
format = "json"
"""


def arrive(home: Path, name: str, ids: list[int], at: datetime, arrived: datetime | None = None) -> None:
    """Add a file with one row for each id. ``at`` is the event time of the rows, and ``arrived`` the time of the file."""
    folder = home / name / "in"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{min(ids):05d}.json"
    hidden = folder / f".{path.name}"
    hidden.write_text("".join(json.dumps({"id": id, "at": int(at.timestamp() * 1000)}) + "\n" for id in ids))
    stamp = (arrived or at).timestamp()
    os.utime(hidden, (stamp, stamp))
    hidden.rename(path)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="streamsem-by-time-"))
    directory.chmod(0o755)  # the database runs as another user
    for hour in range(48):
        arrive(directory, "hourly", [2 * hour, 2 * hour + 1], START + timedelta(hours=hour, minutes=30))
    for n, day in enumerate((0, 1, 0, 2)):
        arrive(directory, "days", [n], START + timedelta(days=day), START + timedelta(days=3, minutes=n))
    arrive(directory, "gated", [1, 2, 3, 4], START)
    (directory / "late" / "in").mkdir(parents=True)
    (directory / "hourly.toml").write_text(PIPELINE.format(name="hourly", home=directory, intervals="true"))
    for n in range(20):
        arrive(directory, f"mapped-{n}", [n], START)
        (directory / f"mapped-{n}.toml").write_text(
            PIPELINE.format(name=f"mapped-{n}", home=directory, intervals="false")
        )
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def airflow(home: Path) -> Iterator[Airflow]:
    database = Postgres(home / "postgres")
    with running(database):
        instance = Airflow(
            home / "airflow",
            DAGS,
            database=database.dsn.replace("://", "+psycopg://"),
            environment={"STREAMSEM_BY_TIME_HOME": str(home)},
        )
        with instance.running():
            instance.until("the API answers", lambda: instance.request("GET", "/version"), 120)
            yield instance


def ids(home: Path, name: str) -> Counter[int]:
    """Return the visible ids."""
    log = str(home / name / "log")
    assert verify(log).violations == []
    return Counter(
        json.loads(line)["id"] for file in open_log(log).files() for line in Path(file.path).read_text().splitlines()
    )


def runs_of(airflow: Airflow, dag: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = airflow.request("GET", f"/dags/{dag}/dagRuns?limit=100")["dag_runs"]
    return found


def wait_for(airflow: Airflow, what: str, poll: Callable[[], Any], seconds: float = 300) -> None:
    airflow.until(what, poll, seconds)


def errors_of(airflow: Airflow, dag: str) -> list[str]:
    """Return the errors in the logs of the failed runs of a DAG."""
    found = []
    for run in runs_of(airflow, dag):
        if run["state"] != "success":
            tries = range(1, 1 + airflow.tries(dag, run["dag_run_id"], "t"))
            paths = [
                f"{airflow.run_path(dag, run['dag_run_id'])}/taskInstances/t/logs/{n}?full_content=true" for n in tries
            ]
            logs = [line for path in paths for line in airflow.request("GET", path)["content"]]
            found.append(f"{run['dag_run_id']}: {[line for line in logs if line.get('level') == 'error']}")
    return found


def command(airflow: Airflow, *arguments: str) -> str:
    """Run a command of Airflow, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *arguments],
        env={**os.environ, **airflow.environment}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


def filled(airflow: Airflow, dag: str, first: str, last: str, behavior: str) -> None:
    """Create a backfill, and wait for its end."""
    body = {"dag_id": dag, "from_date": first, "to_date": last, "reprocess_behavior": behavior}
    backfill = airflow.request("POST", "/backfills", body)
    wait_for(
        airflow, "the backfill ends", lambda: airflow.request("GET", f"/backfills/{backfill['id']}")["completed_at"]
    )


@since("3.3", "partition keys of events")
def test_catch_up_and_backfill_of_hours_read_each_interval_once(home: Path, airflow: Airflow) -> None:
    wait_for(
        airflow, "48 runs have ended", lambda: [r["state"] for r in runs_of(airflow, "hourly")].count("success") == 48
    )
    log = str(home / "hourly" / "log")
    assert ids(home, "hourly") == Counter(range(96))
    states = interval_states(open_log(log))
    assert [(each.rows, each.read_in == each.newest) for each in states] == [({"out": 2}, True)] * 48
    head = open_log(log).head
    assert head == 47, "concurrent runs must not stage the version of another run"
    keys = {(START + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%S") for hour in range(48)}
    for dag in ("report", "summary"):
        wait_for(
            airflow,
            f"{dag} has run for each hour",
            lambda dag=dag: {r.get("partition_key") for r in runs_of(airflow, dag)} == keys,
        )
    listed = command(
        airflow, "backfill", "create", "--dag-id", "hourly", "--from-date", "2026-01-01T00:00:00+00:00",
        "--to-date", "2026-01-01T23:00:00+00:00", "--reprocess-behavior", "completed", "--dry-run",
    )  # fmt: skip
    selected = command(
        airflow, "streamsem", "reprocess", str(home / "hourly.toml"),
        "--partition", "2026-01-01", "--dry-run", "--json",
    )  # fmt: skip
    partitions = json.loads(selected[selected.index("{") :])["partitions"]
    assert len(partitions) == 24
    assert all(key[:19].replace("T", " ") in listed for key in partitions)
    arrive(home, "hourly", [1_000], START + timedelta(minutes=40))
    filled(airflow, "hourly", "2026-01-01T00:00:00Z", "2026-01-01T05:00:00Z", "completed")
    assert errors_of(airflow, "hourly") == []
    assert ids(home, "hourly") == Counter(range(96))
    states = interval_states(open_log(log))
    assert [each.newest != each.read_in for each in states] == [True] * 6 + [False] * 42
    head = open_log(log).head
    filled(airflow, "hourly", "2026-01-01T00:00:00Z", "2026-01-01T05:00:00Z", "none")
    assert open_log(log).head == head


def test_backfill_of_days_reprocesses_the_versions_with_rows_of_each_day(home: Path, airflow: Airflow) -> None:
    airflow.trigger("days", "load")
    wait_for(airflow, "the files are read", lambda: airflow.state("days", "load") in ("success", "failed"))
    assert ids(home, "days") == Counter(range(4))
    log = str(home / "days" / "log")
    head = open_log(log).head
    airflow.request("PATCH", "/dags/days_backfill", {"is_paused": False})
    filled(airflow, "days_backfill", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "completed")
    backfills = [r for r in runs_of(airflow, "days_backfill") if r["run_type"] == "backfill"]
    assert [r["state"] for r in backfills] == ["success"] * 2
    assert open_log(log).head == head + 3
    assert ids(home, "days") == Counter(range(4))


def test_person_commits_a_held_batch_and_clears_the_task(home: Path, airflow: Airflow) -> None:
    airflow.trigger("gated", "held")
    wait_for(airflow, "the task has failed", lambda: airflow.state("gated", "held") == "failed")
    assert airflow.tries("gated", "held", "t") == 1, "a retry cannot pass a gate that holds"
    assert not (home / "gated" / "out" / "data").exists() or ids(home, "gated") == Counter()
    (home / "gated.toml").write_text(PIPELINE.format(name="gated", home=home, intervals="false"))
    commit_held(load_pipeline(str(home / "gated.toml")), 0)
    airflow.clear("gated", "held", ["t"])
    wait_for(airflow, "the task has succeeded", lambda: airflow.state("gated", "held") == "success")
    assert ids(home, "gated") == Counter([1, 2, 3, 4])


def test_sensor_is_resumed_after_the_triggerer_died(home: Path, airflow: Airflow) -> None:
    airflow.trigger("waiting", "w")
    wait_for(airflow, "the sensor waits", lambda: airflow.state("waiting", "w", "t") == "deferred")
    triggerer = airflow.components["triggerer"]
    triggerer.kill()
    for n, day in enumerate((0, 1, 2)):
        arrive(home, "late", [n], START + timedelta(days=day))
    airflow.start(triggerer)
    airflow.trigger("late", "load")
    wait_for(airflow, "the sensor has ended", lambda: airflow.state("waiting", "w") == "success")
    assert airflow.result("waiting", "w", "t")["partition"] == "2026-01-02"


def test_twenty_pipelines_run_in_one_mapped_task(home: Path, airflow: Airflow) -> None:
    airflow.trigger("mapped", "m")
    wait_for(airflow, "the run has ended", lambda: airflow.state("mapped", "m") in ("success", "failed"))
    for n in range(20):
        assert load_pipeline(str(home / f"mapped-{n}.toml")).name == f"mapped-{n}"
        assert ids(home, f"mapped-{n}") == Counter([n])
