"""The event-driven example DAGs: the trigger of their watcher, their runs with Airflow's task execution and real Spark, and the trigger again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import open_log, verify
from tests.sensors.arrivals import put
from tests.triggers.listener import Listener, from_database

pytestmark = pytest.mark.airflow


@pytest.fixture
def dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the DAG file, with its data in a temporary folder."""
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow

    initialise_airflow()
    (tmp_path / "arrivals").mkdir()
    monkeypatch.setenv("STREAMSEM_PARCELS_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    sys.modules.pop("streamsem_event_driven", None)
    import streamsem_event_driven

    yield streamsem_event_driven
    sys.modules.pop("streamsem_event_driven", None)


def return_value_of(dag_id: str, run_id: str, task_id: str) -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(run_id=run_id, dag_ids=dag_id, task_ids=task_id, key="return_value")
        return XComModel.deserialize_value(session.scalars(query).one())


@pytest.mark.prove
@pytest.mark.spark
def test_event_driven_dags_read_each_range_once_however_often_they_are_started(
    dags: Any, tmp_path: Path, spark: object
) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from airflow_provider_streamsem.testing.dag_runs import run_dag

    trigger = from_database(dags.ARRIVALS.watchers[0].trigger)
    trigger.poll_interval_s = 0.1
    listener = Listener(trigger)
    loads, reports = dags.streamsem_event_driven(), dags.streamsem_event_driven_report()
    put(tmp_path / "arrivals", "a.json", 0, 500)
    event = listener.next(20)
    assert event is not None
    assert event["is_new"]
    for run_id in ("first", "doubled"):
        assert run_dag(loads, run_id).state == "success"
    assert listener.next(1) is None
    put(tmp_path / "arrivals", "b.json", 500, 500)
    event = listener.next(20)
    assert event is not None
    assert event["ranges"] == {"files": [1, 2]}
    assert run_dag(loads, "third").state == "success"
    listener.close()
    assert run_dag(reports, "late").state == "success"
    assert return_value_of(reports.dag_id, "late", "report") == {"version": 1, "parcels": 998}
    assert return_value_of(loads.dag_id, "doubled", "clean")["status"] == "empty"
    with create_session() as session:
        events_in_order = session.scalars(select(AssetEvent).order_by(AssetEvent.id))
        extras = [event.extra for event in events_in_order if event.extra.get("log") == str(tmp_path / "log")]
    events = [(e["status"], e["version"], e["ranges"], e["rows"], e["manifest"] != "") for e in extras]
    assert events == [
        ("committed", 0, {"files": [0, 1]}, 499, True),
        ("committed", 1, {"files": [1, 2]}, 499, True),
    ]
    assert verify(str(tmp_path / "log")).violations == []
    assert [v.plan.ranges for v in open_log(str(tmp_path / "log")).versions()] == [{"files": (1, 2)}, {"files": (0, 1)}]
