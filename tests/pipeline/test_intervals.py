"""Pipelines with intervals: runs in any order, concurrent runs, repeated runs, rollbacks, and a fault at every request."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import (
    Dedup,
    DeltaSink,
    Gate,
    Limits,
    Partitions,
    State,
    alter,
    commit_held,
    fork,
    rollback,
)
from airflow_provider_streamsem.errors import (
    ConflictError,
    HeldByGateError,
    InvalidError,
    OpenVersionError,
    SourceChangedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.run.plan_interval import TimeInterval, parse_interval
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.interval_fixture import FIRST_MS, IntervalFixture
from tests.pipeline.compactions import compacted
from tests.pipeline_fixture import PreparedFixture

_NAMES = count()


@pytest.fixture
def fixture(tmp_path: Path) -> IntervalFixture:
    """Six files have arrived."""
    made = IntervalFixture(tmp_path, store=open_memory_store(f"intervals-{next(_NAMES)}"))
    made.arrive(6)
    return made


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_intervals_in_any_order_read_each_record_once(fixture: IntervalFixture, order: Sequence[int]) -> None:
    for at in order:
        result = fixture.read(2 * at, 2 * at + 2)
        assert result.ranges == {"files": (2 * at, 2 * at + 2)}
        assert fixture.visible() == fixture.ids(*(n for each in order[: order.index(at) + 1] for n in (2 * each, 2 * each + 1)))  # fmt: skip
    fixture.check()
    assert fixture.intervals == [(0, 6)]


def test_time_that_no_interval_covers_is_not_read(fixture: IntervalFixture) -> None:
    fixture.read(4, 6)
    fixture.read(0, 1)
    assert fixture.visible() == fixture.ids(0, 4, 5)
    assert fixture.intervals == [(0, 1), (4, 6)]
    fixture.read(1, 4)
    fixture.check()


def test_interval_without_records_is_read(fixture: IntervalFixture) -> None:
    assert fixture.read(10, 20).counts["read"] == 0
    assert fixture.read(10, 20, "b").counts.get("read", 0) == 0
    fixture.read(0, 10)
    fixture.check()
    assert fixture.intervals == [(0, 20)]


def test_late_record_is_in_the_next_interval_that_is_read(fixture: IntervalFixture) -> None:
    fixture.read(0, 6)
    fixture.arrive(1)
    late = fixture.root / "in" / "00006.json"
    os.utime(late, ns=(FIRST_MS * 1_000_000, FIRST_MS * 1_000_000))
    fixture.read(0, 6, "again")
    assert fixture.visible() == fixture.ids(*range(6))
    fixture.read(6, 10)
    fixture.check()


def test_same_request_returns_the_result_and_another_one_replaces_the_rows(fixture: IntervalFixture) -> None:
    first = fixture.read(0, 6, "a")
    assert fixture.read(0, 6, "a") == first
    second = fixture.read(0, 6, "b")
    assert (first.version, second.version, second.counts) == (0, 1, first.counts)
    assert second.interval == first.interval == ("2023-11-14T22:13:20+00:00", "2023-11-14T22:13:20.006+00:00")
    assert fixture.read(0, 6, "b") == second
    assert fixture.read(0, 6, "c", rerun="resume").version == 0
    fixture.check()
    assert [file.version for file in fixture.opened().view().files] == [1]


def test_repeated_interval_whose_records_are_lost_keeps_its_rows(fixture: IntervalFixture) -> None:
    spec = fixture.pipeline(on_data_loss="record_gap")
    fixture.read(0, 6, pipeline=spec)
    (fixture.root / "in" / "00003.json").unlink()
    with pytest.raises(SourceChangedError, match="changed or deleted"):
        fixture.read(0, 6, "b", pipeline=spec)
    assert fixture.visible() == fixture.ids(*range(6))
    fixture.read(6, 8, pipeline=spec)


def test_gap_of_an_interval_is_not_read_again(fixture: IntervalFixture) -> None:
    spec = fixture.pipeline(on_data_loss="record_gap")
    fixture.read(0, 2, pipeline=spec)
    (fixture.root / "in" / "00003.json").unlink()
    fixture.planner().poll(None)
    fixture.read(2, 6, pipeline=spec)
    fixture.read(2, 6, "b", pipeline=spec)
    assert fixture.visible() == fixture.ids(0, 1, 2, 4, 5)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 3), (3, 5), (0, 6), (2, 3)])
def test_interval_that_overlaps_another_one_is_refused(fixture: IntervalFixture, start: int, end: int) -> None:
    fixture.read(0, 4)
    with pytest.raises(InvalidError, match="the interval overlaps intervals that were read"):
        fixture.read(start, end)
    assert fixture.log().newest_head().closed == 0


def test_interval_that_is_not_over_is_refused(fixture: IntervalFixture) -> None:
    with pytest.raises(UnavailableError, match="the interval is not over yet"):
        fixture.read(0, 1_001)
    assert fixture.log().newest_head().closed == -1


def test_rolled_back_interval_is_read_again_by_the_same_request(fixture: IntervalFixture) -> None:
    for at in (0, 2, 4):
        fixture.read(at, at + 2)
    rollback(fixture.pipeline(), 0, log=fixture.log())
    assert (fixture.visible(), fixture.intervals) == (fixture.ids(0, 1), [(0, 2)])
    assert fixture.read(4, 6).version == 4
    with pytest.raises(InvalidError, match="overlaps"):
        fixture.read(2, 6)
    fixture.read(2, 4, "other")
    assert fixture.read(4, 6).version == 4
    fixture.check()
    assert fixture.intervals == [(0, 6)]


def test_interval_may_be_read_by_others_after_a_rollback(fixture: IntervalFixture) -> None:
    fixture.read(0, 2)
    fixture.read(2, 3)
    rollback(fixture.pipeline(), 0, log=fixture.log())
    fixture.read(2, 6)
    with pytest.raises(InvalidError, match="overlaps"):
        fixture.read(2, 3)
    fixture.check()


def test_batches_and_intervals_are_not_mixed(fixture: IntervalFixture) -> None:
    fixture.read(0, 2)
    with pytest.raises(ConflictError, match="immutable fields"):
        fixture.run("batch", pipeline=fixture.pipeline(intervals=False))
    with pytest.raises(InvalidError, match="this pipeline has no intervals"):
        fixture.read(2, 4, pipeline=fixture.pipeline(intervals=False))
    with pytest.raises(InvalidError, match="requires an interval"):
        fixture.run("batch")
    with pytest.raises(InvalidError, match="from its first version on"):
        alter(fixture.pipeline(intervals=False), log=fixture.log())
    with pytest.raises(InvalidError, match="cannot be forked"):
        fork(fixture.pipeline(name="copy", log=open_memory_store("copy").url), fixture.store.url)
    fixture.read(2, 6)
    fixture.check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": State(output_mode="append")}, "versions in the order"),
        ({"dedup": Dedup(keys=["id"], rows=10)}, "versions in the order"),
        ({"partitions": Partitions(by="at", after=0)}, "versions in the order"),
        ({"limits": Limits(max_files=1)}, "versions in the order"),
        ({"sinks": {"out": DeltaSink("/lake", mode="upsert", keys=["id"])}}, "versions in the order"),
    ],
)
def test_argument_that_depends_on_the_order_is_refused(
    fixture: IntervalFixture, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        fixture.pipeline(**arguments)


@pytest.mark.parametrize(
    "text", ["", "2026-01-01T00:00Z", "2026-01-01/2026-01-02", "b/a", "2026-01-02T00:00Z/2026-01-01T00:00Z"]
)
def test_malformed_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_interval(text)
    assert parse_interval("1970-01-01T00:00:01Z/1970-01-01T02:00+01:00") == TimeInterval(1_000, 3_600_000)


def test_held_interval_blocks_the_others_until_it_is_committed(fixture: IntervalFixture) -> None:
    spec = fixture.pipeline(gates=[Gate(max_rows=5, on_failure="hold")])
    with pytest.raises(HeldByGateError):
        fixture.read(2, 4, pipeline=spec)
    with pytest.raises(HeldByGateError):
        fixture.read(0, 2, pipeline=spec, patience_s=60)
    commit_held(spec, 0, log=fixture.log())
    assert fixture.read(2, 4, "cleared", pipeline=spec).version == 0, (
        "a clear does not replace what a user has committed"
    )
    fixture.read(0, 2)
    fixture.read(4, 6)
    fixture.check()


def test_run_waits_while_the_version_of_another_interval_is_open(fixture: IntervalFixture) -> None:
    def die(step: str) -> None:
        raise Crash

    with suppress(Crash):
        fixture.read(0, 2, engine=RowsEngine(die))
    engine = RowsEngine()
    with pytest.raises(UnavailableError, match="not over yet"):  # the clock of the wait has passed the patience
        fixture.read(2, 2_000_000, engine=engine, patience_s=600)
    fixture.read(2, 6, patience_s=600)
    fixture.check()


FAULTS = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_REPLY]


def _two_intervals(root: Path) -> IntervalFixture:
    made = IntervalFixture(root)
    made.arrive(6)
    made.read(0, 2)
    made.read(4, 6)
    return made


@pytest.mark.parametrize("request_", ["first", "repeated"])
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_at_any_request_loses_and_doubles_no_record(tmp_path: Path, fault: Fault, request_: str) -> None:
    at, is_done, start = 0, False, PreparedFixture(_two_intervals(tmp_path))
    span = (2, 4) if request_ == "first" else (0, 2)
    while not is_done:
        fixture = start.restore()
        assert isinstance(fixture, IntervalFixture)
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash, StreamsemError):
            fixture.read(*span, "r", store=store)
        is_done, at = not store.reached, at + 1
        if at % 2:
            fixture.read(6, 8, "other")
        before = fixture.read(*span, "r")
        assert fixture.read(*span, "r") == before
        fixture.read(2, 4, rerun="resume")
        fixture.check()
    assert at > 15


WRITERS: dict[str, Callable[[IntervalFixture], object]] = {
    "the same interval": lambda fixture: fixture.read(2, 4, "other"),
    "the next interval": lambda fixture: fixture.read(6, 8, "other"),
    "an overlapping interval": lambda fixture: fixture.read(3, 4, "other"),
    "repeated interval": lambda fixture: fixture.read(4, 6, "other"),
    "reprocessing run": lambda fixture: fixture.run("fix", reprocessed=0),
    "rollback": lambda fixture: rollback(fixture.pipeline(), 0, log=fixture.log()),
    "compaction": compacted,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_other_writer_at_any_request_loses_and_doubles_no_record(tmp_path: Path, writer: str) -> None:
    at, is_done, start = 0, False, PreparedFixture(_two_intervals(tmp_path))
    while not is_done:
        fixture = start.restore()
        assert isinstance(fixture, IntervalFixture)

        def act(fixture: IntervalFixture = fixture) -> None:
            with suppress(InvalidError, OpenVersionError):
                WRITERS[writer](fixture)

        store = FaultyStore(fixture.store, at, Fault.PAUSE_BEFORE, other_processes=act)
        with suppress(InvalidError):
            fixture.read(2, 4, "r", store=store)
        is_done, at = not store.reached, at + 1
        for start_, end in ((2, 4), (2, 3), (3, 4), (4, 6)):
            with suppress(InvalidError):
                fixture.read(start_, end, "last", rerun="resume")
        fixture.check()
    assert at > 15


@given(st.data())
def test_random_histories_read_each_record_of_the_intervals_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    fixture = IntervalFixture(tmp_path_factory.mktemp("intervals"), rows_per_file=1)
    fixture.arrive(8)
    kept: list[dict[tuple[int, int], int]] = []
    read: dict[tuple[int, int], int] = {}
    for step in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["read", "read", "read", "rollback", "arrive"]))
        if action == "read":
            start = data.draw(st.integers(0, 9))
            span = (start, data.draw(st.integers(start + 1, 10)))
            overlaps = any(span != known and known[0] < span[1] and span[0] < known[1] for known in read)
            try:
                fixture.read(*span, f"r{step}")
            except InvalidError:
                assert overlaps or span not in read
            else:
                assert not overlaps
                read = {**read, span: step}
        elif action == "rollback" and kept:
            to = data.draw(st.integers(0, len(kept) - 1))
            with suppress(InvalidError):  # a later version has replaced rows of an earlier one, or it was rolled back
                rollback(fixture.pipeline(), to, log=fixture.log())
                read = kept[to]
        elif action == "arrive" and fixture.made < 10:
            fixture.arrive(1)
        head = fixture.log().newest_head().closed
        kept += [read] * (head + 1 - len(kept))
        if head < 0:
            continue
        assert fixture.verdict().violations == []
        visible = fixture.visible()
        assert max(visible.values(), default=0) <= 1
        covered = {at for first, last in read for at in range(first, last)}
        assert fixture.intervals == _joined(covered)


def _joined(covered: set[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for at in sorted(covered):
        if spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], at + 1)
        else:
            spans.append((at, at + 1))
    return spans
