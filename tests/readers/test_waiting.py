"""Due work is reported as the next run plans it, and inspections write nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem import FilesSource, Limits, run_batch
from airflow_provider_streamsem.connectors.files.source import FilesPlanner
from airflow_provider_streamsem.errors import ConflictError, InvalidError, SourceChangedError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.protocol.view import ClosedHead, OpenHead
from airflow_provider_streamsem.readers.conditions import (
    BatchCommitted,
    Condition,
    Freshness,
    OffsetsAvailable,
    Retention,
    of_text,
    to_text,
)
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.readers.waiting import waiting
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.pipeline_fixture import PipelineFixture

START_MS = 1_700_000_000_000  # the start of every manual clock, and about the mtime of the first files
_NAMES = count()


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    return PipelineFixture(tmp_path, store=open_memory_store(f"waiting-{next(_NAMES)}"))


def after(seconds: int) -> ManualClock:
    return ManualClock(START_MS + seconds * 1000)


def stored(fixture: PipelineFixture) -> list[object]:
    """All objects and files of the log, the dataset and the source."""
    in_log = [(stat.key, fixture.store.read(stat.key)) for stat in fixture.store.list("")]
    return [*in_log, *sorted((path, path.stat().st_mtime_ns) for path in fixture.root.rglob("*"))]


CONDITIONS: dict[str, Callable[[PipelineFixture], Condition]] = {
    "offsets": lambda fixture: OffsetsAvailable(pipeline=fixture.pipeline()),
    "version": lambda fixture: BatchCommitted(log=fixture.store.url, version=0),
    "run": lambda fixture: BatchCommitted(log=fixture.store.url, run_key="run"),
    "until": lambda fixture: BatchCommitted(log=fixture.store.url, offsets={"files": 2}),
    "fresh": lambda fixture: Freshness(pipeline=fixture.pipeline(), max_lag=0, max_age_s=1),
}


@pytest.mark.parametrize("state", ["no log", "an empty log", "committed", "an open version"])
@pytest.mark.parametrize("kind", CONDITIONS)
def test_inspection_writes_nothing(fixture: PipelineFixture, kind: str, state: str) -> None:
    if state != "no log":
        fixture.run()  # the run finds nothing and creates the log
    fixture.arrive(3)
    if state == "committed":
        fixture.run("second")
    if state == "an open version":
        fixture.dies("dead")
    fixture.arrive(2)
    before = stored(fixture)
    for _ in range(2):
        CONDITIONS[kind](fixture).check(clock=after(10))
    assert stored(fixture) == before


@pytest.mark.parametrize("kind", CONDITIONS)
def test_condition_is_unchanged_after_serialization(fixture: PipelineFixture, kind: str) -> None:
    condition = CONDITIONS[kind](fixture)
    assert to_text(of_text(to_text(condition))) == to_text(condition)
    fixture.arrive(1)
    assert of_text(to_text(condition)).check(clock=after(0)) == condition.check(clock=after(0))


def test_serialized_condition_has_no_transform(fixture: PipelineFixture) -> None:
    condition = OffsetsAvailable(pipeline=fixture.pipeline(transform=lambda rows: rows))
    restored = of_text(to_text(condition))
    assert isinstance(restored, OffsetsAvailable)
    assert restored.pipeline.transform is None
    assert restored.pipeline.source == condition.pipeline.source


@pytest.mark.parametrize("min_rows", [1, 4, 6, 7, 100])
@pytest.mark.parametrize("seconds", [0, 59, 60, 1000])
@pytest.mark.parametrize("files", [0, 1, 2, 5])
def test_due_ranges_are_those_that_a_run_plans(
    fixture: PipelineFixture, min_rows: int, seconds: int, files: int
) -> None:
    """Compare the dry run with a run at the same time and with the same limits."""
    spec = fixture.pipeline(limits=Limits(max_files=2, min_rows=min_rows, max_delay_s=60))
    fixture.arrive(1)
    fixture.run("first", pipeline=spec)
    fixture.arrive(files)
    work = waiting(spec, clock=after(seconds))
    log = fixture.log()
    log.clock.sleep(seconds)
    result = run_batch(spec, run_key="second", log=log, engine=RowsEngine())
    assert work.is_due == (result.status == "committed")
    if work.is_due:
        assert work.ranges == result.ranges
        assert (work.version, work.open_version, work.lag, work.unit) == (0, None, files, "files")


def test_pipeline_without_a_log_is_due_so_that_the_first_run_creates_it(fixture: PipelineFixture) -> None:
    work = waiting(fixture.pipeline(), clock=after(0))
    assert (work.is_due, work.is_new, work.version, work.ranges) == (True, True, -1, {})
    fixture.run()
    assert not waiting(fixture.pipeline(), clock=after(0)).is_due
    fixture.arrive(1)
    assert waiting(fixture.pipeline(), clock=after(0)).is_due


def test_planned_rows_of_another_run_are_due_only_after_it_made_no_progress(fixture: PipelineFixture) -> None:
    spec = fixture.pipeline(limits=Limits(max_files=2, min_rows=1, max_delay_s=60))
    fixture.arrive(2)
    fixture.dies("dead", pipeline=spec)
    work = waiting(spec, clock=after(59))
    assert (work.is_due, work.open_version, work.lag) == (False, 0, 2)
    work = waiting(spec, clock=after(60))
    assert (work.is_due, work.ranges) == (True, {"files": (0, 2)})
    fixture.arrive(1)
    work = waiting(spec, clock=after(59))
    assert (work.is_due, work.ranges) == (True, {"files": (2, 3)})


def test_open_version_of_a_dead_run_is_due_immediately_without_max_delay_s(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.dies("dead")
    assert waiting(fixture.pipeline(), clock=after(0)).ranges == {"files": (0, 2)}
    fixture.run("next")
    assert not waiting(fixture.pipeline(), clock=after(0)).is_due


@pytest.mark.parametrize("at", ["read", "staged"])
def test_offsets_below_the_target_of_a_running_drain_are_not_due(fixture: PipelineFixture, at: str) -> None:
    spec = fixture.pipeline(limits=Limits(max_files=2, min_rows=1, max_delay_s=60))
    fixture.arrive(6)
    fixture.dies("drain", drain=True, pipeline=spec, at=at, batch=2)
    assert not waiting(spec, clock=after(59)).is_due
    assert waiting(spec, clock=after(60)).ranges == {"files": (2, 6)}
    fixture.arrive(1)
    assert waiting(spec, clock=after(0)).ranges == {"files": (6, 7)}


def test_sensor_compares_the_source_with_the_hint_of_the_open_version(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome before an open version has older leader epochs of Kafka partitions than the plan of the version."""
    fixture.arrive(2)
    fixture.run("first")
    fixture.arrive(2)
    fixture.dies("second")
    head = fixture.log().find_head()
    assert isinstance(head, OpenHead)
    assert head.plan.hint != head.hint
    hints = []
    real = FilesPlanner.slice
    monkeypatch.setattr(
        FilesPlanner,
        "slice",
        lambda self, start, end, limits, hint, **arguments: (
            hints.append(hint) or real(self, start, end, limits, hint, **arguments)
        ),
    )
    waiting(fixture.pipeline(), clock=after(0))
    assert hints == [head.plan.hint]


