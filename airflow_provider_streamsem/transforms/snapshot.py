"""The text under which the state of a key is stored."""

from __future__ import annotations

import json
from typing import Any


def as_text(value: Any) -> str:
    """
    Return a JSON value as text. Numbers of numpy become those of Python.

    :raises TypeError: the value contains an object that JSON does not have
    """
    return json.dumps(value, default=_number)


def _number(value: Any) -> Any:
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(
            f"a state must be a JSON value, and a {type(value).__name__} is none; store it as a number or a text"
        )
    return item()
