"""Which files the files source lists, and how it divides them into batches."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from threading import Barrier

import boto3
import pytest

from airflow_provider_streamsem import FilesSource, Limits
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.connectors.files.source import FilesPlanner
from airflow_provider_streamsem.errors import InvalidError, RecordsMissingError, SourceChangedError
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee
from airflow_provider_streamsem.stores import local
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import CountingStore
from tests.pipeline_fixture import PipelineFixture

DAY_MS = 86_400_000


def source(location: Path, **changes: object) -> FilesSource:
    values: dict[str, object] = {"path": str(location), "format": "json", "schema": "id long", **changes}
    return FilesSource(**values)  # type: ignore[arg-type]


def listed(location: Path, now_ms: int = 0, **changes: object) -> list[str]:
    return [file.path for file in source(location, **changes).listing(now_ms)]


def test_listing_selects_files_that_match_the_glob_and_are_complete(tmp_path: Path) -> None:
    for name in (
        "a.json",
        "b.csv",
        "sub/c.json",
        "_d.json",
        ".e.json",
        "_tmp/f.json",
        "sub/.g/h.json",
        "i.json._COPYING_",
        "_k=1/l.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert listed(tmp_path, glob="*.json") == ["a.json", "sub/c.json"]
    assert listed(tmp_path) == ["a.json", "b.csv", "sub/c.json"]


def test_start_after_limits_the_listing_and_its_date_fields_follow_the_clock(tmp_path: Path) -> None:
    for day in ("1970-01-08", "1970-01-09", "1970-01-10"):
        (tmp_path / f"date={day}").mkdir()
        (tmp_path / f"date={day}" / "a.json").write_text("")
    assert listed(tmp_path, start_after="date=1970-01-09") == ["date=1970-01-09/a.json", "date=1970-01-10/a.json"]
    window = {"start_after": "date=%Y-%m-%d", "lookback_days": 1}
    assert listed(tmp_path, 10 * DAY_MS, **window) == ["date=1970-01-10/a.json"]
    assert listed(tmp_path, 9 * DAY_MS, **window) == ["date=1970-01-09/a.json", "date=1970-01-10/a.json"]


def test_each_file_is_read_once_when_the_listing_window_narrows_and_widens(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(4)
    plain = fixture.pipeline()
    narrow = fixture.pipeline(source=source(tmp_path / "in", start_after="00001.json"))
    assert fixture.run("a", drain=True, pipeline=narrow).counts["read"] == 6
    assert fixture.run("b", drain=True, pipeline=plain).counts["read"] == 6
    fixture.arrive(1)
    for run, pipeline in (("c", narrow), ("d", plain), ("e", narrow), ("f", plain)):
        fixture.run(run, drain=True, pipeline=pipeline)
    fixture.check()


def test_poll_of_a_moving_window_does_not_read_all_earlier_discoveries(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=1)
    costs = []
    for n in range(20):
        fixture.arrive(50)
        store = CountingStore(fixture.store)
        window = fixture.pipeline(
            source=source(tmp_path / "in", start_after=f"{max(0, 50 * n - 300):05d}.json"), limits=Limits()
        )
        fixture.run(f"r{n}", drain=True, pipeline=window, store=store)
        costs.append(sum(key.split("/")[0] in ("discovered", "files", "known") for _, key in store.keys))
    assert sum(costs[-6:]) <= 6 * 8


def test_discovered_file_outside_the_window_is_still_read_and_is_not_a_gap(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(4)
    fixture.run("a")
    narrow = fixture.pipeline(source=source(tmp_path / "in", start_after="00003.json"), on_data_loss="record_gap")
    assert fixture.run("b", drain=True, pipeline=narrow).counts["read"] == 6
    fixture.check()


@pytest.mark.parametrize(
    ("limits", "batches"),
    [
        ({"max_files": 2}, [2, 2, 1]),
        ({"max_bytes": 70}, [2, 2, 1]),
        ({"max_bytes": 1}, [1, 1, 1, 1, 1]),
        ({"max_bytes": 10_000}, [5]),
        ({"max_files": 4, "max_bytes": 70}, [2, 2, 1]),
        ({}, [5]),
    ],
)
def test_limits_bound_a_batch_and_never_block_a_pipeline(
    tmp_path: Path, limits: dict[str, int], batches: list[int]
) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(5)
    assert {path.stat().st_size for path in (tmp_path / "in").iterdir()} <= {30, 32, 33}
    fixture.run("a", drain=True, pipeline=fixture.pipeline(limits=Limits(**limits)))
    ends = [v.plan.ranges["files"] for v in fixture.opened().versions(newest_first=False)]
    assert [end - start for start, end in ends] == batches
    fixture.check()


def test_row_count_is_estimated_from_the_last_batch(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, rows_per_file=10)
    fixture.arrive(40)
    pipeline = fixture.pipeline(limits=Limits(max_rows=20))
    first, second = (fixture.run(run, pipeline=pipeline).counts["read"] for run in "ab")
    assert first > 20  # The first estimate assumes 100 bytes for each row. These rows have about 11.
    assert second <= 20
    fixture.run("c", drain=True, pipeline=pipeline)
    fixture.check()


def test_files_are_read_in_the_order_of_their_modification_times(tmp_path: Path) -> None:
    import os

    fixture = PipelineFixture(tmp_path)
    fixture.arrive(3)
    late = tmp_path / "in" / "00000.json"
    os.utime(late, ns=(1_800_000_000_000_000_000,) * 2)
    fixture.run("a", drain=True)
    plan = fixture.opened().log.plan(0)
    assert plan is not None
    assert [pin["path"] for pin in plan.pins] == ["00001.json", "00002.json"]
    fixture.check()


def test_overwritten_file_is_a_new_file(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    fixture.run("a")
    (tmp_path / "in" / "00000.json").write_text('{"id": 77}\n')
    assert fixture.run("b").counts["read"] == 1


def test_each_pin_is_checked_separately(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    files = source(tmp_path / "in")
    pins = [FilePin(f.path, f.bytes, f.identity) for f in files.listing(0)]
    files.check_pins(pins, was_read=False)
    with pytest.raises(SourceChangedError, match=r"00001\.json"):
        files.check_pins([pins[0], dataclasses.replace(pins[1], identity="mtime:1")], was_read=False)


def test_discovered_file_is_read_after_the_glob_was_narrowed(tmp_path: Path) -> None:
    """The file's ordinal is part of the offsets. An open plan may also have pinned it."""
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    (tmp_path / "in" / "00001.json").rename(tmp_path / "in" / "00001.txt")
    wide = fixture.pipeline(limits=Limits(max_files=1))
    fixture.run("a", pipeline=wide)
    narrow = wide.replace(source=dataclasses.replace(wide.source, glob="*.json"))  # type: ignore[type-var]
    (tmp_path / "in" / "00002.txt").write_text('{"id": 9}\n')
    assert fixture.run("b", drain=True, pipeline=narrow).counts["read"] == fixture.rows_per_file
    assert fixture.run("c", drain=True, pipeline=narrow).status == "empty"
    fixture.check()


