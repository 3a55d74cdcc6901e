"""The replay source: the order and the times of the files, directories that change, crashes and concurrent runs, arguments that are not valid."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Limits, Pipeline, ReplaySource
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.source import Source, SourceEnd
from airflow_provider_streamsem.errors import ConflictError, InvalidError, SourceChangedError, UnavailableError
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.pipeline_fixture import PipelineFixture

START_MS = 1_700_000_000_000 - 3 * 60_000
"""Four files have arrived at the time of the fixture's clocks."""
ARRIVED = 4


def replay(fixture: PipelineFixture, **changes: Any) -> Pipeline:
    source = {"path": str(fixture.root / "in"), "format": "json", "schema": "id long", "start": "2023-11-14T22:10:20Z"}
    limits = changes.pop("limits", Limits(max_files=2))
    gaps = changes.pop("on_data_loss", "fail")
    return fixture.pipeline(source=ReplaySource(**source | changes), limits=limits, on_data_loss=gaps)


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    pipeline_fixture = PipelineFixture(tmp_path)
    pipeline_fixture.arrive(ARRIVED)
    return pipeline_fixture


def planned(fixture: PipelineFixture) -> list[str]:
    """Return the paths of all planned files, in the order in which they were planned."""
    return [pin["path"] for version in fixture.opened().versions(newest_first=False) for pin in version.plan.pins]


def test_files_are_read_in_the_order_of_their_paths(fixture: PipelineFixture) -> None:
    paths = sorted((fixture.root / "in").iterdir())
    for age, path in enumerate(paths):
        os.utime(path, ns=(-age * 10**9, -age * 10**9))
    fixture.run("a", drain=True, pipeline=replay(fixture))
    assert planned(fixture) == [path.name for path in paths]
    fixture.check()


def test_file_is_not_read_before_its_time(fixture: PipelineFixture) -> None:
    fixture.arrive(6)
    fixture.run("a", drain=True, pipeline=replay(fixture))
    assert len(planned(fixture)) == ARRIVED
    assert fixture.run("b", pipeline=replay(fixture)).status == "empty"
    fixture.run("c", drain=True, pipeline=replay(fixture, files_per_minute=2))
    assert len(planned(fixture)) == 7
    fixture.run("d", drain=True, pipeline=replay(fixture, start="2023-11-14T20:00:00Z"))
    fixture.check()


def test_later_start_pauses_a_replay_and_repeats_no_file(fixture: PipelineFixture) -> None:
    fixture.run("a", drain=True, pipeline=replay(fixture))
    later = replay(fixture, start="2023-11-14T22:12:20Z")
    assert fixture.run("b", pipeline=later).status == "empty"
    assert fixture.planner(later).lag({"files": ARRIVED}, None) == 0
    fixture.check()


def test_times_of_files_are_rounded_down_to_milliseconds() -> None:
    source = ReplaySource(path="/in", format="text", start="2023-11-14T22:10:20Z", files_per_minute=7)
    assert [source.arrived_at_ms(n) - START_MS for n in (0, 1, 7)] == [0, 8_571, 60_000]
    for file in range(50):
        assert (
            source.arrived_before(source.arrived_at_ms(file))
            <= file
            < source.arrived_before(source.arrived_at_ms(file) + 1)
        )


@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
@pytest.mark.parametrize("name", ["00000a.json", "00001.json", "00003.json", "9.json"])
def test_directory_that_changes_is_refused_by_name(fixture: PipelineFixture, name: str, on_data_loss: str) -> None:
    """The file is read already, or unread, or would be last."""
    pipeline = replay(fixture, on_data_loss=on_data_loss)
    fixture.run("a", pipeline=pipeline)
    file = fixture.root / "in" / name
    before = file.read_text() if file.exists() else None
    mtime_ns = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text('{"id": 99}\n')
    with pytest.raises(SourceChangedError, match=name) as raised:
        fixture.run("b", pipeline=pipeline)
    assert "files source" in raised.value.do
    assert fixture.opened().head == 0
    file.unlink()
    if before is not None:
        file.write_text(before)
        os.utime(file, ns=(mtime_ns, mtime_ns))
    fixture.run("b", drain=True, pipeline=pipeline)
    fixture.check()


def test_file_that_was_deleted_after_it_was_read_is_not_missed(fixture: PipelineFixture) -> None:
    fixture.run("a", pipeline=replay(fixture))
    (fixture.root / "in" / "00000.json").unlink()
    fixture.run("b", drain=True, pipeline=replay(fixture))
    fixture.check()


def test_directory_without_files_is_refused_and_a_missing_one_may_be_mounted_later(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    with pytest.raises(InvalidError, match="no files to replay"):
        fixture.run("a", pipeline=replay(fixture))
    with pytest.raises(UnavailableError):
        fixture.run("a", pipeline=replay(fixture, path=str(tmp_path / "absent")))
    fixture.arrive(ARRIVED)
    fixture.run("a", drain=True, pipeline=replay(fixture))
    fixture.check()


def test_other_pattern_of_names_is_refused_after_the_first_version(fixture: PipelineFixture) -> None:
    fixture.run("a", pipeline=replay(fixture))
    with pytest.raises(ConflictError, match="glob"):
        fixture.run("b", pipeline=replay(fixture, glob="*1.json"))


@pytest.mark.parametrize("after", [False, True], ids=["before the request", "after the request"])
def test_crash_at_every_request_then_a_retry_reads_every_file_once(tmp_path: Path, after: bool) -> None:
    fault = Fault.CRASH_AFTER if after else Fault.CRASH_BEFORE
    at = 0
    while True:
        fixture = PipelineFixture(tmp_path / str(at))
        fixture.arrive(ARRIVED)
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash):
            fixture.run("a", drain=True, pipeline=replay(fixture), store=store)
        if not store.reached:
            break
        fixture.run("a", drain=True, pipeline=replay(fixture))
        fixture.check()
        at += 1
    assert at > 15


