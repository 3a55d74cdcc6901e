"""
A sink outside the log that lost versions named by receipts.

The run stops, and nothing is applied until a user restores the sink or accepts the loss.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem.errors import LogDamagedError, MarkerConflictError, MarkerLostError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.protocol.entries import Marker, Receipts
from airflow_provider_streamsem.stores.memory import open_memory_store
from tests.external_systems import PublishingFixture, TableSink

_NAMES = count()


@pytest.fixture
def fixture(tmp_path: Path) -> PublishingFixture:
    fixture = PublishingFixture(tmp_path, store=open_memory_store(f"lost-{next(_NAMES)}"))
    fixture.arrive(10)
    return fixture


def markers(fixture: PublishingFixture, version: int) -> tuple[dict[str, int], dict[str, int] | None]:
    """The marker versions of Outcome(version) and of Receipts(version)."""
    log = fixture.log()
    outcome, receipts = log.outcome(version), log.receipts(version)
    assert outcome is not None
    return versions(outcome.markers), None if receipts is None else versions(receipts.markers)


def versions(markers: Mapping[str, Marker]) -> dict[str, int]:
    return {name: marker.version for name, marker in markers.items()}


def test_database_restored_from_an_older_copy_stops_runs_until_the_newest_copy_is_restored(
    fixture: PublishingFixture, tmp_path: Path
) -> None:
    older, newest = tmp_path / "older.db", tmp_path / "newest.db"
    fixture.run("first")
    shutil.copy(fixture.database, older)
    fixture.run("second")
    shutil.copy(fixture.database, newest)
    shutil.copy(older, fixture.database)
    for run_key in ("third", "third", "fourth"):
        with pytest.raises(MarkerLostError) as stopped:
            fixture.run(run_key)
    parts = ("sink='audit'", "version=2", "marker=0", "expected_marker=1", fixture.database, "streamsem skip")
    assert all(part in str(stopped.value) for part in parts)
    assert not stopped.value.retryable
    assert fixture.rows("audit") == fixture.rows("table") == Counter(range(6))
    assert fixture.opened().head == 2
    assert [(f.invariant, f.version) for f in fixture.verdict().violations] == [("I15", 1), ("I15", 1)]
    shutil.copy(newest, fixture.database)
    fixture.run("rest", drain=True)
    fixture.check()


def test_deleted_sink_is_reported_by_verify_and_not_written_by_runs(fixture: PublishingFixture) -> None:
    fixture.run("first")
    Path(fixture.database).unlink()
    with pytest.raises(MarkerLostError, match=r"the table has no marker.*expected_marker=0.*marker=None"):
        fixture.run("second")
    assert fixture.rows("audit") == Counter()
    violations = fixture.verdict().violations
    assert [(f.invariant, f.version) for f in violations] == [("I15", 0), ("I15", 0)]
    assert "sink audit is missing" in violations[0].what


def test_later_versions_are_published_after_a_user_accepts_the_loss_with_skip(fixture: PublishingFixture) -> None:
    fixture.run("first")
    Path(fixture.database).unlink()
    with pytest.raises(MarkerLostError):
        fixture.run("second")
    # The sinks publish in order, and a user accepts the loss of each one separately.
    with pytest.raises(MarkerLostError, match="sink='table'"):
        skip(fixture.pipeline(), 1, sink="audit", reason="the disk was lost", log=fixture.log())
    with pytest.raises(MarkerLostError, match="sink='table'"):
        fixture.run("second")
    skip(fixture.pipeline(), 1, sink="table", reason="the disk was lost", log=fixture.log())
    fixture.run("third")
    assert fixture.rows("audit") == fixture.rows("table") == Counter(range(12, 18))
    fixture.run("again", reprocessed=1)
    assert fixture.rows("table") == Counter(range(6, 18))
    assert fixture.verdict().violations == []


def test_markers_survive_aborts_skips_batches_without_rows_and_reprocessing_runs(
    fixture: PublishingFixture,
) -> None:
    fixture.run("empty", pipeline=fixture.pipeline(transform=lambda rows: []))
    assert markers(fixture, 0) == ({}, {})
    fixture.run("first")
    assert markers(fixture, 1) == ({}, {"audit": 1, "table": 1})
    fixture.dies("aborted")
    abort(fixture.log(), fixture.opened().record, 2, reason="poison")
    assert markers(fixture, 2) == ({"audit": 1, "table": 1}, None)
    fixture.run("empty again", pipeline=fixture.pipeline(transform=lambda rows: []))
    assert markers(fixture, 3) == ({"audit": 1, "table": 1}, {"audit": 1, "table": 1})
    with TableSink.dying("before publish table"):
        fixture.run("skipped")
    skip(fixture.pipeline(), 4, sink="table", reason="poison", log=fixture.log())
    assert markers(fixture, 4) == ({"audit": 1, "table": 1}, {"audit": 4, "table": 4})
    fixture.run("reprocessed", reprocessed=1, pipeline=fixture.pipeline(transform=lambda rows: []))
    assert markers(fixture, 5)[1] == {"audit": 5, "table": 5}, "the reprocessing run removed rows"
    assert fixture.verdict().violations == []


def test_publisher_that_committed_its_transaction_without_receipts_is_not_refused(fixture: PublishingFixture) -> None:
    fixture.run("first")
    with TableSink.dying("after publish table"):
        fixture.run("second")
    assert markers(fixture, 1)[1] is None
    fixture.run("second")
    fixture.run("rest", drain=True)
    fixture.check()


@pytest.mark.parametrize("forged", [{}, {"audit": 0, "table": 7}, {"audit": 0, "table": 0, "other": 0}], ids=str)
def test_outcome_or_receipts_with_wrong_markers_are_refused_and_reported_by_verify(
    fixture: PublishingFixture, forged: dict[str, int]
) -> None:
    """If receipts omit a marker, the next run would publish into an older copy of the sink."""
    from dataclasses import replace

    fixture.run("first")
    fixture.run("second")
    log, key = fixture.log(), keys.receipts(1)
    stored = log.receipts(1)
    assert stored is not None
    other = {name: Marker(version=version, outcome=stored.outcome) for name, version in forged.items()}
    data = codec.encode(replace(stored, markers=other)).data
    assert codec.decode(Receipts, key, data).markers == other
    fixture.store.delete(key)
    fixture.store.create(key, data)
    with pytest.raises(LogDamagedError, match="I15"):
        fixture.run("third")
    assert [(f.invariant, f.version) for f in fixture.verdict().violations] == [("I15", 1)]


# --- a log that lost versions that its sinks have


def copy_log(fixture: PublishingFixture) -> dict[str, bytes]:
    """The objects of the log: key → bytes."""
    return {stat.key: fixture.store.read(stat.key) or b"" for stat in fixture.store.list("")}


def restore_log(fixture: PublishingFixture, log: Mapping[str, bytes]) -> None:
    """Restore a log from a copy."""
    for stat in list(fixture.store.list("")):
        fixture.store.delete(stat.key)
    for key, data in log.items():
        fixture.store.create(key, data)


def run_expecting_conflict(fixture: PublishingFixture, run_key: str, sink: str, version: int, marker: int) -> None:
    with pytest.raises(MarkerConflictError, match=rf"sink='{sink}', version={version}.*marker={marker}") as stopped:
        fixture.run(run_key)
    assert not stopped.value.retryable


def test_log_restored_without_its_newest_version_stops_runs_until_the_newest_copy_is_restored(
    fixture: PublishingFixture,
) -> None:
    """The marker has the number of the version that is planned again. Only the outcome distinguishes the two."""
    fixture.run("first")
    older = copy_log(fixture)
    fixture.run("second")
    newest = copy_log(fixture)
    restore_log(fixture, older)
    fixture.arrive(3)
    for run_key in ("third", "third", "fourth"):
        run_expecting_conflict(fixture, run_key, "audit", 1, 1)
    assert fixture.rows("audit") == fixture.rows("table") == Counter(range(12))
    violations = fixture.verdict().violations
    assert {(f.invariant, f.version) for f in violations} == {("I18", 1)}
    assert "another commit of version 1" in violations[0].what
    restore_log(fixture, newest)
    fixture.run("rest", drain=True)
    fixture.check()


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_lost_versions_of_a_log_are_skipped_and_their_rows_are_published_by_reprocessing(
    fixture: PublishingFixture, lost: int
) -> None:
    """The steps of docs/how-to/recover.md: delete the rows of the lost versions, skip the new versions, then reprocess them."""
    fixture.run("first")
    older = copy_log(fixture)
    for number in range(lost):
        fixture.run(f"lost-{number}")
    restore_log(fixture, older)
    with closing(sqlite3.connect(fixture.database)) as db, db:
        db.execute("DELETE FROM rows WHERE root > 0")
    for version in range(1, lost + 1):
        run_expecting_conflict(fixture, f"new-{version}", "audit", version, lost)
        with pytest.raises(MarkerConflictError, match="sink='table'"):
            skip(fixture.pipeline(), version, sink="audit", reason="the log was lost", log=fixture.log())
        both = ("audit", "table")
        receipts = skip(fixture.pipeline(), version, sink=both, reason="the log was lost", log=fixture.log())
        assert {receipt.result for receipt in receipts.sinks.values()} == {"skipped"}
    fixture.run("rest", drain=True)
    for version in range(1, lost + 1):
        fixture.run(f"reprocess-{version}", reprocessed=version)
    fixture.check()
    assert fixture.verdict().violations == []


def test_sink_restored_to_a_copy_from_before_the_log_was_restored_is_refused(
    fixture: PublishingFixture, tmp_path: Path
) -> None:
    """The marker has the version that the receipts name, but its commit is not in this log."""
    fixture.run("first")
    older, kept = copy_log(fixture), tmp_path / "kept.db"
    shutil.copy(fixture.database, kept)
    fixture.run("second")
    of_old_log = tmp_path / "of-old-log.db"
    shutil.copy(fixture.database, of_old_log)
    restore_log(fixture, older)
    shutil.copy(kept, fixture.database)
    fixture.run("second again")
    shutil.copy(of_old_log, fixture.database)
    run_expecting_conflict(fixture, "third", "audit", 2, 1)


def test_sink_without_rows_of_the_version_planned_again_is_refused_at_the_next_version(
    fixture: PublishingFixture,
) -> None:
    fixture.run("first")
    older = copy_log(fixture)
    fixture.run("second")
    restore_log(fixture, older)
    fixture.run("second again", pipeline=fixture.pipeline(transform=lambda rows: []))
    run_expecting_conflict(fixture, "third", "audit", 2, 1)


def test_marker_set_by_a_user_is_accepted_without_an_outcome(fixture: PublishingFixture) -> None:
    fixture.run("first")
    with closing(sqlite3.connect(fixture.database)) as db, db:
        db.execute("UPDATE markers SET outcome = ''")
    fixture.run("rest", drain=True)
    fixture.check()


def test_vacuum_deletes_nothing_while_the_log_lacks_versions_of_a_sink(fixture: PublishingFixture) -> None:
    """The attempts of lost versions look like losing attempts."""
    fixture.run("first")
    older = copy_log(fixture)
    fixture.run("second")
    newest = copy_log(fixture)
    restore_log(fixture, older)
    fixture.arrive(3)
    run_expecting_conflict(fixture, "third", "audit", 1, 1)
    before = sorted(path for path in fixture.root.rglob("*") if path.is_file())
    for dry_run in (True, False):
        with pytest.raises(MarkerConflictError, match="nothing was deleted"):
            vacuum(fixture.pipeline(), dry_run=dry_run, log=fixture.log())
    assert before == sorted(path for path in fixture.root.rglob("*") if path.is_file())
    restore_log(fixture, newest)
    fixture.run("rest", drain=True)
    vacuum(fixture.pipeline(), log=fixture.log())
    fixture.check()
