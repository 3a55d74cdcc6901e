"""The event-driven DAGs under a real scheduler and triggerer: a watcher starts the runs, the triggerer is killed, and connections are looked up inside it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import open_log, verify
from tests.prove.test_scheduler import ROOT, call, daemon, end_children, environment, until
from tests.sensors.test_event_driven import put

WITH_A_CONNECTION = """
from airflow.sdk import Asset, AssetWatcher, dag, task
from airflow_provider_streamsem import FilesSink, KafkaSource, OffsetRangeTrigger, Pipeline

pipeline = Pipeline(
    name="connected", log="{home}/connected/log", source=KafkaSource(topics=["a"], conn_id="without_servers"),
    sinks={{"out": FilesSink("{home}/connected/out")}},
)
asset = Asset("connected", watchers=[AssetWatcher(name="w", trigger=OffsetRangeTrigger(pipeline, poll_interval_s=1))])

@dag(schedule=[asset])
def connected():
    @task
    def nothing(): ...
    nothing()

connected()
"""


@pytest.mark.prove
@pytest.mark.airflow
@pytest.mark.timeout(900)
def test_watcher_starts_runs_that_read_each_range_once_though_the_triggerer_is_killed(tmp_path: Path) -> None:
    surroundings, base = environment(tmp_path)
    folder = tmp_path / "dags"
    folder.mkdir()
    shutil.copy(ROOT / "dags" / "streamsem_event_driven.py", folder)
    (folder / "connected.py").write_text(WITH_A_CONNECTION.format(home=tmp_path))
    (tmp_path / "arrivals").mkdir()
    surroundings |= {
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
        "STREAMSEM_PARCELS_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }

    def airflow(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "airflow", *arguments], env=surroundings, check=True, capture_output=True)

    airflow("db", "migrate")
    airflow(
        "connections", "add", "without_servers", "--conn-type", "kafka", "--conn-password", "s3cret-of-a-connection"
    )
    token = ""

    def events(name: str) -> list[dict[str, Any]]:
        found = call("GET", f"{base}/api/v2/assets/events?limit=100&order_by=timestamp", token)["asset_events"]
        return [event for event in found if event["name"] == name]

    def committed(version: int) -> bool:
        return (tmp_path / "log" / "pipeline.json").exists() and open_log(str(tmp_path / "log")).head >= version

    try:
        with ExitStack() as stack:
            for name in ("api-server", "dag-processor", "scheduler"):
                stack.enter_context(daemon(name, surroundings, tmp_path))
            until("API server", lambda: call("GET", f"{base}/api/v2/version"), 120)
            token = call("GET", f"{base}/auth/token")["access_token"]
            until("DAG", lambda: call("GET", f"{base}/api/v2/dags/streamsem_event_driven_report", token), 120)
            put(tmp_path / "arrivals", "a.json", 0, 500)
            with daemon("triggerer", surroundings, tmp_path):
                until("first version", lambda: committed(0), 300)
                until("error that a person has to heal", lambda: events("connected"), 60)
                kill_triggerer(tmp_path)
            shutil.copy(tmp_path / "triggerer.log", tmp_path / "killed.log")
            put(tmp_path / "arrivals", "b.json", 500, 500)
            with daemon("triggerer", surroundings, tmp_path):
                until("second version", lambda: committed(1), 300)
                reports = f"{base}/api/v2/dags/streamsem_event_driven_report/dagRuns"
                until(
                    "report",
                    lambda: [r for r in call("GET", reports, token)["dag_runs"] if r["state"] == "success"],
                    300,
                )
                loads = call("GET", f"{base}/api/v2/dags/streamsem_event_driven/dagRuns", token)["dag_runs"]
                told, tables, refused = (
                    events("streamsem_parcels_arrivals"),
                    events("streamsem_parcels"),
                    events("connected"),
                )
    finally:
        end_children(tmp_path)
    opened = open_log(str(tmp_path / "log"))
    assert [v.plan.ranges for v in opened.versions(newest_first=False)] == [{"files": (0, 1)}, {"files": (1, 2)}]
    assert opened.view().counts["written.parcels"] == 998
    assert verify(str(tmp_path / "log")).findings == []
    assert {run["run_type"] for run in loads} == {"asset_triggered"}
    payloads = [event["extra"]["payload"] for event in told]
    assert [p["ranges"] for p in payloads if p["version"] == 0][-1] == {"files": [1, 2]}
    assert {event["extra"]["version"] for event in tables} == {0, 1}
    assert all(e["extra"]["payload"]["error"].startswith("InvalidError: a kafka connection must have") for e in refused)
    logs = [(tmp_path / log).read_text(errors="replace") for log in ("killed.log", "triggerer.log")]
    assert not any("s3cret-of-a-connection" in text for text in logs)
    blocked = sum(text.count("async thread was blocked") for text in logs)  # a loaded machine does that too
    print(
        f"{len(told)} events of arrivals, {len(loads)} runs, {len(refused)} events of an error, loop blocked {blocked} times"
    )


def kill_triggerer(home: Path) -> None:
    """SIGKILL for the triggerer and the process that runs its triggers; they are known by this test's AIRFLOW_HOME and their command."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"AIRFLOW_HOME={home}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if ours and b"triggerer" in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
