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
