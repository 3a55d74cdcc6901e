"""Short trials with every fault of local mode and those of a cluster. Nothing is duplicated, nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos import trial
from tests.chaos.faults import kinds
from tests.chaos.subjects import subject_class

pytestmark = [pytest.mark.integration, pytest.mark.prove]


@pytest.mark.timeout(900)
def test_every_kind_of_fault_duplicates_and_loses_nothing() -> None:
    found = run_clean_trial("streamsem", kinds(subject_class("streamsem").needs))
    assert found.commits >= 10, "too few versions for the faults to have met anything"


@pytest.mark.timeout(600)
def test_killed_executors_workers_and_a_whole_cluster_duplicate_and_lose_nothing() -> None:
    found = run_clean_trial("streamsem_on_a_cluster", ["executor killed", "worker killed", "everything killed"])
    assert found.commits >= 4, "too few versions for the faults to have met anything"


def run_clean_trial(name: str, faults: Sequence[str]) -> trial.Trial:
    """Run a trial. Check that each fault was injected once and that the trial ended clean."""
    found = trial.run(name, len(faults), 11, print, only=faults)
    assert (found.duplicates, found.losses, found.foreign, found.findings) == (0, 0, 0, []), found
    assert found.drained, found
    assert sorted(i.kind for i in found.injections) == sorted(faults)
    assert all(i.injected for i in found.injections), [i.done for i in found.injections if not i.injected]
    assert found.records >= 1_000
    assert found.aborted > 0
    return found
