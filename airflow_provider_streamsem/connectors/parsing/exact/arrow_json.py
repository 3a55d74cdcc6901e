"""
Parses blocks of JSON texts into columns with Arrow's reader. Executors run this module.

:class:`ExactJson` defines what a record is, and which values it has. Arrow's reader is faster, and strict: it refuses a value that a column cannot hold, and
does not change it. This module gives to Arrow only what both parse alike. Arrow refuses a whole block, so this module finds the records that Arrow refused,
and the exact parser decides on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from airflow_provider_streamsem.connectors.parsing.exact.arrow_columns import ReadColumn, any_of
from airflow_provider_streamsem.connectors.parsing.exact.blocks import Block, in_order, is_utf8
from airflow_provider_streamsem.connectors.parsing.exact.json_records import DEEPEST, ExactJson, is_too_deep
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings

_ROW = re.compile(r" in row ([0-9]+)$")
_SPACE = " \t\r\n"
_DIFFERENT = {b"\0": r"\x00", b"NaN": r"[:\[,][ \t\r\n]*-?NaN", b"Inf": r"[:\[,][ \t\r\n]*-?Inf"}
"""
Bytes → pattern of texts. Arrow's reader takes a zero byte for the end of its input, and accepts NaN and infinite numbers.

A part of a block is searched for the bytes first, because that is fast.
"""
_SEVERAL = 16
"""If more than one record of so many is refused, all records of the block are parsed exactly."""
_FEW = 32
"""The maximum number of records that are parsed exactly without looking for those that Arrow refuses."""
_LONGEST_BLOCK = (1 << 31) - 2


class ArrowJson:
    """Parses blocks of texts; see :class:`ExactJson`. Arrow's reader allows no ``lenient`` syntax."""

    def __init__(self, schema: pa.Schema, settings: Settings, lenient: frozenset[str] = frozenset()) -> None:
        self._schema = schema
        self._exact = ExactJson(schema, settings, lenient)
        self._columns = [ReadColumn(field.type, settings) for field in schema]
        self._is_usable = not lenient and len(schema) > 0 and all(column.is_usable for column in self._columns)
        # Numbers that may be infinite or zero as a float, although the number in the text is neither.
        digits = 2 if any(column.has_floats(32) for column in self._columns) else 3
        self._far = rf"[eE][+-]?[0-9]{{{digits}}}|[0-9]{{30}}"
        self._unusual = "|".join(
            pattern
            for field, column in zip(schema, self._columns, strict=True)
            for pattern in column.unusual(field.name)
        )
        self._has_unusual = False
        fields = [pa.field(f.name, column.read_as) for f, column in zip(schema, self._columns, strict=True)]
        if self._is_usable:
            self._options = pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
            )

    def parse(self, texts: pa.StringArray) -> Block:
        is_text = is_utf8(texts)
        parts = []
        if self._is_usable:
            trimmed = pc.ascii_trim(texts, characters=_SPACE)
            rows = pc.indices_nonzero(_suited(trimmed, is_text))
            parts = [*self._read(trimmed if len(rows) == len(texts) else trimmed.take(rows), rows)]
        if sum(len(rows) for rows, _ in parts) < len(texts):
            rows = pc.indices_nonzero(_all_but(len(texts), [row for rows, _ in parts for row in rows.to_pylist()]))
            parts.append((rows, self._parsed_exactly(texts.take(rows), is_text.take(rows))))
        *columns, reasons = in_order(parts) if parts else self._parsed_exactly(texts, is_text)
        return Block(columns, reasons)

    def _parsed_exactly(self, texts: pa.StringArray, is_text: pa.BooleanArray) -> list[pa.Array]:
        """The columns of the schema and that of the reasons."""
        block = self._exact.parse(pc.if_else(is_text, texts, None).to_pylist())
        is_bad = pc.and_(pc.invert(is_text), texts.is_valid())
        return [*block.columns, pc.if_else(is_bad, pa.scalar("not UTF-8"), block.reasons)]

    def _read(self, texts: pa.StringArray, rows: pa.Array) -> Iterator[tuple[pa.Array, list[pa.Array]]]:
        """Yield the numbers of the rows that Arrow reads, and the columns of :meth:`_parsed_exactly`. ``texts`` begin and end with braces."""
        if self._has_unusual:
            texts, rows = self._usual(texts, rows)
        table, refused = self._first_reading(texts)
        if len(refused) == len(texts):
            return
        if table is None and not self._has_unusual:
            self._has_unusual = True
            texts, rows = self._usual(texts, rows)
            table, refused = self._first_reading(texts)
        if refused and len(refused) < len(texts):
            keep = _all_but(len(texts), refused)
            texts, rows = texts.filter(keep), rows.filter(keep)
            table, refused = self._first_reading(texts)
        if table is not None:
            yield self._checked(table, texts, rows)
        elif len(refused) < len(texts) > _FEW:
            middle = len(texts) // 2
            yield from self._read(texts.slice(0, middle), rows.slice(0, middle))
            yield from self._read(texts.slice(middle), rows.slice(middle))

    def _usual(self, texts: pa.StringArray, rows: pa.Array) -> tuple[pa.StringArray, pa.Array]:
        """Without a text in which a value may not fit, the next block is read without this search."""
        is_usual = pc.invert(pc.match_substring_regex(texts, self._unusual))
        self._has_unusual = not pc.all(is_usual, min_count=0).as_py()
        return (texts.filter(is_usual), rows.filter(is_usual)) if self._has_unusual else (texts, rows)

    def _first_reading(self, texts: pa.StringArray) -> tuple[pa.Table | None, list[int]]:
        """The table, if Arrow has read all texts; otherwise positions of texts that Arrow may have refused, if it says which."""
        joined = _joined(texts)
        starts: list[int] = []
        refused: list[int] = []
        begin = 0
        while begin < len(texts):
            data = joined if begin == 0 else joined.slice(starts[begin])
            try:
                table = self._table(data)
            except pa.ArrowInvalid as error:
                row = _ROW.search(str(error))
                if row is None:
                    return None, refused
                # The text after an object in the same line counts as the next row.
                at = min(begin + int(row[1]), len(texts) - 1)
                refused += [max(at - 1, begin), at]
                if len(refused) > _FEW and len(refused) * _SEVERAL > at:
                    return None, [*range(len(texts))]
                starts = starts or _starts(texts)
                begin = at + 1
                continue
            is_complete = not refused and table.num_rows == len(texts)
            return (table if is_complete else None), refused
        return None, refused

    def _table(self, data: pa.Buffer) -> pa.Table:
        options = pyarrow.json.ReadOptions(use_threads=False, block_size=min(data.size + 1, _LONGEST_BLOCK))
        return pyarrow.json.read_json(pa.BufferReader(data), options, self._options)

    def _checked(self, table: pa.Table, texts: pa.StringArray, rows: pa.Array) -> tuple[pa.Array, list[pa.Array]]:
        """Convert the columns, and leave out the records in which a value has not been converted or may differ from the text."""
        columns, doubts = [], []
        for field, column in zip(self._schema, self._columns, strict=True):
            values, doubt = column.converted(table.column(field.name).combine_chunks())
            columns.append(values)
            doubts += [] if doubt is None else [doubt]
            if not field.nullable and values.null_count:
                doubts.append(values.is_null())
        if any(column.has_zeros(values) for column, values in zip(self._columns, columns, strict=True)):
            doubts.append(pc.match_substring_regex(texts, self._far))
        doubt = any_of(doubts)
        if doubt is not None and pc.any(doubt).as_py():
            sure = pc.invert(doubt)
            rows, columns = rows.filter(sure), [column.filter(sure) for column in columns]
        return rows, [*columns, pa.nulls(len(rows), pa.string())]