def test_offsets_below_the_target_of_a_drain_are_not_due_between_its_batches(tmp_path: Path) -> None:
    observed_states = 0
    for at in range(30):
        fixture = PipelineFixture(tmp_path / str(at), store=open_memory_store(f"waiting-{next(_NAMES)}"))
        spec = fixture.pipeline(limits=Limits(max_files=2, min_rows=1, max_delay_s=60))
        fixture.arrive(4)
        with suppress(Crash):
            fixture.run("drain", drain=True, pipeline=spec, store=FaultyStore(fixture.store, at, Fault.CRASH_BEFORE))
        record = fixture.log().read_pipeline()
        head = None if record is None else fixture.log().find_head()
        if head is not None and head.closed == 0 and isinstance(head, ClosedHead):
            observed_states += 1
            work = waiting(spec, clock=after(0))
            assert (work.is_due, work.open_version, work.lag) == (False, None, 2)
    assert observed_states


def test_inspection_raises_the_error_that_a_run_would_raise(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.run("first")
    fixture.arrive(2)
    spec = fixture.pipeline()
    fixture.planner(spec).poll(None)
    (fixture.root / "in" / "00002.json").unlink()
    with pytest.raises(SourceChangedError):
        waiting(spec, clock=after(0))
    assert waiting(spec.replace(on_data_loss="record_gap"), clock=after(0)).is_due


def test_inspection_costs_few_requests_for_any_length_of_the_log(
    fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.readers import waiting as module

    costs = []
    for runs in (1, 30):
        for number in range(runs):
            fixture.arrive(1)
            fixture.run(f"{runs}-{number}")
        fixture.arrive(1)
        counting = CountingStore(fixture.store)
        monkeypatch.setattr(module, "open_store", lambda url, counting=counting: counting)
        assert waiting(fixture.pipeline(), clock=after(0)).is_due
        costs.append(counting.requests)
    assert costs[0] == costs[1]
    assert sum(costs[0].values()) <= 7
    assert costs[0]["create"] == 0


def test_version_counts_as_committed_once_its_outcome_exists(fixture: PipelineFixture) -> None:
    condition = BatchCommitted(log=fixture.store.url, version=0)
    assert condition.check().observed == {"log": fixture.store.url, "version": -1}
    fixture.arrive(1)
    fixture.dies("dead")
    assert not condition.check().met
    fixture.run("next")
    finding = condition.check()
    assert finding.met
    assert (finding.observed["version"], finding.observed["counts"]["read"]) == (0, 3)
    assert fixture.store.read(finding.observed["outcome"]) is not None


def test_waiting_for_an_aborted_version_fails(fixture: PipelineFixture) -> None:
    fixture.arrive(1)
    fixture.dies("dead")
    opened = fixture.opened()
    abort(opened.log, opened.record, 0, reason="a bad file")
    with pytest.raises(InvalidError, match="a bad file"):
        BatchCommitted(log=fixture.store.url, version=0).check()


def test_run_counts_as_committed_with_its_last_version_whatever_other_runs_do(fixture: PipelineFixture) -> None:
    fixture.arrive(5)
    own, other = (BatchCommitted(log=fixture.store.url, run_key=key) for key in ("own", "other"))
    fixture.dies("own", drain=True, batch=2)
    assert not own.check().met
    fixture.run("own", drain=True)
    assert (own.check().met, own.check().observed["version"]) == (True, 2)
    assert not other.check().met
    fixture.arrive(1)
    fixture.dies("other")
    assert (own.check().met, other.check().met) == (True, False)


def test_offsets_count_as_committed_if_all_records_below_them_are(fixture: PipelineFixture) -> None:
    fixture.arrive(3)
    fixture.run()
    for upto, met in ((2, True), (3, False)):
        finding = BatchCommitted(log=fixture.store.url, offsets={"files": upto}).check()
        assert (finding.met, finding.observed["next"]) == (met, {"files": 2})
    assert not BatchCommitted(log=fixture.store.url, offsets={"files": 1, "other": 1}).check().met


def test_kafka_partitions_may_be_named_without_the_topic_id() -> None:
    head = ClosedHead(initial_offsets={"a-0@X": 5, "a-1@X": 7})
    assert BatchCommitted._of_offsets(head, {"a-0": 5, "a-1@X": 7}).met
    assert not BatchCommitted._of_offsets(head, {"a-0": 6}).met
    assert not BatchCommitted._of_offsets(head, {"a": 1}).met
    recreated = ClosedHead(initial_offsets={"a-0@X": 1_000, "a-0@Y": 5})
    with pytest.raises(InvalidError, match="deleted and recreated") as caught:
        BatchCommitted._of_offsets(recreated, {"a-0": 10})
    assert caught.value.fields["accepted"] == ["a-0@X", "a-0@Y"]
    assert not BatchCommitted._of_offsets(recreated, {"a-0@Y": 10}).met


def test_freshness_depends_on_unread_items_and_not_on_the_last_commit(fixture: PipelineFixture) -> None:
    by_lag = Freshness(pipeline=fixture.pipeline(), max_lag=1)
    by_age = Freshness(pipeline=fixture.pipeline(), max_age_s=3600)
    assert not by_lag.check(clock=after(0)).met  # nothing has been committed yet
    fixture.arrive(2)  # their mtime is about START_MS
    fixture.run("first")
    for condition in (by_lag, by_age):
        assert condition.check(clock=after(10**6)).met
    fixture.arrive(1)
    assert by_lag.check(clock=after(10**6)).met
    finding = by_age.check(clock=after(10**6))
    assert (finding.met, finding.observed["lag"], finding.observed["too_old"]) == (False, 1, 1)
    assert by_age.check(clock=after(3600)).met
    assert not by_age.check(clock=after(3601)).met
    fixture.arrive(1)
    assert not by_lag.check(clock=after(0)).met
    fixture.run("second")
    assert Freshness(pipeline=fixture.pipeline(), max_lag=0, max_age_s=1).check(clock=after(10**6)).met


def test_freshness_until_a_time_waits_for_every_item_before_it_and_for_the_time_itself(
    fixture: PipelineFixture,
) -> None:
    fixture.arrive(2)  # their mtime is less than 10 ms after START_MS
    fixture.run("first")
    until = Freshness(pipeline=fixture.pipeline(), until_ms=START_MS + 1_000)
    assert not until.check(clock=after(0)).met
    assert until.check(clock=after(1)).met
    fixture.arrive(1)
    finding = until.check(clock=after(1))
    assert (finding.met, finding.observed["before_until"]) == (False, 1)
    assert Freshness(pipeline=fixture.pipeline(), until_ms=START_MS).check(clock=after(1)).met
    watermark = Freshness(pipeline=fixture.pipeline(), watermark_ms=1)
    assert not watermark.check(clock=after(1)).met  # the versions have no watermark


def test_minimum_clock_is_the_arrival_of_the_oldest_unread_item(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.run("first")
    assert lag(fixture.pipeline()).minimum_clock_ms is None
    fixture.arrive(2)
    measured = lag(fixture.pipeline())
    assert (measured.lag, measured.minimum_clock_ms, measured.watermark_ms) == (2, START_MS + 2, None)


def test_age_of_files_does_not_depend_on_their_discovery(fixture: PipelineFixture) -> None:
    fixture.arrive(2)
    fixture.run("first")
    fixture.arrive(2)
    planner = fixture.planner()
    assert planner.unread_before({"files": 0}, START_MS + 10) == 4
    planner.poll(None)
    assert planner.unread_before({"files": 0}, START_MS + 10) == 4
    assert planner.unread_before({"files": 2}, START_MS + 10) == 2
    assert planner.unread_before({"files": 2}, START_MS + 3) == 1


def test_retention_of_files_is_refused(fixture: PipelineFixture) -> None:
    with pytest.raises(InvalidError, match="no retention"):
        Retention(pipeline=fixture.pipeline(), within_s=60)


def test_reader_with_another_source_than_the_log_is_refused(fixture: PipelineFixture, tmp_path: Path) -> None:
    fixture.arrive(1)
    fixture.run("a")
    other = fixture.pipeline(source=FilesSource(path=str(tmp_path / "other"), format="json", schema="id long"))
    with pytest.raises(ConflictError, match="immutable fields differ"):
        waiting(other)
