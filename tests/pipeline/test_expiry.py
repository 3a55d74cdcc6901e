"""Tests of expired versions whose rows a compaction has stored again: vacuum deletes their own files, and nothing needs these files afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_streamsem import FilesSink, Limits, Pipeline, alter, rollback
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import (
    HeldVersionError,
    InvalidError,
    LogDamagedError,
    OpenVersionError,
    StreamsemError,
)
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.compact import _Sizes
from airflow_provider_streamsem.pipeline.maintenance.vacuum import Vacuumed, vacuum
from airflow_provider_streamsem.pipeline.run.review import stage_reprocessing
from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.protocol.view import ClosedHead, OpenHead
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.pipeline.compactions import compacted, prepared, rows
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture, PreparedFixture, die

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    """Version 4 has the rows of versions 0 to 3. Version 5 has its own."""
    return compacted_and_continued(tmp_path)


def compacted_and_continued(root: Path) -> PipelineFixture:
    fixture = prepared(root)
    compacted(fixture)
    fixture.run("r5")
    return fixture


def vacuumed(fixture: PipelineFixture, keep_versions: int = 1, *, store: Store | None = None) -> Vacuumed:
    log = CommitLog(store or fixture.store, ManualClock(NOW_MS + 30 * DAY_MS))
    return vacuum(fixture.ran or fixture.pipeline(), keep_versions=keep_versions, keep_days=0, log=log)


def stored(fixture: PipelineFixture) -> set[int]:
    """Return the versions that have files in the dataset."""
    return {int(path.parts[-3]) for path in (fixture.root / "out" / "data").glob("*/*/*")}


def oldest_readable(fixture: PipelineFixture) -> int | None:
    head = fixture.log().newest_head()
    return head.oldest_readable or None


@pytest.mark.parametrize(("kept", "left"), [(1, {4, 5}), (2, {4, 5}), (3, {0, 1, 2, 3, 4, 5}), (9, {0, 1, 2, 3, 4, 5})])
def test_vacuum_deletes_the_files_of_commits_that_a_kept_version_reads_from_a_compaction(
    fixture: PipelineFixture, kept: int, left: set[int]
) -> None:
    vacuumed(fixture, kept)
    assert stored(fixture) == left
    assert oldest_readable(fixture) == (6 - kept if left == {4, 5} else None)
    for version in range(oldest_readable(fixture) or 0, 6):
        assert rows(fixture, version=version) == Counter(range(3 * version + (0 if version > 3 else 3)))
    fixture.check()
    assert fixture.verdict().orphans == 0


def test_repeated_vacuum_plans_no_version(fixture: PipelineFixture) -> None:
    vacuumed(fixture)
    assert vacuumed(fixture).attempts == ()
    assert fixture.opened().head == 6


def test_vacuum_without_unneeded_files_plans_no_version(tmp_path: Path) -> None:
    fixture = prepared(tmp_path)
    vacuumed(fixture)
    assert (fixture.opened().head, oldest_readable(fixture)) == (3, None)


def test_W44_version_whose_rows_are_only_in_a_compaction_is_not_reprocessed(fixture: PipelineFixture) -> None:
    vacuumed(fixture)
    before = fixture.opened().head
    with pytest.raises(InvalidError, match=r"has expired.*version=2, compacted_by=4"):
        fixture.run("fix", reprocessed=2)
    assert fixture.opened().head == before
    fixture.run("fix the last", reprocessed=5)
    fixture.check()


def test_W44_rollback_to_an_expired_version_is_refused(fixture: PipelineFixture) -> None:
    vacuumed(fixture)
    with pytest.raises(InvalidError, match=r"the version has expired.*oldest_readable=5"):
        rollback(fixture.pipeline(), 2, log=fixture.log())
    rollback(fixture.pipeline(), 5, log=fixture.log())
    fixture.check()


def test_R9_rows_since_a_version_within_an_expired_compaction_are_refused(fixture: PipelineFixture) -> None:
    assert rows(fixture, since=1) == Counter(range(6, 15))
    vacuumed(fixture)
    for since in range(3):
        with pytest.raises(InvalidError, match=rf"cannot be read separately.*since={since}, first=0, last=3"):
            rows(fixture, since=since)
    assert (rows(fixture, since=-1), rows(fixture, since=3)) == (Counter(range(15)), Counter(range(12, 15)))
    assert rows(fixture, with_rewrites=False) == Counter(range(15))


def test_W45_compaction_keeps_expired_commits_and_others_apart(fixture: PipelineFixture) -> None:
    vacuumed(fixture)
    for number in range(4):
        fixture.arrive(1)
        fixture.run(f"later {number}")
    assert [(done.commits, done.files) for done in compacted(fixture)] == [(5, 5)]
    fixture.run("fix", reprocessed=7)
    fixture.check()
    vacuumed(fixture)
    fixture.check()


def test_expired_commits_are_compacted_with_each_other(tmp_path: Path) -> None:
    fixture = prepared(tmp_path)
    fixture.run("wrong", reprocessed=0)
    for number in range(4):
        fixture.arrive(1)
        fixture.run(f"later {number}")
    vacuumed(fixture)
    assert oldest_readable(fixture) == 8
    assert [done.commits for done in compacted(fixture)] == [7]
    with pytest.raises(InvalidError, match="has expired"):
        fixture.run("fix", reprocessed=1)
    vacuumed(fixture)
    fixture.check()


def test_files_of_commits_stay_while_a_kept_version_reads_an_earlier_compaction(fixture: PipelineFixture) -> None:
    for number in range(9):
        fixture.arrive(1)
        fixture.run(f"later {number}")
    (second,) = compacted(fixture)
    assert second.commits == 14
    vacuumed(fixture, keep_versions=4)
    assert {0, 1, 2, 3} <= stored(fixture), "a reprocessing run of a later version makes readers use these files again"
    fixture.run("fix", reprocessed=14)
    fixture.check()


WRITERS: dict[str, Callable[[PipelineFixture], object]] = {
    "run": lambda fixture: fixture.run("rest", drain=True),
    "reprocessing run": lambda fixture: fixture.run("fix", reprocessed=5),
    "rollback": lambda fixture: rollback(fixture.pipeline(), 5, log=fixture.log()),
    "alter": lambda fixture: alter(altered(fixture), log=fixture.log()),
    "compaction": compacted,
    "vacuum": vacuumed,
}


def altered(fixture: PipelineFixture) -> Pipeline:
    sinks = {name: FilesSink(path=str(fixture.root / name), format="json") for name in ("out", "other")}
    return fixture.pipeline(sinks=sinks)


@pytest.mark.parametrize("writer", WRITERS)
def test_writer_that_finds_an_open_expiry_commits_it(fixture: PipelineFixture, writer: str) -> None:
    with suppress(Crash):
        vacuumed(fixture, store=BeforeOutcome(fixture.store, die))
        raise AssertionError("the process did not die")
    assert isinstance(fixture.log().newest_head(), OpenHead)
    assert stored(fixture) == set(range(6)), "nothing has expired"
    WRITERS[writer](fixture)
    assert isinstance(fixture.log().newest_head(), ClosedHead)
    assert oldest_readable(fixture) == 5
    fixture.ran = altered(fixture) if writer == "alter" else None
    vacuumed(fixture)
    assert 0 not in stored(fixture)
    fixture.check()


def test_vacuum_at_an_open_version_deletes_other_files_and_reports_the_version(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    with suppress(Crash):
        fixture.run("killed", store=BeforeOutcome(fixture.store, die))
    with pytest.raises(OpenVersionError, match=r"no expiry was planned \(version=6"):
        vacuumed(fixture)
    assert stored(fixture) == set(range(7))
    fixture.run("rest", drain=True)
    vacuumed(fixture)
    assert stored(fixture) == {4, 5, 6}
    fixture.check()


def test_vacuum_at_a_held_version_reports_it(fixture: PipelineFixture) -> None:
    stage_reprocessing(fixture.pipeline(), 5, log=fixture.log(), engine=RowsEngine())
    with pytest.raises(HeldVersionError, match="no expiry was planned"):
        vacuumed(fixture)
    assert stored(fixture) == set(range(7))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)])
def test_fault_at_any_request_of_a_vacuum_changes_no_row(tmp_path: Path, fault: Fault) -> None:
    at, is_done, start = 0, False, PreparedFixture(compacted_and_continued(tmp_path))
    while not is_done:
        fixture = start.restore()
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash, StreamsemError):
            vacuumed(fixture, store=store)
        is_done, at = not store.reached, at + 1
        assert rows(fixture) == Counter(range(15))
        if at % 2:
            fixture.arrive(1)
            fixture.run("rest", drain=True)
        vacuumed(fixture)
        assert not stored(fixture) & {0, 1, 2, 3}
        fixture.check()


@pytest.mark.slow
def test_vacuum_that_is_killed_at_any_deletion_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    discard: Callable[..., int] = FilesSink.discard
    for at in range(5):
        fixture = compacted_and_continued(tmp_path / str(at))
        left = [at]

        def dying(sink: FilesSink, *arguments: object, left: list[int] = left, **named: object) -> int:
            if not left[0]:
                raise Crash
            left[0] -= 1
            return discard(sink, *arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(FilesSink, "discard", dying)
            with suppress(Crash):
                vacuumed(fixture)
        assert len({0, 1, 2, 3} - stored(fixture)) == min(at, 4)
        fixture.check()
        vacuumed(fixture, 9)
        assert stored(fixture) == {4, 5}
        fixture.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "other", [*WRITERS, "reprocessing run of a rewritten commit", "rollback to a rewritten commit"]
)
def test_other_process_at_any_request_of_a_vacuum(tmp_path: Path, other: str) -> None:
    others = {
        **WRITERS,
        "reprocessing run of a rewritten commit": lambda fixture: fixture.run("fix", reprocessed=1),
        "rollback to a rewritten commit": lambda fixture: rollback(fixture.pipeline(), 1, log=fixture.log()),
    }
    at, is_done, expired = 0, False, 0
    continued = compacted_and_continued(tmp_path)
    continued.arrive(2)
    start = PreparedFixture(continued)
    while not is_done:
        fixture = start.restore()

        def quietly(fixture: PipelineFixture = fixture) -> None:
            with suppress(StreamsemError):
                others[other](fixture)
                if other == "alter":
                    fixture.ran = altered(fixture)

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=quietly)
        with suppress(StreamsemError):
            vacuumed(fixture, store=store)
        is_done, at = not store.reached, at + 1
        expired += oldest_readable(fixture) is not None
        spec = fixture.ran
        fixture.run("rest", drain=True, pipeline=spec)
        fixture.check(partial(rows, fixture))
        vacuumed(fixture)
        fixture.check(partial(rows, fixture))
    assert expired > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "other", ["run", "reprocessing run", "rollback", "compaction", "reprocessing run of a rewritten commit"]
)
def test_vacuum_at_any_request_of_another_process(tmp_path: Path, other: str) -> None:
    others = {**WRITERS, "reprocessing run of a rewritten commit": lambda fixture: fixture.run("fix", reprocessed=1)}
    at, is_done, expired = 0, False, 0
    continued = compacted_and_continued(tmp_path)
    continued.arrive(1)
    continued.run("r6")
    continued.arrive(1)
    start = PreparedFixture(continued)
    while not is_done:
        fixture = start.restore()
        plain = replace(fixture)

        def quietly(fixture: PipelineFixture = plain) -> None:
            with suppress(OpenVersionError):
                vacuumed(fixture)

        fixture.store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=quietly)
        with suppress(StreamsemError):
            others[other](fixture)
        is_done, at = not fixture.store.reached, at + 1
        expired += oldest_readable(plain) is not None
        plain.run("rest", drain=True)
        plain.check()
        vacuumed(plain)
        plain.check()
    assert expired > 1


def test_compaction_that_ignores_an_expiry_is_reported_and_refused(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    vacuumed(fixture)
    for number in range(5):
        fixture.arrive(1)
        fixture.run(f"later {number}")
    choose = _Sizes.choose
    monkeypatch.setattr(
        _Sizes, "choose", lambda self, pipeline, name, view, oldest: choose(self, pipeline, name, view, 0)
    )
    with pytest.raises(LogDamagedError, match="commits that have not expired"):
        compacted(fixture)
    found = [(each.version, each.what) for each in fixture.verdict().violations if each.invariant == "I24"]
    assert found == [(12, "a rewrite names commits of a bound rewrite, and commits that have not expired")]


def write_without_the_expiry(fixture: PipelineFixture, write: Callable[[PipelineFixture], object]) -> None:
    """
    Vacuum the log, and add what a writer that does not know expiries has written as version 7.

    The writer writes it after version 6 of a copy of the log, in which version 6 was aborted.
    """
    assert isinstance(fixture.store, MemoryStore)
    objects, before = fixture.store.objects, dict(fixture.store.objects)
    fixture.arrive(1)
    fixture.dies("aborted")
    abort(fixture.log(), fixture.opened().record, 6, reason="for the test")
    write(fixture)
    plan, outcome = objects[keys.plan(7)], fixture.log().outcome(7)
    assert outcome is not None
    objects.clear()
    objects.update(before)
    vacuumed(fixture)
    objects[keys.plan(7)] = plan
    objects[keys.outcome(7)] = codec.encode(replace(outcome, newest={**outcome.newest, "expire": 5})).data


def test_rollback_that_ignores_an_expiry_is_reported_and_refused(fixture: PipelineFixture) -> None:
    write_without_the_expiry(fixture, lambda fixture: rollback(fixture.pipeline(), 3, log=fixture.log()))
    found = [(each.version, each.what) for each in fixture.verdict().violations if each.invariant == "I24"]
    assert found == [(7, "a rollback returns to an expired version")]
    with pytest.raises(LogDamagedError, match="returns to an expired version"):
        fixture.opened().files()


def test_verify_finds_a_reprocessing_run_of_a_bound_commit(fixture: PipelineFixture) -> None:
    write_without_the_expiry(fixture, lambda fixture: fixture.run("fix", reprocessed=1))
    found = [(each.version, each.what) for each in fixture.verdict().violations if each.invariant == "I24"]
    assert found == [(7, "a reprocessing run replaces a commit of a bound rewrite")]


def test_verify_checks_files_that_a_reprocessing_run_makes_visible_again(fixture: PipelineFixture) -> None:
    for number in range(9):
        fixture.arrive(1)
        fixture.run(f"later {number}")
    (second,) = compacted(fixture)
    assert second.commits == 14
    fixture.run("wrong", reprocessed=6)
    vacuumed(fixture, keep_versions=4)
    fixture.run("fix", reprocessed=14)
    visible = fixture.opened().files(sink="out")
    verdict = fixture.verdict()
    assert (verdict.files, verdict.rows["out"]) == (len(visible), sum(file.rows for file in visible))
    next(Path(file.path) for file in visible if file.version == 0).unlink()
    assert [each.version for each in fixture.verdict().violations] == [0]


def test_aborted_expiry_is_reported_and_repeated(fixture: PipelineFixture) -> None:
    def aborted() -> None:
        record = fixture.log().read_pipeline()
        assert record is not None
        abort(fixture.log(), record, 6, reason="for the test")

    with pytest.raises(OpenVersionError, match="the expiry was aborted"):
        vacuumed(fixture, store=BeforeOutcome(fixture.store, aborted))
    assert oldest_readable(fixture) is None
    vacuumed(fixture)
    assert stored(fixture) == {4, 5}


def test_verify_of_a_log_from_before_the_expiry_advises_to_restore_the_newest_copy(fixture: PipelineFixture) -> None:
    assert isinstance(fixture.store, MemoryStore)
    copy = dict(fixture.store.objects)
    vacuumed(fixture)
    fixture.store.objects.clear()
    fixture.store.objects.update(copy)
    found = fixture.verdict().violations
    assert {each.version for each in found} == {0, 1, 2, 3}
    assert all("restore its newest copy" in each.do and "Do not reprocess" in each.do for each in found)


def test_rewrite_and_expiry_have_the_spec_of_the_newest_batch(fixture: PipelineFixture) -> None:
    """The task of a compaction or a vacuum may have a pipeline without the transform of the batches, and it runs none."""
    log = fixture.log()
    vacuum(
        fixture.pipeline(limits=Limits(max_files=9)),
        keep_versions=1,
        keep_days=0,
        log=CommitLog(fixture.store, ManualClock(NOW_MS + 30 * DAY_MS)),
    )
    plans = [plan for version in (4, 5, 6) if (plan := log.plan(version)) is not None]
    assert [plan.work.kind for plan in plans] == ["rewrite", "batch", "expire"]
    assert len({plan.spec for plan in plans}) == 1
