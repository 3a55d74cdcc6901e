"""Crashes of an attempt at a method."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_streamsem import Pipeline, run_batch
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.spark.stateful import MicroBatch


class Crash(Exception):
    """The process died."""


def crash_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, before: bool = False) -> None:
    """Make the next call of a method crash, after or before it runs."""
    real = getattr(owner, name)
    left = [True]

    def step(*given: Any, **named: Any) -> Any:
        if not left:
            return real(*given, **named)
        left.clear()
        if before:
            raise Crash
        real(*given, **named)
        raise Crash

    monkeypatch.setattr(owner, name, step)


def run_and_crash_after_state_write(monkeypatch: pytest.MonkeyPatch, spec: Pipeline, run_key: str) -> None:
    with monkeypatch.context() as patched:
        crash_at(patched, MicroBatch, "after")
        with pytest.raises(StreamsemError):
            run_batch(spec, run_key=run_key)
