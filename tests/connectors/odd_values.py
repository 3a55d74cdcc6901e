"""A column of every type, with values that libraries of table formats have changed, lost, or failed on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

UTC = timezone.utc
STRUCT = pa.struct([("a", pa.int64())])
NESTED = pa.struct([("a", pa.int64()), ("l", pa.list_(STRUCT)), ("m", pa.map_(pa.string(), pa.list_(pa.string())))])
TEXTS = ["", "a", "-", "~", "x" * 15 + "\ud7ff", "x" * 16, "x" * 63 + "\U0001f600y", "\U0010ffff" * 70, "\uffff" * 20, "é" * 65, "\0", "null"]  # fmt: skip
TIMES = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 2, 29, 1, 2, 3, 4), datetime(9999, 12, 31, 23, 59, 59, 999_999)]  # fmt: skip
FLOATS = [0.0, -0.0, 1.5, 2.5, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308]


def _struct(*fields: tuple[str, Any]) -> dict[str, Any]:
    named = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    return {"type": "struct", "fields": named}


def _array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def _map(kind: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True}


_A = _struct(("a", "long"))
_STRUCTS: list[Any] = [{"a": 1}, {"a": None}]
COLUMNS: dict[str, tuple[Any, pa.DataType, Sequence[Any]]] = {
    "id": ("long", pa.int64(), []),
    "bo": ("boolean", pa.bool_(), [True, False]),
    "i": ("integer", pa.int32(), [0, -(2**31), 2**31 - 1, 3]),
    "n": ("long", pa.int64(), [0, -(2**63), 2**63 - 1, 2**53 + 1]),
    "f": ("float", pa.float32(), [value for value in FLOATS if abs(value) not in (5e-324, 1.7976931348623157e308)]),
    "d": ("double", pa.float64(), FLOATS),
    "t": ("string", pa.string(), TEXTS),
    "b": ("binary", pa.binary(), [b"", b"\xff" * 20, b"\x00", b"x" * 70]),
    "day": ("date", pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    "at": ("timestamp", pa.timestamp("us", "UTC"), [time.replace(tzinfo=UTC) for time in TIMES]),
    "ntz": ("timestamp_ntz", pa.timestamp("us"), TIMES),
    "c9": ("decimal(9,2)", pa.decimal128(9, 2), [Decimal("-0.05"), Decimal("9999999.99"), Decimal("0.00")]),
    "c20": ("decimal(20,0)", pa.decimal128(20, 0), [Decimal(f"180000000000000012{n}") for n in range(3, 7)]),
    "c38": ("decimal(38,18)", pa.decimal128(38, 18), [Decimal("9" * 20 + "." + "9" * 18), Decimal("-" + "9" * 20 + "." + "9" * 17 + "8"), Decimal("1800000000000000.123456789012345678"), Decimal("12345678901234567890." + "0" * 18), Decimal("-0.123456789012345700")]),
    "s": (_A, STRUCT, _STRUCTS),
    "ls": (_array(_A), pa.list_(STRUCT), [[], [None], [{"a": 1}, None]]),
    "m": (_map(_A), pa.map_(pa.string(), STRUCT), [[], [("k", None)], [("k", {"a": 1}), ("", {"a": None})]]),
    "x": (
        _struct(("a", "long"), ("l", _array(_A)), ("m", _map(_array("string")))),
        NESTED,
        [{"a": 1, "l": None, "m": None}, {"a": None, "l": [], "m": []}, {"a": 2, "l": [None, {"a": None}], "m": [("k", None), ("l", ["", None])]}],
    ),
}  # fmt: skip
"""Name → the type in Spark's schema JSON, the Arrow type, and the values."""


@st.composite
def odd_rows(draw: st.DrawFn, *, ids: Sequence[int]) -> pa.Table:
    """Draw rows of all columns with these ids. Values are odd ones or null."""
    arrays = [pa.array(ids, pa.int64())]
    for name, (_, kind, values) in COLUMNS.items():
        if name != "id":
            drawn = [draw(st.sampled_from([None, *values])) for _ in ids]
            arrays.append(pa.array(drawn, kind))
    return pa.table(arrays, names=list(COLUMNS))
