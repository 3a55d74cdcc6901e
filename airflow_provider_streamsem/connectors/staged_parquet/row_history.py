"""
Applies the changes of a batch to the history of rows in a table (SCD type 2): finds the versions that begin, end or disappear. Imports pyarrow, so only sinks
import this module, when they publish.

The table is the record of the changes so far: a version is an upsert at its ``__START_AT``, and its ``__END_AT`` is a delete unless another version begins
there. These changes, the tombstones and the changes of the batch, in the order of their sequences, give the new history. So the order of arrival has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_streamsem.connectors.changes import CHANGE, DELETE, END, START, UNCHANGED, UPSERT, Changes
from airflow_provider_streamsem.connectors.data_files.contents import row_texts
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet import partial_changes
from airflow_provider_streamsem.connectors.staged_parquet.changed_rows import Applied, equal_or_null

_OF_BATCH = "__streamsem_of_batch"


def applied(
    rows: Any,
    kinds: Any,
    existing: Callable[[Any, Any], Iterable[Any]],
    stored: Iterable[Any],
    batch: SinkCommit,
    changes: Changes,
) -> Applied:
    """
    Return the changes of the table: one for each version that begins, ends or disappears, identified by the columns ``keys`` and ``__START_AT``.

    :param rows: pyarrow table of the staged rows in order
    :param kinds: pyarrow schema of the columns of the key
    :param existing: returns the versions in the table of the keys of some rows that end at a sequence, given as a pyarrow scalar, or later, or are current. It
        may return others too: pyarrow tables with the columns of :meth:`Changes.history_columns`
    :param stored: the tombstones after the batch: pyarrow tables with the columns of ``keys`` and ``sequence_by``
    :raises PublishError: a column is unchanged, but there is no earlier version of the row
    """
    sequence = changes.sequence_by[0]
    texts = row_texts(rows, kinds)
    known, least = texts.unique(), pc.min(rows[sequence])
    found = [_relevant(part, kinds, known, least, changes) for part in existing(rows, least)]
    in_table = _together([part for part in found if part.num_rows])
    if in_table.num_rows and len(row_texts(in_table, _row_kinds(in_table, kinds)).unique()) < in_table.num_rows:
        partial_changes.refuse_repeated(batch)
    deleted = [part.filter(pc.is_in(row_texts(part, kinds), value_set=known)) for part in stored]
    events = _Events.of(rows, in_table, deleted, kinds, changes).in_order()
    versions = events.with_kept_values(batch).versions()
    return Applied(_differences(versions, in_table, kinds, changes), None, changes)


@dataclass(frozen=True, slots=True)
class _Events:
    """
    Upserts and deletes of rows.

    :param keys: numpy array: the number of the key of each change
    :param sequences: pyarrow array
    :param origins: numpy array: the position in ``values`` of the values of an upsert; -1 for a delete
    :param values: pyarrow table with the columns of the table, and :data:`_OF_BATCH`
    :param kept: column → numpy array: whether a row of ``values`` leaves the column unchanged
    """

    keys: Any
    sequences: Any
    origins: Any
    values: Any
    kept: dict[str, Any]
    changes: Changes

    @classmethod
    def of(cls, rows: Any, in_table: Any, deleted: Sequence[Any], kinds: Any, changes: Changes) -> _Events:
        """Of changes with equal keys and sequences, the last one counts: tombstones come first, then the table, then the batch."""
        sequence = changes.sequence_by[0]
        marks = [name for name in (CHANGE, UNCHANGED) if name in rows.schema.names]
        is_delete = pc.equal(rows[CHANGE], DELETE).to_numpy(zero_copy_only=False)
        of_batch = rows.drop_columns(marks).append_column(_OF_BATCH, pa.repeat(pa.scalar(True), rows.num_rows))
        count = in_table.num_rows
        parts: list[tuple[Any, str, Any]] = [(part, sequence, np.full(part.num_rows, -1)) for part in deleted]
        values = of_batch
        if count:
            ended = in_table.filter(in_table[END].is_valid())
            parts += [(ended, END, np.full(ended.num_rows, -1)), (in_table, START, np.arange(count))]
            if changes.joins_versions:  # a version may hold several changes, of which the first and the last are known
                is_known = _has_newest(in_table, sequence)
                parts.append((in_table.filter(is_known), sequence, np.flatnonzero(is_known)))
            own = in_table.append_column(_OF_BATCH, pa.repeat(pa.scalar(False), count))
            values = pa.concat_tables([own, of_batch], promote_options="permissive")
        parts.append((rows, sequence, np.where(is_delete, -1, np.arange(count, count + rows.num_rows))))
        sequences = pa.concat_tables(
            [pa.table({"s": part[name]}) for part, name, _ in parts], promote_options="permissive"
        )
        keys = pa.concat_arrays([row_texts(part, kinds) for part, _, _ in parts]).dictionary_encode().indices
        unchanged = rows[UNCHANGED].combine_chunks() if UNCHANGED in rows.schema.names else None
        return cls(
            keys.to_numpy(),
            sequences["s"].combine_chunks(),
            np.concatenate([origins for _, _, origins in parts]),
            values,
            {} if unchanged is None else _kept(unchanged, count),
            changes,
        )

    def in_order(self) -> _Events:
        """Sort by key and sequence, and keep the last change of each pair."""
        has_sequence = self.sequences.is_valid().cast(pa.uint8())  # a null is before every value
        columns = {"key": self.keys, "has": has_sequence, "sequence": self.sequences, "at": np.arange(len(self.keys))}
        order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
        ordered = self._taken(order.to_numpy())
        is_repeated = ~_is_first(ordered.keys)
        is_repeated[1:] &= _equal(ordered.sequences[1:], ordered.sequences[:-1])
        is_last = np.append(~is_repeated[1:], True)
        return ordered._taken(np.flatnonzero(is_last))

    def with_kept_values(self, batch: SinkCommit) -> _Events:
        """Return upserts that have the values of the change before them for the columns that they leave unchanged."""
        if not self.kept:
            return self
        at, is_delete = np.arange(len(self.keys)), self.origins < 0
        begins = _is_first(self.keys) | is_delete
        values, unknown = self.values.take(pa.array(self.origins, mask=is_delete)), []
        for name, kept in self.kept.items():
            is_kept = ~is_delete & kept[self.origins]
            source = np.maximum.accumulate(np.where(~is_kept | begins, at, 0))
            is_unknown = ~is_delete & (is_delete | is_kept)[source]
            unknown += [name] if is_unknown.any() else []
            column = values[name].take(pa.array(source, mask=is_unknown))
            values = values.set_column(values.schema.get_field_index(name), name, column)
        partial_changes.refuse_unknown(sorted(unknown), batch, self.changes)
        return _Events(self.keys, self.sequences, np.where(is_delete, -1, at), values, {}, self.changes)

    def versions(self) -> Any:
        """Return the row versions: a pyarrow table like ``values``, with the columns of ``sequence_by``, :data:`START` and :data:`END` set."""
        sequence = self.changes.sequence_by[0]
        is_upsert, first = self.origins >= 0, _is_first(self.keys)
        begins = is_upsert & (first | ~np.append(False, is_upsert[:-1]) | self._differs_from_previous())
        starts = np.flatnonzero(begins)
        run = np.cumsum(begins) - 1
        upserts = np.flatnonzero(is_upsert)
        lasts = upserts[np.flatnonzero(np.append(run[upserts][1:] != run[upserts][:-1], True))] if len(upserts) else upserts  # fmt: skip
        has_next = np.append(~first[1:], False)[lasts]
        result = self.values.take(pa.array(self.origins[lasts]))
        of_batch = np.zeros(len(self.keys), bool)
        of_batch[upserts] = self.values[_OF_BATCH].to_numpy()[self.origins[upserts]]
        if self.changes.joins_versions:
            result = _set(result, sequence, self.sequences.take(pa.array(lasts)))
        result = _set(result, _OF_BATCH, pa.array(np.maximum.reduceat(of_batch, starts)))
        result = _set(result, START, self.sequences.take(pa.array(starts)))
        return _set(result, END, self.sequences.take(pa.array(lasts + 1, mask=~has_next)))

    def _differs_from_previous(self) -> Any:
        """Whether an upsert begins a new version. Every one does, unless versions are joined."""
        if not self.changes.joins_versions:
            return np.ones(len(self.keys), bool)
        names = self.changes.tracked([name for name in self.values.schema.names if name != _OF_BATCH])
        schema = pa.schema([self.values.schema.field(name) for name in names])
        values = self.values
        for at, field in enumerate(values.schema):
            if pa.types.is_floating(field.type):  # Spark compares -0.0 and 0.0 as equal
                values = values.set_column(at, field.name, pc.add(values[field.name], pa.scalar(0, field.type)))
        texts = row_texts(values, schema).take(pa.array(self.origins, mask=self.origins < 0))
        return np.append(True, ~_equal(texts[1:], texts[:-1]))

    def _taken(self, at: Any) -> _Events:
        sequences = self.sequences.take(pa.array(at))
        return _Events(self.keys[at], sequences, self.origins[at], self.values, self.kept, self.changes)


def _relevant(part: Any, kinds: Any, known: Any, least: Any, changes: Changes) -> Any:
    """
    Select the row versions that the batch may affect: those that are current, or that end at or after its first change.

    A file may lack columns that were added to the table later.
    """
    for name in {*changes.required, START, END} - {*part.schema.names}:
        kind = kinds.field(name).type if name in kinds.names else least.type
        part = part.append_column(name, pa.nulls(part.num_rows, kind))
    is_late = pc.fill_null(pc.greater_equal(part[END], least), True)
    return part.filter(pc.and_(pc.is_in(row_texts(part, kinds), value_set=known), is_late))


def _row_kinds(versions: Any, kinds: Any) -> Any:
    return pa.schema([*kinds, versions.schema.field(START)])


def _has_newest(versions: Any, sequence: str) -> Any:
    """Whether the sequence of a row version is that of a change in it. Rows of other writers may have another value."""
    newest, start, end = versions[sequence], versions[START], versions[END]
    is_after = pc.fill_null(pc.greater_equal(newest, start), True)
    is_before = pc.fill_null(pc.less(newest, end), True)
    return pc.and_(newest.is_valid(), pc.and_(is_after, is_before)).to_numpy()


def _together(parts: Sequence[Any]) -> Any:
    return pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})


def _kept(unchanged: Any, before: int) -> dict[str, Any]:
    """Return column → whether each row leaves it unchanged. ``before`` rows of the table precede the rows of the batch."""
    parents = pc.list_parent_indices(unchanged).to_numpy()
    names = pc.list_flatten(unchanged)
    kept = {}
    for name in names.unique().to_pylist():
        kept[name] = np.zeros(before + len(unchanged), bool)
        kept[name][before + parents[pc.equal(names, name).to_numpy(zero_copy_only=False)]] = True
    return kept


def _is_first(keys: Any) -> Any:
    return np.append(True, keys[1:] != keys[:-1])[: len(keys)]


def _equal(one: Any, other: Any) -> Any:
    return equal_or_null(one, other).to_numpy(zero_copy_only=False)


def _set(table: Any, name: str, values: Any) -> Any:
    at = table.schema.get_field_index(name)
    return table.append_column(name, values) if at < 0 else table.set_column(at, name, values)


def _differences(versions: Any, in_table: Any, kinds: Any, changes: Changes) -> Any:
    """
    Return the upserts and deletes that make the versions of the table equal to ``versions``.

    If only the end of a row version changes, and its values were not read, the upsert leaves all of them unchanged.
    """
    of_batch = versions[_OF_BATCH].to_numpy()
    versions = versions.drop_columns([_OF_BATCH])
    if not in_table.num_rows:
        return versions.append_column(CHANGE, pa.repeat(pa.scalar(UPSERT), versions.num_rows))
    row_kinds = _row_kinds(versions, kinds)
    texts, old = row_texts(versions, row_kinds), row_texts(in_table, row_kinds)
    at = pc.index_in(texts, value_set=old)
    is_same = at.is_valid().to_numpy(zero_copy_only=False) & ~of_batch
    compared = [END, *changes.sequence_by]
    previous = in_table.select(compared).take(at)
    differs = np.zeros(versions.num_rows, bool)
    for name in compared:
        kind = versions.schema.field(name).type
        differs |= ~_equal(versions[name].combine_chunks(), previous[name].combine_chunks().cast(kind))
    changed = versions.filter(pa.array(~is_same | differs))
    upserts = changed.append_column(CHANGE, pa.repeat(pa.scalar(UPSERT), changed.num_rows))
    names = changes.values(versions.schema.names)
    if not {*names} <= {*in_table.schema.names}:
        kept = [names if ended else None for ended in is_same[~is_same | differs].tolist()]
        upserts = upserts.append_column(UNCHANGED, pa.array(kept, pa.list_(pa.string())))
    gone = in_table.filter(pc.invert(pc.is_in(old, value_set=texts)))
    deletes = gone.select(row_kinds.names).append_column(CHANGE, pa.repeat(pa.scalar(DELETE), gone.num_rows))
    return pa.concat_tables([upserts, deletes], promote_options="permissive")
