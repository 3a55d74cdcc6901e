"""Computes the run key of a task instance, and how often the task instance was cleared."""

from __future__ import annotations

import json
from typing import Any


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
