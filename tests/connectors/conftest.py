"""Fixtures that the tests of several connectors share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from moto import mock_aws

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from tests.connectors.delta.delta_fixture import WRITES
from tests.step_by_step import step_by_step


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate AWS in this process, and set credentials and a region for its clients."""
    for name, value in (
        ("ACCESS_KEY_ID", "testing"),
        ("SECRET_ACCESS_KEY", "testing"),
        ("DEFAULT_REGION", "eu-west-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    with mock_aws():
        yield


@pytest.fixture
def watch_delta_writes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], object]], None]:
    """Return a function that installs a callback before and after each write to a Delta table."""

    def install(step: Callable[[str], object]) -> None:
        for owner, name in WRITES:
            monkeypatch.setattr(owner, name, step_by_step(name, getattr(owner, name), step))

    return install


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every wait between two tries take at most 10 ms."""
    monkeypatch.setattr(SYSTEM_CLOCK, "sleep", lambda seconds: time.sleep(min(seconds, 0.01)))
