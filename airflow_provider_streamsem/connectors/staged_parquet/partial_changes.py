"""
Merges the changes of a row, of which some leave columns unchanged, into one change. Imports pyarrow, so only sinks import this module, when they publish.

The row of the table is part of the merge: a change that is older than it is already in it, or was dropped as late. So only the publisher can merge the changes,
and not the process that stages them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_streamsem.connectors.changes import CHANGE, DELETE, TRUNCATE, UNCHANGED, Changes
from airflow_provider_streamsem.connectors.data_files.contents import row_texts
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import last_of_each
from airflow_provider_streamsem.errors import PublishError

_Sequence = tuple[tuple[bool, Any], ...]
_IN_TABLE = -1
"""Stands for the row of the table as the origin of a value."""


def merged(
    rows: Any,
    kinds: Any,
    existing: Callable[[Any], Iterable[Any]],
    stored: Iterable[Any],
    batch: SinkCommit,
    changes: Changes,
) -> Any:
    """
    Return one row for each key, and the truncate with the greatest sequence: the last change, with the values of the changes before it. If ``rows`` have the
    column :data:`UNCHANGED`, it then has the columns that keep their values in the table; null if there are none.

    :param rows: pyarrow table of the staged rows in order
    :param kinds: pyarrow schema of the columns of the key
    :param existing: returns the rows of the table with the keys of some rows, and perhaps others, as pyarrow tables with the columns of ``keys`` and
        ``sequence_by``
    :param stored: the tombstones after the batch, as such tables
    :raises PublishError: a column is unchanged, but there is no row with the key
    """
    last = last_of_each(rows, changes.keys)
    if UNCHANGED not in rows.schema.names:
        return last
    texts = row_texts(rows, kinds)
    keys = texts.filter(rows[UNCHANGED].combine_chunks().is_valid())
    if not len(keys):
        return last
    partial = rows.filter(pc.is_in(texts, value_set=keys))
    states = _States(partial, kinds, changes)
    states.take_tombstones(stored)
    states.take_existing(existing(partial))
    states.take_truncates(rows)
    complete = last.filter(pc.invert(pc.is_in(row_texts(last, kinds), value_set=keys)))
    return pa.concat_tables([complete, states.merged(batch)])


def kept_columns(rows: Any) -> list[str]:
    """Return the columns of which some upsert keeps the value in the table. Rows without the column :data:`UNCHANGED` set all values."""
    if UNCHANGED not in rows.schema.names:
        return []
    kept = rows[UNCHANGED].combine_chunks()
    return sorted({name for names in kept.to_pylist() if names is not None for name in names})


def with_kept_values(rows: Any, replaced: Any, kinds: Any) -> Any:
    """
    Return upserts with the values of the columns that keep them, and without the column :data:`UNCHANGED`.

    :param replaced: pyarrow table of the rows of the table with the keys of ``rows`` and all columns
    """
    if UNCHANGED not in rows.schema.names:
        return rows
    kept, own = rows[UNCHANGED].to_pylist(), row_texts(rows, kinds)
    at = pc.index_in(own, value_set=row_texts(replaced, kinds)).to_pylist()
    rows = rows.drop_columns([UNCHANGED])
    for number, field in enumerate(rows.schema):
        is_kept = [names is not None and field.name in names for names in kept]
        if not any(is_kept):
            continue
        columns = [part.select([field.name]) for part in (rows, replaced) if field.name in part.schema.names]
        both = pa.concat_tables(columns, promote_options="permissive")[field.name]
        origin = [
            n if not keep else None if found is None or len(columns) < 2 else rows.num_rows + found
            for n, (keep, found) in enumerate(zip(is_kept, at, strict=True))
        ]
        rows = rows.set_column(number, field.name, both.take(pa.array(origin, pa.int64())))
    return rows


def refuse_unknown(columns: Sequence[str], batch: SinkCommit, changes: Changes) -> None:
    """Refuse upserts that leave these columns unchanged although there is no row with their key, unless ``changes`` accept them."""
    if not columns or not changes.refuses_unknown:
        return
    summary = (
        "changes have no values for columns of rows that are not in the table; nothing of the batch is in the table"
    )
    raise PublishError(summary, sink=batch.sink, version=batch.version, columns=columns).advising(
        'set unknown_values="null" of changes, then run again: these columns are null until a later change sets them. To get the values, let the database log '
        "them (Postgres: ALTER TABLE ... REPLICA IDENTITY FULL), and take a snapshot of the table again."
    )


def refuse_repeated(batch: SinkCommit) -> NoReturn:
    """Refuse a table in which a row version is not identified by its keys and its begin."""
    summary = "the table has several rows with equal keys and equal __START_AT, so its history is ambiguous; nothing of the batch is in the table"
    raise PublishError(summary, sink=batch.sink, version=batch.version).advising(
        "delete all but one of these rows with your own SQL, then run again."
    )


class _States:
    """The changes of the keys of which some leave columns unchanged, and what they are compared with."""

    def __init__(self, rows: Any, kinds: Any, changes: Changes) -> None:
        self._rows, self._kinds, self._changes = rows, kinds, changes
        self._sequences = _sequences(rows, changes)
        self._of_key: dict[bytes, list[int]] = {}
        for at, text in enumerate(row_texts(rows, kinds).to_pylist()):
            self._of_key.setdefault(text, []).append(at)
        self._deleted: dict[bytes, _Sequence] = {}
        self._existing: dict[bytes, _Sequence] = {}
        self._truncated: list[_Sequence] = []
        self._truncated_now: list[_Sequence] = []

    def take_tombstones(self, tombstones: Iterable[Any]) -> None:
        for table in tombstones:
            has_key = table[self._changes.keys[0]].is_valid()
            self._truncated += _sequences(table.filter(pc.invert(has_key)), self._changes)
            for text, sequence in self._keyed(table.filter(has_key)):
                self._deleted[text] = max(self._deleted.get(text, sequence), sequence)

    def take_existing(self, existing: Iterable[Any]) -> None:
        for part in existing:
            self._existing |= dict(self._keyed(part))

    def take_truncates(self, rows: Any) -> None:
        """Take the truncates of the batch, which also delete the rows of the table."""
        self._truncated_now = _sequences(rows.filter(pc.equal(rows[CHANGE], TRUNCATE)), self._changes)

    def _keyed(self, table: Any) -> list[tuple[bytes, _Sequence]]:
        known = pa.array([*self._of_key], pa.binary())
        texts = row_texts(table, self._kinds)
        is_known = pc.is_in(texts, value_set=known)
        found = _sequences(table.filter(is_known), self._changes)
        return [*zip(texts.filter(is_known).to_pylist(), found, strict=True)]

    def merged(self, batch: SinkCommit) -> Any:
        names = [name for name in self._rows.schema.names if name not in (CHANGE, UNCHANGED, *self._changes.required)]
        kinds, unchanged = self._rows[CHANGE].to_pylist(), self._rows[UNCHANGED].to_pylist()
        last: list[int] = []
        origins: list[Mapping[str, int | None]] = []
        for text, positions in self._of_key.items():
            at, origin = self._merge(text, positions, names, kinds, unchanged)
            last.append(at)
            origins.append(origin)
        unknown = sorted({name for origin in origins for name, from_ in origin.items() if from_ is None})
        refuse_unknown(unknown, batch, self._changes)
        result = self._rows.take(pa.array(last, pa.int64()))
        for name in names:
            values = [None if origin[name] in (None, _IN_TABLE) else origin[name] for origin in origins]
            column = self._rows[name].take(pa.array(values, pa.int64()))
            result = result.set_column(result.schema.get_field_index(name), self._rows.schema.field(name), column)
        kept = [[name for name, from_ in origin.items() if from_ == _IN_TABLE] or None for origin in origins]
        at = result.schema.get_field_index(UNCHANGED)
        field = self._rows.schema.field(UNCHANGED)
        return result.set_column(at, field, pa.array(kept, field.type))

    def _merge(
        self,
        text: bytes,
        positions: Sequence[int],
        names: Sequence[str],
        kinds: Sequence[str],
        unchanged: Sequence[Sequence[str] | None],
    ) -> tuple[int, Mapping[str, int | None]]:
        """Return the last change of a key, and the origin of each value: a position, :data:`_IN_TABLE`, or ``None`` if it is not known."""
        in_table = self._existing.get(text)
        if in_table is not None and any(in_table < truncated for truncated in self._truncated_now):
            in_table = None
        bounds = [*self._truncated, *self._truncated_now]
        bounds += [part for part in (self._deleted.get(text), in_table) if part is not None]
        applicable = [at for at in positions if all(self._sequences[at] >= bound for bound in bounds)]
        last = applicable[-1] if applicable else positions[-1]
        if not applicable or kinds[last] == DELETE:  # without effect, or without values
            return last, dict.fromkeys(names, last)
        origin: dict[str, int | None] = dict.fromkeys(names, None if in_table is None else _IN_TABLE)
        for at in applicable:
            if kinds[at] == DELETE:
                origin = dict.fromkeys(names)
            else:
                kept = unchanged[at] or ()
                origin |= {name: at for name in names if name not in kept}
        return last, origin


def _sequences(rows: Any, changes: Changes) -> list[_Sequence]:
    """Return values that compare like the sequences. A null is before every value."""
    columns = [
        rows[name].to_pylist() if name in rows.schema.names else [None] * rows.num_rows for name in changes.sequence_by
    ]
    return [tuple((value is not None, value) for value in row) for row in zip(*columns, strict=True)]
