"""
Removes the changes of a batch that are older than a tombstone, or than the row of the table.

Imports pyarrow, so only sinks import this module, when they publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from airflow_provider_streamsem.connectors.changes import CHANGE, DELETE, TRUNCATE, UPSERT, Changes
from airflow_provider_streamsem.connectors.data_files.contents import row_texts
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.current_tombstones import RESTORE_TOMBSTONES
from airflow_provider_streamsem.errors import PublishError
from airflow_provider_streamsem.state.layers import STATE
from airflow_provider_streamsem.stores.dataset import open_dataset


def tombstones(batch: SinkCommit) -> list[Any]:
    """Return the tombstones after the batch: pyarrow tables with the columns of ``keys`` and ``sequence_by``."""
    if not batch.tombstones:
        return []
    tables = []
    assert batch.log is not None  # a batch with tombstones is that of a log
    store = open_dataset(f"{batch.log.store.url.rstrip('/')}/{STATE}")
    for file in batch.tombstones:
        data = store.read(file.key)
        if data is None or len(data) != file.bytes:
            summary = "a file with tombstones is missing or was changed; nothing of the batch is in the table"
            where = {"sink": batch.sink, "version": batch.version, "file": f"{STATE}/{file.key}"}
            raise PublishError(summary, **where).advising(RESTORE_TOMBSTONES)
        tables.append(pyarrow.parquet.read_table(pa.BufferReader(data), page_checksum_verification=True))
    return tables


Selection = Callable[[Any], Any]
"""Returns a mask of the rows of a pyarrow table."""


@dataclass(frozen=True, slots=True)
class Applied:
    """
    The changes of a batch that apply to a table.

    :param rows: pyarrow table with the columns of the table and :data:`CHANGE`: one row for each key that the batch upserts or deletes
    :param truncate: pyarrow table with one row: rows of the table with a smaller sequence are deleted. ``None`` if there is no truncate
    """

    rows: Any
    truncate: Any
    changes: Changes

    @classmethod
    def of(cls, rows: Any, stored: Iterable[Any], changes: Changes) -> Applied:
        """Return the changes that are not before a stored tombstone. ``rows`` has one row for each key, and at most one truncate."""
        is_truncate = pc.equal(rows[CHANGE], TRUNCATE)
        truncate = rows.filter(is_truncate)
        applied = cls(rows.filter(pc.invert(is_truncate)), truncate if truncate.num_rows else None, changes)
        for part in stored:
            applied = applied._after_truncates(_without_key(part, changes)).without_older_than([part])
        return applied._after_truncates(truncate)

    def without_older_than(self, others: Iterable[Any]) -> Applied:
        """
        Return the changes that are not older than another row with the same keys.

        :param others: pyarrow tables with the columns of ``keys`` and ``sequence_by``: rows of the table, or tombstones
        """
        applies = np.ones(self.rows.num_rows, bool)
        kinds, texts = None, None
        for other in others:
            common = _common(self.rows, other, self.changes.keys)
            if kinds != common:  # in most cases only for the first table
                kinds, texts = common, row_texts(self.rows, common)
            at = pc.index_in(row_texts(other, kinds), value_set=texts)
            found = at.is_valid()
            is_before = self._precedes(self.rows.take(at.filter(found)), other.filter(found))
            applies[at.filter(found).filter(is_before).to_numpy(zero_copy_only=False)] = False
        return replace(self, rows=self.rows.filter(pa.array(applies)))

    def or_truncated(self, selection: Selection) -> Selection:
        """Return a selection that also selects the rows that the truncate deletes."""
        return lambda part: pc.or_(selection(part), self._is_truncated(part))

    @property
    def upserts(self) -> Any:
        """The rows to insert or to replace, with the columns of the table."""
        return self.rows.filter(pc.equal(self.rows[CHANGE], UPSERT)).drop_columns([CHANGE])

    def _is_truncated(self, part: Any) -> Any:
        if self.truncate is None:
            return _all(part, value=False)
        return self._precedes(part, _repeated(self.truncate, part.num_rows))

    @property
    def deletes(self) -> Any:
        """The rows with the keys to delete."""
        return self.rows.filter(pc.equal(self.rows[CHANGE], DELETE))

    def _after_truncates(self, truncates: Any) -> Applied:
        applied = self
        for at in range(truncates.num_rows):
            truncate = _repeated(truncates.slice(at, 1), applied.rows.num_rows)
            is_before = applied._precedes(applied.rows, truncate)
            applied = replace(applied, rows=applied.rows.filter(pc.invert(is_before)))
        return applied

    def _precedes(self, rows: Any, others: Any) -> Any:
        """Compare sequences row by row. A null, and a column that a table lacks, is before every value."""
        is_before, are_equal = _all(rows, value=False), _all(rows, value=True)
        for field in _common(rows, others, self.changes.sequence_by):
            mine, theirs = (_column(part, field.name, field.type) for part in (rows, others))
            is_less = pc.or_(pc.fill_null(pc.less(mine, theirs), False), pc.and_(mine.is_null(), theirs.is_valid()))
            is_equal = equal_or_null(mine, theirs)
            is_before = pc.or_(is_before, pc.and_(are_equal, is_less))
            are_equal = pc.and_(are_equal, is_equal)
        return is_before


def equal_or_null(one: Any, other: Any) -> Any:
    """Compare two arrays. Two nulls are equal."""
    return pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(one.is_null(), other.is_null()))


def _common(rows: Any, others: Any, names: Sequence[str]) -> pa.Schema:
    """Return for each column the type that holds the values of both tables. Types differ if a column was widened."""
    schemas = [
        pa.schema([part.schema.field(name) for name in names if name in part.schema.names]) for part in (rows, others)
    ]
    common = pa.unify_schemas([schema.remove_metadata() for schema in schemas], promote_options="permissive")
    return pa.schema([common.field(name) for name in names if name in common.names])


def _column(rows: Any, name: str, kind: Any) -> Any:
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, kind)
    return rows[name].combine_chunks().cast(kind)


def _all(rows: Any, *, value: bool) -> Any:
    return pa.repeat(pa.scalar(value), rows.num_rows)


def _repeated(row: Any, times: int) -> Any:
    return row.take(pa.repeat(pa.scalar(0), times))


def _without_key(tombstones: Any, changes: Changes) -> Any:
    """Return the tombstones of truncates. Each other one has a value in every column of the key."""
    return tombstones.filter(pc.is_null(tombstones[changes.keys[0]]))
