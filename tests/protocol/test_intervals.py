"""The offsets of intervals: random records, late ones among them, in partitions that are created while intervals are read in any order."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import invariants
from airflow_provider_streamsem.protocol.entries import ReadInterval
from airflow_provider_streamsem.protocol.kinds.batch import Batch
from airflow_provider_streamsem.protocol.kinds.interval import Interval, Limits, text_of
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback
from airflow_provider_streamsem.protocol.offsets import Ranges
from tests.protocol import samples

LATEST = 8


def interval(start: int, end: int, bounds: Ranges) -> Interval:
    """Return the payload of a version that reads an interval."""
    return Interval(start_ms=start, end_ms=end, bounds=bounds, request="r")


def offsets_at(partitions: dict[str, list[int]], at: int) -> dict[str, int]:
    """Return the first offset of each partition with a time at or after ``at``, or the end offset."""
    return {
        name: next((offset for offset, time in enumerate(times) if time >= at), len(times))
        for name, times in partitions.items()
    }


@given(st.data(), st.booleans())
def test_each_record_is_in_one_interval(data: st.DataObject, are_late: bool) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, LATEST), min_size=3)))
    spans = data.draw(st.permutations([*pairwise(edges)]))
    partitions: dict[str, list[int]] = {}
    read: tuple[ReadInterval, ...] = ()
    found: Counter[tuple[str, int]] = Counter()
    interval_of: dict[tuple[str, int], tuple[int, int]] = {}
    now = 0
    for start, end in spans:
        for now in range(now, max(now, end)):  # noqa: B020  records arrive until the interval is over
            for name in data.draw(st.lists(st.sampled_from("abc"), max_size=2)):
                time = data.draw(st.integers(0, now)) if are_late else now
                partitions.setdefault(name, []).append(time)
        now = max(now, end)
        limits = Limits.of(read, start, end)
        bounds = limits.bounds(offsets_at(partitions, start), offsets_at(partitions, end))
        assert all(limits.permits(name, *bound) for name, bound in bounds.items())
        for name, (first, last) in bounds.items():
            found.update((name, offset) for offset in range(first, last))
            interval_of |= {(name, offset): (start, end) for offset in range(first, last)}
        read = interval(start, end, bounds).intervals_after(read)
    assert [(each.start_ms, each.end_ms) for each in read] == [(edges[0], edges[-1])]
    bounds_of_all = dict(read[0].bounds)
    assert found == Counter(
        (name, offset) for name, (first, last) in bounds_of_all.items() for offset in range(first, last)
    )
    if not are_late:
        assert all(start <= partitions[name][offset] < end for (name, offset), (start, end) in interval_of.items())
        for name, times in partitions.items():
            expected = range(bisect_left(times, edges[0]), bisect_left(times, edges[-1]))
            assert {offset for found_name, offset in found if found_name == name} == {*expected}


BEFORE = samples.outcome(
    samples.plan(0, work=interval(10, 20, {"a": (5, 8)}), ranges={"a": (5, 8)}),
    intervals=(ReadInterval(start_ms=10, end_ms=20, bounds={"a": (5, 8)}),),
)


@pytest.mark.parametrize(
    ("work", "ranges"),
    [
        (interval(20, 20, {"a": (8, 9)}), {"a": (8, 9)}),
        (interval(15, 25, {"a": (8, 9)}), {"a": (8, 9)}),
        (interval(20, 30, {"a": (7, 9)}), {"a": (7, 9)}),
        (interval(20, 30, {"a": (9, 10)}), {"a": (9, 10)}),
        (interval(30, 40, {"a": (7, 9)}), {"a": (7, 9)}),
        (interval(0, 10, {"a": (0, 4)}), {"a": (0, 4)}),
        (interval(0, 5, {"a": (0, 6)}), {"a": (0, 6)}),
        (interval(20, 30, {"b": (0, 1)}), {"b": (0, 1)}),
        (interval(20, 30, {"a": (8, 8)}), {"a": (8, 8)}),
        (interval(20, 30, {"a": (8, 9)}), {}),
        (Batch(), {"a": (0, 1)}),
    ],
)
def test_I28_plan_that_reads_a_record_twice_or_leaves_one_out_is_refused(
    work: Interval | Batch, ranges: Ranges
) -> None:
    plan = samples.plan(1, work=work, ranges=ranges)
    with pytest.raises(LogDamagedError, match="I28"):
        work.check_plan(plan, before=BEFORE, next={})


def test_I28_outcome_with_other_intervals_than_its_versions_is_refused() -> None:
    after = BEFORE.intervals
    invariants.check_i28(BEFORE, None)
    invariants.check_i28(samples.outcome(samples.plan(1), result="abort", intervals=after), BEFORE)
    rollback = Rollback(to=0, next={}, counts={})
    invariants.check_i28(samples.outcome(samples.plan(1), work=rollback, sinks={}, counts={}), BEFORE)
    for outcome, before in (
        (BEFORE, BEFORE),
        (samples.outcome(samples.plan(1), result="abort"), BEFORE),
        (samples.outcome(samples.plan(1), intervals=after), None),
    ):
        with pytest.raises(LogDamagedError, match="I28"):
            invariants.check_i28(outcome, before)


@pytest.mark.parametrize(
    ("work", "ranges"),
    [
        (interval(20, 30, {"a": (8, 9), "b": (0, 1)}), {"a": (8, 9), "b": (0, 1)}),
        (interval(30, 40, {"a": (9, 9)}), {}),
        (interval(0, 10, {"a": (1, 5)}), {"a": (1, 5)}),
        (interval(0, 5, {"a": (1, 3)}), {"a": (1, 3)}),
    ],
)
def test_I28_plan_between_its_neighbors_is_valid(work: Interval, ranges: Ranges) -> None:
    work.check_plan(samples.plan(1, work=work, ranges=ranges), before=BEFORE, next={})


def test_time_that_has_no_text_is_shown_in_milliseconds() -> None:
    assert text_of(1_001) == "1970-01-01T00:00:01.001+00:00"
    assert text_of(10**18) == f"{10**18} ms"


def test_interval_of_a_plan_is_described() -> None:
    assert interval(0, 3_600_000, {}).describe() == "interval 1970-01-01T00:00:00+00:00/1970-01-01T01:00:00+00:00"
