"""
Compares rows by value, in any order, so that a library that rewrites rows cannot change one of them unnoticed.

Each row becomes a text that contains every value, null and nested value, as values of one schema. A hash of the text is summed over the rows. Imports pyarrow,
so only sinks import this module, when they rewrite rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_ROWS = 65_536
_SUMS = 2**128
_NULL = pa.scalar(b"~", pa.large_binary())
_NOTHING = pa.scalar(b"", pa.large_binary())
_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


@dataclass(frozen=True, slots=True)
class Contents:
    """The number of rows of tables, and the sum of the hashes of the rows, which does not depend on their order."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: Contents) -> Contents:
        return Contents(self.rows + other.rows, (self.digest + other.digest) % _SUMS)


def contents(tables: Iterable[Any], schema: pa.Schema) -> Contents:
    """A column or struct field that a table lacks counts as null. Values of a narrower type equal those of the wider type of ``schema``."""
    total = Contents()
    for table in tables:
        for start in range(0, table.num_rows, _ROWS):
            texts = row_texts(table.slice(start, _ROWS), schema)
            digest = sum(int.from_bytes(blake2b(text, digest_size=16).digest()) for text in texts.to_pylist())
            total += Contents(len(texts), digest % _SUMS)
    return total


def changed_columns(before: Callable[[], Iterable[Any]], after: Callable[[], Iterable[Any]], schema: pa.Schema) -> list[str]:  # fmt: skip
    """Return the columns whose values differ. Empty if only the combination of values in rows differs."""
    return [
        field.name
        for field in schema
        if contents(before(), pa.schema([field])) != contents(after(), pa.schema([field]))
    ]


def row_texts(table: Any, schema: pa.Schema) -> Any:
    """Return one binary text for each row, as an array. Two rows have the same text only if all values are the same."""
    texts = []
    for field in schema:
        column = table[field.name] if field.name in table.schema.names else pa.nulls(table.num_rows)
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for array in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
            texts.append(_texts(array, field.type))
    return _joined(texts, table.num_rows)


def _joined(texts: list[Any], rows: int) -> Any:
    if not texts:
        return pa.repeat(_NOTHING, rows)
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, _NOTHING)


def _texts(values: Any, kind: Any) -> Any:
    """A text has a length, a count of parts or a terminator, so that adjacent texts cannot be confused. Only null begins with ``~``."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_null(values.type):
        return pa.repeat(_NULL, len(values))
    if pa.types.is_struct(kind):
        texts = _struct_texts(values, kind)
    elif pa.types.is_map(kind):
        keys, items, offsets = _texts(values.keys, kind.key_type), _texts(values.items, kind.item_type), values.offsets
        texts = _list_texts(pc.binary_join_element_wise(keys, items, _NOTHING), offsets)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
        texts = _list_texts(_texts(values.flatten(), kind.value_type), offsets)
    else:
        texts = _leaf_texts(values, kind)
    return pc.if_else(values.is_valid(), texts, _NULL)


def _struct_texts(values: Any, kind: Any) -> Any:
    names = [values.type.field(at).name for at in range(values.type.num_fields)]
    parts = []
    for at in range(kind.num_fields):
        field = kind.field(at)
        part = values.field(names.index(field.name)) if field.name in names else pa.nulls(len(values))
        parts.append(_texts(part, field.type))
    return _with_prefix(b"(", _joined(parts, len(values)))


def _list_texts(texts: Any, offsets: Any) -> Any:
    lists = pa.ListArray.from_arrays(pc.add(offsets.cast(pa.int32()), 0), texts)
    counts = pc.list_value_length(lists).cast(pa.large_string()).cast(pa.large_binary())
    joined = pc.binary_join(lists, _NOTHING)
    return pc.binary_join_element_wise(counts, joined, pa.scalar(b"[", pa.large_binary()))


def _leaf_texts(values: Any, kind: Any) -> Any:
    if _is_text(kind):
        raw = values.cast(pa.large_binary())
        lengths = pc.binary_length(raw).cast(pa.large_string()).cast(pa.large_binary())
        return pc.binary_join_element_wise(lengths, raw, pa.scalar(b":", pa.large_binary()))
    values = values.cast(kind)
    if pa.types.is_floating(kind):
        # Bits distinguish -0.0 from 0.0. All NaN are the same value, because no engine keeps their bits.
        nan = pc.is_nan(values)
        values = pc.if_else(nan, None, values.view(_BITS[kind.bit_width]))
        numbers = pc.if_else(nan, "NaN", values.cast(pa.large_string()))
    else:
        if pa.types.is_boolean(kind):
            values = values.cast(pa.int8())
        elif pa.types.is_temporal(kind):
            values = values.view(_BITS[kind.bit_width])
        numbers = values.cast(pa.large_string())
    return pc.binary_join_element_wise(numbers.cast(pa.large_binary()), _NOTHING, pa.scalar(b";", pa.large_binary()))


def _is_text(kind: Any) -> bool:
    types = pa.types
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(is_kind(kind) for is_kind in texts)


def _with_prefix(prefix: bytes, texts: Any) -> Any:
    return pc.binary_join_element_wise(pa.repeat(pa.scalar(prefix, pa.large_binary()), len(texts)), texts, _NOTHING)
