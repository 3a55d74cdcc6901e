"""Computes Delta's per-file statistics from the footer of a Parquet file. With them, readers skip files."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

MAX_COLUMNS = 32
_LONGEST = 64
_DIGITS_OF_A_DOUBLE = 15


def delta_stats(parquet: Any, *, without: frozenset[str]) -> str:
    """
    Return ``{"numRecords", "minValues", "maxValues", "nullCount"}`` as JSON text (Delta protocol, per-file statistics).

    The first 32 columns with integers, decimals, texts, dates or times have bounds, if the footer has them. A column without a null count has no bounds.
    Bounds of floats are never recorded: footers leave out NaN, which Spark orders above all numbers. Text is shortened to 64 characters: the lower bound is
    truncated, and the upper bound is truncated and incremented. Delta stores the bounds of timestamps in milliseconds, so the lower bound is rounded down and
    the upper bound is rounded up. Decimals with a fraction are rounded likewise to 15 digits, because some readers (Trino) parse them as doubles.

    :param parquet: pyarrow's metadata of the file
    :param without: top-level columns without statistics: the partition columns
    """
    bounds: dict[str, tuple[str, str]] = {}
    nulls: dict[str, int] = {}
    columns = 0
    for index in range(parquet.num_columns):
        column = parquet.schema.column(index)
        # A column inside a struct, array or map has a longer path. A name with a dot looks like one.
        if column.path in without or not _is_bounded(column) or columns == MAX_COLUMNS:
            continue
        columns += 1
        chunks = [parquet.row_group(group).column(index).statistics for group in range(parquet.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[column.path] = sum(chunk.null_count for chunk in chunks)
        literals = _literals(chunks, is_utc="isAdjustedToUTC=true" in str(column.logical_type))
        if literals is not None:
            bounds[column.path] = literals
    stats = {"numRecords": str(parquet.num_rows)}
    if bounds:
        stats["minValues"] = _object({name: lower for name, (lower, _) in bounds.items()})
        stats["maxValues"] = _object({name: upper for name, (_, upper) in bounds.items()})
    stats["nullCount"] = _object({name: str(count) for name, count in nulls.items()})
    return _object(stats)


def upper_bound(text: str, longest: int) -> str | None:
    """Return a text of at most ``longest`` characters that does not sort before the given text; ``None`` if there is none."""
    if len(text) <= longest:
        return text
    for at in range(longest - 1, -1, -1):
        code = ord(text[at]) + 1
        if code == 0xD800:  # skip surrogates, which are not characters
            code = 0xE000
        if code <= 0x10FFFF:
            return text[:at] + chr(code)
    return None


def _is_bounded(column: Any) -> bool:
    logical = column.logical_type.type
    is_text = column.physical_type == "BYTE_ARRAY" and logical == "STRING"
    is_number = column.physical_type in ("INT32", "INT64") or logical == "DECIMAL"
    return (is_text or is_number) and column.max_repetition_level == 0 and "." not in column.path


def _literals(chunks: list[Any], *, is_utc: bool) -> tuple[str, str] | None:
    bounded = [chunk for chunk in chunks if chunk.has_min_max]
    if not bounded or any(not chunk.has_min_max and chunk.num_values > 0 for chunk in chunks):
        return None
    try:
        lower = _literal(min(chunk.min for chunk in bounded), is_utc, up=False)
        upper = _literal(max(chunk.max for chunk in bounded), is_utc, up=True)
    except (OverflowError, ValueError):  # Python's datetime lacks the year
        return None
    return None if lower is None or upper is None else (lower, upper)


def _literal(value: Any, is_utc: bool, *, up: bool) -> str | None:
    """With ``up``, a text is shortened, and a timestamp or a decimal is rounded, upwards, as for an upper bound."""
    if isinstance(value, int) or (isinstance(value, Decimal) and value == value.to_integral_value()):
        return format(int(value), "d")
    if isinstance(value, Decimal):
        decimal = _rounded(value, up=up)
        return None if decimal is None else format(decimal, "f")
    if isinstance(value, str):
        shortened = upper_bound(value, _LONGEST) if up else value[:_LONGEST]
        return None if shortened is None else json.dumps(shortened, ensure_ascii=False)
    if isinstance(value, datetime):
        rest = value.microsecond % 1000
        rounded = value - timedelta(microseconds=rest) + timedelta(milliseconds=1 if up and rest else 0)
        return json.dumps(rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if is_utc else ""))
    if isinstance(value, date):
        return json.dumps(value.isoformat())
    return None


def _rounded(value: Decimal, *, up: bool) -> Decimal | None:
    """Round a decimal to the digits that a double holds; ``None`` if the result has one more digit before the point, which the type may lack."""
    rounded = Context(_DIGITS_OF_A_DOUBLE, rounding=ROUND_CEILING if up else ROUND_FLOOR).create_decimal(value)
    return rounded if rounded.adjusted() == value.adjusted() else None


def _object(members: dict[str, str]) -> str:
    """Return a JSON object. Its values are JSON texts already, because Python's JSON has no exact form for decimals."""
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in members.items()) + "}"