def test_two_first_runs_interleaved_at_every_request_read_every_file_once(tmp_path: Path) -> None:
    at = 0
    while True:
        fixture = PipelineFixture(tmp_path / str(at))
        fixture.arrive(ARRIVED)
        pipeline = replay(fixture)
        store = FaultyStore(
            fixture.store, at, Fault.PAUSE_BEFORE, partial(fixture.run, "other", drain=True, pipeline=pipeline)
        )
        fixture.run("slow", drain=True, pipeline=pipeline, store=store)
        fixture.check()
        if not store.reached:
            break
        at += 1
    assert at > 15


def test_first_polls_with_different_listings_record_one_of_them_and_refuse_the_other(tmp_path: Path) -> None:
    """At every request of the first poll, another process polls the directory without one of its files."""
    refused = []
    while True:
        fixture = PipelineFixture(tmp_path / str(len(refused)))
        fixture.arrive(ARRIVED)
        source = replay(fixture).source
        first, hidden = fixture.root / "in" / "00000.json", fixture.root / "hidden"

        def poll(store: Store, source: Source = source) -> SourceEnd:
            log = CommitLog(store, ManualClock()).of_source(source.immutable_config())
            return source.open(log, None).poll(None)

        def other(first: Path = first, hidden: Path = hidden, store: Store = fixture.store) -> None:
            first.rename(hidden)
            poll(store)
            hidden.rename(first)

        store = FaultyStore(fixture.store, len(refused), Fault.PAUSE_BEFORE, other)
        try:
            assert poll(store).offsets == {"files": ARRIVED}
            refused.append(False)
        except SourceChangedError:
            with pytest.raises(SourceChangedError, match=r"00000\.json"):
                poll(fixture.store)
            refused.append(True)
        if not store.reached:
            break
    assert refused == [True, True, True, False]


def test_poll_of_a_recorded_directory_needs_no_further_discovery(fixture: PipelineFixture) -> None:
    fixture.run("a", pipeline=replay(fixture))
    store = CountingStore(fixture.store)
    fixture.run("b", pipeline=replay(fixture), store=store)
    methods = [method for method, key in store.keys if "/discovered/" in f"/{key}"]
    assert methods == ["read"]


def test_large_directory_is_recorded_once_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(600):
        (tmp_path / "in" / f"{number:04d}.txt").touch()
    source = ReplaySource(path=str(tmp_path / "in"), format="text", start="2023-11-14T22:10:20Z", files_per_minute=150)
    fixture = PipelineFixture(tmp_path)
    clock = ManualClock()
    log = CommitLog(fixture.store, clock).of_source(source.immutable_config())
    planner = source.open(log, None)
    end = planner.poll(None)
    assert end.offsets == {"files": 451}
    clock.sleep(3_600)
    batch = planner.slice({"files": 451}, planner.poll(None), Limits(max_files=2), None, on_data_loss="fail")
    assert batch is not None
    assert [pin.path for pin in batch.pins] == ["0451.txt", "0452.txt"]
    assert planner.lag({"files": 451}, None) == 149


@pytest.mark.parametrize(
    "given",
    [
        {"files_per_minute": 0},
        {"files_per_minute": 1.5},
        {"start": "2026-01-01"},
        {"start": 0},
        {"format": "avro"},
        {"schema": None},
        {"options": {"multiLine": "true"}},
        {"glob": "a/b"},
        {"path": "relative"},
        {"missing_columns": "ignore"},
        {"hive_partitions": "no"},
    ],
    ids=str,
)
def test_argument_that_is_not_valid_is_refused_by_name(given: dict[str, Any]) -> None:
    valid = {"path": "/in", "format": "json", "schema": "id long", "start": "2026-01-01T00:00:00Z"}
    ReplaySource(**valid)  # type: ignore[arg-type]
    name = next(iter(given))
    with pytest.raises(InvalidError, match="absolute path" if name == "path" else name):
        ReplaySource(**valid | given)


def test_time_without_quotes_in_toml_is_accepted() -> None:
    import tomllib

    source = '[source]\ntype = "replay"\npath = "/in"\nformat = "text"\nstart = 2026-01-01T00:00:00Z'
    pipeline = from_json(
        {**tomllib.loads(source), "name": "p", "log": "/log", "sinks": {"out": {"type": "files", "path": "/out"}}}
    )
    assert isinstance(pipeline.source, ReplaySource)
    assert pipeline.source.start == "2026-01-01T00:00:00+00:00"
    assert from_json(pipeline.without_transform()).spec_sha256 == pipeline.spec_sha256
