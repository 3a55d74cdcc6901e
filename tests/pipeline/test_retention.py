"""Tests of vacuum with ``keep_versions``: versions expire, and vacuum deletes the files that no readable version needs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSink, PipelineTable, reprocess
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError, LookupChangedError, OpenVersionError
from airflow_provider_streamsem.pipeline.maintenance.alter import alter
from airflow_provider_streamsem.pipeline.maintenance.rollback import rollback
from airflow_provider_streamsem.pipeline.maintenance.vacuum import Vacuumed, vacuum
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture
from tests.pipeline_fixture import PipelineFixture, PreparedFixture

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


def run_vacuum(fixture: PipelineFixture, versions: int, *, store: Store | None = None, **arguments: Any) -> Vacuumed:
    """Run a vacuum eight days after the batches. It keeps some versions before the newest one readable."""
    log = CommitLog(store or fixture.store, ManualClock(NOW_MS + 8 * DAY_MS))
    return vacuum(fixture.ran or fixture.pipeline(), keep_versions=versions + 1, log=log, **arguments)


def with_superseded_commits(fixture: PipelineFixture) -> PipelineFixture:
    """Version 4 reprocesses 1, and 5 again; 7 rolls back 6; 8 reads its records again."""
    for number in range(4):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    fixture.run("fix", reprocessed=1)
    fixture.run("fix again", reprocessed=1)
    fixture.arrive(1)
    fixture.run("wrong")
    rollback(fixture.pipeline(), 5, log=fixture.log())
    fixture.run("right")
    return fixture


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    return with_superseded_commits(PipelineFixture(tmp_path))


def readable(fixture: PipelineFixture) -> dict[int, bool]:
    """Return version → whether all files of a reader of this version exist; versions that are refused are left out."""
    opened, found = fixture.opened(), {}
    for version in range(opened.head + 1):
        with suppress(InvalidError):
            found[version] = all(Path(file.path).exists() for file in opened.files(version=version))
    return found


def versions_in(fixture: PipelineFixture, sink: str = "out") -> set[int]:
    return {int(path.parts[-3]) for path in (fixture.root / sink / "data").glob("*/*/*")}


@pytest.mark.parametrize(
    ("kept", "deleted"), [(8, set()), (5, set()), (4, {1}), (3, {1, 4}), (2, {1, 4}), (1, {1, 4, 6}), (0, {1, 4, 6})]
)
def test_V8_vacuum_deletes_only_files_that_no_readable_version_needs(
    fixture: PipelineFixture, kept: int, deleted: set[int]
) -> None:
    before = versions_in(fixture)
    planned = run_vacuum(fixture, kept, dry_run=True)
    assert versions_in(fixture) == before
    assert run_vacuum(fixture, kept) == planned
    assert {version for _, version, _ in planned.attempts} == deleted == before - versions_in(fixture)
    oldest, head = (8 - kept, 9) if deleted else (0, 8)  # the expiry is a version
    assert (planned.expired, planned.oldest_readable) == (oldest, oldest or None)
    assert readable(fixture) == dict.fromkeys(range(oldest, head + 1), True)
    again = run_vacuum(fixture, kept)
    assert (again.attempts, again.expired, again.oldest_readable) == ((), 0, oldest or None)
    fixture.check()
    fixture.arrive(1)
    fixture.run("next")
    fixture.run("fix again", reprocessed=1)
    fixture.check()


def test_V8_version_that_can_no_longer_be_read_is_refused(fixture: PipelineFixture) -> None:
    run_vacuum(fixture, 2)
    with pytest.raises(InvalidError, match=r"the version has expired.*oldest_readable=6"):
        fixture.opened().files(version=5)
    with pytest.raises(InvalidError, match="the version has expired"):
        fixture.opened().changes(since=-1, version=5)
    changes = fixture.opened().changes(since=5)
    assert [file.version for file in changes.added] == [8]


def test_V8_rollback_to_a_readable_version_finds_all_its_files(fixture: PipelineFixture) -> None:
    run_vacuum(fixture, 3)
    rollback(fixture.pipeline(), 5, log=fixture.log())
    assert all(readable(fixture).values())
    fixture.run("once more")
    fixture.check()


def test_V8_versions_of_the_last_days_stay_readable(fixture: PipelineFixture) -> None:
    def at(days: float, **arguments: Any) -> int:
        log = CommitLog(fixture.store, ManualClock(int(NOW_MS + days * DAY_MS)))
        return len(vacuum(fixture.pipeline(), keep_versions=1, log=log, dry_run=True, **arguments).attempts)

    assert [at(6.9), at(7.1), at(7.1, keep_days=8), at(0.1, keep_days=0)] == [0, 3, 0, 3]


def test_V8_files_are_kept_without_keep_versions(fixture: PipelineFixture) -> None:
    log = CommitLog(fixture.store, ManualClock(NOW_MS + 8 * DAY_MS))
    assert vacuum(fixture.pipeline(), log=log).attempts == ()


def test_V8_next_vacuum_reads_only_later_versions(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    requests = []
    for number in range(60):
        fixture.arrive(1)
        fixture.run(f"r{number}")
        if number in (9, 59):
            run_vacuum(fixture, 0)
            store = CountingStore(fixture.store)
            run_vacuum(fixture, 0, store=store)
            requests.append(sum(store.requests.values()))
    assert requests[1] <= requests[0] + 3 < 25, "only the search by time reads more"


def test_V8_note_of_a_restored_log_is_not_used(fixture: PipelineFixture) -> None:
    fixture.store.create(keys.newest_first(keys.EXPIRED, 10**9), b"")
    assert readable(fixture) == dict.fromkeys(range(9), True)
    assert {version for _, version, _ in run_vacuum(fixture, 0).attempts} == {1, 4, 6}


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_V8_vacuum_resumes_after_a_crash_at_any_request(fixture: PipelineFixture, fault: Fault) -> None:
    at, is_done = 0, False
    while not is_done:
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash):
            run_vacuum(fixture, 3, store=store)
        is_done, at = not store.reached, at + 1
        assert all(readable(fixture).values())
    assert versions_in(fixture) == {0, 2, 3, 5, 6, 8}
    assert [stat.key for stat in fixture.store.list(keys.EXPIRED)] == [keys.newest_first(keys.EXPIRED, 5)]
    fixture.check()


def test_V8_vacuum_that_was_killed_while_it_deleted_leaves_no_file(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    discard: Callable[..., int] = FilesSink.discard

    def dying(sink: Any, version: int, attempt_id: str, **arguments: Any) -> int:
        if version == 4:
            raise Crash
        return discard(sink, version, attempt_id, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(FilesSink, "discard", dying)
        for versions in (3, 2):
            with pytest.raises(Crash):
                run_vacuum(fixture, versions)
    assert all(readable(fixture).values())
    run_vacuum(fixture, 2)
    assert versions_in(fixture) == {0, 2, 3, 5, 6, 8}


@pytest.mark.slow
def test_V8_vacuum_that_pauses_at_any_request_deletes_no_file_of_a_readable_version(
    tmp_path: Path,
) -> None:
    at, is_done, start = 0, False, PreparedFixture(with_superseded_commits(PipelineFixture(tmp_path)))
    while not is_done:
        fixture = start.restore()

        def others(fixture: PipelineFixture = fixture) -> None:
            fixed = fixture.run("fix another", reprocessed=2).version
            fixture.arrive(1)
            fixture.run("wrong again")
            rollback(fixture.pipeline(), fixed, log=fixture.log())
            fixture.run("fix once more", reprocessed=1)
            run_vacuum(fixture, 2)
            fixture.run("last")

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=others)
        with suppress(OpenVersionError):
            run_vacuum(fixture, 3, store=store)
        is_done, at = not store.reached, at + 1
        assert all(readable(fixture).values())
        fixture.check()


def test_V8_staged_rows_and_tables_are_not_affected(tmp_path: Path) -> None:
    fixture = PublishingFixture(tmp_path)
    with_superseded_commits(fixture)
    assert {(sink, version) for sink, version, _ in run_vacuum(fixture, 0).attempts if sink == "out"} == {
        ("out", version) for version in (1, 4, 6)
    }
    assert fixture.rows("table") == fixture.expected
    fixture.check()


def test_V8_files_of_a_sink_that_an_alter_removed_stay(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    both = fixture.pipeline(
        sinks={name: FilesSink(path=str(tmp_path / name), format="json") for name in ("out", "old")}
    )
    fixture.arrive(1)
    fixture.run("first", pipeline=both)
    fixture.run("fix", reprocessed=0, pipeline=both)
    alter(fixture.pipeline(), log=fixture.log())
    fixture.ran = None
    run_vacuum(fixture, 0)
    assert (versions_in(fixture), versions_in(fixture, "old")) == ({1}, {0, 1})


def test_V8_commit_that_was_superseded_twice_is_counted_once(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    for number in range(2):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    fixture.run("fix", reprocessed=1)
    rollback(fixture.pipeline(), 0, log=fixture.log())
    fixture.run("again")
    assert [version for _, version, _ in run_vacuum(fixture, 0, dry_run=True).attempts] == [1, 2]


@pytest.mark.parametrize("arguments", [{"keep_versions": 0}, {"keep_versions": 1, "keep_days": -1}])
def test_V8_invalid_arguments_are_refused(fixture: PipelineFixture, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidError, match="must be an integer"):
        vacuum(fixture.pipeline(), log=fixture.log(), **arguments)


def test_V8_rows_of_keep_versions_are_those_before_the_vacuum(fixture: PipelineFixture) -> None:
    def rows(version: int) -> Counter[int]:
        files = fixture.opened().files(version=version)
        return Counter(json.loads(line)["id"] for file in files for line in Path(file.path).read_text().splitlines())

    before = {version: rows(version) for version in range(5, 9)}
    run_vacuum(fixture, 3)
    assert {version: rows(version) for version in range(5, 9)} == before


def with_lookup(rows: Any, dimension: Any) -> Any:
    return rows


class WithoutLookups(RowsEngine):
    """An engine that does not read the lookups, which need Spark. The run checks their pins."""

    def stage(self, job: Any, log: CommitLog) -> Any:
        return super().stage(replace(job, lookups={}, transform=lambda rows: rows), log)


def test_V8_reprocessing_with_an_expired_lookup_says_how_to_continue(tmp_path: Path) -> None:
    (tmp_path / "dimension").mkdir()
    dimension = PipelineFixture(tmp_path / "dimension", store=LocalStore(str(tmp_path / "dimension" / "log")))
    dimension.arrive(1)
    dimension.run("first")
    fixture = PipelineFixture(tmp_path)
    lookups = {"dimension": PipelineTable(log=dimension.store.url)}
    pipeline = fixture.pipeline(lookups=lookups, transform=with_lookup)
    fixture.arrive(1)
    fixture.run("first", pipeline=pipeline, engine=WithoutLookups())
    dimension.run("fix", reprocessed=0)
    run_vacuum(dimension, 0)
    with pytest.raises(LookupChangedError, match="--current-lookups"):
        fixture.run("fix", pipeline=pipeline, engine=WithoutLookups(), reprocessed=0)
    reprocess(pipeline, 0, current_lookups=True, engine=WithoutLookups(), log=fixture.log())
    fixture.check()


def test_vacuum_deletes_no_object_that_the_package_has_not_written(fixture: PipelineFixture) -> None:
    """Their keys resemble those of losing attempts, quarantined records, old notes of vacuum and files of superseded commits."""
    inside = ("attempts/1/notes.json", "quarantine/1/notes/00000.jsonl", "vacuumed/notes.json", "expired/notes.json")
    for key in inside:
        assert fixture.store.create(key, b"not of the pipeline")
    data = fixture.root / "out" / "data"
    outside = [data / "1" / "notes" / "a.json", data / "1" / "b.json", data / "6" / "region=eu" / "c.json"]
    for path in outside:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not of the pipeline")
    done = run_vacuum(fixture, 0, all_versions=True)
    assert {version for _, version, _ in done.attempts} == {1, 4, 6}
    assert all(fixture.store.read(key) == b"not of the pipeline" for key in inside)
    assert all(path.read_text() == "not of the pipeline" for path in outside)
