"""A sink outside the log that lost versions which receipts name: the run stops, and nothing is applied until a user restores the sink or accepts the loss."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem.batch.maintenance import abort, vacuum
from airflow_provider_streamsem.batch.publish import skip
from airflow_provider_streamsem.errors import LogDamagedError, MarkerConflictError, MarkerLostError
from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.protocol.entries import Marker, Receipts
from airflow_provider_streamsem.stores.memory import open_memory_store
from tests.outside import PublishingWorld, TableSink

_NAMES = count()


@pytest.fixture
def world(tmp_path: Path) -> PublishingWorld:
    made = PublishingWorld(tmp_path, store=open_memory_store(f"lost-{next(_NAMES)}"))
    made.arrive(10)
    return made


def markers(world: PublishingWorld, version: int) -> tuple[dict[str, int], dict[str, int] | None]:
    """Those of Outcome(version) and of Receipts(version)."""
    log = world.log()
    found, receipts = log.outcome(version), log.receipts(version)
    assert found is not None
    return versions(found[0].markers), None if receipts is None else versions(receipts.markers)


def versions(markers: Mapping[str, Marker]) -> dict[str, int]:
    return {name: marker.version for name, marker in markers.items()}


def test_database_restored_from_an_older_copy_stops_the_run_by_name_until_the_newest_is_back(
    world: PublishingWorld, tmp_path: Path
) -> None:
    older, newest = tmp_path / "older.db", tmp_path / "newest.db"
    world.run("first")
    shutil.copy(world.database, older)
    world.run("second")
    shutil.copy(world.database, newest)
    shutil.copy(older, world.database)
    for run_key in ("third", "third", "fourth"):
        with pytest.raises(MarkerLostError) as stopped:
            world.run(run_key)
    facts = ("sink='audit'", "version=2", "marker=0", "expected_marker=1", world.database, "streamsem skip")
    assert all(fact in str(stopped.value) for fact in facts)
    assert not stopped.value.retryable
    assert world.rows("audit") == world.rows("table") == Counter(range(6))
    assert world.opened().head == 2
    assert [(f.invariant, f.version) for f in world.verdict().findings] == [("I15", 1), ("I15", 1)]
    shutil.copy(newest, world.database)
    world.run("rest", drain=True)
    world.check()


def test_sink_that_was_deleted_is_named_by_verify_and_left_alone_by_runs(world: PublishingWorld) -> None:
    world.run("first")
    Path(world.database).unlink()
    with pytest.raises(MarkerLostError, match=r"the table has no marker.*expected_marker=0.*marker=None"):
        world.run("second")
    assert world.rows("audit") == Counter()
    found = world.verdict().findings
    assert [(f.invariant, f.version) for f in found] == [("I15", 0), ("I15", 0)]
    assert "sink audit is missing" in found[0].what


def test_loss_that_a_user_accepts_costs_one_version_and_later_ones_are_published(world: PublishingWorld) -> None:
    world.run("first")
    Path(world.database).unlink()
    with pytest.raises(MarkerLostError):
        world.run("second")
    # The sinks publish in order: each accepts its own loss.
    with pytest.raises(MarkerLostError, match="sink='table'"):
        skip(world.pipeline(), 1, sink="audit", reason="the disk was lost", log=world.log())
    with pytest.raises(MarkerLostError, match="sink='table'"):
        world.run("second")
    skip(world.pipeline(), 1, sink="table", reason="the disk was lost", log=world.log())
    world.run("third")
    assert world.rows("audit") == world.rows("table") == Counter(range(12, 18))
    world.run("again", redone=1)
    assert world.rows("table") == Counter(range(6, 18))
    assert world.verdict().findings == []


def test_markers_are_carried_through_aborts_skips_batches_without_rows_and_redos(world: PublishingWorld) -> None:
    world.run("empty", pipeline=world.pipeline(transform=lambda rows: []))
    assert markers(world, 0) == ({}, {})
    world.run("first")
    assert markers(world, 1) == ({}, {"audit": 1, "table": 1})
    world.dies("aborted")
    abort(world.log(), world.opened().record, 2, reason="poison")
    assert markers(world, 2) == ({"audit": 1, "table": 1}, None)
    world.run("empty again", pipeline=world.pipeline(transform=lambda rows: []))
    assert markers(world, 3) == ({"audit": 1, "table": 1}, {"audit": 1, "table": 1})
    with TableSink.dying("before publish table"):
        world.run("skipped")
    skip(world.pipeline(), 4, sink="table", reason="poison", log=world.log())
    assert markers(world, 4) == ({"audit": 1, "table": 1}, {"audit": 4, "table": 4})
    world.run("redone", redone=1, pipeline=world.pipeline(transform=lambda rows: []))
    assert markers(world, 5)[1] == {"audit": 5, "table": 5}, "it took rows out"
    assert world.verdict().findings == []


def test_publisher_whose_transaction_landed_without_receipts_is_not_refused(world: PublishingWorld) -> None:
    world.run("first")
    with TableSink.dying("after publish table"):
        world.run("second")
    assert markers(world, 1)[1] is None
    world.run("second")
    world.run("rest", drain=True)
    world.check()


@pytest.mark.parametrize("forged", [{}, {"audit": 0, "table": 7}, {"audit": 0, "table": 0, "other": 0}], ids=str)
def test_outcome_or_receipts_with_other_markers_than_the_chain_are_refused_and_found(
    world: PublishingWorld, forged: dict[str, int]
) -> None:
    """Receipts that forgot a marker would let the next run publish into an older copy of the sink."""
    from dataclasses import replace

    world.run("first")
    world.run("second")
    log, key = world.log(), keys.receipts(1)
    stored = log.receipts(1)
    assert stored is not None
    other = {name: Marker(version=version, outcome=stored.outcome) for name, version in forged.items()}
    data = codec.encode(replace(stored, markers=other)).data
    assert codec.decode(Receipts, key, data).markers == other
    world.store.delete(key)
    world.store.create(key, data)
    with pytest.raises(LogDamagedError, match="I15"):
        world.run("third")
    assert [(f.invariant, f.version) for f in world.verdict().findings] == [("I15", 1)]


# --- a log that lost versions which its sinks have


def copied(world: PublishingWorld) -> dict[str, bytes]:
    """The log as it is now: key → bytes."""
    return {stat.key: world.store.read(stat.key) or b"" for stat in world.store.list("")}


def restored(world: PublishingWorld, log: Mapping[str, bytes]) -> None:
    """Put a log back to a copy."""
    for stat in list(world.store.list("")):
        world.store.delete(stat.key)
    for key, data in log.items():
        world.store.create(key, data)


def conflict(world: PublishingWorld, run_key: str, sink: str, version: int, marker: int) -> None:
    with pytest.raises(MarkerConflictError, match=rf"sink='{sink}' version={version}.*marker={marker}") as stopped:
        world.run(run_key)
    assert not stopped.value.retryable


def test_log_restored_without_its_newest_version_stops_the_run_until_the_newest_copy_is_back(
    world: PublishingWorld,
) -> None:
    """The marker's number is that of the version which is planned anew: only the outcome tells them apart."""
    world.run("first")
    older = copied(world)
    world.run("second")
    newest = copied(world)
    restored(world, older)
    world.arrive(3)
    for run_key in ("third", "third", "fourth"):
        conflict(world, run_key, "audit", 1, 1)
    assert world.rows("audit") == world.rows("table") == Counter(range(12))
    findings = world.verdict().findings
    assert {(f.invariant, f.version) for f in findings} == {("I18", 1)}
    assert "another commit of version 1" in findings[0].what
    restored(world, newest)
    world.run("rest", drain=True)
    world.check()


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_lost_versions_of_a_log_are_passed_by_skip_and_their_rows_published_by_redo(
    world: PublishingWorld, lost: int
) -> None:
    """As docs/recovery.md says: the rows of the lost versions are deleted, the new ones skipped and then redone."""
    world.run("first")
    older = copied(world)
    for number in range(lost):
        world.run(f"lost-{number}")
    restored(world, older)
    with closing(sqlite3.connect(world.database)) as db, db:
        db.execute("DELETE FROM rows WHERE root > 0")
    for version in range(1, lost + 1):
        conflict(world, f"new-{version}", "audit", version, lost)
        with pytest.raises(MarkerConflictError, match="sink='table'"):
            skip(world.pipeline(), version, sink="audit", reason="the log was lost", log=world.log())
        both = ("audit", "table")
        receipts = skip(world.pipeline(), version, sink=both, reason="the log was lost", log=world.log())
        assert {receipt.result for receipt in receipts.sinks.values()} == {"skipped"}
    world.run("rest", drain=True)
    for version in range(1, lost + 1):
        world.run(f"redo-{version}", redone=version)
    world.check()
    assert world.verdict().findings == []


