"""Tests of partitions by event time: their keys, bounds, completeness and late rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import Partitions
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.partitions import NULL, partitions
from airflow_provider_streamsem.protocol.entries import CompleteTime

HOUR_MS = 3_600_000
ZONES = ["UTC", "Europe/Zurich", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Cairo"]


def by(grain: str, timezone: str = "UTC") -> Partitions:
    return Partitions(by="at", grain=grain, after=0, timezone=timezone)


@st.composite
def settings_and_time(draw: st.DrawFn) -> tuple[Partitions, int]:
    grain = draw(st.sampled_from(["hour", "day", "month"]))
    zone = "UTC" if grain == "hour" else draw(st.sampled_from(ZONES))
    low, high = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1975, 2090))
    return by(grain, zone), draw(st.integers(low, high)) * 1000 + draw(st.integers(0, 999))


@given(settings_and_time())
def test_time_is_in_the_bounds_of_its_partition_and_partitions_are_adjacent(found: tuple[Partitions, int]) -> None:
    settings, at_ms = found
    key = settings.key(at_ms)
    start, end = settings.bounds(key)
    assert start <= at_ms < end
    assert (settings.key(start), settings.key(end - 1)) == (key, key)
    assert settings.bounds(settings.key(end))[0] == end
    assert settings.key(end) > key
    assert settings.bounds(settings.event_key(key)) == (start, end)


@given(settings_and_time(), st.integers(0, 400))
def test_completed_partitions_are_those_that_end_in_the_interval(found: tuple[Partitions, int], days: int) -> None:
    settings, at_ms = found
    until = at_ms + days * 24 * HOUR_MS // 10
    complete = CompleteTime(since_ms=at_ms, until_ms=until)
    keys = settings.completed(complete, before_ms=at_ms, written=())
    assert keys == sorted({*keys})
    assert all(at_ms < settings.bounds(key)[1] <= until for key in keys)
    assert all(settings.bounds(one)[1] == settings.bounds(other)[0] for one, other in pairwise(keys))
    if keys:
        assert settings.bounds(keys[0])[0] <= at_ms
        assert settings.bounds(settings.key(settings.bounds(keys[-1])[1]))[1] > until
    else:
        assert settings.bounds(settings.key(at_ms))[1] > until


def test_days_of_a_zone_have_23_24_or_25_hours() -> None:
    settings = by("day", "Europe/Zurich")
    hours = {key: (end - start) // HOUR_MS for key in ("2026-03-29", "2026-06-01", "2026-10-25") for start, end in [settings.bounds(key)]}  # fmt: skip
    assert hours == {"2026-03-29": 23, "2026-06-01": 24, "2026-10-25": 25}
    assert (
        settings.bounds("2026-06-01")[0]
        == int(datetime(2026, 6, 1, tzinfo=ZoneInfo("Europe/Zurich")).timestamp()) * 1000
    )


def test_wrong_event_time_completes_no_century_of_empty_hours() -> None:
    settings = by("hour")
    complete = CompleteTime(since_ms=0, until_ms=settings.bounds("2026-01-01T00")[0])
    keys = settings.completed(
        complete, before_ms=None, written=[NULL, "1970-01-01T00", "2025-12-31T23", "2026-01-01T00"]
    )
    assert keys == ["1970-01-01T00", "2025-12-31T23"]


@pytest.mark.parametrize("micros", [-(2**62), 2**62])
def test_time_that_python_does_not_have_is_in_no_partition(micros: int) -> None:
    assert by("day").key(micros // 1000) == NULL


def test_complete_time_begins_with_the_earliest_partition_that_is_not_late_and_never_decreases() -> None:
    settings = by("hour")
    assert settings.complete_time(None, [NULL], 5) is None
    first = settings.complete_time(None, [NULL, "2026-01-01T05", "2026-01-01T03"], None)
    start = settings.bounds("2026-01-01T03")[0]
    assert first == CompleteTime(since_ms=start)
    assert settings.late_rows(first, {"2026-01-01T00": 1}) == {}
    second = settings.complete_time(first, [], start + HOUR_MS)
    assert second == CompleteTime(since_ms=start, until_ms=start + HOUR_MS)
    assert settings.complete_time(second, ["2026-01-01T00"], start - 1) == second
    earlier = settings.complete_time(first, ["2026-01-01T00"], None)
    assert earlier == CompleteTime(since_ms=settings.bounds("2026-01-01T00")[0])


@pytest.mark.parametrize("grain", ["hour", "day", "month"])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_any_time_is_in_a_partition_with_an_end_or_in_none(grain: str, zone: str) -> None:
    settings = Partitions(by="at", grain=grain, after=0, timezone="UTC" if grain == "hour" else zone)
    for edge in (-62_135_596_800_000, 253_402_300_799_999):  # years 1 and 9999
        for delta in range(-40, 41):
            key = settings.key(edge + delta * 86_400_000)
            assert settings.late_rows(CompleteTime(since_ms=0, until_ms=0), {key: 1}).keys() <= {key}
            settings.complete_time(None, [key], 0)


def test_rows_of_complete_partitions_are_late() -> None:
    settings = by("hour")
    complete = CompleteTime(since_ms=0, until_ms=settings.bounds("2026-01-01T05")[1])
    written = {NULL: 1, "2026-01-01T05": 2, "2026-01-01T06": 3, "2025-01-01T00": 4}
    assert settings.late_rows(complete, written) == {"2026-01-01T05": 2, "2025-01-01T00": 4}
    assert settings.late_rows(None, written) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": ""}, "by"),
        ({"by": "at"}, "exactly one of complete and after"),
        ({"by": "at", "after": 0, "complete": "watermark"}, "exactly one of complete and after"),
        ({"by": "at", "complete": "soon"}, "complete"),
        ({"by": "at", "after": -1}, "after"),
        ({"by": "at", "after": 0, "grain": "week"}, "grain"),
        ({"by": "at", "after": 0, "timezone": "Europe/Bern"}, "not the name of a time zone"),
        ({"by": "at", "after": 0, "timezone": "../etc/passwd"}, "not the name of a time zone"),
        ({"by": "at", "after": 0, "timezone": "Europe/Zurich", "grain": "hour"}, "hours begin in UTC"),
        ({"grain": "hour"}, "lacks required arguments"),
        ({"by": "at", "after": 0, "every": 1}, "unknown names"),
        ("at", "must be Partitions"),
    ],
)
def test_partitions_that_are_not_valid_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        partitions("pipeline p:", arguments)


@pytest.mark.parametrize("key", ["2026-01-01T05:30:00", "2026-13", "yesterday", "2026-01-01T5", "2026-01"])
def test_text_that_is_no_start_of_a_partition_is_refused(key: str) -> None:
    with pytest.raises(InvalidError, match="not the start of a partition"):
        by("hour").bounds(key)


def test_after_accepts_a_timedelta() -> None:
    assert Partitions(by="at", after=timedelta(hours=2)).after == 7200
