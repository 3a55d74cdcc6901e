"""Computes the run key and the interval of a task instance, and how often the task instance was cleared."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_streamsem.arguments import time_ms
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.run.plan_interval import TimeInterval, parse_interval

DATA_INTERVAL = "data_interval"


def last_clear_id(ti: Any, retries: int) -> int:
    """
    Return a number that identifies the last clear of a task instance. Every clear increases the number, and retries do not change it.

    When a task instance is cleared, Airflow sets ``max_tries`` to the number of tries so far plus ``retries``.

    :returns: 0 if the task instance was never cleared. Otherwise a positive number, which need not be the number of clears
    """
    return max(0, int(ti.max_tries) - retries)


def run_key(ti: Any) -> str:
    """Return the run key of a task instance. Retries and clears keep the key. Each index of a mapped task has a different key."""
    return "airflow:" + json.dumps([ti.dag_id, ti.task_id, ti.run_id, ti.map_index], separators=(",", ":"))


def interval_of_run(interval: str, context: Any) -> TimeInterval:
    """
    Return the interval that the argument ``interval`` of an operator names.

    :param interval: :data:`DATA_INTERVAL`, or ``START/END``
    :raises InvalidError: the text has another form, or the run has no data interval
    """
    if interval != DATA_INTERVAL:
        return parse_interval(interval)
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None or start == end:
        problem = "has no data interval" if start is None or end is None else "has an empty data interval"
        raise InvalidError(
            f"the DAG run {problem}, so no records belong to it; nothing was written",
            run_id=context["ti"].run_id,
            start=str(start),
            end=str(end),
        ).advising(
            'schedule the DAG with CronDataIntervalTimetable("0 * * * *", timezone="UTC"). A cron expression gives empty data intervals, unless the '
            "option [scheduler] create_cron_data_intervals is set. Asset-triggered runs have no data interval."
        )
    return TimeInterval(time_ms("data_interval_start", start), time_ms("data_interval_end", end))
