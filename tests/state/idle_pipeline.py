"""A stateful pipeline that closes windows when no record arrives, at a time of the test's choice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from airflow_provider_streamsem import Pipeline, State, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.state.stateful_pipeline import ORIGIN_MS, pipeline
from tests.state.transforms import windowed

HOUR = 3_600
IDLE = State(output_mode="append", partitions=2, close_after_s=HOUR)


def at(root: Path, minute: float) -> CommitLog:
    """The log of a process whose clock shows this minute."""
    return dataclasses.replace(commit_log_at(str(root / "log")), clock=ManualClock(ORIGIN_MS + int(minute * 60_000)))


def run(root: Path, minute: float, key: str, spec: Pipeline | None = None) -> str:
    return run_batch(spec or pipeline(root, windowed, "append", state=IDLE), run_key=key, log=at(root, minute)).status
