"""Short chaos trials: every kind of fault in local mode, and the faults of a cluster. No record is duplicated or lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos import trial
from tests.chaos.faults import kinds
from tests.chaos.subjects import subject_class

pytestmark = [pytest.mark.integration, pytest.mark.prove]


@pytest.mark.timeout(900)
def test_no_kind_of_fault_duplicates_or_loses_records() -> None:
    result = run_clean_trial("streamsem", kinds(subject_class("streamsem").needs))
    assert result.commits >= 10, "too few versions: the faults may not have hit a batch"


@pytest.mark.timeout(600)
def test_killed_executors_workers_and_clusters_duplicate_and_lose_no_records() -> None:
    result = run_clean_trial("streamsem_on_a_cluster", ["executor killed", "worker killed", "everything killed"])
    assert result.commits >= 4, "too few versions: the faults may not have hit a batch"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("streamsem_join", ["driver killed", "JVM killed", "runner doubled", "broker killed", "S3 killed", "everything killed"]),
        ("streamsem_windows", ["driver killed", "executor killed", "worker killed", "broker frozen", "S3 frozen", "everything killed"]),
    ],
)  # fmt: skip
def test_faults_duplicate_and_lose_no_records_of_transforms_with_state(name: str, faults: list[str]) -> None:
    result = run_clean_trial(name, faults)
    assert result.commits >= 10, "too few versions: the faults may not have hit a batch"


def run_clean_trial(name: str, faults: Sequence[str]) -> trial.Trial:
    """Run a trial, and check that each fault was injected once and that the trial is clean."""
    result = trial.run(name, len(faults), 11, print, only=faults)
    assert (result.duplicates, result.losses, result.foreign, result.violations) == (0, 0, 0, []), result
    assert result.drained, result
    assert sorted(i.kind for i in result.injections) == sorted(faults)
    assert all(i.injected for i in result.injections), [i.action for i in result.injections if not i.injected]
    assert result.records >= 1_000
    assert result.aborted > 0
    return result
