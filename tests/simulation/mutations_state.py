"""Mutations of the product that the simulated pipeline with state must detect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_streamsem.pipeline.run import states
from airflow_provider_streamsem.state import files as state_files
from airflow_provider_streamsem.stores.contract import ObjectStat
from tests.simulation.mutations import Mutation, abort_drops_the_state, with_states


def adoption_does_not_check_state_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_files, "is_complete", lambda store, state: True)


def reprocessing_changes_the_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(states.ReprocessingStates, "after", states.BatchStates.after)


def reprocessing_starts_from_the_newest_state(patch: pytest.MonkeyPatch) -> None:
    def mutate(opened: Any, head: Any, found: Any) -> None:
        found.base = None if head.outcome is None else head.outcome.state

    with_states(patch, mutate)


def vacuum_deletes_shared_sst_files(patch: pytest.MonkeyPatch) -> None:
    def unneeded(self: Any, store: Any, oldest: int, kept: set[str]) -> Iterator[ObjectStat]:
        older = [stat for batches, stats in sorted(self.snapshots.items()) if batches < oldest for stat in stats]
        for stat in older:
            for name in sorted(state_files._named_ssts(store, stat.key) or ()):
                yield from self.ssts.get(name, [])
        yield from older

    patch.setattr(state_files._Directory, "unneeded", unneeded)


WRONG = "wrong counts|other counts than its root|another number of ids"

STATE_MUTATIONS = (
    Mutation(adoption_does_not_check_state_files, "is missing, truncated or swapped", "stateful", first=870),
    Mutation(reprocessing_changes_the_state, WRONG, "stateful"),
    Mutation(reprocessing_starts_from_the_newest_state, WRONG, "stateful"),
    Mutation(vacuum_deletes_shared_sst_files, "state file was deleted|is missing, truncated or swapped", "stateful"),
    Mutation(abort_drops_the_state, f"I25|{WRONG}", "stateful", first=558),
)