def _suited(texts: pa.StringArray, is_text: pa.BooleanArray) -> pa.BooleanArray:
    """
    Each suited text begins with an opening and ends with a closing brace. So if Arrow reads as many objects as there are texts, each text is one object: an
    object cannot begin in one text and end in another, because a line break between two braces of one object is an error.
    """
    has_braces = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    suited = pc.and_(pc.fill_null(has_braces, False), is_text)
    lengths = pc.binary_length(texts)
    if pc.any(pc.greater(lengths, DEEPEST)).as_py():
        brackets = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
        many = pc.indices_nonzero(pc.and_(suited, pc.fill_null(pc.greater(brackets, DEEPEST), False)))
        deep = [row for row in many.to_pylist() if is_too_deep(texts[row].as_py())]
        if deep:
            suited = pc.and_(suited, _all_but(len(texts), deep))
    return _without(texts, suited)


def _without(texts: pa.StringArray, suited: pa.BooleanArray) -> pa.BooleanArray:
    """Leave out texts that Arrow's reader and the exact parser may read in different ways."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return suited
    ends = memoryview(offsets).cast("i")
    first, last = ends[texts.offset], ends[texts.offset + len(texts)]
    content = data.slice(first, last - first).to_pybytes()  # the texts may be a small part of a batch
    for part, pattern in _DIFFERENT.items():
        if part in content:
            suited = pc.and_(suited, pc.invert(pc.fill_null(pc.match_substring_regex(texts, pattern), True)))
    return suited


def _all_but(length: int, positions: Sequence[int]) -> pa.BooleanArray:
    return pc.invert(pc.is_in(pa.array(range(length), pa.int64()), value_set=pa.array(positions, pa.int64())))


def _joined(texts: pa.StringArray) -> pa.Buffer:
    lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts.cast(pa.binary()))
    return pc.binary_join(lines, pa.scalar(b"\n", pa.binary()))[0].as_buffer()


def _starts(texts: pa.StringArray) -> list[int]:
    starts, at = [], 0
    for length in pc.binary_length(texts).to_pylist():
        starts.append(at)
        at += length + 1
    return starts
