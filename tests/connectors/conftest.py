"""Fixtures that several sink tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.connectors.delta.delta_fixture import WRITES
from tests.step_by_step import step_by_step


@pytest.fixture
def watch_delta_writes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], object]], None]:
    """Return a function that installs a callback before and after each write to a Delta table."""

    def install(step: Callable[[str], object]) -> None:
        for owner, name in WRITES:
            monkeypatch.setattr(owner, name, step_by_step(name, getattr(owner, name), step))

    return install
