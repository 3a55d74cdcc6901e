"""How a task instance names its run in a log."""

from __future__ import annotations

import json
from typing import Any


def times_cleared(ti: Any, retries: int) -> int:
    """
    0 for a task instance that was never cleared; else a number that every clear raises and every retry leaves.

    Airflow allows an instance ``retries`` tries beyond those it had when it was last cleared, and keeps the sum as ``max_tries``.
    """
    return max(0, int(ti.max_tries) - retries)


def run_key(ti: Any) -> str:
    """The run key of a task instance: the same for its retries and clears, another for each mapped index."""
    return "airflow:" + json.dumps([ti.dag_id, ti.task_id, ti.run_id, ti.map_index], separators=(",", ":"))
