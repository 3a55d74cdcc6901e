"""
Encodes the documents of the HTTP API as JSON of limited size.

Logs may contain any text and number, so each document can be encoded: long texts and collections are truncated, and the JSON is ASCII.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import islice

from pydantic import BaseModel

from airflow_provider_streamsem.errors import InvalidError

TEXT = 20_000
"""The maximum number of characters of a text."""
ITEMS = 1_000
"""The maximum number of items of a collection."""
LEVELS = 70
"""The maximum nesting depth. Stored JSON is nested less deeply."""
DOCUMENT_BYTES = 4 << 20
"""The maximum size of a document."""


def encoded(document: object) -> bytes:
    """
    Encode a document.

    :param document: a model of ``documents``, or a list of models
    :raises InvalidError: the truncated document is still larger than 4 MiB
    """
    data = json.dumps(_truncated(document, LEVELS), separators=(",", ":")).encode()
    if len(data) > DOCUMENT_BYTES:
        raise InvalidError(
            "the entries of the log are too large for the web view", bytes=len(data), most=DOCUMENT_BYTES
        ).advising("show fewer versions, or use the command `streamsem`.")
    return data


def _truncated(value: object, levels: int) -> object:
    if isinstance(value, str):
        return value if len(value) <= TEXT else value[: TEXT - 1] + "…"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not levels:
        return "…"
    if isinstance(value, BaseModel):
        return {name: _truncated(getattr(value, name), levels - 1) for name in type(value).model_fields}
    if is_dataclass(value):
        return {field.name: _truncated(getattr(value, field.name), levels - 1) for field in fields(value)}
    if isinstance(value, Mapping):
        items = islice(value.items(), ITEMS)
        return {str(_truncated(str(name), levels)): _truncated(item, levels - 1) for name, item in items}
    if isinstance(value, (list, tuple)):
        return [_truncated(item, levels - 1) for item in islice(value, ITEMS)]
    return value
