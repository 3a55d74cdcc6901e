"""Finds the files of layers (ids and tombstones) that no run needs after versions have expired (PROTOCOL.md, V9)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.layers import layers_dataset
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Json, Outcome
from airflow_provider_streamsem.state.layers import files_of_layers

Attempt = tuple[int, str]
"""Version and attempt id."""


def unneeded_layers(log: CommitLog, newest: Outcome, begin: int, oldest: int, initial_state: Json) -> Iterator[Attempt]:
    """
    Yield the attempts of versions below ``oldest`` whose layers no run needs: the states that a run may still load do not name them.

    The next batch loads the state of the head. A rollback returns to version ``oldest`` or a later one, and a run reprocesses batches from ``oldest`` on, with
    the state before them (W44). Each of these states has layers of the state before the first of these batches, of a rollback since then, or of a version since
    then.

    :param begin: an earlier vacuum has deleted what was unneeded at this version
    :param initial_state: the state before version 0. A fork has copied its layers, with the version numbers of the original
    """
    if oldest <= begin:
        return
    needed = _named(log, newest, oldest)
    written = {
        (version, attempt_id)
        for version in range(begin, oldest)
        for _, attempt_id in log.retrying.repeat(partial(layers_dataset(log.store.url).attempts, version))
    }
    earlier = _named(log, newest, begin) if begin > 0 else _attempts(initial_state)
    yield from sorted((earlier | written) - needed)


def _named(log: CommitLog, newest: Outcome, oldest: int) -> set[Attempt]:
    """Return the attempts whose layers the state before a version, and the states to which later rollbacks returned, name."""
    kept = log.remaining_versions(newest)
    rollbacks = [versions.start for versions in kept[1:] if versions.start >= oldest]
    first = log.outcome(oldest)
    before = (
        oldest - 1 if first is None or first.has_rows else oldest
    )  # an erasure has fewer tombstones than the version before it
    outcomes = [log.outcome(version) for version in (before, *rollbacks)]
    return {attempt for outcome in outcomes if outcome is not None for attempt in _attempts(outcome.state)}


def _attempts(state: Json) -> set[Attempt]:
    return {attempt for file in files_of_layers(state) if (attempt := keys.attempt_of_data(file.key)) is not None}
