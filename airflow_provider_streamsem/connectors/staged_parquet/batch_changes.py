"""Finds the changes of a batch that apply to a table. Imports pyarrow, so only sinks import this module, when they publish."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from airflow_provider_streamsem.connectors.changes import Changes
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet import partial_changes, row_history
from airflow_provider_streamsem.connectors.staged_parquet.changed_rows import Applied, tombstones


class Existing(Protocol):
    """Reads the rows that a table has."""

    def __call__(self, rows: Any, columns: Sequence[str], since: Any = None) -> Iterable[Any]:
        """
        Return the rows of the table with the keys of ``rows``, and perhaps others, as pyarrow tables.

        :param columns: the columns to return. A file that lacks one may leave it out
        :param since: a pyarrow scalar: versions that end before this sequence may be left out
        """


def applied_to_table(rows: Any, kinds: Any, existing: Existing, batch: SinkCommit, changes: Changes) -> Applied:
    """
    Return at most one change for each row of the table.

    With SCD type 1, this is the newest change of each key that is not older than a tombstone or than the row of the table. With SCD type 2, these are the
    upserts and deletes of row versions.

    :param rows: pyarrow table of the staged rows in order
    :param kinds: pyarrow schema of the columns of the key
    :param existing: reads the rows of the table
    """
    stored = tombstones(batch)
    if changes.keeps_history:
        return _to_history(rows, kinds, existing, stored, batch, changes)
    newest = _newest(rows, kinds, existing, stored, batch, changes)
    return newest.without_older_than(existing(newest.rows, changes.required))


def applied_by_database(
    rows: Any, kinds: Any, existing: Existing, stored: Sequence[Any], batch: SinkCommit, changes: Changes
) -> Applied:
    """As :func:`applied_to_table`, but the statements of a database compare the changes with the row of the table. ``stored``: the tombstones."""
    of = _to_history if changes.keeps_history else _newest
    return of(rows, kinds, existing, stored, batch, changes)


def _newest(
    rows: Any, kinds: Any, existing: Existing, stored: Sequence[Any], batch: SinkCommit, changes: Changes
) -> Applied:
    merged = partial_changes.merged(rows, kinds, partial(existing, columns=changes.required), stored, batch, changes)
    return Applied.of(merged, stored, changes)


def _to_history(
    rows: Any, kinds: Any, existing: Existing, stored: Sequence[Any], batch: SinkCommit, changes: Changes
) -> Applied:
    columns = changes.history_columns(rows.schema.names)
    versions = lambda given, since: existing(given, columns, since)  # noqa: E731
    return row_history.applied(rows, kinds, versions, stored, batch, changes)
