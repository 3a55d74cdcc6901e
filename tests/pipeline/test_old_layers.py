"""Tests of vacuum of the deduplication state: after versions have expired, no run needs the deleted files of ids."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from airflow_provider_streamsem import rollback
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import Vacuumed, vacuum
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.state.layers import files_of_layers
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.pipeline.repeating_fixture import RepeatingFixture

LATER_MS = 1_700_000_000_000 + 30 * 86_400_000


def vacuumed(fixture: RepeatingFixture, keep_versions: int) -> Vacuumed:
    log = CommitLog(fixture.store, ManualClock(LATER_MS))
    return vacuum(fixture.pipeline(), keep_versions=keep_versions, keep_days=0, log=log)


def stored_attempts(fixture: RepeatingFixture) -> set[tuple[int, str]]:
    """Return the attempts with files of ids."""
    return {(int(path.parts[-2]), path.name) for path in (fixture.root / "log/state/data").glob("*/*")}


def needed_attempts(fixture: RepeatingFixture, first: int) -> set[tuple[int, str]]:
    """Return the attempts whose ids the states from a version on name."""
    opened = fixture.opened()
    outcomes = [opened.log.outcome(version) for version in range(first, opened.head + 1)]
    files = [f for each in outcomes if each for f in files_of_layers(each.state)]
    return {attempt for file in files if (attempt := keys.attempt_of_data(file.key)) is not None}


@pytest.fixture
def fixture(tmp_path: Path) -> RepeatingFixture:
    fixture = RepeatingFixture(tmp_path)
    for number in range(12):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    return fixture


def test_vacuum_deletes_the_ids_that_only_expired_versions_need(fixture: RepeatingFixture) -> None:
    before = stored_attempts(fixture)
    done = vacuumed(fixture, keep_versions=3)
    assert {sink for sink, _, _ in done.attempts} == {"state"}
    assert stored_attempts(fixture) == needed_attempts(fixture, 8) < before, "the state before version 9 stays"
    assert vacuumed(fixture, keep_versions=3).attempts == ()
    fixture.arrive(2)
    fixture.run("next", drain=True)
    fixture.run("fix", reprocessed=9)
    fixture.check()
    vacuumed(fixture, keep_versions=1)
    assert stored_attempts(fixture) == needed_attempts(fixture, fixture.opened().head - 2)
    fixture.check()


def test_expired_version_is_not_reprocessed_without_its_ids(fixture: RepeatingFixture) -> None:
    vacuumed(fixture, keep_versions=3)
    before = fixture.opened().head
    with pytest.raises(InvalidError, match=r"the version has expired.*ids.*version=8, oldest_readable=9"):
        fixture.run("fix", reprocessed=8)
    assert fixture.opened().head == before
    fixture.check()


def test_ids_of_a_rollback_stay(fixture: RepeatingFixture) -> None:
    rollback(fixture.pipeline(), 2, log=fixture.log())
    vacuumed(fixture, keep_versions=1)
    assert needed_attempts(fixture, 12) <= stored_attempts(fixture)
    fixture.run("again", drain=True)
    fixture.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_history_with_expiries_writes_each_id_once(tmp_path: Path, seed: int) -> None:
    rng, fixture, refused = Random(seed), RepeatingFixture(tmp_path), 0
    for step in range(40):
        action = rng.choice(["run", "run", "run", "reprocess", "roll back", "vacuum"]) if step > 4 else "run"
        head = fixture.opened().head if step else -1
        try:
            if action == "run":
                fixture.arrive(rng.randrange(1, 4))
                fixture.run(f"r{step}")
            elif action == "reprocess":
                fixture.run(f"r{step}", reprocessed=rng.randrange(max(0, head - 8), head + 1))
            elif action == "roll back":
                rollback(fixture.pipeline(), rng.randrange(max(0, head - 8), head + 1), log=fixture.log())
            else:
                vacuumed(fixture, rng.randrange(1, 6))
        except InvalidError:
            refused += 1
    with suppress(InvalidError):
        vacuumed(fixture, 1)
    fixture.run("rest", drain=True)
    fixture.check()
    assert refused < 20


def test_dry_run_names_what_the_vacuum_deletes(tmp_path: Path) -> None:
    fixture = RepeatingFixture(tmp_path)
    fixture.arrive(1)
    fixture.dies("killed", at="staged")
    for number in range(8):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    log = CommitLog(fixture.store, ManualClock(LATER_MS))
    planned = vacuum(fixture.pipeline(), keep_versions=2, keep_days=0, dry_run=True, log=log)
    assert planned.attempts == vacuumed(fixture, 2).attempts
