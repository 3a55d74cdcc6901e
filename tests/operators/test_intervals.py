"""Tasks that read the data interval of their DAG run, and tasks that reprocess a partition."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import PartitionCompleteSensor, ReprocessOperator
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.stores.memory import open_memory_store
from tests.interval_fixture import FIRST_MS, IntervalFixture
from tests.operators.task_calls import context, operator
from tests.releases import since
from tests.timed_fixture import DAYS, TimedFixture

pytestmark = pytest.mark.airflow
_NAMES = count()
FIRST = datetime.fromtimestamp(FIRST_MS / 1000, tz=timezone.utc)


def run_of(start: int, end: int, run_id: str = "r", **arguments: Any) -> dict[str, Any]:
    """Return the context of a task whose DAG run has the data interval of some files."""
    import pendulum

    times = {"data_interval_start": start, "data_interval_end": end}
    bounds = {name: pendulum.instance(FIRST + timedelta(milliseconds=at)) for name, at in times.items()}
    return {**context(run_id, **arguments), **bounds}


@pytest.fixture
def fixture(tmp_path: Path) -> IntervalFixture:
    """Six files have arrived."""
    made = IntervalFixture(tmp_path, store=open_memory_store(f"data-intervals-{next(_NAMES)}"))
    made.arrive(6)
    return made


def test_task_reads_the_data_interval_and_a_clear_reads_it_again(
    fixture: IntervalFixture, rows_engine: list[str]
) -> None:
    task = operator(fixture, interval="data_interval", retries=2)
    late = task.execute(run_of(2, 6, "late", max_tries=2))
    first = task.execute(run_of(0, 2, "early", max_tries=2))
    assert (late["ranges"], first["ranges"], first["version"]) == ({"files": [2, 6]}, {"files": [0, 2]}, 1)
    assert first["interval"] == ["2023-11-14T22:13:20+00:00", "2023-11-14T22:13:20.002+00:00"]
    assert task.execute(run_of(0, 2, "early", try_number=2, max_tries=2)) == first
    cleared = task.execute(run_of(0, 2, "early", try_number=2, max_tries=3))
    assert (cleared["version"], cleared["counts"]) == (2, first["counts"])
    assert task.execute(run_of(0, 2, "early", try_number=3, max_tries=3)) == cleared
    assert task.execute(run_of(0, 2, "manual"))["version"] == 3
    fixture.check()


def test_cleared_task_with_rerun_resume_returns_the_result(fixture: IntervalFixture, rows_engine: list[str]) -> None:
    task = operator(fixture, interval="data_interval", rerun="resume", retries=1)
    first = task.execute(run_of(0, 6, max_tries=1))
    assert task.execute(run_of(0, 6, try_number=2, max_tries=2)) == first
    assert task.execute(run_of(0, 6, "other", max_tries=1)) == first


def test_interval_may_be_a_template(fixture: IntervalFixture, rows_engine: list[str]) -> None:
    text = f"{FIRST.isoformat()}/{(FIRST + timedelta(milliseconds=6)).isoformat()}"
    assert operator(fixture, interval=text).execute(context())["counts"]["read"] == 18
    assert "interval" in operator(fixture, interval=text).template_fields


@pytest.mark.parametrize(
    ("start", "end", "problem"), [(None, None, "no data interval"), (FIRST, FIRST, "an empty data interval")]
)
def test_run_without_a_data_interval_is_refused(
    fixture: IntervalFixture, rows_engine: list[str], start: Any, end: Any, problem: str
) -> None:
    from airflow.exceptions import AirflowFailException

    task_context = {**context(), "data_interval_start": start, "data_interval_end": end}
    with pytest.raises(AirflowFailException, match=f"{problem}.*CronDataIntervalTimetable"):
        operator(fixture, interval="data_interval").execute(task_context)


def test_interval_that_is_not_over_is_retried(fixture: IntervalFixture, rows_engine: list[str]) -> None:
    year_ms = 365 * 86_400_000 * 1_000
    with pytest.raises(UnavailableError, match="not over yet"):
        operator(fixture, interval="data_interval").execute(run_of(0, year_ms))


@pytest.mark.parametrize("arguments", [{"drain": True}, {"run_in": "submit", "spark_conn_id": "spark"}])
def test_argument_that_has_no_meaning_for_intervals_is_refused(
    fixture: IntervalFixture, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidError, match="interval cannot be combined"):
        operator(fixture, interval="data_interval", **arguments)


@since("3.3", "partition keys of events")
def test_event_has_the_start_of_the_interval_as_its_partition_key(
    fixture: IntervalFixture, rows_engine: list[str]
) -> None:
    from airflow.sdk import Asset

    asset, task_context = Asset("orders"), run_of(0, 1_000)
    operator(fixture, interval="data_interval", outlets=[asset], partition_key="interval").execute(task_context)
    assert task_context["outlet_events"][asset].partition_keys == {"2023-11-14T22:13:20"}


def test_sensor_waits_until_the_intervals_cover_a_time(fixture: IntervalFixture, rows_engine: list[str]) -> None:
    def is_met(start: int, end: int) -> bool:
        run = run_of(start, end)
        text = f"{run['data_interval_start']}/{run['data_interval_end']}"
        sensor = PartitionCompleteSensor(task_id="s", pipeline=fixture.pipeline(), partition=text)
        return sensor.condition(run).check().met

    assert not is_met(0, 2)
    fixture.read(0, 2)
    fixture.read(4, 6)
    assert (is_met(0, 2), is_met(1, 2), is_met(0, 3), is_met(0, 6)) == (True, True, False, False)
    fixture.read(2, 4)
    assert is_met(0, 6)


def test_task_reprocesses_the_versions_of_a_partition_and_a_clear_reprocesses_them_again(
    tmp_path: Path, rows_engine: list[str]
) -> None:
    fixture = TimedFixture(tmp_path)
    for run, hours in (("a", (1, 25)), ("b", (2,)), ("c", (49,))):
        fixture.batch(run, *hours)

    def reprocessed(partition: str, **arguments: Any) -> dict[str, Any]:
        task = ReprocessOperator(task_id="t", pipeline=fixture.pipeline(), partition=partition, retries=1)
        result: dict[str, Any] = task.execute(context(**arguments))
        return result

    first = reprocessed(DAYS[0], max_tries=1)
    assert (first["status"], first["batches"], first["version"], first["counts"]["read"]) == ("committed", 2, 4, 3)
    assert reprocessed(DAYS[0], try_number=2, max_tries=1) == first
    assert reprocessed(DAYS[0], try_number=2, max_tries=2)["version"] == 6
    assert reprocessed("2025", max_tries=1)["status"] == "empty"
    with pytest.raises(InvalidError, match="exactly one of version and partition"):
        ReprocessOperator(task_id="t", pipeline=fixture.pipeline())


def test_partition_of_a_pipeline_without_partitions_is_refused(
    fixture: IntervalFixture, rows_engine: list[str]
) -> None:
    from airflow.exceptions import AirflowFailException

    plain = fixture.pipeline(intervals=False)
    task = ReprocessOperator(task_id="t", pipeline=plain, partition="{{ ds }}")
    task.partition = "2026-01-01"
    with pytest.raises(AirflowFailException, match="neither `partitions` nor `intervals`"):
        task.execute(context())
