"""Which versions the result of a run announces: its own, and those of other runs that nobody announced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import RunResult
from airflow_provider_streamsem.batch import announcement
from airflow_provider_streamsem.batch.redo import redo_run
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.outside import PublishingWorld, TableSink
from tests.worlds import World


def completed(result: object) -> list[int]:
    return [one.version for one in result.completed]  # type: ignore[attr-defined]


def test_run_that_finishes_the_version_of_another_run_reports_it(world: World) -> None:
    world.arrive(2)
    world.dies("first")
    result = world.run("second")
    assert (result.status, result.batches, result.ranges, result.counts) == ("committed", 0, {}, {})
    (one,) = result.completed
    assert (one.version, one.run_key, one.ranges) == (0, "first", {"files": (0, 2)})
    assert one.counts["written.out"] == 6
    assert world.store.read(one.outcome) is not None
    assert (result.version, result.outcome, result.versions) == (0, one.outcome, (0, 1))
    assert world.run("second") == result
    assert world.run("third").status == "empty"


def test_run_that_publishes_the_commit_of_another_run_reports_it(tmp_path: Path) -> None:
    world = PublishingWorld(tmp_path)
    world.arrive(2)
    with TableSink.dying("before publish table"):
        world.run("first")
    result = world.run("second")
    assert (result.status, completed(result)) == ("committed", [0])
    assert result.completed[0].counts["written.table"] == 6


def test_own_batch_and_the_completed_version_are_counted_apart(world: World) -> None:
    world.arrive(3)
    world.dies("first")
    result = world.run("second")
    assert (completed(result), result.version, result.ranges) == ([0], 1, {"files": (2, 3)})
    assert (result.counts["read"], result.completed[0].counts["read"], result.versions) == (3, 6, (0, 2))


def test_versions_of_a_run_that_committed_and_then_failed_are_reported_by_the_next_run(world: World) -> None:
    world.arrive(4)
    world.dies("first", drain=True, batch=2)
    assert world.opened().head == 0
    result = world.run("second", drain=True)
    assert (result.status, completed(result)) == ("committed", [0, 1])


def test_run_that_completed_a_version_and_then_failed_leaves_it_to_the_next(world: World) -> None:
    world.arrive(3)
    world.dies("first")
    seen: list[str] = []

    def fails_in_its_own_batch(step: str) -> None:
        seen.append(step)
        if step == "read" and seen.count("read") == 2:
            raise DataError("a record is bad")

    with pytest.raises(DataError):
        world.run("second", engine=RowsEngine(fails_in_its_own_batch))
    assert completed(world.run("third")) == [0, 1]


def test_process_that_dies_after_it_announced_announces_again_though_others_ran_since(world: World) -> None:
    world.arrive(2)
    world.dies("first")
    alone = CountingStore(world.store)
    for at in range(60):
        store = FaultyStore(world.store, at, Fault.CRASH_AFTER)
        with suppress(Crash):
            world.run("second", store=store)
        if any(stat.key.startswith("announced/") for stat in world.store.list("")):
            break
    world.arrive(1)
    world.run("third", store=alone)
    assert completed(world.run("second")) == [0]


def test_drain_reports_versions_of_other_runs_between_its_own(world: World) -> None:
    world.arrive(6)
    world.dies("drain", drain=True, batch=2)  # version 1 is open
    world.dies("other", drain=True, batch=2)  # finishes 1, plans 2
    result = world.run("drain", drain=True)
    assert (completed(result), result.version, result.versions) == ([2], 1, (0, 3))
    world.run("rest")
    assert completed(world.run("drain", drain=True)) == [2]


def test_many_unannounced_versions_are_bounded_in_the_result(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement, "LISTED", 2)
    world.arrive(8)
    world.dies("first", drain=True, batch=4)
    result = world.run("second", drain=True)
    assert (completed(result), result.versions) == ([2, 3], (0, 4))


def test_others_between_are_found_with_few_reads(world: World) -> None:
    from airflow_provider_streamsem import Limits

    one = world.pipeline(limits=Limits(max_files=1))
    world.arrive(20)
    world.dies("drain", drain=True, batch=12, pipeline=one)
    world.dies("other", batch=2, pipeline=one)  # finishes version 11, plans version 12 and dies
    counting = CountingStore(world.store)
    result = world.run("drain", drain=True, pipeline=one, store=counting)
    assert completed(result) == [12]
    assert result.batches == 19
    log = world.log(counting := CountingStore(world.store))
    assert log.others_between("drain", (0, 0), (18, 19)) == [12]
    assert counting.requests["read"] <= 8


def test_process_whose_twin_announced_and_died_announces_the_same(world: World) -> None:
    world.arrive(2)
    world.dies("first")
    world.arrive(1)

    class TwinsFirst(CountingStore):
        """Another process of the run announces, and dies, before this one looks for the newest announcement."""

        def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
            if prefix == keys.ANNOUNCED:
                world.run("second")
            return super().list(prefix, limit, start_after)

    assert completed(world.run("second", store=TwinsFirst(world.store))) == [0]


def test_idle_run_that_announced_and_died_announces_again_when_its_retry_finds_records(world: World) -> None:
    world.arrive(2)
    world.dies("first")
    assert completed(world.run("idle")) == [0]
    world.returned.clear()  # the process died before the result was recorded
    world.arrive(1)
    world.run("other")
    world.arrive(1)
    again = world.run("idle")
    assert (completed(again), again.versions) == ([0, 1], (0, 3))
    assert world.unannounced() == []


def test_redo_of_a_run_that_failed_half_way_leaves_other_runs_versions_to_the_next(world: World) -> None:
    def fails_at_the_second_version(rows: list[dict[str, int]]) -> list[dict[str, int]]:
        if any(6 <= row["id"] < 12 for row in rows):
            raise DataError("the transform does not fit the data")
        return rows

    def clear(request: str, **changes: Any) -> RunResult:
        return redo_run(world.pipeline(**changes), run_key="run", request=request, log=world.log(), engine=RowsEngine())

    world.arrive(4)
    world.run("run", drain=True)
    world.arrive(2)
    world.dies("first")  # version 2 is open
    with pytest.raises(DataError):
        clear("1", transform=fails_at_the_second_version)
    again = clear("2")
    world.returned.append(again)
    assert 2 in completed(again)
    assert clear("2") == again
    assert again.versions == (0, again.version + 1)
    own = [v.version for v in world.opened().versions() if v.plan.run_key.startswith("run#2:")]
    assert world.unannounced() == sorted(own)  # which its counts hold
