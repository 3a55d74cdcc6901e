"""
The deduplication state of a pipeline: the layers of ids in the field ``state`` of an outcome (:mod:`airflow_provider_streamsem.state.layers`).

A file of a layer has the columns ``id`` (16 bytes, sorted) and ``at_ms`` (when the id's batch was planned).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.protocol.entries import Committable, Json
from airflow_provider_streamsem.state.layers import (
    IDS,
    Layer,
    id_layers,
    layers_json,
    newer_than,
    tombstones_of,
    with_tombstones,
    with_written,
)

ID, AT = "id", "at_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStates:
    """
    The deduplication states that a reprocessing run needs in addition to the state before its chain.

    :param current: the state at the log's head, to which the run adds ids, and from which it removes ids
    :param commits: ``(before, after)`` of each commit of the chain, oldest first: the states before and after it
    :param planned_ms: when the reprocessing run was planned, in milliseconds UTC
    """

    current: Json
    commits: tuple[tuple[Json, Json], ...]
    planned_ms: int

    def expired_before_ms(self, dedup: Dedup, oldest_ms: int | None) -> int:
        """
        Return the time before which ids may have expired from the current state, in milliseconds UTC. A reprocessing run has removed a younger id that the
        current state lacks.

        :param oldest_ms: when the oldest id of the current state passed; ``None`` if it has no ids
        """
        if dedup.rows is not None:  # ids expire only while as many newer ones are stored
            is_full = sum(layer.rows for layer in id_layers(self.current)) >= dedup.rows
            return oldest_ms if is_full and oldest_ms is not None else 0
        return dedup.cutoff_ms(max([self.planned_ms, *(layer.newest_ms for layer in id_layers(self.current))]))


def has_only_expired_ids(dedup: Dedup | None, state: Json, now_ms: int) -> bool:
    """Return whether a state has ids, and all of them have expired by ``ttl_s`` at ``now_ms`` (milliseconds UTC)."""
    return dedup is not None and bool(id_layers(state)) and not layers_of(state, dedup, now_ms)


def layers_of(state: Json, dedup: Dedup, now_ms: int) -> list[Layer]:
    """
    Return the layers with ids that are not expired, oldest first.

    Layers in which every id is before the cutoff are left out, and so are layers that are older than the newest ``dedup.rows`` ids.
    """
    kept: list[Layer] = []
    rows = 0
    for layer in reversed(newer_than(id_layers(state), dedup.cutoff_ms(now_ms))):
        if dedup.rows is not None and rows >= dedup.rows:
            break
        kept.append(layer)
        rows += layer.rows
    return kept[::-1]


def state_of(layers: Sequence[Layer], state: Json) -> Json:
    """Return the field ``state`` of an outcome with these layers of ids, oldest first, and the tombstones of ``state``."""
    return with_tombstones({IDS: layers_json(layers)}, tombstones_of(state))


def state_after(
    kept: Sequence[Layer], older: Sequence[Layer], written: Committable, now_ms: int, *, state: Json
) -> Json:
    """Return what :func:`state_of` returns for the layers in which one new layer replaces the layers ``older``."""
    return state_of(with_written(kept, older, written, now_ms), state)
