"""Sensors and the watcher's trigger on a real broker, with a connection from Airflow."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import (
    FreshnessSensor,
    Limits,
    OffsetRangeTrigger,
    OffsetsAvailableSensor,
    RetentionSensor,
    run_batch,
)
from airflow_provider_streamsem.engine import Job, Produced, nothing_produced
from airflow_provider_streamsem.readers.lag import lag
from tests.integration.parts.kafka import Broker
from tests.integration.topics import Topics
from tests.operators.task_calls import context
from tests.triggers.listener import listening

pytestmark = pytest.mark.integration
MINUTE_MS = 60_000


class CountsOnly:
    """An engine that reads and writes no rows. These tests need only offsets."""

    def stage(self, job: Job, log: object) -> Produced:
        return nothing_produced(job.sinks)


@pytest.fixture
def topics(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Topics:
    extra = {"bootstrap.servers": broker.bootstrap}
    monkeypatch.setenv("AIRFLOW_CONN_SENSED", json.dumps({"conn_type": "kafka", "extra": extra}))
    return Topics(broker, tmp_path)


def pipeline(topics: Topics, **changes: Any) -> Any:
    return topics.pipeline("a", source={"bootstrap_servers": None, "conn_id": "sensed"}, **changes)


def put(topics: Topics, count: int, *, minutes_ago: int = 0, partition: int = 0) -> None:
    topics.put("a", range(count), partition=partition, timestamp=int(time.time() * 1000) - minutes_ago * MINUTE_MS)


def poke(sensor: Any) -> Any:
    result = sensor.poke(context())
    return result.xcom_value if result.is_done else None


def run(spec: Any, run_key: str) -> None:
    run_batch(spec, run_key=run_key, drain=True, engine=CountsOnly())


def test_offsets_available_sensor_on_a_real_broker_with_airflows_connection(topics: Topics) -> None:
    topics.create("a", 2)
    spec = pipeline(topics, limits=Limits(max_rows=100))
    run(spec, "creates the log")
    sensor = OffsetsAvailableSensor(task_id="t", pipeline=spec, min_rows=50, max_delay=3600)
    put(topics, 10)
    assert poke(sensor)["rows"] == 10  # before the first outcome, min_rows does not apply
    run(spec, "first")
    put(topics, 30)
    assert poke(sensor) is None
    put(topics, 30, partition=1)
    found = poke(sensor)
    assert (found["rows"], found["lag"], found["unit"], found["version"]) == (60, 60, "offsets", 0)
    assert sorted(found["ranges"].values()) == [[0, 30], [10, 40]]
    assert poke(OffsetsAvailableSensor(task_id="u", pipeline=spec, min_rows=90, max_delay=3600)) is None
    topics.put("a", range(500))
    assert poke(sensor)["rows"] in range(100, 103)  # the size of the next batch, which max_rows limits
    with listening(OffsetRangeTrigger(spec, min_rows=50, max_delay=3600, poll_interval_s=0.2)) as listener:
        event = listener.next(30)
        assert event is not None
        assert event["lag"] == 560
        run(spec, "second")
        assert listener.next(1) is None
    assert poke(sensor) is None


def test_retention_and_freshness_sensors_on_a_real_broker(topics: Topics) -> None:
    topics.create("a", 2, retention_ms=str(60 * MINUTE_MS))
    spec = pipeline(topics)
    put(topics, 5, minutes_ago=40)
    put(topics, 5, minutes_ago=5)
    put(topics, 5, minutes_ago=5, partition=1)

    def retention(**arguments: Any) -> Any:
        return poke(RetentionSensor(task_id="t", pipeline=spec, **arguments))

    assert retention(within=10 * 60) is None
    found = retention(within=30 * 60)
    assert (found["at_risk"], found["lost"], found["version"], found["unit"]) == (5, 0, -1, "offsets")
    assert retention(within=58 * 60)["at_risk"] == 15
    assert retention(records=1000) is None  # nothing was deleted yet

    def fresh(**arguments: Any) -> Any:
        return poke(FreshnessSensor(task_id="t", pipeline=spec, **arguments))

    assert fresh(max_lag=100) is None  # nothing is committed
    run(spec, "first")
    assert fresh(max_lag=0, max_age=60)["lag"] == 0
    assert lag(spec).minimum_clock_ms is None
    put(topics, 3, minutes_ago=3)
    clock = lag(spec).minimum_clock_ms
    assert clock is not None
    assert 3 * 60_000 <= int(time.time() * 1000) - clock < 4 * 60_000
    assert fresh(until=datetime.fromtimestamp(clock / 1000, tz=timezone.utc))["before_until"] == 0
    assert fresh(until=datetime.fromtimestamp(clock / 1000 + 60, tz=timezone.utc)) is None
    assert fresh(max_age=2 * 60) is None
    assert fresh(max_age=4 * 60)["too_old"] == 0
    put(topics, 1, minutes_ago=50)  # late: written after records with newer timestamps
    assert fresh(max_age=4 * 60)["too_old"] == 0
    assert retention(within=30 * 60) is None
    assert (fresh(max_lag=3), fresh(max_lag=4)["lag"]) == (None, 4)
    topics.delete_below("a", 0, 8)
    assert retention(records=2) is None
    assert retention(records=3)["spare"] == 2
    topics.delete_below("a", 0, 12)
    assert retention(within=60) == {
        "pipeline": "orders", "log": spec.log, "version": 0, "lost": 2, "at_risk": 0, "spare": 0, "unit": "offsets",
    }  # fmt: skip


def test_topics_with_unlimited_retention_are_never_at_risk(topics: Topics) -> None:
    topics.create("a", 1, cleanup_policy="compact")
    put(topics, 5, minutes_ago=100)
    assert poke(RetentionSensor(task_id="t", pipeline=pipeline(topics), within=10**6)) is None
