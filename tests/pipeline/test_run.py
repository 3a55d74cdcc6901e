"""Results and request counts of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Limits
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
)
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import Vacuumed, vacuum
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.pipeline.log_requests import requests
from tests.pipeline_fixture import BeforeOutcome, PipelineFixture, die

LOST, RUNNING = "a" * 32, "b" * 32
"""Ids of attempts."""


def test_single_batch_commits_the_files_that_its_limits_allow(fixture: PipelineFixture) -> None:
    fixture.arrive(3)
    result = fixture.run("a")
    assert (result.status, result.version, result.batches) == ("committed", 0, 1)
    assert result.ranges == {"files": (0, 2)}
    assert result.counts == {"filtered": 0, "parsed": 6, "quarantined": 0, "read": 6, "written.out": 6}
    assert fixture.visible() == Counter(range(6))
    assert fixture.log().read(result.outcome) is not None


def test_next_run_continues_where_the_last_ended(fixture: PipelineFixture) -> None:
    fixture.arrive(3)
    fixture.run("a")
    assert fixture.run("b").ranges == {"files": (2, 3)}
    fixture.check()


def test_run_with_nothing_new_writes_nothing(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    store = CountingStore(fixture.store)
    result = fixture.run("b", store=store)
    assert (result.status, result.version, result.outcome) == ("empty", 0, "")
    assert store.requests["create"] == 0


def test_I12_repeated_run_key_returns_the_same_result_and_stages_nothing(fixture: PipelineFixture) -> None:
    fixture.arrive(3)
    first = fixture.run("a")
    fixture.arrive(1)
    fixture.run("b")
    engine = RowsEngine()
    assert fixture.run("a", engine=engine) == first
    assert engine.staged == 0


def test_repeated_drain_returns_the_same_result_and_stages_nothing(fixture: PipelineFixture) -> None:
    fixture.arrive(5)
    first = fixture.run("a", drain=True)
    assert (first.batches, first.ranges, first.counts["read"]) == (3, {"files": (0, 5)}, 15)
    fixture.arrive(2)
    fixture.run("b", drain=True)
    engine = RowsEngine()
    assert fixture.run("a", drain=True, engine=engine) == first
    assert engine.staged == 0
    fixture.check()


def test_drain_stops_at_the_target_frozen_by_its_first_plan(fixture: PipelineFixture) -> None:
    fixture.arrive(4)
    arrived = iter([True])

    def more_arrives(step: str) -> None:
        if step == "read" and next(arrived, False):
            fixture.arrive(3)

    result = fixture.run("a", drain=True, engine=RowsEngine(more_arrives))
    assert result.ranges == {"files": (0, 4)}
    assert fixture.run("b", drain=True).ranges == {"files": (4, 7)}
    fixture.check()


def test_I19_retry_of_a_drain_continues_to_the_same_target(fixture: PipelineFixture) -> None:
    fixture.arrive(4)

    fixture.dies("a", drain=True, batch=2)
    fixture.arrive(2)
    assert fixture.run("a", drain=True).ranges == {"files": (0, 4)}
    assert fixture.run("b", drain=True).ranges == {"files": (4, 6)}
    fixture.check()


def test_single_batch_costs_ten_log_requests_and_two_for_discovery(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.run("a")
    fixture.arrive(1)
    store = CountingStore(fixture.store)
    fixture.run("b", store=store)
    assert requests(store) == [
        ("read", "pipeline.json"),  # opening, once for each process
        ("list", "log"),
        ("read", "log"),
        ("read", "runs"),
        ("read", "sources"),  # discovery
        ("create", "sources"),
        ("create", "log"),
        ("create", "attempts"),
        ("create", "runs"),
        ("create", "log"),
        ("read", "announced"),
        ("read", "runs"),  # an earlier try that found nothing may have announced versions of other runs
        ("create", "announced"),
    ]


def test_further_batch_of_a_drain_costs_four_log_requests(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.run("a")
    costs = []
    for files in (4, 6, 8):
        fixture.arrive(files)
        store = CountingStore(fixture.store)
        fixture.run(f"drain-{files}", drain=True, store=store)
        costs.append(len(requests(store)))
    assert [later - earlier for earlier, later in pairwise(costs)] == [4, 4]


def test_idle_poll_costs_one_listing_and_four_reads_besides_discovery(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.run("a")
    store = CountingStore(fixture.store)
    fixture.run("b", store=store)
    assert [r for r in requests(store) if r[1] not in ("pipeline.json", "sources")] == [
        ("list", "log"),
        ("read", "log"),
        ("read", "runs"),
        ("read", "runs"),
        ("read", "announced"),
    ]


def test_open_version_of_another_run_is_completed_first(fixture: PipelineFixture) -> None:
    fixture.arrive(3)

    fixture.dies("a")
    result = fixture.run("b")
    assert result.ranges == {"files": (2, 3)}
    assert fixture.run("a").version == 0
    fixture.check()


def test_staged_attempt_without_an_outcome_is_adopted_without_staging_again(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore

    for at in range(40):
        store = FaultyStore(fixture.store, at, Fault.CRASH_BEFORE)
        try:
            fixture.run("a", store=store)
        except Crash:
            if not fixture.log().list_keys("attempts/"):
                continue
        break
    engine = RowsEngine()
    assert fixture.run("a", engine=engine).version == 0
    assert engine.staged == 0
    fixture.check()


def test_staged_attempt_with_a_missing_file_is_not_adopted(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    with pytest.raises(Crash):
        fixture.run("a", store=BeforeOutcome(fixture.store, die))
    assert fixture.log().list_keys("attempts/")
    for path in (fixture.root / "out" / "data").rglob("*.json"):
        path.unlink()
    engine = RowsEngine()
    fixture.run("a", engine=engine)
    assert engine.staged == 1
    fixture.check()


def test_I10_run_plans_again_after_its_open_version_was_aborted(fixture: PipelineFixture) -> None:
    fixture.arrive(2)

    fixture.dies("a")
    opened = fixture.opened()
    aborted = abort(opened.log, opened.record, 0, reason="poison")
    assert (aborted.result, aborted.reason) == ("abort", "poison")
    result = fixture.run("a", pipeline=fixture.pipeline(limits=Limits(max_files=1)))
    assert (result.version, result.ranges, result.batches) == (1, {"files": (0, 1)}, 2)
    assert fixture.run("a") == result
    fixture.run("b", drain=True)
    fixture.check()


def test_zombie_that_continues_after_an_abort_commits_nothing_of_the_aborted_version(fixture: PipelineFixture) -> None:
    fixture.arrive(2)

    def abort_concurrently(step: str) -> None:
        if step == "staged" and engine.staged == 1:
            opened = fixture.opened()
            abort(opened.log, opened.record, 0, reason="took too long")

    engine = RowsEngine(abort_concurrently)
    result = fixture.run("a", engine=engine)
    assert (result.version, engine.staged) == (1, 2)
    assert fixture.opened().log.outcome(0).result == "abort"  # type: ignore[union-attr]
    fixture.check()


def test_abort_after_a_commit_is_refused(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    opened = fixture.opened()
    with pytest.raises(InvalidError, match="only the open version"):
        abort(opened.log, opened.record, 0, reason="too late")


def test_I11_vacuum_deletes_losing_attempts_of_closed_versions_and_nothing_else(fixture: PipelineFixture) -> None:
    fixture.arrive(4)
    fixture.run("a")
    losing_file = fixture.root / "out" / "data" / "0" / LOST / "part.json"
    losing_file.parent.mkdir()
    losing_file.write_text("{}\n")
    running_file = fixture.root / "out" / "data" / "1" / RUNNING / "part.json"
    running_file.parent.mkdir(parents=True)
    running_file.write_text("{}\n")
    assert vacuum(fixture.pipeline(), log=fixture.log(), dry_run=True).attempts == (("out", 0, LOST),)
    assert losing_file.exists()
    assert vacuum(fixture.pipeline(), log=fixture.log()).bytes == 3
    assert not losing_file.parent.exists()
    assert vacuum(fixture.pipeline(), log=fixture.log()).attempts == ()
    assert running_file.exists()
    assert ("out", 1, RUNNING) not in vacuum(fixture.pipeline(), log=fixture.log()).attempts
    fixture.run("b")
    fixture.check()


def test_quarantined_records_are_stored_with_their_commit(fixture: PipelineFixture) -> None:
    fixture.arrive(2, bad_lines=2)
    result = fixture.run("a")
    assert (result.counts["read"], result.counts["parsed"], result.counts["quarantined"]) == (10, 6, 4)
    (key,) = fixture.opened().log.outcome(0).quarantine.keys  # type: ignore[union-attr]
    data = fixture.log().read(key)
    assert data is not None
    assert data.count(b"{not json") == 4
    fixture.check()


def test_more_bad_records_than_allowed_fail_the_batch_and_commit_nothing(fixture: PipelineFixture) -> None:
    fixture.arrive(1, bad_lines=3)
    with pytest.raises(DataError):
        fixture.run("a", pipeline=fixture.pipeline(limits=Limits(max_quarantined=2)))
    assert fixture.opened().head == -1


DAY_MS = 86_400_000


def vacuum_later(fixture: PipelineFixture, days: int, store: Any = None, **arguments: Any) -> Vacuumed:
    clock = ManualClock(1_700_000_000_000 + days * DAY_MS + 60_000)
    return vacuum(fixture.pipeline(), log=CommitLog(store or fixture.store, clock), **arguments)


def late_file(fixture: PipelineFixture, version: int) -> None:
    location = fixture.root / "out" / "data" / str(version) / LOST
    location.mkdir(parents=True)
    (location / "part.json").write_text("{}\n")


def test_V6_vacuum_inspects_again_only_versions_of_the_last_day(fixture: PipelineFixture) -> None:
    for number in range(5):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    vacuum_later(fixture, 0)
    late_file(fixture, 2)
    assert vacuum_later(fixture, 1, dry_run=True).attempts == (("out", 2, LOST),)
    assert vacuum_later(fixture, 1).attempts == (("out", 2, LOST),)
    late_file(fixture, 3)
    assert vacuum_later(fixture, 1).attempts == ()
    assert [stat.key for stat in fixture.store.list("vacuumed/")] == [keys.vacuumed(5)]
    assert vacuum_later(fixture, 2, all_versions=True).attempts == (("out", 3, LOST),)
    fixture.check()


def test_V6_requests_of_vacuum_do_not_grow_with_inspected_versions(fixture: PipelineFixture) -> None:
    requests = []
    for number in range(120):
        fixture.arrive(1)
        fixture.run(f"r{number}")
        if number in (9, 119):
            vacuum_later(fixture, 1)
            store = CountingStore(fixture.store)
            vacuum_later(fixture, 1, store)
            requests.append(sum(store.requests.values()))
    assert requests[0] == requests[1] < 12, requests


def test_V6_forged_vacuum_record_only_skips_the_inspection(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    late_file(fixture, 0)
    fixture.store.create(keys.vacuumed(1), b"")
    assert vacuum_later(fixture, 1).attempts == ()
    assert vacuum_later(fixture, 1, all_versions=True).attempts == (("out", 0, LOST),)
    fixture.check()


def test_V6_vacuum_record_beyond_the_head_of_a_restored_log_is_not_used(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    late_file(fixture, 0)
    fixture.store.create(keys.vacuumed(10**9), b"")
    assert vacuum_later(fixture, 1).attempts == (("out", 0, LOST),)
    assert [stat.key for stat in fixture.store.list("vacuumed/")] == [keys.vacuumed(1)]


def test_V6_interrupted_vacuum_continues_where_it_stopped(fixture: PipelineFixture) -> None:
    """Vacuum records its progress after each hundred versions."""
    for number in range(105):
        fixture.arrive(1)
        fixture.run(f"r{number}")
    for version in (98, 99, 100, 101, 102, 103, 104):
        late_file(fixture, version)

    class InterruptedStore(CountingStore):
        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Any:
            if prefix == keys.attempts(102):
                raise Crash
            return super().list(prefix, limit, start_after)

    with pytest.raises(Crash):
        vacuum_later(fixture, 1, InterruptedStore(fixture.store))
    assert [stat.key for stat in fixture.store.list("vacuumed/")] == [keys.vacuumed(100)]
    assert [version for _, version, _ in vacuum_later(fixture, 1).attempts] == [103, 104]


def test_I11_vacuum_of_an_old_log_does_not_touch_the_dataset_of_a_new_one(
    fixture: PipelineFixture, tmp_path: Path
) -> None:
    import shutil

    fixture.arrive(1)
    fixture.run("a")
    shutil.rmtree(fixture.root / "out")
    new = PipelineFixture(tmp_path)
    new.made = fixture.made
    new.run("a")
    with pytest.raises(ConflictError, match="another pipeline"):
        vacuum(fixture.pipeline(), log=fixture.log())
    new.check()


def test_segment_of_a_dead_writer_is_written_by_a_later_run(tmp_path: Path) -> None:
    from airflow_provider_streamsem.protocol import keys
    from airflow_provider_streamsem.stores.memory import MemoryStore

    fixture = PipelineFixture(tmp_path, rows_per_file=1)
    fixture.arrive(240)
    fixture.run("a", drain=True)
    assert isinstance(fixture.store, MemoryStore)
    assert fixture.opened().head == 119
    del fixture.store.objects[keys.segment(1, 0)]
    fixture.arrive(70)
    fixture.run("b", drain=True)
    assert fixture.store.read(keys.segment(1, 0)) is not None
    fixture.check()


def test_I9_run_fails_if_the_segment_that_it_creates_exists_with_other_content(tmp_path: Path) -> None:
    from airflow_provider_streamsem.errors import LogDamagedError
    from airflow_provider_streamsem.protocol import keys

    logs = [PipelineFixture(tmp_path / name, rows_per_file=1) for name in ("a", "b")]
    for fixture, files in zip(logs, (200, 198), strict=True):
        fixture.arrive(files)
        fixture.run("a", drain=True)
    other, fixture = logs
    fixture.store.objects[keys.segment(1, 0)] = other.store.objects[keys.segment(1, 0)]
    fixture.arrive(2)
    with pytest.raises(LogDamagedError, match="I9"):
        fixture.run("b")
    assert fixture.opened().head == 99


def test_I13_disagreeing_clocks_do_not_affect_commits(fixture: PipelineFixture) -> None:
    from airflow_provider_streamsem import run_batch
    from airflow_provider_streamsem.commitlog.log import CommitLog
    from airflow_provider_streamsem.testing.clock import ManualClock

    for now_ms in (10**15, 0, 10**12, 5):
        fixture.arrive(1)
        log = CommitLog(fixture.store, ManualClock(now_ms, name=f"at{now_ms}"))
        run_batch(fixture.pipeline(), run_key=f"at {now_ms}", log=log, engine=RowsEngine())
    assert fixture.opened().head == 3
    fixture.check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"run_key": ""}, "run_key"),
        ({"run_key": 7}, "run_key"),
        ({"run_key": "a", "drain": "yes"}, "drain"),
    ],
)
def test_invalid_arguments_are_reported_by_name(
    fixture: PipelineFixture, arguments: dict[str, object], message: str
) -> None:
    from airflow_provider_streamsem import run_batch

    with pytest.raises(InvalidError, match=message):
        run_batch(fixture.pipeline(), **arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="Pipeline"):
        run_batch("orders", run_key="a")  # type: ignore[arg-type]


@pytest.mark.parametrize("step", ["write out", "collect out", "staged"])
@pytest.mark.parametrize("other", ["a", "b"])
def test_attempt_deleted_by_vacuum_after_another_commit_of_its_version_does_not_fail(
    fixture: PipelineFixture, step: str, other: str
) -> None:
    """A commit by another attempt is a success (W21)."""
    fixture.arrive(2)

    def commit_and_vacuum(name: str) -> None:
        if name == step and engine.staged == 1:
            fixture.run(other)
            vacuum(fixture.pipeline(), log=fixture.log())

    engine = RowsEngine(commit_and_vacuum)
    result = fixture.run("a", engine=engine)
    assert result == fixture.run("a")
    assert (result.version, result.ranges, engine.staged) == (0, {"files": (0, 2)}, 1)
    vacuum(fixture.pipeline(), log=fixture.log())
    fixture.check()


def test_failing_attempt_of_an_open_version_fails(fixture: PipelineFixture) -> None:
    fixture.arrive(1)

    def fail(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        raise ValueError(rows)

    with pytest.raises(ValueError, match="id"):
        fixture.run("a", pipeline=fixture.pipeline(transform=fail))
    assert fixture.opened().head == -1


def test_log_of_a_run_that_died_before_it_marked_its_dataset_has_no_findings(
    fixture: PipelineFixture,
) -> None:
    fixture.arrive(1)
    at = next(n for n in range(99) if crash_after(fixture, n))
    assert at > 0
    assert not (fixture.root / "out").exists()
    assert fixture.verdict().violations == []
    assert vacuum(fixture.pipeline(), log=fixture.log()).attempts == ()
    fixture.run("a")
    fixture.check()


def crash_after(fixture: PipelineFixture, request: int) -> bool:
    """Run and crash after a request. Returns whether this request created ``pipeline.json``."""
    with pytest.raises(Crash):
        fixture.run("a", store=FaultyStore(fixture.store, request, Fault.CRASH_AFTER))
    return fixture.store.read("pipeline.json") is not None


def test_I7_version_is_read_although_a_listing_lags(fixture: PipelineFixture) -> None:
    class LaggingStore(CountingStore):
        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
            newest = ("-1.c.json", "-1.p.json")
            return iter([stat for stat in super().list(prefix, limit, start_after) if not stat.key.endswith(newest)])

    fixture.arrive(4)
    fixture.run("a", drain=True)
    read = fixture.opened().files(version=1)
    lagging = open_log(fixture.log(LaggingStore(fixture.store)))
    assert lagging.head == 0
    assert lagging.files(version=1) == read


def test_result_of_a_run_with_an_aborted_plan_has_only_the_committed_ranges(fixture: PipelineFixture) -> None:
    fixture.arrive(4)
    fixture.dies("a")
    opened = fixture.opened()
    abort(opened.log, opened.record, 0, reason="x")
    fixture.run("b")
    assert fixture.run("a").ranges == {"files": (2, 4)}