def test_sink_restored_to_a_copy_from_before_the_log_was_restored_is_refused(
    world: PublishingWorld, tmp_path: Path
) -> None:
    """Its marker has the version that the receipts name, and is of a commit that this log never had."""
    world.run("first")
    older, kept = copied(world), tmp_path / "kept.db"
    shutil.copy(world.database, kept)
    world.run("second")
    of_old_log = tmp_path / "of-old-log.db"
    shutil.copy(world.database, of_old_log)
    restored(world, older)
    shutil.copy(kept, world.database)
    world.run("second anew")
    shutil.copy(of_old_log, world.database)
    conflict(world, "third", "audit", 2, 1)


def test_sink_that_got_nothing_of_the_version_planned_anew_is_refused_at_its_next_one(world: PublishingWorld) -> None:
    world.run("first")
    older = copied(world)
    world.run("second")
    restored(world, older)
    world.run("second anew", pipeline=world.pipeline(transform=lambda rows: []))
    conflict(world, "third", "audit", 2, 1)


def test_marker_that_a_user_set_by_hand_needs_no_outcome(world: PublishingWorld) -> None:
    world.run("first")
    with closing(sqlite3.connect(world.database)) as db, db:
        db.execute("UPDATE markers SET outcome = ''")
    world.run("rest", drain=True)
    world.check()


def test_vacuum_deletes_nothing_while_the_log_lacks_versions_that_a_sink_has(world: PublishingWorld) -> None:
    """The attempts of the lost versions look like those that lost."""
    world.run("first")
    older = copied(world)
    world.run("second")
    newest = copied(world)
    restored(world, older)
    world.arrive(3)
    conflict(world, "third", "audit", 1, 1)
    before = sorted(path for path in world.root.rglob("*") if path.is_file())
    for dry_run in (True, False):
        with pytest.raises(MarkerConflictError, match="nothing was deleted"):
            vacuum(world.pipeline(), dry_run=dry_run, log=world.log())
    assert before == sorted(path for path in world.root.rglob("*") if path.is_file())
    restored(world, newest)
    world.run("rest", drain=True)
    vacuum(world.pipeline(), log=world.log())
    world.check()
