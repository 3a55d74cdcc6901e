"""The result of a run announces its own versions and the unannounced versions of other runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import RunResult, rollback
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess_run
from airflow_provider_streamsem.pipeline.versions import announcement
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Announcement
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.external_systems import PublishingFixture, TableSink
from tests.pipeline_fixture import PipelineFixture


def completed(result: object) -> list[int]:
    return [version.version for version in result.completed]  # type: ignore[attr-defined]


def test_run_that_finishes_the_version_of_another_run_reports_it(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.dies("first")
    result = fixture.run("second")
    assert (result.status, result.batches, result.ranges, result.counts) == ("committed", 0, {}, {})
    (completed_version,) = result.completed
    assert (completed_version.version, completed_version.run_key, completed_version.ranges) == (
        0,
        "first",
        {"files": (0, 2)},
    )
    assert completed_version.counts["written.out"] == 6
    assert fixture.store.read(completed_version.outcome) is not None
    assert (result.version, result.outcome, result.versions) == (0, completed_version.outcome, (0, 1))
    assert fixture.run("second") == result
    assert fixture.run("third").status == "empty"


def test_run_that_publishes_the_commit_of_another_run_reports_it(tmp_path: Path) -> None:
    fixture = PublishingFixture(tmp_path)
    fixture.arrive(2)
    with TableSink.dying("before publish table"):
        fixture.run("first")
    result = fixture.run("second")
    assert (result.status, completed(result)) == ("committed", [0])
    assert result.completed[0].counts["written.table"] == 6


def test_own_batch_and_the_completed_version_have_separate_counts(fixture: PipelineFixture) -> None:
    fixture.arrive(3)
    fixture.dies("first")
    result = fixture.run("second")
    assert (completed(result), result.version, result.ranges) == ([0], 1, {"files": (2, 3)})
    assert (result.counts["read"], result.completed[0].counts["read"], result.versions) == (3, 6, (0, 2))


def test_versions_of_a_run_that_committed_and_then_failed_are_reported_by_the_next_run(
    fixture: PipelineFixture,
) -> None:
    fixture.arrive(4)
    fixture.dies("first", drain=True, batch=2)
    assert fixture.opened().head == 0
    result = fixture.run("second", drain=True)
    assert (result.status, completed(result)) == ("committed", [0, 1])


def test_version_completed_by_a_run_that_then_failed_is_reported_by_the_next_run(fixture: PipelineFixture) -> None:
    fixture.arrive(3)
    fixture.dies("first")
    steps: list[str] = []

    def fail_in_own_batch(step: str) -> None:
        steps.append(step)
        if step == "read" and steps.count("read") == 2:
            raise DataError("a record is bad")

    with pytest.raises(DataError):
        fixture.run("second", engine=RowsEngine(fail_in_own_batch))
    assert completed(fixture.run("third")) == [0, 1]


def test_retry_of_a_run_that_died_after_its_announcement_announces_the_same_versions_after_other_runs(
    fixture: PipelineFixture,
) -> None:
    fixture.arrive(2)
    fixture.dies("first")
    healthy = CountingStore(fixture.store)
    for at in range(60):
        store = FaultyStore(fixture.store, at, Fault.CRASH_AFTER)
        with suppress(Crash):
            fixture.run("second", store=store)
        if any(stat.key.startswith("announced/") for stat in fixture.store.list("")):
            break
    fixture.arrive(1)
    fixture.run("third", store=healthy)
    assert completed(fixture.run("second")) == [0]


def test_drain_reports_versions_of_other_runs_between_its_own(fixture: PipelineFixture) -> None:
    fixture.arrive(6)
    fixture.dies("drain", drain=True, batch=2)  # version 1 is open
    fixture.dies("other", drain=True, batch=2)  # completes version 1 and plans version 2
    result = fixture.run("drain", drain=True)
    assert (completed(result), result.version, result.versions) == ([2], 1, (0, 3))
    fixture.run("rest")
    assert completed(fixture.run("drain", drain=True)) == [2]


def test_many_unannounced_versions_are_bounded_in_the_result(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcement, "LISTED", 2)
    fixture.arrive(8)
    fixture.dies("first", drain=True, batch=4)
    result = fixture.run("second", drain=True)
    assert (completed(result), result.versions) == ([2, 3], (0, 4))


def test_versions_of_other_runs_inside_a_drain_are_found_with_few_reads(fixture: PipelineFixture) -> None:
    from airflow_provider_streamsem import Limits

    single_file_batches = fixture.pipeline(limits=Limits(max_files=1))
    fixture.arrive(20)
    fixture.dies("drain", drain=True, batch=12, pipeline=single_file_batches)
    fixture.dies("other", batch=2, pipeline=single_file_batches)  # completes version 11, plans version 12 and dies
    counting = CountingStore(fixture.store)
    result = fixture.run("drain", drain=True, pipeline=single_file_batches, store=counting)
    assert completed(result) == [12]
    assert result.batches == 19
    log = fixture.log(counting := CountingStore(fixture.store))
    assert log.others_between("drain", (0, 0), (18, 19)) == [12]
    assert counting.requests["read"] <= 8


def test_process_announces_the_same_versions_as_a_concurrent_process_of_its_run_that_died(
    fixture: PipelineFixture,
) -> None:
    fixture.arrive(2)
    fixture.dies("first")
    fixture.arrive(1)

    class ConcurrentProcessFirst(CountingStore):
        """Another process of the run announces and dies before this process reads the newest announcement."""

        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
            if prefix == keys.ANNOUNCED:
                fixture.run("second")
            return super().list(prefix, limit, start_after)

    assert completed(fixture.run("second", store=ConcurrentProcessFirst(fixture.store))) == [0]


def test_retry_that_finds_records_repeats_the_announcement_of_its_idle_first_try(
    fixture: PipelineFixture,
) -> None:
    fixture.arrive(2)
    fixture.dies("first")
    assert completed(fixture.run("idle")) == [0]
    fixture.returned.clear()  # the process died before Airflow stored the result
    fixture.arrive(1)
    fixture.run("other")
    fixture.arrive(1)
    again = fixture.run("idle")
    assert (completed(again), again.versions) == ([0, 1], (0, 3))
    assert fixture.unannounced() == []


def test_announcement_of_an_idle_run_does_not_stand_for_a_newer_version(fixture: PipelineFixture) -> None:
    """Two processes of a run without versions see different heads. The announcement of the first covers only version 0."""
    fixture.arrive(4)
    fixture.run("first")
    fixture.dies("second")

    class ConcurrentProcessFirst(CountingStore):
        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
            if prefix == keys.ANNOUNCED:
                earlier = Announcement(version=0, since=-1, upto=0, run_key="idle", nonce="n")
                fixture.log().put_announcement(keys.announced_by("idle"), earlier)
            return super().list(prefix, limit, start_after)

    assert fixture.run("idle", store=ConcurrentProcessFirst(fixture.store)).versions == (0, 1)
    assert fixture.run("second").versions[1] == 2
    assert fixture.unannounced() == []


def test_drain_that_continues_after_a_rollback_repeats_its_first_announcement(fixture: PipelineFixture) -> None:
    fixture.arrive(4)
    fixture.dies("first")
    assert completed(fixture.run("drain", drain=True)) == [0]
    fixture.returned.clear()  # the process died before Airflow stored the result
    rollback(fixture.pipeline(), 0, log=fixture.log())
    again = fixture.run("drain", drain=True)
    assert (completed(again), again.versions) == ([0, 2], (0, 4))
    assert fixture.unannounced() == []


def test_versions_of_other_runs_are_announced_by_the_next_request_after_a_failed_reprocessing(
    fixture: PipelineFixture,
) -> None:
    def fail_at_the_second_version(rows: list[dict[str, int]]) -> list[dict[str, int]]:
        if any(6 <= row["id"] < 12 for row in rows):
            raise DataError("the transform does not fit the data")
        return rows

    def clear(request: str, **changes: Any) -> RunResult:
        return reprocess_run(
            fixture.pipeline(**changes), run_key="run", request=request, log=fixture.log(), engine=RowsEngine()
        )

    fixture.arrive(4)
    fixture.run("run", drain=True)
    fixture.arrive(2)
    fixture.dies("first")  # version 2 is open
    with pytest.raises(DataError):
        clear("1", transform=fail_at_the_second_version)
    again = clear("2")
    fixture.returned.append(again)
    assert 2 in completed(again)
    assert clear("2") == again
    assert again.versions == (0, again.version + 1)
    own = [v.version for v in fixture.opened().versions() if v.plan.run_key.startswith("run#2:")]
    assert fixture.unannounced() == sorted(own)  # the result has their counts


def test_request_announces_again_what_an_earlier_request_of_the_task_announced(fixture: PipelineFixture) -> None:
    """The process of the first request died before Airflow stored its result. The task was cleared again, which is another request."""

    def clear(request: str) -> RunResult:
        return reprocess_run(fixture.pipeline(), run_key="run", request=request, log=fixture.log(), engine=RowsEngine())

    fixture.arrive(4)
    fixture.run("run", drain=True)
    fixture.arrive(2)
    fixture.dies("first")  # version 2 is open
    assert 2 in completed(clear("1"))
    again = clear("2")
    assert 2 in completed(again)
    assert clear("2") == again
