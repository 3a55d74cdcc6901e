"""Maps a task instance to the key of its run in a log."""

from __future__ import annotations

import json
from typing import Any


def times_cleared(ti: Any, retries: int) -> int:
    """
    Return a number that identifies the last clear of a task instance: 0 if it was never cleared. Every clear increases the number, and retries do not change
    it.

    When a task instance is cleared, Airflow sets ``max_tries`` to the number of tries so far plus ``retries``.
    """
    return max(0, int(ti.max_tries) - retries)


def run_key(ti: Any) -> str:
    """Return the run key of a task instance. Retries and clears have the same key; each mapped index has a different one."""
    return "airflow:" + json.dumps([ti.dag_id, ti.task_id, ti.run_id, ti.map_index], separators=(",", ":"))
