"""Reports calls as steps. At each step a test can kill the process, pause it, or give it a false reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def step_by_step(name: str, call: Callable[..., Any], step: Callable[[str], object]) -> Callable[..., Any]:
    """Return a function that reports the steps ``before NAME`` and ``after NAME`` around the call."""

    def stepped(*args: Any, **kwargs: Any) -> Any:
        step(f"before {name}")
        result = call(*args, **kwargs)
        step(f"after {name}")
        return result

    return stepped


class AtStep:
    """Calls a function at one step, once."""

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self.at, self.action, self.taken = at, action, list[str]()

    def __call__(self, name: str) -> None:
        self.taken.append(name)
        if len(self.taken) - 1 == self.at:
            self.action()
