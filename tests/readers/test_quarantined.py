"""The records that could not be parsed, as readers get them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.worlds import World


def paths(world: World, **bounds: int) -> Counter[str]:
    """Of files ``00000.json`` …, how many bad records each has."""
    found = [*world.opened().quarantined(**bounds)]
    assert all(record["raw"] == "{not json" for record in found)
    return Counter(record["path"][:5].lstrip("0") or "0" for record in found)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Versions 0 (files 0 and 1), 1 (2 and 3), 2 (4, without bad records)."""
    made = World(tmp_path)
    made.arrive(4, bad_lines=2)
    made.arrive(1)
    made.run("a", drain=True)
    return made


def test_quarantined_records_are_read_by_version(world: World) -> None:
    assert paths(world) == {"0": 2, "1": 2, "2": 2, "3": 2}
    assert paths(world, version=0) == paths(world, since=-1, version=0) == {"0": 2, "1": 2}
    assert paths(world, since=0) == {"2": 2, "3": 2}
    assert paths(world, since=1) == {}
    with pytest.raises(InvalidError, match="closed"):
        paths(world, version=3)


def test_records_of_a_version_that_was_redone_are_told_once(world: World) -> None:
    world.run("again", redone=0)
    assert paths(world) == {"0": 2, "1": 2, "2": 2, "3": 2}
    assert paths(world, version=2) == paths(world)
    assert paths(world, since=2) == {"0": 2, "1": 2}


def test_quarantined_records_that_are_gone_are_a_damaged_log(world: World) -> None:
    (key,) = world.opened().log.outcome(0)[0].quarantine.keys  # type: ignore[index]
    assert isinstance(world.store, MemoryStore)
    world.store.delete(key)
    with pytest.raises(LogDamagedError, match="quarantined"):
        paths(world)
