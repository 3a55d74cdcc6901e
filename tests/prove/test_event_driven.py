"""The event-driven DAGs with a real scheduler and triggerer. A watcher starts the runs, and the test kills the triggerer."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import log_uri, open_log, verify
from tests.integration.parts.airflow import Airflow
from tests.sensors.arrivals import put

ROOT = Path(__file__).parents[2]
SECRET = "s3cret-of-a-connection"
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
def test_runs_that_a_watcher_starts_read_each_range_once_although_the_triggerer_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    shutil.copy(ROOT / "dags" / "streamsem_event_driven.py", folder)
    (folder / "connected.py").write_text(WITH_A_CONNECTION.format(home=tmp_path))
    (tmp_path / "arrivals").mkdir()
    locations = {"STREAMSEM_PARCELS_HOME": str(tmp_path), "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10"}
    airflow = Airflow(tmp_path / "airflow", folder, environment=locations)
    triggerer = airflow.components["triggerer"]

    def events(name: str) -> list[dict[str, Any]]:
        listed = airflow.request("GET", "/assets/events?limit=100&order_by=timestamp")["asset_events"]
        return [event for event in listed if event["name"] == name]

    def committed(version: int) -> bool:
        return (tmp_path / "log" / "pipeline.json").exists() and open_log(str(tmp_path / "log")).head >= version

    def reports() -> list[Any]:
        runs = airflow.request("GET", "/dags/streamsem_event_driven_report/dagRuns")["dag_runs"]
        return [run for run in runs if run["state"] == "success"]

    with airflow.running():
        airflow.until("DAG", lambda: airflow.request("GET", "/dags/streamsem_event_driven_report"), 120)
        connection = {"connection_id": "without_servers", "conn_type": "kafka", "password": SECRET}
        airflow.request("POST", "/connections", connection)
        put(tmp_path / "arrivals", "a.json", 0, 500)
        airflow.until("first version", lambda: committed(0), 300)
        airflow.until("error that a user must fix", lambda: events("connected"), 120)
        triggerer.kill()
        first_log = triggerer.log.read_text(errors="replace")
        put(tmp_path / "arrivals", "b.json", 500, 500)
        airflow.start(triggerer)
        airflow.until("second version", lambda: committed(1), 300)
        airflow.until("report", reports, 300)
        # The API server answers 500 while other processes lock SQLite.
        runs = "/dags/streamsem_event_driven/dagRuns"
        loads = airflow.until("runs", lambda: airflow.request("GET", runs)["dag_runs"], 60)
        arrivals_events, tables, refused = (
            airflow.until(name, partial(events, name), 60)
            for name in ("streamsem_parcels_arrivals", log_uri(str(tmp_path / "log")), "connected")
        )
    logs = [first_log, triggerer.log.read_text(errors="replace")]
    opened = open_log(str(tmp_path / "log"))
    assert [v.plan.ranges for v in opened.versions(newest_first=False)] == [{"files": (0, 1)}, {"files": (1, 2)}]
    assert opened.view().counts["written.parcels"] == 998
    assert verify(str(tmp_path / "log")).violations == []
    assert {run["run_type"] for run in loads} == {"asset_triggered"}
    payloads = [event["extra"]["payload"] for event in arrivals_events]
    assert [p["ranges"] for p in payloads if p["version"] == 0][-1] == {"files": [1, 2]}
    assert {event["extra"]["version"] for event in tables} == {0, 1}
    assert all(e["extra"]["payload"]["error"].startswith("InvalidError: a kafka connection must have") for e in refused)
    assert not any(SECRET in text for text in logs)
    blocked = sum(text.count("async thread was blocked") for text in logs)  # a loaded machine can block the loop, too
    print(
        f"{len(arrivals_events)} events of arrivals, {len(loads)} runs, {len(refused)} events of an error, loop blocked {blocked} times"
    )