def test_changed_limit_on_a_retry_does_not_change_the_planned_range(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(4)

    fixture.dies("a")
    assert fixture.run("a", pipeline=fixture.pipeline(limits=Limits(max_files=1))).ranges == {"files": (0, 2)}


def test_planned_files_are_checked_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FilesSource(path=str(tmp_path), format="text")
    pins = []
    for number in range(64):
        file = tmp_path / f"{number}.txt"
        file.write_text("x")
        pins.append(FilePin(file.name, 1, f"mtime:{file.stat().st_mtime_ns}"))
    together, stat = Barrier(8), FilesSource.stat
    monkeypatch.setattr(FilesSource, "stat", lambda self, path: (together.wait(30), stat(self, path))[1])
    source.check_pins(pins, was_read=True)
    (tmp_path / "40.txt").unlink()
    (tmp_path / "50.txt").write_text("changed")
    with pytest.raises(RecordsMissingError, match=r"is missing.*file='40.txt'"):
        source.check_pins(pins, was_read=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the local file system in this process. Files that a test writes get the real time."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    monkeypatch.setattr(local, "SYSTEM_CLOCK", clock)
    return clock


def test_file_is_discovered_when_it_has_not_changed_for_the_settle_time(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "a.json").write_text('{"id": 1}\n')
    assert listed(tmp_path, settle_s=0) == ["a.json"]
    assert listed(tmp_path, settle_s=60) == []
    clock.sleep(120)
    assert listed(tmp_path, settle_s=60) == ["a.json"]


def test_settle_time_needs_a_listing_window_that_includes_yesterday(tmp_path: Path) -> None:
    """A file that arrives before midnight settles after it."""
    window = {"start_after": "date=%Y-%m-%d", "settle_s": 300}
    with pytest.raises(InvalidError, match="lookback_days is too small"):
        source(tmp_path, **window)
    assert source(tmp_path, **window, lookback_days=1).settle_s == 300
    with pytest.raises(InvalidError, match="lookback_days is too small"):
        source(tmp_path, **{**window, "settle_s": 90_000}, lookback_days=1)


def test_copy_that_sets_an_old_modification_time_has_not_settled(tmp_path: Path, clock: ManualClock) -> None:
    """As `cp -p`, `rsync` and `mv` do."""
    (tmp_path / "a.json").write_text('{"id": 1}\n')
    os.utime(tmp_path / "a.json", (1, 1))
    assert listed(tmp_path, settle_s=60) == []
    clock.sleep(120)
    assert listed(tmp_path, settle_s=60) == ["a.json"]


def test_file_that_is_written_in_steps_is_read_once_when_it_is_complete(tmp_path: Path, clock: ManualClock) -> None:
    """Polls between the steps discover, plan and read nothing of it, and its records are read once."""
    fixture = PipelineFixture(tmp_path)
    settling = fixture.pipeline(source=source(tmp_path / "in", settle_s=60))
    fixture.arrive(1)
    clock.sleep(120)
    assert fixture.run("before", drain=True, pipeline=settling).counts["read"] == 3
    clock.sleep(-120)
    with (tmp_path / "in" / "00001.json").open("w") as file:
        for id in (3, 4, 5):
            file.write(f'{{"id": {id}}}\n')
            file.flush()
            assert fixture.run(f"step-{id}", drain=True, pipeline=settling).status == "empty"
    clock.sleep(120)
    assert fixture.run("after", drain=True, pipeline=settling).counts["read"] == 3
    fixture.made = 2
    fixture.check()


def test_known_file_that_is_hidden_while_it_settles_gets_no_second_ordinal(tmp_path: Path, clock: ManualClock) -> None:
    """A change of its permissions is a change of the file, but not of its identity."""
    fixture = PipelineFixture(tmp_path)
    settling = fixture.pipeline(source=source(tmp_path / "in", settle_s=60))
    fixture.arrive(600)
    clock.sleep(120)
    assert fixture.planner(settling).discover().offsets == {"files": 600}
    clock.sleep(-60)
    for name in ("00001.json", "00300.json"):
        (tmp_path / "in" / name).chmod(0o600)
    assert fixture.planner(settling).discover().offsets == {"files": 600}
    clock.sleep(120)
    assert fixture.planner(settling).discover().offsets == {"files": 600}


def test_file_on_s3_is_read_again_if_and_only_if_its_etag_or_size_differs(aws: None) -> None:
    client, log = boto3.client("s3"), CommitLog(MemoryStore(), ManualClock())
    client.create_bucket(Bucket="identity", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    planner = FilesPlanner(FilesSource(path="s3://identity/in", format="text"), log, None)
    ordinals = []
    for body in (b"one", b"one", b"two", b"two", b"three"):
        client.put_object(Bucket="identity", Key="in/a.txt", Body=body)
        ordinals.append(planner.discover().offsets["files"])
    assert ordinals == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("age_ns", [None, 59_999_999_999, 60_000_000_000])
def test_age_by_the_clock_of_the_store_counts_and_else_the_modification_time(age_ns: int | None) -> None:
    stat = ObjectStat(key="a", bytes=1, etag="x", mtime_ns=0, age_ns=age_ns)
    is_settled = source(Path("/in"), settle_s=60)._is_settled
    assert is_settled(stat, now_ms=59_999) == (age_ns == 60_000_000_000)
    assert is_settled(stat, now_ms=60_000) == (age_ns != 59_999_999_999)


def test_label_names_the_condition_that_files_do_not_change(tmp_path: Path) -> None:
    computed = guarantee(PipelineFixture(tmp_path).pipeline())
    assert computed.named == "exactly-once (unchanged files)"
    assert any("touched later is read again" in reason for reason in computed.reasons)
