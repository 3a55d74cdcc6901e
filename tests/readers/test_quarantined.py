"""Quarantined records, as readers get them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.pipeline_fixture import PipelineFixture


def paths(fixture: PipelineFixture, **bounds: int) -> Counter[str]:
    """The number of quarantined records of each file ``00000.json`` …."""
    records = [*fixture.opened().quarantined(**bounds)]
    assert all(record["raw"] == "{not json" for record in records)
    return Counter(record["path"][:5].lstrip("0") or "0" for record in records)


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    """Version 0 has files 0 and 1, version 1 has files 2 and 3, and version 2 has file 4 without bad records."""
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(4, bad_lines=2)
    fixture.arrive(1)
    fixture.run("a", drain=True)
    return fixture


def test_quarantined_records_are_read_by_version(fixture: PipelineFixture) -> None:
    assert paths(fixture) == {"0": 2, "1": 2, "2": 2, "3": 2}
    assert paths(fixture, version=0) == paths(fixture, since=-1, version=0) == {"0": 2, "1": 2}
    assert paths(fixture, since=0) == {"2": 2, "3": 2}
    assert paths(fixture, since=1) == {}
    with pytest.raises(InvalidError, match="closed"):
        paths(fixture, version=3)


def test_quarantined_records_of_a_reprocessed_version_are_returned_once(fixture: PipelineFixture) -> None:
    fixture.run("again", reprocessed=0)
    assert paths(fixture) == {"0": 2, "1": 2, "2": 2, "3": 2}
    assert paths(fixture, version=2) == paths(fixture)
    assert paths(fixture, since=2) == {"0": 2, "1": 2}


def test_missing_quarantined_records_are_damage(fixture: PipelineFixture) -> None:
    (key,) = fixture.opened().log.outcome(0).quarantine.keys  # type: ignore[union-attr]
    assert isinstance(fixture.store, MemoryStore)
    fixture.store.delete(key)
    with pytest.raises(LogDamagedError, match="quarantined"):
        paths(fixture)
