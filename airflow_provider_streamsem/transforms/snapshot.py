"""Serializes states to JSON text, and describes values as text that can be compared."""

from __future__ import annotations

import json
from typing import Any


def as_text(value: Any) -> str:
    """Return a JSON value as text. NumPy numbers are converted to Python numbers."""
    return json.dumps(value, default=_number)


def _number(value: Any) -> Any:
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(
            f"a snapshot or a partial value contains a {type(value).__name__}, which JSON does not have. Do: convert it to a number, a text, a list or a dict"
        )
    return item()


def _comparable(value: Any) -> Any:
    # The order of a set differs between processes.
    return {"set": sorted(map(text_of, value))} if isinstance(value, (set, frozenset)) else _number(value)


def text_of(value: Any) -> str:
    """Return a text that is equal for equal values, in every process: JSON, else the representation, else the class."""
    try:
        return json.dumps(value, default=_comparable, sort_keys=True)
    except (TypeError, ValueError):
        shown = repr(value)
    return type(value).__qualname__ if " at 0x" in shown else shown
