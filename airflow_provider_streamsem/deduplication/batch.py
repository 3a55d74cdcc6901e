"""
Decides which records of a batch pass the deduplication, and writes the ids of those that passed to the deduplication state.

A record *passes* if its id is new: not in the deduplication state, and not that of another record of the batch that passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_streamsem.deduplication.ids import NO_IDS, Array, Ids, first_of_equal, union
from airflow_provider_streamsem.deduplication.layers import LayerFiles
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.deduplication.state import ChainStates, layers_of, state_after, state_of
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.state.layers import Layer, id_layers, split

_NEVER = np.iinfo(np.int64).min


@dataclass(slots=True)
class DedupBatch:
    """
    The ids of the batch of one attempt.

    :param now_ms: when the batch was planned, in milliseconds UTC; for reprocessing, when the root of the chain was planned
    :param state: the deduplication state before the batch; for reprocessing, before the batch at the root of the chain
    :param chain: for reprocessing: the states of the chain and of the log's head
    :attr late_duplicates: the number of ids that pass again, because they have expired
    """

    dedup: Dedup
    files: LayerFiles
    now_ms: int
    state: Json
    chain: ChainStates | None = None
    late_duplicates: int = 0
    _passed: Ids = field(default=NO_IDS)
    _passed_before: Ids = field(default=NO_IDS)
    """The ids that passed in the newest commit of the chain. They are read once, because that reads several whole states."""

    def passing(self, high: Array, low: Array) -> Array:
        """Return the positions of the records that pass. ``high`` and ``low`` are the first and the last eight bytes of the id of each record."""
        if self.chain is not None and self.dedup.keeps_state:
            self._passed_before = self._passed_in_chain(self.chain)
        first = first_of_equal(high, low)
        ids = Ids(high[first], low[first], np.full(len(first), self.now_ms, np.int64))
        newest = self._newest_passed_elsewhere(ids)
        passes = (newest == _NEVER) | (newest < self.dedup.cutoff_ms(self.now_ms))
        self.late_duplicates = int(np.count_nonzero(passes & (newest != _NEVER)))
        self._passed = ids.where(passes)
        passing: Array = first[passes]
        return passing

    def write_state(self, version: int, attempt_id: str) -> Json:
        """Write the ids of the records that passed, and return the deduplication state after the batch."""
        if not self.dedup.keeps_state:
            return self.state
        if self.chain is not None:
            return self._write_change(self.chain, version, attempt_id)
        layers = layers_of(self.state, self.dedup, self.now_ms)
        if not len(self._passed):
            return state_of(layers, self.state)
        return self._add_layer(self.state, layers, self._passed, version, attempt_id)

    def _write_change(self, chain: ChainStates, version: int, attempt_id: str) -> Json:
        """Return the current state with the changes of the reprocessing run: ids that pass now are added, and ids that no longer pass are removed."""
        before, layers = self._passed_before, id_layers(chain.current)
        added = self._passed.where(~self._passed.are_in(before))
        removed = before.where(~before.are_in(self._passed))
        if not len(removed):
            return self._add_layer(chain.current, layers, added, version, attempt_id) if len(added) else chain.current
        current = union(self.files.read(layers))
        left = current.where((current.at_ms != self.now_ms) | ~current.are_in(removed))
        written = self.files.write(union([left, added]), version, attempt_id)
        return state_after([], layers, written, self.now_ms, state=chain.current)

    def _add_layer(self, state: Json, layers: Sequence[Layer], ids: Ids, version: int, attempt_id: str) -> Json:
        """Write a layer of ids and those of all layers that are not larger, and return ``state`` with it."""
        kept, older = split(layers, len(ids))
        cutoff_ms = self.dedup.cutoff_ms(self.now_ms)
        before = [each.where(each.at_ms >= cutoff_ms) for each in self.files.read(older)]
        written = self.files.write(union([*before, ids]), version, attempt_id)
        return state_after(kept, older, written, self.now_ms, state=state)

    def _newest_passed_elsewhere(self, ids: Ids) -> Array:
        """Return when each id last passed in another version, in milliseconds UTC; ``_NEVER`` if it did not."""
        newest = np.full(len(ids), _NEVER, np.int64)
        for stored in self._passed_elsewhere():
            mine, theirs = ids.equal(stored)
            np.maximum.at(newest, mine, stored.at_ms[theirs])
        return newest

    def _passed_elsewhere(self) -> list[Ids]:
        """
        For reprocessing, these are the ids of the current state, except those of the reprocessed version, and the ids before the version that have expired
        since. The order of the versions does not matter, so neither do the clocks of the machines that planned them.
        """
        if not self.dedup.keeps_state:
            return []
        before = self.files.read(layers_of(self.state, self.dedup, self.now_ms))
        if self.chain is None:
            return before
        current = union(self.files.read(id_layers(self.chain.current)))
        own = (current.at_ms == self.now_ms) & current.are_in(self._passed_before)
        others = current.where(~own)
        if self.dedup.ttl_s is not None:  # later, an id of the reprocessed version would have expired
            others = others.where(others.at_ms <= self.now_ms + self.dedup.ttl_s * 1000)
        oldest_ms = int(current.at_ms.min()) if len(current) else None
        expired_before_ms = self.chain.expired_before_ms(self.dedup, oldest_ms)
        return [others, *(each.where(each.at_ms < expired_before_ms) for each in before)]

    def _passed_in_chain(self, chain: ChainStates) -> Ids:
        passed = NO_IDS
        for states in chain.commits:
            before, after = map(self._ids_at_plan, states)
            added, removed = after.where(~after.are_in(before)), before.where(~before.are_in(after))
            passed = passed.where(~passed.are_in(removed))
            passed = union([passed, added.where(~added.are_in(passed))])
        return passed

    def _ids_at_plan(self, state: Json) -> Ids:
        ids = union(self.files.read(id_layers(state)))
        return ids.where(ids.at_ms == self.now_ms)
