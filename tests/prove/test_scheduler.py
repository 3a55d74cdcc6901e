"""The example DAG on a real scheduler: API server, DAG processor, scheduler and LocalExecutor, in a temporary home on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_streamsem import open_log, verify
from demo import arrivals
from tests.integration.parts.airflow import Airflow

ROOT = Path(__file__).parents[2]
DAG, TASK = "streamsem_quickstart", "clean"


@pytest.mark.prove
@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_quickstart_runs_on_a_real_scheduler_and_a_cleared_task_writes_nothing(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    locations = {"STREAMSEM_QUICKSTART_HOME": str(tmp_path), "STREAMSEM_QUICKSTART_LOG": log}
    airflow = Airflow(tmp_path / "airflow", ROOT / "dags", environment=locations)
    arrivals.arrive(arrivals.write_days(tmp_path / "waiting")[:80], tmp_path / "arrivals")
    with airflow.running():
        airflow.until("the DAG is there", lambda: airflow.request("GET", f"/dags/{DAG}"), 120)
        airflow.trigger(DAG, "real")
        ended = lambda: airflow.state(DAG, "real") in ("success", "failed")  # noqa: E731
        airflow.until("the run ends", ended, 300)
        assert airflow.state(DAG, "real") == "success"
        result = airflow.result(DAG, "real", TASK)
        assert (result["status"], result["version"], result["ranges"]) == ("committed", 1, {"files": [0, 80]})
        stored = sorted(path.name for path in (tmp_path / "log").rglob("*.json"))
        airflow.clear(DAG, "real", [TASK])
        airflow.until("the second try ends", lambda: airflow.tries(DAG, "real", TASK) >= 2 and ended(), 300)
        assert airflow.state(DAG, "real", TASK) == "success"
        assert sorted(path.name for path in (tmp_path / "log").rglob("*.json")) == stored
    opened = open_log(log)
    assert sum(file.rows for file in opened.files()) == opened.view().counts["written.flights"]
    assert verify(log).violations == []
