"""Parsed blocks of records, and how batches of Spark become blocks. Executors run this module."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_streamsem.connectors.python_worker import keep_import_caches

_BLOCK_BYTES = 1 << 22
"""Maximum size of the texts of a block. One longer text is a block."""
MANY = "*"
"""Stands for the checksums of a task that has more of them than it may return."""


@dataclass(frozen=True)
class Checksums:
    """A column ``name`` of the CRC-32 of the bytes of each bad text, separated by spaces; :data:`MANY` for more than ``most`` in a task."""

    name: str
    most: int


@dataclass(frozen=True)
class Block:
    """The records of a block of texts. A bad record may have values. ``reasons`` says why a text is not a record; null for a record."""

    columns: list[pa.Array]
    reasons: pa.Array


class Parser(Protocol):
    """Protocol of the parsers of texts."""

    def parse(self, texts: pa.StringArray) -> Block:
        """Return one row for each text. Texts may have bytes that are not UTF-8. A null has null columns and is not bad."""
        ...


def parsed_batches(
    batches: Iterator[pa.RecordBatch],
    *,
    parser_of: Callable[[], Parser],
    text: str,
    names: Sequence[str],
    masks: Mapping[str, Sequence[int]],
    checksums: Checksums | None = None,
) -> Iterator[pa.RecordBatch]:
    """
    Replace the column of texts by the columns of the records, which come first, and those of the reasons, the masks and the checksums, which come last.

    :param names: names of the columns of the records, and then that of the reasons
    :param masks: name of each mask → numbers of the columns of its bits. The first row of a block has the mask of the block, and the checksums
    """
    keep_import_caches()
    parser = parser_of()
    found = 0
    for batch in batches:
        at = batch.schema.get_field_index(text)
        kept = [n for n in range(batch.num_columns) if n != at]
        for start, stop in _blocks(batch.column(at)):
            part = batch.slice(start, stop - start)
            texts = part.column(at).cast(pa.string())
            block = parser.parse(texts)
            rows = len(block.reasons)
            facts = [_in_first_row(_mask(block, columns), rows, pa.int64()) for columns in masks.values()]
            if checksums is not None:
                sums = [] if found > checksums.most else _checksums(texts, block.reasons)
                found += len(sums)
                listed = " ".join(sums) if found <= checksums.most else MANY
                facts.append(_in_first_row(listed if sums else None, rows, pa.string()))
            columns = [*block.columns, *(part.column(n) for n in kept), block.reasons, *facts]
            kept_names = [batch.schema.names[n] for n in kept]
            names_of_facts = [*masks, *([] if checksums is None else [checksums.name])]
            yield pa.RecordBatch.from_arrays(columns, [*names[:-1], *kept_names, names[-1], *names_of_facts])


def _in_first_row(fact: int | str | None, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays([pa.array([fact][:rows], kind), pa.nulls(max(rows - 1, 0), kind)])


def _mask(block: Block, columns: Sequence[int]) -> int:
    is_record = block.reasons.is_null()  # a bad record may have values
    mask = 0
    for bit, column in enumerate(columns):
        is_present = pc.any(pc.and_(block.columns[column].is_valid(), is_record), min_count=0)
        mask |= int(is_present.as_py()) << bit
    return mask


def _checksums(texts: pa.StringArray, reasons: pa.StringArray) -> list[str]:
    return [str(zlib.crc32(text)) for text in texts.filter(reasons.is_valid()).cast(pa.binary()).to_pylist()]


def explained_batches(
    batches: Iterator[pa.RecordBatch], *, parser_of: Callable[[], Parser], text: str, reason: str, only_bad: bool
) -> Iterator[pa.RecordBatch]:
    """Add the column of the reasons to batches."""
    keep_import_caches()
    parser = parser_of()
    for batch in batches:
        at = batch.schema.get_field_index(text)
        for start, stop in _blocks(batch.column(at)):
            part = batch.slice(start, stop - start)
            reasons = parser.parse(part.column(at).cast(pa.string())).reasons
            explained = pa.RecordBatch.from_arrays([*part.columns, reasons], [*batch.schema.names, reason])
            yield explained.take(pc.indices_nonzero(reasons.is_valid())) if only_bad else explained


def _blocks(texts: pa.Array) -> Iterator[tuple[int, int]]:
    """The first row and the row after the last of each block."""
    if texts.nbytes <= _BLOCK_BYTES:
        yield 0, len(texts)
        return
    start = size = 0
    for row, length in enumerate(pc.binary_length(texts).to_pylist()):
        if size and size + (length or 0) > _BLOCK_BYTES:
            yield start, row
            start, size = row, 0
        size += length or 0
    yield start, len(texts)


def in_order(parts: Sequence[tuple[pa.Array, list[pa.Array]]]) -> list[pa.Array]:
    """Join parts of a block (numbers of their rows, and their columns), in the order of the rows."""
    if len(parts) == 1:
        return parts[0][1]
    order = pc.sort_indices(pa.concat_arrays([rows for rows, _ in parts]))
    return [pa.concat_arrays(of_parts).take(order) for of_parts in zip(*(columns for _, columns in parts), strict=True)]


def reason_of(unfit: Sequence[str] | None, missing: Sequence[str] | None) -> str:
    """``unfit`` columns cannot hold the value, and ``missing`` ones are required and have none."""
    reasons = (("values that do not fit", unfit), ("required values that are missing", missing))
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in reasons if names)


def is_utf8(texts: pa.StringArray) -> pa.BooleanArray:
    """Return whether each text is UTF-8. A null is none."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([_decodes(data) for data in texts.cast(pa.binary()).to_pylist()], pa.bool_())
    return texts.is_valid()


def _decodes(data: bytes | None) -> bool:
    try:
        return data is not None and bool(data.decode() or True)
    except UnicodeDecodeError:
        return False
