"""Nested values as JSON text, for databases whose columns have no such types."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import Any


def json_text(value: Any, kind: Any) -> str | None:
    """
    An array, struct or map as JSON; ``None`` for null.

    Bytes become base64; decimals, dates, times and floats that JSON does not know become text; a map becomes an object whose keys are text.

    :param value: as pyarrow's ``as_py`` gives it
    :param kind: its Arrow type
    """
    return None if value is None else json.dumps(json_value(value, kind), ensure_ascii=False, separators=(",", ":"))


def json_value(value: Any, kind: Any) -> Any:
    """As :func:`json_text`, before it is written."""
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
