"""Computes Delta's per-file statistics from the footer of a Parquet file. With them, readers skip files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

_COLUMNS = 32
_LONGEST = 64


def delta_stats(parquet: Any, *, without: frozenset[str]) -> str:
    """
    Return ``{"numRecords", "minValues", "maxValues", "nullCount"}`` as JSON text (Delta protocol, per-file statistics).

    A bound is omitted if the footer lacks it, or if JSON has no exact form for it. Readers do not skip such a file. Delta stores the bounds of timestamps in
    milliseconds, so the lower bound is rounded down and the upper bound is rounded up.

    :param parquet: pyarrow's metadata of the file
    :param without: top-level columns without statistics: the partition columns
    """
    stats: dict[str, Any] = {"numRecords": parquet.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for path, index in _leaves(parquet, without):
        chunks = [parquet.row_group(group).column(index).statistics for group in range(parquet.num_row_groups)]
        if not chunks or any(chunk is None for chunk in chunks):
            continue
        if all(chunk.has_null_count for chunk in chunks):
            _put(stats["nullCount"], path, sum(chunk.null_count for chunk in chunks))
        bounded = [chunk for chunk in chunks if chunk.has_min_max]
        if not bounded or any(not chunk.has_min_max and chunk.num_values > 0 for chunk in chunks):
            continue
        is_utc = "isAdjustedToUTC=true" in str(parquet.schema.column(index).logical_type)
        try:
            lower = _text(min(chunk.min for chunk in bounded), is_utc, up=False)
            upper = _text(max(chunk.max for chunk in bounded), is_utc, up=True)
        except (OverflowError, ValueError):  # Python's datetime lacks the year
            continue
        if lower is not None and upper is not None:
            _put(stats["minValues"], path, lower)
            _put(stats["maxValues"], path, upper)
    return json.dumps(stats, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _leaves(parquet: Any, without: frozenset[str]) -> Iterator[tuple[list[str], int]]:
    """
    Yield path and index of each column with statistics, among the first 32 leaf columns.

    Columns inside arrays and maps, and INT96 columns, have no statistics. If any name contains a dot, paths are ambiguous and no column has statistics.
    """
    schema = parquet.schema.to_arrow_schema()
    if any("." in name for name in _names(schema)):
        return
    for index in range(min(len(parquet.schema.names), _COLUMNS)):
        column = parquet.schema.column(index)
        path = column.path.split(".")
        if column.max_repetition_level == 0 and path[0] not in without and column.physical_type != "INT96":
            yield path, index


def _names(fields: Any) -> Iterator[str]:
    for field in fields:
        yield field.name
        if hasattr(field.type, "fields"):
            yield from _names(field.type.fields)


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _text(value: Any, is_utc: bool, *, up: bool) -> Any:
    """
    Return a bound as a JSON value; ``None`` if JSON has no exact form for it.

    :param up: whether to round a timestamp up, as for an upper bound
    """
    if isinstance(value, (bool, bytes)):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else None
    if isinstance(value, float):
        return None  # some readers order NaN above all numbers, and only some writers exclude it from footers
    if isinstance(value, Decimal):
        return float(value) if Decimal(repr(float(value))) == value else None
    if isinstance(value, datetime):
        rest = value.microsecond % 1000
        rounded = value - timedelta(microseconds=rest) + timedelta(milliseconds=1 if up and rest else 0)
        return rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if is_utc else "")
    if isinstance(value, date):
        return value.isoformat()
    return None
