"""What several tests of sinks stand in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sinks.delta_worlds import WRITES
from tests.stepped import stepped


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], object]], None]:
    """Calls a function before and after each write to a Delta table."""

    def install(step: Callable[[str], object]) -> None:
        for owner, name in WRITES:
            monkeypatch.setattr(owner, name, stepped(name, getattr(owner, name), step))

    return install
