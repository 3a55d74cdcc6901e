"""The rate source: the conformance suite, and arguments that are not valid."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import RateSource
from airflow_provider_streamsem.connectors.rate.source import RatePin
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


class Rate(SourceSystem):
    """Three records arrive per second, so the clock determines the number of records."""

    source: RateSource
    column = "value"

    def __init__(self) -> None:
        self.source = RateSource(rows_per_second=3)
        self.clock = ManualClock(START_MS - 1)

    def add(self, ids: Iterable[int]) -> None:
        self.clock.sleep((self.source.arrived_at_ms(max(ids)) - self.clock.now_ms() + 1) / 1000)


class TestRateSource(SourceContract):
    @pytest.fixture
    def system(self) -> Rate:
        return Rate()


@pytest.mark.parametrize(
    "given",
    [
        {"rows_per_second": 0},
        {"rows_per_second": 10**9 + 1},
        {"keys": 0},
        {"keys": 2**63},
        {"seed": 2**63},
        {"rows": 0},
        {"seed": -1},
        {"start": "2026-01-01"},
        {"starting": "yesterday"},
    ],
    ids=str,
)
def test_argument_that_is_not_valid_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(given))):
        RateSource(**given)


def test_time_without_quotes_in_toml_is_accepted() -> None:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    source = RateSource(start=at, starting=at)  # type: ignore[arg-type]
    assert source.to_json() == RateSource(start=at.isoformat(), starting=at.isoformat()).to_json()
    assert source.initial_offsets() == {"rate": 0}


@pytest.mark.parametrize("pin", [{"start": 3, "end": 3}, {"start": -1, "end": 3}], ids=str)
def test_pin_without_records_is_refused(pin: dict[str, int]) -> None:
    with pytest.raises(LogDamagedError):
        RateSource().read_pins([pin])


def test_records_are_the_same_for_the_same_seed_and_differ_for_another(spark: Any) -> None:
    def rows(seed: int) -> list[Any]:
        source = RateSource(rows_per_second=7, keys=3, seed=seed)
        return source.load(spark, source.read_pins([{"start": 5, "end": 40}])).frame.collect()

    assert rows(1) == rows(1)
    assert [row["random"] for row in rows(1)] != [row["random"] for row in rows(2)]
    assert {row["key"] for row in rows(1)} == {0, 1, 2}
    assert all(0 <= row["random"] < 1 for row in rows(1))


def test_batch_of_few_records_has_no_empty_file(spark: Any, tmp_path: Path) -> None:
    source = RateSource(rows_per_second=3)
    for number, pins in enumerate(([RatePin(0, 4)], [RatePin(0, 2), RatePin(2, 4)])):
        loaded = source.load(spark, pins).frame
        assert [kind for _, kind in loaded.dtypes] == ["bigint", "timestamp", "bigint", "double"]
        loaded.write.json(str(tmp_path / str(number)))
        assert all(file.stat().st_size for file in (tmp_path / str(number)).glob("*.json"))


def test_timestamp_is_the_time_at_which_the_planner_counts_the_record(spark: Any) -> None:
    for source, first in ((RateSource(rows_per_second=7), 0), (RateSource(rows_per_second=10**9), 10**16)):
        frame = source.load(spark, [RatePin(first, first + 20)]).frame
        rows = frame.selectExpr("value", "unix_millis(timestamp) ms").collect()
        assert {row["value"]: row["ms"] for row in rows} == {
            n: source.arrived_at_ms(n) for n in range(first, first + 20)
        }


def test_number_of_rows_ends_the_source() -> None:
    source = RateSource(rows=5)
    assert source.arrived_before(START_MS + 3_000) == 3
    assert source.arrived_before(START_MS + 3_600_000) == 5


def test_start_at_a_time_is_the_first_record_that_arrived_then() -> None:
    assert RateSource(starting="2026-01-01T00:00:10Z").initial_offsets() == {"rate": 10}
    assert RateSource(rows=5, starting="latest").initial_offsets() == {"rate": 5}
