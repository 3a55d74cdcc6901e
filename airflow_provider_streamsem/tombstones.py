"""
Tombstones: the keys of all deletes that a sink with ``changes`` has received, each with the sequence of its newest delete. A truncate has no key. A sink that
keeps the history of rows has the sequences of all deletes, because each ends a version.

A batch stores the tombstones of its deletes as a layer (:mod:`airflow_provider_streamsem.state.layers`), in Parquet files with the columns of ``keys`` and
``sequence_by``. Its outcome names the layers. So a retry, a zombie or a crash neither loses nor adds a tombstone. Only engines import this module, because it
imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from airflow_provider_streamsem.connectors.changes import CHANGE, UPSERT, Changes
from airflow_provider_streamsem.connectors.files.layers import layers_dataset
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.connectors.staged_parquet.current_tombstones import (
    RESTORE_TOMBSTONES,
    current_tombstones,
    types_of,
)
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import last_of_each
from airflow_provider_streamsem.connectors.staged_parquet.sink import parquet_files
from airflow_provider_streamsem.errors import DataError, StageError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Committable, Json
from airflow_provider_streamsem.state.layers import (
    STATE,
    TOMBSTONES,
    Layer,
    Tombstones,
    split,
    tombstones_of,
    with_tombstones,
    with_written,
)
from airflow_provider_streamsem.stores.dataset import open_dataset


def state_after(
    state: Json,
    sinks: Mapping[str, Sink],
    staged: Mapping[str, Committable],
    schemas: Mapping[str, str],
    *,
    log: str,
    now_ms: int,
    version: int,
    attempt_id: str,
) -> Json:
    """
    Write the tombstones of a batch, and return the field ``state`` of its outcome with them.

    :param state: the field with the tombstones before the batch
    :param staged: sink → the staged rows
    :param schemas: sink → its columns, as schema JSON in Spark's form
    :param log: URL of the log
    :param now_ms: when the batch was planned, in milliseconds UTC
    """
    before = tombstones_of(state)
    after: dict[str, Tombstones] = {}
    for name, sink in sinks.items():
        if (changes := sink.changes) is None:
            continue
        types = types_of(schemas.get(name), changes)
        current = current_tombstones(name, before.get(name), changes, types, now_ms)
        layers: Sequence[Layer] = current.layers
        deleted = _deleted(sink.location, staged[name], changes)
        if deleted is not None:
            files = _Files(log, version, attempt_id)
            kept, older = split(layers, deleted.num_rows)
            compacted = _distinct if changes.keeps_history else _newest
            written = files.write(name, compacted([*files.read(older), deleted], changes))
            layers = with_written(kept, older, written, now_ms)
        after[name] = replace(current, layers=tuple(layers))
    return with_tombstones(state, after) if after or before else state


def count_selected(state: Json, predicate: Predicate, *, log: str) -> dict[str, int]:
    """Return sink → number of selected tombstones, for the sinks with any. Tombstones have the columns of the key only."""
    files = _Files(log, 0, "")
    counts = {
        sink: predicate.count(files.read(stored.layers))
        for sink, stored in tombstones_of(state).items()
        if {*predicate.columns} <= {*stored.keys}
    }
    return {sink: count for sink, count in counts.items() if count}


def without_selected(
    state: Json, sinks: Iterable[str], predicate: Predicate, *, log: str, version: int, attempt_id: str
) -> Json:
    """
    Write the tombstones of some sinks again, without the selected ones.

    :returns: the tombstones of all sinks, as in the field ``state`` of an outcome; ``None`` if there are no others
    """
    files, after = _Files(log, version, attempt_id), tombstones_of(state)
    for sink in sinks:
        stored = after[sink]
        kept = predicate.others(_together(files.read(stored.layers)))
        written = files.write(sink, kept) if kept.num_rows else None
        newest_ms = max(layer.newest_ms for layer in stored.layers)
        layers = () if written is None else (Layer(newest_ms=newest_ms, rows=written.rows, files=written.files),)
        after[sink] = replace(stored, layers=layers)
    return (with_tombstones(None, after) or {}).get(TOMBSTONES)


def _deleted(location: str, staged: Committable, changes: Changes) -> Any:
    """Return key and sequence of the deletes and truncates among the staged rows; ``None`` if there are none. A truncate has no key."""
    parts = []
    for parquet in parquet_files(location, staged):
        rows = parquet.read(columns=[*changes.required, CHANGE])
        parts.append(rows.filter(pc.not_equal(rows[CHANGE], UPSERT)).select(changes.required))
    deleted = pa.concat_tables(parts) if parts else None
    return deleted if deleted is not None and deleted.num_rows else None


def _together(parts: Sequence[Any]) -> Any:
    """An older layer may have narrower types."""
    schema = pa.schema([field.with_nullable(True) for field in parts[-1].schema.remove_metadata()])
    return pa.concat_tables([part.cast(schema) for part in parts])


def _distinct(parts: Sequence[Any], changes: Changes) -> Any:
    """Return each row once."""
    return last_of_each(_together(parts), changes.required)


def _newest(parts: Sequence[Any], changes: Changes) -> Any:
    """Return the row with the greatest sequence of each key."""
    rows = _together(parts)
    keys = [f"k{number}" for number in range(len(changes.keys))]
    sequence = [f"s{number}" for number in range(len(changes.sequence_by))]
    named = rows.rename_columns([*keys, *sequence])  # a user's column may have any name
    order = pc.sort_indices(named, [(name, "ascending") for name in sequence])
    numbered = named.select(keys).take(order).append_column("at", pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(keys).aggregate([("at", "max")])["at_max"]
    return rows.take(order.take(last))


class _Files:
    """The files of layers of tombstones of one attempt."""

    def __init__(self, log: str, version: int, attempt_id: str) -> None:
        self._dataset = layers_dataset(log)
        self._store = open_dataset(self._dataset.location)
        self._version, self._attempt_id = version, attempt_id

    def read(self, layers: Sequence[Layer]) -> list[Any]:
        return [self._table(file.key) for layer in layers for file in layer.files]

    def write(self, sink: str, rows: Any) -> Committable:
        """Write a file, and read it back."""
        name = f"tombstones-{sink}.parquet"
        out = pa.BufferOutputStream()
        pyarrow.parquet.write_table(rows, out, compression="zstd", write_page_checksum=True)
        key = keys.data_prefix(self._version, self._attempt_id) + name
        self._store.create(key, out.getvalue().to_pybytes())
        if not self._table(key).equals(rows):
            summary = "a file with tombstones differs from what was written; nothing became visible"
            raise StageError(summary, version=self._version, file=key)
        return self._dataset.collect(self._version, self._attempt_id, frozenset([name]))

    def _table(self, key: str) -> Any:
        data = self._store.read(key)
        if data is None:
            summary = "a file with tombstones is missing; nothing became visible"
            raise DataError(summary, file=f"{STATE}/{key}").advising(RESTORE_TOMBSTONES)
        return pyarrow.parquet.read_table(pa.BufferReader(data), page_checksum_verification=True)
