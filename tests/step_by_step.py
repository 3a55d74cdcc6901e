"""Calls as steps: of a process that may die, sleep or be told lies at any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def step_by_step(name: str, call: Callable[..., Any], step: Callable[[str], object]) -> Callable[..., Any]:
    """The same call with the steps ``before NAME`` and ``after NAME`` around it."""

    def taken(*given: Any, **named: Any) -> Any:
        step(f"before {name}")
        answer = call(*given, **named)
        step(f"after {name}")
        return answer

    return taken
