"""
The columns that Arrow's JSON reader reads, and their conversion to the columns of the schema. Executors run this module.

Dates, times and bytes are read as text, and everything else with the type of the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from airflow_provider_streamsem.connectors.parsing.exact.columns import ExactColumn
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings

_LONGEST = {8: 3, 16: 5, 32: 10, 64: 19}
"""bits of an integer type → digits of its largest number"""


def any_of(conditions: Sequence[pa.Array]) -> pa.Array | None:
    """Combine conditions with ``or``; ``None`` if there are none."""
    combined = None
    for condition in conditions:
        combined = condition if combined is None else pc.or_(combined, condition)
    return combined


class ReadColumn:
    """A column or a part of a nested one. ``read_as`` is the type for Arrow's reader, and ``is_usable`` whether it supports that type."""

    def __init__(self, kind: pa.DataType, settings: Settings) -> None:
        self._kind = kind
        self._convert: ExactColumn | None = None
        self._parts: list[ReadColumn] = []
        self.read_as = kind
        if is_.is_struct(kind):
            self._parts = [ReadColumn(field.type, settings) for field in kind]
            self.read_as = pa.struct([(f.name, part.read_as) for f, part in zip(kind, self._parts, strict=True)])
        elif is_.is_list(kind):
            self._parts = [ReadColumn(kind.value_type, settings)]
            self.read_as = pa.list_(self._parts[0].read_as)
        elif is_.is_date(kind) or is_.is_timestamp(kind) or is_.is_binary(kind):
            self._convert = ExactColumn(kind, settings)
            self.read_as = pa.string()
        self.is_usable: bool = not is_.is_map(kind) and all(part.is_usable for part in self._parts)
        has_required = is_.is_struct(kind) and any(not field.nullable for field in kind)
        self._is_converted: bool = (
            has_required or self._convert is not None or any(p._is_converted for p in self._parts)
        )

    def has_floats(self, bits: int) -> bool:
        own = is_.is_floating(self._kind) and self._kind.bit_width == bits
        return own or any(part.has_floats(bits) for part in self._parts)

    def has_zeros(self, values: pa.Array) -> bool:
        """Whether a float in the column is zero or infinite."""
        if is_.is_floating(self._kind):
            return bool(pc.any(pc.or_(pc.equal(values, 0.0), pc.is_inf(values))).as_py())
        if not (self.has_floats(32) or self.has_floats(64)):
            return False
        return any(part.has_zeros(inner) for part, inner in self._inner(values))

    def unusual(self, name: str) -> Iterator[str]:
        """Yield patterns of places where a value may not fit the column. They help to find what Arrow has refused."""
        if is_.is_struct(self._kind):
            for field, part in zip(self._kind, self._parts, strict=True):
                yield from part.unusual(field.name)
        elif not is_.is_list(self._kind):
            yield rf'"{re.escape(name)}"\s*:\s*(?:{"|".join(_unusual(self._kind))})'

    def _inner(self, values: pa.Array) -> Iterator[tuple[ReadColumn, pa.Array]]:
        arrays = values.flatten() if is_.is_struct(self._kind) else [values.flatten()]
        yield from zip(self._parts, arrays, strict=True)

    def converted(self, values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        """Return the column of the schema, and which of its values do not fit; ``None``: all fit."""
        if not self._is_converted:
            return values, None
        if is_.is_struct(self._kind):
            return self._struct(values)
        if is_.is_list(self._kind):
            return self._list(values)
        assert self._convert is not None
        found = self._convert(values)
        return found, None if found.null_count == values.null_count else pc.and_(found.is_null(), values.is_valid())

    def _struct(self, values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        arrays, unfit = [], []
        for field, (part, inner) in zip(self._kind, self._inner(values), strict=True):
            found, unfit_inside = part.converted(inner)
            arrays.append(found)
            unfit += [] if unfit_inside is None else [unfit_inside]
            if not field.nullable and found.null_count:
                unfit.append(pc.and_(found.is_null(), values.is_valid()))
        return pa.StructArray.from_arrays(arrays, fields=[*self._kind], mask=values.is_null()), any_of(unfit)

    def _list(self, values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        found, unfit = self._parts[0].converted(values.flatten())
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
        lists = pa.ListArray.from_arrays(offsets, found, type=self._kind, mask=values.is_null())
        if unfit is None:
            return lists, None
        rows = pc.list_parent_indices(values).filter(unfit)
        return lists, pc.is_in(pa.array(range(len(values)), rows.type), value_set=rows)


def _unusual(kind: pa.DataType) -> list[str]:
    """Patterns of the beginning of values that may not fit a type that is not nested."""
    if is_.is_integer(kind):
        return [r'["\[{tf]', r"-?[0-9]*[.eE]", rf"-?[0-9]{{{_LONGEST[kind.bit_width]}}}"]
    if is_.is_decimal(kind):
        whole, scale = kind.precision - kind.scale, kind.scale
        long = [rf"[0-9]*\.[0-9]{{{scale + 1}}}", rf"[0-9]{{{whole + 1}}}", r"[0-9.]*[eE]"]
        return [r"[\[{tf]", '"[^"]*[^0-9."]', rf'"?-?(?:{"|".join(long)})']
    if is_.is_floating(kind):
        return [r'["\[{tf]', r"[-0-9.]*[eE][+]?[0-9]{3}"]
    return [r'["\[{0-9-]'] if is_.is_boolean(kind) else [r"[\[{tf0-9-]"]
