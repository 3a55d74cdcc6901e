"""Converts nested values to JSON text, for databases without nested column types."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import Any


def json_text(value: Any, kind: Any) -> str | None:
    """
    Return an array, struct or map (``as_py`` of a value of the Arrow type ``kind``) as JSON text; ``None`` for null.

    Binary values become base64. Decimals, dates, times and non-finite floats become strings. A map becomes an object whose keys are strings.
    """
    return None if value is None else json.dumps(json_value(value, kind), ensure_ascii=False, separators=(",", ":"))


def json_value(value: Any, kind: Any) -> Any:
    """Convert a value as :func:`json_text` does, without serializing it."""
    import pyarrow.types as types

    if value is None:
        return None
    if types.is_struct(kind):
        return {field.name: json_value(value[field.name], field.type) for field in kind}
    if types.is_map(kind):
        return {_key(json_value(k, kind.key_type)): json_value(v, kind.item_type) for k, v in value}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [json_value(item, kind.value_type) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")
    if isinstance(value, Decimal):
        return format(value, "f")
    return value if isinstance(value, (str, int, bool)) else value.isoformat()


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
