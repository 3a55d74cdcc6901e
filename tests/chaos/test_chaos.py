"""A short trial in each integration run: every kind of fault of the local mode, nothing twice, nothing lost."""

from __future__ import annotations

import pytest

from tests.chaos import trial
from tests.chaos.faults import kinds
from tests.chaos.subjects import subject_class

pytestmark = pytest.mark.integration

NAME = "streamsem"


@pytest.mark.timeout(900)
def test_every_kind_of_fault_doubles_and_loses_nothing() -> None:
    expected = kinds(subject_class(NAME).needs)
    found = trial.run(NAME, len(expected), 11, print)
    assert (found.duplicates, found.losses, found.foreign, found.findings) == (0, 0, 0, []), found
    assert found.drained, found
    assert sorted(i.kind for i in found.injections) == sorted(expected)
    assert all(i.injected for i in found.injections), [i.done for i in found.injections if not i.injected]
    assert found.commits >= 10, "too few versions for the faults to have met anything"
    assert found.records >= 1_000
    assert found.aborted > 0
